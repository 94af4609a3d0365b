"""A foreign program, and its result. Pure.

Inside, a program is in WORK: its files are there, and it may write there and nowhere else.
"""

from __future__ import annotations

import resource
from collections.abc import Mapping, Sequence

import msgspec

from asyncrl.sandbox.limits import Limits

WORK = "/tmp"
"""The directory that a program is in."""
GATEWAY = "/gateway.sock"
"""The path of the gateway's socket, if a program has one."""
PATH = "/usr/local/bin:/usr/bin:/bin"
_ULIMITS = {
    resource.RLIMIT_AS: ("v", 1024),
    resource.RLIMIT_NOFILE: ("n", 1),
    resource.RLIMIT_FSIZE: ("f", 512),
    resource.RLIMIT_CPU: ("t", 1),
    resource.RLIMIT_CORE: ("c", 512),
    resource.RLIMIT_MEMLOCK: ("l", 1024),
}
"""Each limit's letter and unit, of the shell's `ulimit`."""
NO_LIMITS = 125
"""Exit code of a program that could not be limited."""


class ProgramError(Exception):
    """A program could not be run; the text says why. It is the sandbox's fault and never the
    program's, so nothing is known of the program."""


class Program(msgspec.Struct, frozen=True, kw_only=True):
    """A program to run.

    `argv`: the command; `stdin` its input; `files` by their name in WORK, each may be executed;
    `paths`: files and folders that are in view, read-only, beside the system's; `proc`: `/proc` is
    there, with its own processes; `gateway`: the path of a Unix socket that it may connect to, at
    GATEWAY, "" for none; `environment`: all of it but PATH, HOME, TMPDIR and LANG.

    `seconds` from its start to its end, by the clock; `output_bytes` that standard output and
    standard error may have each; `limits` of what it may use.
    """

    argv: tuple[str, ...]
    stdin: bytes = b""
    files: Mapping[str, bytes] = msgspec.field(default_factory=dict)
    paths: tuple[str, ...] = ()
    proc: bool = False
    gateway: str = ""
    environment: Mapping[str, str] = msgspec.field(default_factory=dict)
    seconds: float = 10.0
    output_bytes: int = 2**20
    limits: Limits = Limits()


class Ran(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a program, and its output.

    `code`: its exit code, 128 + the signal's number if one ended it; `timed_out`: it had not
    ended after its seconds, and was killed; `truncated`: its output was too long, of which this
    is the beginning, and it was killed.
    """

    stdout: bytes
    stderr: bytes
    code: int
    timed_out: bool
    truncated: bool
    seconds: float

    @property
    def well(self) -> bool:
        """True if it ended by itself, without an error."""
        return self.code == 0 and not self.timed_out and not self.truncated


def environment_of(program: Program, work: str) -> dict[str, str]:
    """All variables that a program has."""
    own = {"PATH": PATH, "HOME": work, "TMPDIR": work, "LANG": "C.UTF-8"}
    return {**own, **program.environment}


def limited(
    argv: Sequence[str], limits: Limits, *, most: Mapping[int, int], processes: bool
) -> list[str]:
    """The command that limits itself, runs `argv`, and ends with its exit code.

    It is a shell's, since limits must be set by the program's own user, inside of its own user
    namespace, which counts its `processes`; there it prints a line first, and reads one. `most` is
    this process's own limit of each kind.

    >>> import subprocess
    >>> limits = Limits(open_files=99)
    >>> command = limited(["sh", "-c", "ulimit -n"], limits, most={}, processes=False)
    >>> subprocess.run(command, capture_output=True).stdout
    b'99\\n'
    """
    values = {kind: min(value, most.get(kind, value)) for kind, value in limits.rlimits(0).items()}
    lines = [
        f"ulimit -{letter} {-(-values[kind] // unit)} || exit {NO_LIMITS}"
        for kind, (letter, unit) in _ULIMITS.items()
        if kind in values
    ]
    if processes:
        # if no line comes, its starter has died, and would not end it
        lines.insert(0, f"echo; read -r begin || exit {NO_LIMITS}")
        # the letter is u in one shell and p in another
        count = values[resource.RLIMIT_NPROC]
        lines.append(
            f"if (ulimit -u {count}) 2>/dev/null; then ulimit -u {count}; "
            f"else ulimit -p {count}; fi || exit {NO_LIMITS}"
        )
    script = "\n".join([*lines, '"$@"', "exit $?"])  # no exec: the shell is the first process
    return ["/bin/sh", "-c", script, "sh", *argv]


def hard_limits() -> dict[int, int]:
    """The hard limit of this process of each kind, if there is one."""
    limits = {kind: resource.getrlimit(kind)[1] for kind in (*_ULIMITS, resource.RLIMIT_NPROC)}
    return {kind: value for kind, value in limits.items() if value != resource.RLIM_INFINITY}
