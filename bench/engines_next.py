"""The newest servers of the package index against what asyncrl assumes of them.

For SGLang and vLLM: the newest version is looked up, its wheel is downloaded (not installed, and
nothing of it is run) and read. Printed is what is no longer there of

- the paths that our client calls,
- the fields and the option by which the experts of tokens are asked for,
- the names that our receiver imports, and the methods that vLLM asks of it,
- the fused modules of its models that `server_names.FUSED` does not know,

and the torch that it requires. The exit status is 1 where something is missing or unknown. A
version that passes is tried next in an environment of its own, and raised in
asyncrl/engines/servers/server_versions.py.

    python bench/engines_next.py [sglang] [vllm] [--wheel FILE]        (`make engines-next`)
"""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from asyncrl.engines.servers.server_process import RETURN_ROUTING
from asyncrl.engines.servers.server_versions import VERSIONS, misfit
from asyncrl.engines.sglang import sglang_client
from asyncrl.engines.vllm import vllm_client, vllm_launch
from asyncrl.weightsync.servers.server_names import FUSED

Parts = tuple[str, ...]
Sources = Mapping[str, str]
"""The Python files of a wheel, by their paths in it."""

TABLES = ("stacked_params_mapping", "orig_to_new_stacked", "packed_modules_mapping")
"""The names that tables of fused modules have: of rows (fused, part, place), of part: (fused,
place), and of fused: parts."""


class Server(NamedTuple):
    """A server's name in `VERSIONS`, our client of it, the folder of its models, and our module
    that it imports, if there is one."""

    kind: str
    client: Path
    models: str
    receiver: Path | None = None


SERVERS = {
    "sglang": Server("SGLang", Path(sglang_client.__file__), "sglang/srt/models/"),
    "vllm": Server(
        "vLLM",
        Path(vllm_client.__file__),
        "vllm/model_executor/models/",
        vllm_launch.WORKER / "asyncrl_receiver.py",
    ),
}

# ------------------------------------------------------------------------------- what is assumed


def paths_called(client: str) -> set[str]:
    """The paths in the source of a client, without their queries."""
    strings = {
        node.value
        for node in ast.walk(ast.parse(client))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    return {
        text.partition("?")[0] for text in strings if re.fullmatch(r"/[a-z0-9_/]{3,}(\?.*)?", text)
    }


def missing_paths(client: str, sources: Sources) -> Iterator[str]:
    """Paths that our client calls and no file of the wheel has."""
    known = "\n".join(sources.values())
    for path in sorted(paths_called(client)):
        if f'"{path}"' not in known and f"'{path}'" not in known:
            yield f"no endpoint {path}"


def missing_routing(client: str, sources: Sources) -> Iterator[str]:
    """Fields by which our client asks for the experts of tokens, and the start option for them,
    that no file of the wheel has."""
    known = "\n".join(sources.values())
    fields = set(re.findall(r'"(\w*routed_experts\w*)"', client))
    for name in sorted(fields | {RETURN_ROUTING.removeprefix("--").replace("-", "_")}):
        if re.search(rf"\b{name}\b", known) is None:
            yield f"no {name}, by which the experts of tokens are asked for"


def missing_names(receiver: str, sources: Sources) -> Iterator[str]:
    """Names that our receiver imports of the wheel and that it lacks, and abstract methods of its
    base class that the receiver has not."""
    tree = ast.parse(receiver)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("vllm."):
            for name in node.names:
                if not _has(sources, str(node.module), name.name):
                    yield f"no {node.module}.{name.name}, which our receiver imports"
    base = sources.get("vllm/distributed/weight_transfer/base.py", "")
    ours = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    for node in ast.walk(ast.parse(base)):
        if isinstance(node, ast.ClassDef) and node.name == "WeightTransferEngine":
            for method in _abstract(node):
                if method not in ours:
                    yield f"our receiver has no {method}, which {node.name} demands"


def _abstract(declared: ast.ClassDef) -> Iterator[str]:
    for node in declared.body:
        if isinstance(node, ast.FunctionDef) and any(
            "abstractmethod" in ast.unparse(each) for each in node.decorator_list
        ):
            yield node.name


def _has(sources: Sources, module: str, name: str) -> bool:
    folder = module.replace(".", "/")
    if f"{folder}/{name}.py" in sources or f"{folder}/{name}/__init__.py" in sources:
        return True
    source = sources.get(f"{folder}.py") or sources.get(f"{folder}/__init__.py") or ""
    return bool(
        re.search(rf"(?m)^\s*(class|def) {name}\b|\b{name}\b\s*[,:=)]|import.*\b{name}\b", source)
    )


# --------------------------------------------------------------------------------- fused modules


def fused_modules(source: str) -> Iterator[tuple[str, Parts]]:
    """The fused modules that the tables of a file name, of two parts or more, in order."""
    if not any(kind in source for kind in TABLES):
        return
    for kind, table in _tables(ast.parse(source)):
        for module, parts in _fused(kind, table):
            if len(parts) > 1:
                yield module, parts


def _tables(tree: ast.Module) -> Iterator[tuple[str, object]]:
    """The tables of a file that are written out: their kinds, and their values."""
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword):
            named, value = node.arg or "", node.value
        elif isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign)) and node.value:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            named, value = " ".join(map(ast.unparse, targets)), node.value
        else:
            continue
        if kind := next((kind for kind in TABLES if kind in named), None):
            if isinstance(value, ast.List):
                yield kind, [_constant(each) for each in value.elts]
            else:
                yield kind, _constant(value)


