"""The environment in which a server will be started, before it is: the versions of its packages and
the classes of models that it serves. Nothing of the server is imported, which would take seconds
and memory; its package's metadata and sources are read by the Python that will start it.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from importlib import metadata
from typing import NamedTuple

import msgspec

from asyncrl.engines.servers import server_versions
from asyncrl.engines.servers.other_model import SERVED_AS
from asyncrl.escape import escaped

LOOK_S = 30.0
"""Seconds that the Python of a server's environment has to answer; that of a container starts
first."""
NCCL = ("nvidia-nccl-cu12", "nvidia-nccl-cu13", "nvidia-nccl-cu14")

_LOOK = """
import importlib.metadata, importlib.util, json, pathlib, re, sys
def version(name):
    try: return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError: return ""
package, folder, pattern, inner, group, architecture, *names = sys.argv[1:]
versions = {name: version(name) for name in names}
spec = importlib.util.find_spec(package)
models = set()
for root in (spec and spec.submodule_search_locations) or ():
    for file in sorted(pathlib.Path(root).glob(folder)):
        for match in re.finditer(pattern, file.read_text(errors="replace"), re.M | re.S):
            models.update(re.findall(inner, re.sub("#.*", "", match[1])))
plugins = sorted({each.name for each in importlib.metadata.entry_points(group=group)
                  if each.value.split(".")[0] != package})
falls_back = False
if models and architecture not in models:
    wanted = re.compile(rb"^class " + re.escape(architecture.encode()) + rb"\\b", re.M)
    spec = importlib.util.find_spec("transformers")
    for root in (spec and spec.submodule_search_locations) or ():
        files = pathlib.Path(root).glob("models/*/modeling_*.py")
        falls_back = falls_back or any(wanted.search(file.read_bytes()) for file in files)
print(json.dumps({"versions": versions, "models": sorted(models), "plugins": plugins,
                  "falls_back": falls_back}))
"""


class ServerPackage(NamedTuple):
    """The package of a server: what a person calls it, the names it is installed by, and where its
    sources list the classes of models that it serves: in `files` (a glob inside the package
    `module`) what `pattern` encloses, and in that each `model`. Plug-ins are the entry points of
    `group`, and a package that the variable `external` of the environment names."""

    title: str
    names: tuple[str, ...]
    module: str
    files: str
    pattern: str
    model: str
    group: str
    external: str = ""


class ServerEnvironment(msgspec.Struct, frozen=True):
    """Versions of packages, "" where one is not installed; names of models' classes, and of
    plug-ins; and whether transformers has the model's class where the server has not."""

    versions: dict[str, str]
    models: frozenset[str]
    plugins: tuple[str, ...] = ()
    falls_back: bool = False

    def version(self, *names: str) -> str:
        """The version of the first of these packages that is installed; "" where none is."""
        return next((found for name in names if (found := self.versions.get(name))), "")


def look(
    python: Sequence[str], package: ServerPackage, architecture: str
) -> ServerEnvironment | None:
    """The environment of the Python that the command `python` starts, for a model of this class.
    None where that is no Python, or does not answer in time: the server's start says why."""
    where = package.module, package.files, package.pattern, package.model, package.group
    arguments = [*where, architecture, "torch", *NCCL, *package.names]
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
    if _is_unlisted(environment, architecture) and not doubt(environment, package, architecture):
        return (
            f"has {package.title} {server}, which serves no {architecture}, nor has its "
            "transformers one: embedded engines serve every model that this transformers has, and "
            "docs/models.md lists what servers do"
        )
    theirs = environment.version(*NCCL)
    if nccl is not None and nccl != theirs:
        return (
            f"has NCCL {theirs or 'of no package'} (torch {environment.version('torch')}), and "
            f"this one {nccl or 'of no package'}: both sides of a group need the same, so install "
            "the same torch in both, or use the backend gloo"
        )
    return None


def doubt(environment: ServerEnvironment, package: ServerPackage, architecture: str) -> str:
    """Words on what may serve a model that the server's own sources do not list. Empty if they list
    it, and if nothing may."""
    if not _is_unlisted(environment, architecture):
        return ""
    external = os.environ.get(package.external, "") if package.external else ""
    by = [f"the plug-in {escaped(name, 60)}" for name in environment.plugins[:3]]
    by += [f"{package.external}={escaped(external, 60)}"] if external else []
    by += ["its transformers backend"] if environment.falls_back else []
    if not by:
        return ""
    return (
        f"{package.title} {environment.version(*package.names)} has no {architecture} of its own: "
        f"{' or '.join(by)} may serve it, which the server's start and the first publication tell"
    )


def _is_unlisted(environment: ServerEnvironment, architecture: str) -> bool:
    """True if the server's sources list models, and not this one."""
    names = {architecture, SERVED_AS.get(architecture, architecture)}
    return bool(environment.models) and names.isdisjoint(environment.models)


def nccl_here() -> str:
    """The version of NCCL beside this process's torch; "" where there is none."""
    for name in NCCL:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return ""
