"""The test of the test: each patch in `planted/` breaks the product in one small place, and one of
the first 200 seeds has to show it.

A patch opens with what it breaks, and with the seed that showed it when the patch was made. That
seed is tried first, which makes finding all of them a matter of a minute; where it shows nothing
any more, all the others are tried. The product as it is holds the same 200 seeds (`test_seeds.py`).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("actors", "asyncrl", "staleness", "weightsync")
PATCHES = sorted(Path(__file__).with_name("planted").glob("*.patch"))
SEEDS = range(200)
LIMIT_S = 280.0

PROGRAM = """
import sys
from asyncrl.simulation.run import simulate
for seed in map(int, sys.argv[1:]):
    if (violation := simulate(seed).violation) is not None:
        sys.exit(f"seed {seed} violates {violation}")
"""


def told(patch: Path) -> int:
    """The seed that a patch names."""
    found = re.search(r"^Found by seed (\d+)\.$", patch.read_text(), re.MULTILINE)
    assert found is not None and int(found[1]) in SEEDS, (
        f"{patch.name} does not say 'Found by seed N.', N being one of the first 200"
    )
    return int(found[1])


@pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: patch.stem)
def test_a_planted_bug_is_found_within_200_seeds(patch: Path, tmp_path: Path) -> None:
    for package in PACKAGES:
        shutil.copytree(ROOT / package, tmp_path / package)
    here = {"cwd": tmp_path, "capture_output": True, "text": True}
    outside = os.environ | {
        "GIT_CEILING_DIRECTORIES": str(tmp_path.parent)
    }  # else git takes the copy for a part of what is around it
    applied = subprocess.run(["git", "apply", str(patch)], env=outside, **here)
    assert not applied.returncode, (
        f"the product has changed where {patch.name} breaks it; refresh this patch: "
        f"{applied.stderr}"
    )
    seeds = sorted(SEEDS, key=lambda seed: seed != told(patch))
    paths = os.environ | {"PYTHONPATH": str(tmp_path)}
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM, *map(str, seeds)], env=paths, timeout=LIMIT_S, **here
    )
    assert run.returncode and run.stderr.startswith("seed "), (
        f"no seed of {len(seeds)} shows it: {patch.read_text()}{run.stderr}"
    )
    print(run.stderr.splitlines()[0])  # pytest -rP shows it


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