def _constant(node: ast.AST) -> object:
    try:
        return ast.literal_eval(node)  # type: ignore[arg-type]
    except ValueError:
        return None


def _fused(kind: str, table: object) -> Iterator[tuple[str, Parts]]:
    if kind == "packed_modules_mapping" and isinstance(table, dict):
        for module, parts in table.items():
            yield _last(module), tuple(_last(part) for part in parts)
    elif kind == "orig_to_new_stacked" and isinstance(table, dict):
        yield from _in_order((to[0], part, to[1]) for part, to in table.items())
    elif isinstance(table, list):
        yield from _in_order(row for row in table if isinstance(row, tuple) and len(row) == 3)


def _in_order(rows: Iterable[tuple[object, object, object]]) -> Iterator[tuple[str, Parts]]:
    """Fused modules and their parts, from rows (fused, part, place)."""
    fused: dict[str, list[str]] = {}
    for module, part, _ in sorted(rows, key=lambda row: _place(row[2])):
        parts = fused.setdefault(_last(module), [])
        parts.extend([_last(part)] * (_last(part) not in parts))
    for module, parts in fused.items():
        yield module, tuple(parts)


def _last(name: object) -> str:
    """The module that a part of a name ends in."""
    return str(name).strip(".").removesuffix(".weight").rpartition(".")[2]


def _place(at: object) -> int:
    first = at[0] if isinstance(at, tuple) else at
    return {"q": 0, "k": 1, "v": 2}[first] if isinstance(first, str) else int(str(first))


def unknown_modules(sources: Sources, models: str) -> Iterator[str]:
    """Fused modules that we do not know, each once."""
    found: dict[tuple[str, Parts], str] = {}
    for path, source in sources.items():
        if path.startswith(models):
            for module, parts in fused_modules(source):
                if parts not in FUSED.get(module, ()):
                    found.setdefault((module, parts), Path(path).name)
    for (module, parts), file in found.items():
        yield f"{file} makes {module} of {', '.join(parts)}"


# ------------------------------------------------------------------------------------- the wheel


def newest(package: str) -> str:
    """The newest version in the package index."""
    asked = [sys.executable, "-m", "pip", "index", "versions", package]
    said = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
    match = re.match(rf"{package} \(([^)]+)\)", said)
    if match is None:
        raise SystemExit(f"the package index knows no {package}: {said.strip()[:200]}")
    return match[1]


def downloaded(package: str, version: str, folder: Path) -> Path:
    asked = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "-d", str(folder)]
    platform = ["--only-binary", ":all:", "--python-version", "3.12", f"{package}=={version}"]
    subprocess.run([*asked, *platform], check=True)
    return next(folder.glob("*.whl"))


def read(wheel: Path) -> tuple[dict[str, str], str]:
    """The Python files of a wheel, and its metadata."""
    sources, metadata = dict[str, str](), ""
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if name.endswith(".py"):
                sources[name] = archive.read(name).decode(errors="replace")
            elif name.endswith(".dist-info/METADATA"):
                metadata = archive.read(name).decode(errors="replace")
    return sources, metadata


def findings(server: Server, sources: Sources) -> list[str]:
    """Changes of what is assumed, a line each."""
    client = server.client.read_text()
    found = [*missing_paths(client, sources), *missing_routing(client, sources)]
    if server.receiver is not None:
        found += missing_names(server.receiver.read_text(), sources)
    return [*found, *unknown_modules(sources, server.models)]


def report(package: str, wheel: Path | None) -> bool:
    """Print what the newest version changed; True where nothing did."""
    server = SERVERS[package]
    versions = VERSIONS[server.kind]
    with tempfile.TemporaryDirectory() as folder:
        version = newest(package) if wheel is None else wheel.name.split("-")[1]
        sources, metadata = read(wheel or downloaded(package, version, Path(folder)))
    torch = re.findall(r"(?m)^Requires-Dist: (torch\s*[=<>(].*)$", metadata)
    print(f"{server.kind} {version}: tried is {versions.tried}, read {versions.newest}")
    print(f"  requires {torch[0] if torch else 'no torch'}")
    if fault := misfit(server.kind, version):
        print(f"  is not taken: {fault}")
    found = findings(server, sources)
    for line in found:
        print(f"  {line}")
    if not found:
        print("  nothing that is assumed of it has changed")
    return not found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("servers", nargs="*", choices=[*SERVERS, []], metavar="SERVER")
    parser.add_argument("--wheel", type=Path, help="a wheel that is here already, of one server")
    args = parser.parse_args()
    fits = [report(name, args.wheel) for name in args.servers or SERVERS]
    sys.exit(not all(fits))
