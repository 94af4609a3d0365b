"""The environment in which a server will be started, before it is: the versions of its packages and
the classes of models that it serves. Nothing of the server is imported, which would take seconds
and memory; its package's metadata and sources are read by the Python that will start it.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from importlib import metadata
from typing import NamedTuple

import msgspec

from asyncrl.engines.servers import server_versions

LOOK_S = 30.0
"""Seconds that the Python of a server's environment has to answer; that of a container starts
first."""
NCCL = ("nvidia-nccl-cu12", "nvidia-nccl-cu13", "nvidia-nccl-cu14")

_LOOK = """
import importlib.metadata, importlib.util, json, pathlib, re, sys
def version(name):
    try: return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError: return ""
package, folder, pattern, inner, *names = sys.argv[1:]
versions = {name: version(name) for name in names}
spec = importlib.util.find_spec(package)
models = set()
for root in (spec and spec.submodule_search_locations) or ():
    for file in sorted(pathlib.Path(root).glob(folder)):
        for match in re.finditer(pattern, file.read_text(errors="replace"), re.M | re.S):
            models.update(re.findall(inner, re.sub("#.*", "", match[1])))
print(json.dumps({"versions": versions, "models": sorted(models)}))
"""


class ServerPackage(NamedTuple):
    """The package of a server: what a person calls it, the names it is installed by, and where its
    sources list the classes of models that it serves: in `files` (a glob inside the package
    `module`) what `pattern` encloses, and in that each `model`."""

    title: str
    names: tuple[str, ...]
    module: str
    files: str
    pattern: str
    model: str


class ServerEnvironment(msgspec.Struct, frozen=True):
    """Versions of packages, "" where one is not installed, and names of models' classes."""

    versions: dict[str, str]
    models: frozenset[str]

    def version(self, *names: str) -> str:
        """The version of the first of these packages that is installed; "" where none is."""
        return next((found for name in names if (found := self.versions.get(name))), "")


def look(python: Sequence[str], package: ServerPackage) -> ServerEnvironment | None:
    """The environment of the Python that the command `python` starts. None where that is no Python,
    or does not answer in time: the server's start says why."""
    _, names, *where = package
    arguments = [*where, "torch", *NCCL, *names]
    try:
        answer = subprocess.run(
            [*python, "-I", "-c", _LOOK, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=LOOK_S,
            check=True,
        )
        return msgspec.json.decode(answer.stdout, type=ServerEnvironment)
    except (OSError, subprocess.SubprocessError, msgspec.MsgspecError, UnicodeDecodeError):
        return None


def misfit(
    environment: ServerEnvironment, package: ServerPackage, architecture: str, *, nccl: str | None
) -> str | None:
    """The reason why a server of this environment cannot serve the run: the end of a sentence that
    began with the environment. None where no reason is known. `nccl` is the version on the
    trainer's side, None where weights do not travel by NCCL."""
    server = environment.version(*package.names)
    if not server:
        return f"has no {package.title}"
    if fault := server_versions.misfit(package.title, server):
        return f"has {package.title} {server}; {fault}"
    if environment.models and architecture not in environment.models:
        return (
            f"has {package.title} {server}, which serves no {architecture}: embedded engines serve "
            "every model that this transformers has, and docs/models.md lists what servers do"
        )
    theirs = environment.version(*NCCL)
    if nccl is not None and nccl != theirs:
        return (
            f"has NCCL {theirs or 'of no package'} (torch {environment.version('torch')}), and "
            f"this one {nccl or 'of no package'}: both sides of a group need the same, so install "
            "the same torch in both, or use the backend gloo"
        )
    return None


def nccl_here() -> str:
    """The version of NCCL beside this process's torch; "" where there is none."""
    for name in NCCL:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return ""
