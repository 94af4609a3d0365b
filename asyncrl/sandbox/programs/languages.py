"""Languages in which a program may be written: one row says all that a language needs.

A language whose tools are not on this machine is refused by name, before a run begins.
"""

from __future__ import annotations

import os
import shutil
from functools import cache
from glob import glob
from pathlib import Path

import msgspec

from asyncrl.sandbox.programs.program import PATH, WORK, Program, ProgramError, Ran
from asyncrl.sandbox.programs.runner import Sandbox, run

BUILD_BYTES = 2**26
"""Bytes of the largest built program."""
BUILT = "built"
"""Name of a built program."""
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib64")


class Language(msgspec.Struct, frozen=True, kw_only=True):
    """A language.

    `tools`: commands that it needs. `file`: the name of the source in WORK. `build`: the command
    that makes BUILT of it there; empty if it is run as it is. `run`: the command of the program.
    `paths`: patterns of further paths that it must see. `proc`: it needs `/proc`. `build_bytes` of
    WORK are what building takes, and `open_files` what its interpreter insists on. `hello`: a
    program that prints `hello`.
    """

    tools: tuple[str, ...]
    file: str
    build: tuple[str, ...] = ()
    run: tuple[str, ...]
    paths: tuple[str, ...] = ()
    proc: bool = False
    build_bytes: int = 2**26
    open_files: int = 0
    hello: str


_JVM = (
    *("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData", "-Xmx384m"),
    *("-XX:CompressedClassSpaceSize=64m", "-XX:ReservedCodeCacheSize=64m"),
)
"""Else it takes more address space than a program may have."""
LANGUAGES = {
    "bash": Language(
        tools=("bash",), file="main.sh", run=("bash", "main.sh"), proc=True, hello="echo hello"
    ),
    "c": Language(
        tools=("gcc",),
        file="main.c",
        build=("gcc", "-O2", "-o", BUILT, "main.c", "-lm"),
        run=(f"./{BUILT}",),
        hello='#include <stdio.h>\nint main(void) { puts("hello"); }',
    ),
    "cpp": Language(
        tools=("g++",),
        file="main.cpp",
        build=("g++", "-O2", "-o", BUILT, "main.cpp"),
        run=(f"./{BUILT}",),
        hello='#include <iostream>\nint main() { std::cout << "hello\\n"; }',
    ),
    "fortran": Language(
        tools=("gfortran",),
        file="main.f90",
        build=("gfortran", "-O2", "-o", BUILT, "main.f90"),
        run=(f"./{BUILT}",),
        hello='print "(a)", "hello"\nend',
    ),
    "go": Language(
        tools=("go",),
        file="main.go",
        build=("env", f"GOCACHE={WORK}/cache", "go", "build", "-o", BUILT, "main.go"),
        run=(f"./{BUILT}",),
        proc=True,
        build_bytes=2**29,  # it builds its library too, each time
        hello='package main\nimport "fmt"\nfunc main() { fmt.Println("hello") }',
    ),
    "java": Language(
        tools=("java", "javac"),
        file="Main.java",
        run=("java", *_JVM, "Main.java"),
        paths=("/etc/java-*",),
        proc=True,
        hello='class Main { public static void main(String[] a) { System.out.println("hello"); } }',
    ),
    "javascript": Language(
        tools=("node",), file="main.js", run=("node", "main.js"), hello='console.log("hello")'
    ),
    "julia": Language(
        tools=("julia",),
        file="main.jl",
        run=("julia", "--startup-file=no", "--history-file=no", "-O1", "main.jl"),
        paths=("/etc/julia",),
        proc=True,
        hello='println("hello")',
    ),
    "lua": Language(
        tools=("lua",), file="main.lua", run=("lua", "main.lua"), hello='print("hello")'
    ),
    "ocaml": Language(
        tools=("ocamlopt",),
        file="main.ml",
        build=("ocamlopt", "-w", "-a", "-o", BUILT, "main.ml"),
        run=(f"./{BUILT}",),
        hello='print_endline "hello"',
    ),
    "perl": Language(
        tools=("perl",), file="main.pl", run=("perl", "main.pl"), hello='print "hello\\n";'
    ),
    "python": Language(
        tools=("python3",),
        file="main.py",
        run=("python3", "-I", "main.py"),
        hello='print("hello")',
    ),
    "r": Language(
        tools=("Rscript",),
        file="main.R",
        run=("Rscript", "--vanilla", "main.R"),
        paths=("/etc/R",),
        open_files=512,
        hello='cat("hello\\n")',
    ),
    "rust": Language(
        tools=("rustc",),
        file="main.rs",
        build=("rustc", "-O", "-o", BUILT, "main.rs"),
        run=(f"./{BUILT}",),
        proc=True,
        hello='fn main() { println!("hello"); }',
    ),
}
"""Languages by their name."""


