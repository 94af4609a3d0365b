"""Three people's starts, by the pages' commands: how many they are, and how many minutes they take,
from nothing to a run that ended well.

    bundled task   README: `make run`
    own JSONL      docs/start.md, step 3: prompts of one's own
    own agent      docs/examples: an agent that plays the episodes of one's own prompts

Each has a clone and an environment of its own; where a page has had `make run` before, the packages
alone are installed. They come from the index, or from pip's cache, where that has them; warmed-up
models are found nowhere. A command that fails ends the bench.

    python bench/first_success.py [--only NAME]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
STARTS: Mapping[str, Sequence[str]] = {
    "bundled task": ("make run",),
    "own JSONL": (
        "make .venv/.ready",
        "mkdir mine && cd mine",
        "../.venv/bin/asyncrl init ../docs/examples/own_data/prompts.jsonl",
        "../.venv/bin/asyncrl check run.toml",
        "../.venv/bin/asyncrl train run.toml --set train.steps=40",
    ),
    "own agent": (
        "make .venv/.ready",
        "cd docs/examples/own_agent",
        "PYTHONPATH=. ../../../.venv/bin/asyncrl check run.toml",
        "PYTHONPATH=. ../../../.venv/bin/asyncrl train run.toml",
    ),
}
"""The commands of each start after `git clone` and `cd`, each of which begins where the one before
ended."""


def start(commands: Sequence[str], place: Path) -> float:
    """Run the commands of one person in an empty folder, and print what each took. Returns the
    seconds of all. Raises CalledProcessError where one fails."""
    env = os.environ | {"HOME": str(place), "XDG_CACHE_HOME": str(place / "cache")}
    if (cache := Path("~/.cache/pip").expanduser()).exists():
        env["PIP_CACHE_DIR"] = str(cache)
    log, left = place / "said.log", place / "left"  # what it said, and where it ended
    folder, took = place, 0.0
    for command in (f"git clone --quiet {ROOT} asyncrl && cd asyncrl", *commands):
        began = time.monotonic()
        with log.open("w") as said:
            argv = ["bash", "-ec", f"{command}\npwd > {left}"]
            done = subprocess.run(argv, env=env, cwd=folder, stdout=said, stderr=said)
        seconds = time.monotonic() - began
        took += seconds
        print(f"  {seconds:>7.1f} s  {command}", flush=True)
        if done.returncode:
            print(log.read_text()[-4000:])
            raise subprocess.CalledProcessError(done.returncode, command)
        folder = Path(left.read_text().strip())
    return took


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="starts whose names contain this")
    args = parser.parse_args()
    rows = []
    for name, commands in STARTS.items():
        if args.only in name:
            print(name, flush=True)
            with tempfile.TemporaryDirectory(prefix="first-success-") as place:
                rows.append((name, len(commands) + 2, start(commands, Path(place)) / 60))
    print(f"\n{'':<14}{'commands':>9}{'minutes':>9}")
    for name, count, minutes in rows:
        print(f"{name:<14}{count:>9}{minutes:>9.1f}")


if __name__ == "__main__":
    main()
