"""The test of the test: each patch in `planted/` breaks the product in one small place, and one of
the first 200 seeds has to show it.

A patch opens with what it breaks, and with the seed that showed it when the patch was made. That
seed is tried first, with the functions that the patch changes replaced in a fork of a process that
has the product (`planted_server.py`), which makes finding all of them a matter of a minute. Where
that shows nothing, a copy of the whole product is broken, and all seeds are tried. The product as
it is holds the same 200 seeds (`test_seeds.py`). A bug of episodes is shown by an agents' run of a
seed (`test_agents_seeds.py`).
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
ONE_IN = 48
"""`make test` tries one patch of so many, from the sixth on, CI each."""

RUNS = {
    "": "simulate",
    "agents' ": "simulate_agents",
    "games' ": "simulate_games",
}
"""Functions that run a seed, by what a patch says before the word."""


@pytest.fixture(scope="module")
def product() -> Iterator[subprocess.Popen[str]]:
    """A process that has imported the product, and forks for each bug."""
    with subprocess.Popen(
        [sys.executable, ROOT / "tests/support/planted_server.py", str(LIMIT_S), *PACKAGES],
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
    found = re.search(
        r"^Found by (agents' |games' )?seed (\d+)\.$", patch.read_text(), re.MULTILINE
    )
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
    patch: Path, tmp_path: Path, product: subprocess.Popen[str]
) -> None:
    world, first = told(patch)
    part, whole, files = tmp_path / "part", tmp_path / "whole", changed(patch)
    for file in files:
        (part / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / file, part / file)
    apply(patch, part)
    request = {"files": files, "run": RUNS[world]}
    shown = shown_by(product, part, request | {"seeds": [first], "whole": False})
    if not shown.startswith("seed "):
        for package in PACKAGES:
            shutil.copytree(ROOT / package, whole / package, symlinks=True)
        apply(patch, whole)
        seeds = sorted(SEEDS, key=lambda seed: seed != first)
        shown = shown_by(product, whole, request | {"seeds": seeds, "whole": True})
    assert shown, f"{patch.name}: no seed showed it in {LIMIT_S} s, and not all were tried"
    assert shown.startswith("seed "), f"{patch.read_text()}{shown}"
    print(shown.splitlines()[0])  # pytest -rP shows it


def shown_by(product: subprocess.Popen[str], folder: Path, request: dict[str, object]) -> str:
    """Words of the product's process on the bug in the folder."""
    assert product.stdin is not None and product.stdout is not None
    print(json.dumps(request | {"folder": str(folder)}), file=product.stdin, flush=True)
    ready, _, _ = select.select([product.stdout], [], [], LIMIT_S + 30)
    assert ready and product.stdout.readline() == "\n", f"{folder}: its server hangs"
    return (folder / "shown").read_text()


def changed(patch: Path) -> list[str]:
    """The files of the product that a patch changes."""
    return re.findall(r"^\+\+\+ b/(\S+)", patch.read_text(), re.MULTILINE)


def test_bugs_are_planted_all_over_the_product() -> None:
    broken = {path for patch in PATCHES for path in changed(patch)}
    assert len(PATCHES) >= 14 and len(broken) >= 14, sorted(broken)
    assert {Path(path).parts[0] for path in broken} == set(PACKAGES)
    assert not any(path.startswith("asyncrl/simulation") for path in broken)


@pytest.mark.parametrize("page", ["docs/reliability.md", "CHANGELOG.md"])
def test_pages_say_how_many_bugs_are_planted(page: str) -> None:
    said = re.findall(r"\b(\d+)(?: planted)? bugs\b", (ROOT / page).read_text())
    assert said == [str(len(PATCHES))]