def program_of(name: str, source: bytes, template: Program) -> Program:
    """The program of a source text, with input and bounds of `template`. If the language is
    built, `source` is the output of `build_of`."""
    language = LANGUAGES[name]
    file = BUILT if language.build else language.file
    return with_tools(language, language.run, {file: source}, template)


def build_of(name: str, source: bytes, template: Program) -> Program | None:
    """The program that builds a source text, and whose output is the built program; None if the
    language is run as it is."""
    language = LANGUAGES[name]
    if not language.build:
        return None
    script = f'"$@" >&2 && exec cat {BUILT}'
    argv = ("sh", "-c", script, "sh", *language.build)
    limits = msgspec.structs.replace(template.limits, scratch_bytes=language.build_bytes)
    building = msgspec.structs.replace(template, stdin=b"", output_bytes=BUILD_BYTES, limits=limits)
    return with_tools(language, argv, {language.file: source}, building)


def no_tool(name: str) -> str:
    """The reason for which this machine cannot run a language (its name, or a missing tool); "" if
    there is none."""
    if name not in LANGUAGES:
        return f"no language is called {name!r}; there are {', '.join(LANGUAGES)}"
    missing = [tool for tool in LANGUAGES[name].tools if _path_of(tool) is None]
    return f"{name} needs `{missing[0]}`, which this machine does not have" if missing else ""


def trial(name: str, sandbox: Sandbox) -> str:
    """Run a program of the language. Returns what is wrong with it; "" if nothing is."""
    if problem := no_tool(name):
        return problem
    try:
        ran = _hello(name, sandbox)
    except ProgramError as error:
        return f"{name} cannot be run: {error}"
    if ran.well and ran.stdout == b"hello\n":
        return ""
    problem = ran.stderr.decode(errors="replace").strip().rpartition("\n")[2]
    return (
        f"a program of {name} that prints hello does not ({problem or f'it ended with {ran.code}'})"
    )


def _hello(name: str, sandbox: Sandbox) -> Ran:
    """Build and run the language's program; the result of a failed build is returned as it is."""
    template = Program(argv=(), seconds=60.0)
    source = LANGUAGES[name].hello.encode()
    building = build_of(name, source, template)
    if building is not None:
        built = run(building, sandbox)
        if not built.well:
            return built
        source = built.stdout
    return run(program_of(name, source, template), sandbox)


def with_tools(
    language: Language, argv: tuple[str, ...], files: dict[str, bytes], template: Program
) -> Program:
    """The program with this command, with these files beside its own, and with what the language
    needs in view."""
    folders = {str(Path(path).parent) for tool in language.tools if (path := _path_of(tool))}
    outside = [path for path in sorted(folders) if not path.startswith(_SYSTEM)]
    paths = [path for pattern in language.paths for path in sorted(glob(pattern))]  # noqa: PTH207
    paths += [str(Path(folder).parent) for folder in outside]
    environment = {"PATH": os.pathsep.join([*outside, PATH])} if outside else {}
    open_files = max(template.limits.open_files, language.open_files)
    return msgspec.structs.replace(
        template,
        argv=argv,
        files={**template.files, **files},
        paths=(*template.paths, *paths),
        proc=template.proc or language.proc,
        limits=msgspec.structs.replace(template.limits, open_files=open_files),
        environment={**template.environment, **environment},
    )


@cache
def _path_of(tool: str) -> str | None:
    """The path of a command: the system's, or else that of this process, without links."""
    path = shutil.which(tool, path=PATH) or shutil.which(tool)
    return path and (path if path.startswith(_SYSTEM) else str(Path(path).resolve()))
