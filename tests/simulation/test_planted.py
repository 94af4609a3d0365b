"""The test of the test: each patch in `planted/` breaks the product in one small place, and one of
the first 200 seeds has to show it.

A patch opens with what it breaks, and with the seed that showed it when the patch was made. That
seed is tried first, which makes finding all of them a matter of a minute; where it shows nothing
any more, all the others are tried. The product as it is holds the same 200 seeds (`test_seeds.py`).
A bug of episodes is shown by an agents' run of a seed (`test_agents_seeds.py`).
"""

from __future__ import annotations

import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("actors", "asyncrl", "staleness", "weightsync")
PATCHES = sorted(Path(__file__).with_name("planted").glob("*.patch"))
SEEDS = range(200)
LIMIT_S = 240
"""Seconds that the seeds of a bug may take: less than a test may."""
ONE_IN = 24
"""`make test` tries one patch of so many, from the sixth on, CI each."""

SERVER = """
import importlib, json, os, signal, sys
import asyncrl.simulation.run  # for the libraries, which each bug then has: the product it has not
for name in [name for name in sys.modules if name.partition(".")[0] in sys.argv[2:]]:
    del sys.modules[name]

def show(folder, module, run, seeds):
    sys.path.insert(0, folder)
    found = importlib.import_module(module)
    assert found.__file__.startswith(folder), found
    for seed in seeds:
        if (violation := getattr(found, run)(seed).violation) is not None:
            return f"seed {seed} violates {violation}"
    return f"no seed of {len(seeds)} shows it"

for line in sys.stdin:
    with open(os.path.join(json.loads(line)[0], "shown"), "w") as out:
        if not os.fork():
            signal.alarm(int(sys.argv[1]))  # a bug that hangs ends, and the next one is tried
            os.dup2(out.fileno(), 2)
            print(show(*json.loads(line)), file=out, flush=True)
            os._exit(0)
    os.wait()
    print(flush=True)
"""

RUNS = {
    "": ("asyncrl.simulation.run", "simulate"),
    "agents' ": ("asyncrl.simulation.run", "simulate_agents"),
}
"""Modules and functions that run a seed, by what a patch says before the word."""


@pytest.fixture(scope="module")
def libraries() -> Iterator[subprocess.Popen[str]]:
    """A process that has imported what the product needs, and forks for each bug."""
    with subprocess.Popen(
        [sys.executable, "-c", SERVER, str(LIMIT_S), *PACKAGES],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        start_new_session=True,
    ) as server:
        yield server
        os.killpg(server.pid, signal.SIGKILL)


def told(patch: Path) -> tuple[str, int]:
    """The world whose seed a patch names, and the seed."""
    found = re.search(r"^Found by (agents' )?seed (\d+)\.$", patch.read_text(), re.MULTILINE)
    assert found is not None and int(found[2]) in SEEDS, (
        f"{patch.name} does not say 'Found by seed N.', N being one of the first 200"
    )
    return found[1] or "", int(found[2])


def apply(patch: Path, to: Path, *options: str) -> None:
    """Break the copy of the product in `to`."""
    outside = os.environ | {
        "GIT_CEILING_DIRECTORIES": str(to.parent)
    }  # else git takes the copy for a part of what is around it
    argv = ["git", "apply", *options, str(patch)]
    applied = subprocess.run(argv, env=outside, cwd=to, capture_output=True, text=True)
    assert not applied.returncode, (
        f"the product has changed where {patch.name} breaks it; refresh this patch: "
        f"{applied.stderr}"
    )


def test_each_planted_bug_is_one_of_the_product_as_it_is(tmp_path: Path) -> None:
    for package in PACKAGES:
        shutil.copytree(ROOT / package, tmp_path / package, symlinks=True)
    for patch in PATCHES:
        apply(patch, tmp_path, "--check")


@pytest.mark.parametrize(
    "patch",
    [
        pytest.param(
            patch, id=patch.stem, marks=[pytest.mark.explore] if number % ONE_IN != 5 else []
        )
        for number, patch in enumerate(PATCHES)
    ],
)
def test_a_planted_bug_is_found_within_200_seeds(
    patch: Path, tmp_path: Path, libraries: subprocess.Popen[str]
) -> None:
    for package in PACKAGES:
        shutil.copytree(ROOT / package, tmp_path / package, symlinks=True)
    apply(patch, tmp_path)
    world, first = told(patch)
    seeds = sorted(SEEDS, key=lambda seed: seed != first)
    assert libraries.stdin is not None and libraries.stdout is not None
    print(json.dumps([str(tmp_path), *RUNS[world], seeds]), file=libraries.stdin, flush=True)
    ready, _, _ = select.select([libraries.stdout], [], [], LIMIT_S + 30)
    assert ready and libraries.stdout.readline() == "\n", f"{patch.name}: its server hangs"
    shown = (tmp_path / "shown").read_text()
    assert shown, f"{patch.name}: no seed showed it in {LIMIT_S} s, and not all were tried"
    assert shown.startswith("seed "), f"{patch.read_text()}{shown}"
    print(shown.splitlines()[0])  # pytest -rP shows it


def test_bugs_are_planted_all_over_the_product() -> None:
    broken = {
        path
        for patch in PATCHES
        for path in re.findall(r"^\+\+\+ b/(\S+)", patch.read_text(), re.MULTILINE)
    }
    assert len(PATCHES) >= 14 and len(broken) >= 14, sorted(broken)
    assert {Path(path).parts[0] for path in broken} == set(PACKAGES)
    assert not any(path.startswith("asyncrl/simulation") for path in broken)


@pytest.mark.parametrize("page", ["docs/reliability.md", "CHANGELOG.md"])
def test_pages_say_how_many_bugs_are_planted(page: str) -> None:
    said = re.findall(r"\b(\d+)(?: planted)? bugs\b", (ROOT / page).read_text())
    assert said == [str(len(PATCHES))]
