"""Mutants: of small changes of a room that are drawn by a seed, the share that its tests notice.

    make mutants                                             # the heart, 40 mutants
    make mutants MUTANTS='actors/coordinator --sample 100'   # tests/actors and the simulation judge

cosmic-ray changes a file of a clone of HEAD, one change at a time. Twenty seeds of the simulation
judge it first and then the room's own folder of tests, until one fails. Printed are the mutants
killed by file, those of them that the simulation killed by itself, and each survivor as a diff: it
gets a test, or is a change that nobody could see.

cosmic-ray in place of operators and a tester of our own: it is kept by others, and a session can be
stopped and taken up. What is lost by it: no dropped calls and no swapped arguments, and every test
of the folder is tried on a mutant, also one that does not reach it.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import shlex
import sqlite3
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
PYTHON = ROOT / ".venv" / "bin" / "python"
COSMIC_RAY = Path(sys.executable).with_name("cosmic-ray")
SEEDS = "0:20"
BY_SIMULATION = "a seed of the simulation noticed this mutant"
"""Said where the simulation fails, before any test has run."""
LIMIT_S = 600.0
"""Seconds after which a mutant that hangs counts as killed."""
NOISE = "core/(ReplaceBinaryOperator_BitOr|ReplaceBinaryOperator_Mod|.*_BitXor|.*Shift)"
"""Operators that change types in annotations and formats in texts, or what no one would write."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("room", nargs="?", default="asyncrl/experience", help="a folder or a file")
    parser.add_argument("--tests", help="what judges it; its folder of tests unless given")
    parser.add_argument("--sample", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    tests = args.tests or tests_of(args.room)
    with tempfile.TemporaryDirectory(prefix="mutants-") as directory:
        clone = Path(directory, "clone")
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
        (clone / "mutants.toml").write_text(settings(args.room, tests))
        ray(clone, "baseline", "mutants.toml")
        ray(clone, "init", "mutants.toml", "session.sqlite")
        draw(clone / "session.sqlite", args.sample, args.seed)
        ray(clone, "exec", "mutants.toml", "session.sqlite")
        print(table(ray(clone, "dump", "session.sqlite").splitlines()))


def tests_of(room: str) -> str:
    """The folder of tests that has the room's name. Ends the process where there is none.

    >>> tests_of("asyncrl/experience/ledger.py"), tests_of("actors/coordinator")
    ('tests/experience', 'tests/actors')
    """
    for part in Path(room).parts:
        if (ROOT / "tests" / part).is_dir():
            return f"tests/{part}"
    sys.exit(f"{room}: no folder of tests has its name; give --tests")


def settings(room: str, tests: str) -> str:
    """The configuration of cosmic-ray, in TOML."""
    simulation = f"{PYTHON} -m asyncrl.cli simulate --seeds {SEEDS}"
    pytest = f"{PYTHON} -m pytest -q -x -p no:cacheprovider -m 'not explore and not soak' {tests}"
    seen = f"{{ echo {BY_SIMULATION}; exit 1; }}"
    script = f"export PYTHONPATH=$PWD; {simulation} || {seen}; {pytest}"
    command = f"bash -c {shlex.quote(script)}"
    return (
        "[cosmic-ray]\n"
        f"module-path = {json.dumps(room)}\n"
        f"timeout = {LIMIT_S}\n"
        "excluded-modules = []\n"
        f"test-command = {json.dumps(command)}\n"
        '[cosmic-ray.distributor]\nname = "local"\n'
    )


def ray(clone: Path, *words: str) -> str:
    """Run cosmic-ray in the clone; returns what it prints. Ends the process where it fails."""
    done = subprocess.run([COSMIC_RAY, *words], cwd=clone, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(f"cosmic-ray {words[0]} failed:\n{done.stdout}")
    return done.stdout


def draw(session: Path, sample: int, seed: int) -> None:
    """Leave a sample of a session's mutants, drawn by the seed, without those of `NOISE`."""
    with sqlite3.connect(session) as database:
        specs = database.execute(
            "SELECT job_id, operator_name, module_path, start_pos_row, occurrence "
            "FROM mutation_specs ORDER BY module_path, start_pos_row, operator_name, occurrence"
        ).fetchall()
        known = [job for job, operator, *_ in specs if not re.match(NOISE, operator)]
        kept = set(random.Random(seed).sample(known, min(sample, len(known))))
        gone = [(job,) for job, *_ in specs if job not in kept]
        for name in ("mutation_specs", "work_items"):
            database.executemany(f"DELETE FROM {name} WHERE job_id = ?", gone)
    print(f"{len(kept)} mutants of {len(known)}", flush=True)


def table(lines: Sequence[str]) -> str:
    """Killed mutants by file, and the diff of each survivor, from cosmic-ray's dump.

    >>> one = {"mutations": [{"module_path": "a.py"}]}
    >>> dump = [[one, {"test_outcome": "killed", "output": BY_SIMULATION}]]
    >>> dump += [[one, {"test_outcome": "killed", "output": "1 failed"}]]
    >>> dump += [[one, {"test_outcome": "survived", "diff": "-1 +2"}]]
    >>> print(table([json.dumps(pair) for pair in dump]))
    a.py  2 of 3, 1 by the simulation
    all   2 of 3, 1 by the simulation
    <BLANKLINE>
    -1 +2
    """
    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    survivors = []
    for item, result in map(json.loads, lines):
        killed = result is not None and result["test_outcome"] != "survived"
        if not killed:
            survivors.append("not tried" if result is None else str(result["diff"]))
        for name in (item["mutations"][0]["module_path"], "all"):
            counts[name][0] += killed
            counts[name][1] += 1
            counts[name][2] += killed and BY_SIMULATION in (result.get("output") or "")
    width = max(map(len, counts), default=0)
    files = sorted(name for name in counts if name != "all")
    rows = [
        "{:{}}  {} of {}, {} by the simulation".format(name, width, *counts[name])
        for name in (*files, "all")
    ]
    return "\n\n".join(["\n".join(rows), *survivors])


if __name__ == "__main__":
    main()
