"""Inputs as strangers bring them: does the command say what is wrong in a sentence, or do what it
says, and leave nothing behind?

Each kind has makers that draw their inputs from the seed: files of prompts, model directories,
verifiers, settings, paths, directories of runs and journals of somebody else, stores, and strangers
at the ports of a run. Each maker says what the right answer is, by its own reading of the input and
not by the product's. An attempt is a fork of a process that has imported everything; of one in
`--real` the same is done by a command of its own, and `train` in the place of `check`.

    tracebacks     an exception left the command, or was printed; a process ended by a signal
    hangs          no end within a minute, or no answer of a server
    differences    accepted or refused wrongly, a refusal that is not one sentence with the name of
                   the thing, or a number or text that is not the one counted here
    processes      alive five seconds after the end
    files          made, changed or removed outside of the run's own directory

    python bench/strangers.py [--seed 1] [--kinds data,settings] [--each 3] [--fuzz 0] [--real 200]
                              [--only NAME] [--keep DIR]

`--each` is the number of inputs of a maker, `--fuzz` of inputs by chance beside them, settings and
data in turn; those end with 0 or 2, and begin nothing. Exit status 1 where anything was found.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from stranger_kit import data, models, paths, ports, run_directories, settings, stores, verifiers
from stranger_kit.attempt import (
    Case,
    Found,
    adopt,
    attempt,
    attempts,
    open_for_removal,
    prepare,
)

Maker = Callable[[random.Random, Path, Path], Case]
KINDS: dict[str, Mapping[str, Maker]] = {
    "data": data.MAKERS,
    "models": models.MAKERS,
    "verifiers": verifiers.MAKERS,
    "settings": settings.MAKERS,
    "paths": paths.MAKERS,
    "runs": run_directories.MAKERS,
    "stores": stores.MAKERS,
}
FUZZ: tuple[Maker, ...] = (
    settings.fuzzed,
    data.fuzzed,
    settings.fuzzed,
    data.fuzzed,
    settings.fuzzed_toml,
)
ALL = ",".join([*KINDS, "ports"])
STRANGERS = 40
"""Strangers at the ports of a run, for each input of a maker."""
TOGETHER = 50
"""Inputs by chance that one process tries."""
SHOWN = 700
"""Characters of a fault that are printed."""


class Input(NamedTuple):
    """One input: its kind, the maker's name, and a seed of its own."""

    kind: str
    name: str
    make: Maker
    seed: str


class Tally:
    """Counts by kind."""

    def __init__(self) -> None:
        self.inputs: Counter[str] = Counter()
        self.found: dict[str, Counter[str]] = {}

    def add(self, one: Input, found: Found, inputs: int = 1) -> None:
        """Count what was found about an input, and print it."""
        self.inputs[one.kind] += inputs
        counts = self.found.setdefault(one.kind, Counter())
        counts.update(name for name in Found._fields if getattr(found, name))
        if any(found):
            print(f"{one.kind}: {one.name} (seed {one.seed!r})")
        for what in Found._fields:
            for text in getattr(found, what):
                print(f"    {what}: {text[-SHOWN:]}", flush=True)

    def total(self) -> int:
        return sum(counts.total() for counts in self.found.values())

    def table(self) -> Iterator[str]:
        """The lines of the table."""
        yield f"{'kind':12}{'inputs':>8}" + "".join(f"{name:>13}" for name in Found._fields)
        rows = [(kind, count, self.found[kind]) for kind, count in self.inputs.items()]
        rows.append(("all", self.inputs.total(), sum(self.found.values(), Counter())))
        for kind, count, counts in rows:
            cells = "".join(f"{counts[name]:>13,}" for name in Found._fields)
            yield f"{kind:12}{count:>8,}{cells}"


def inputs(seed: int, kinds: list[str], each: int, only: str) -> Iterator[Input]:
    """All inputs of a seed, in turn."""
    for kind in kinds:
        for name, make in KINDS[kind].items():
            if only and only not in name:
                continue
            for number in range(each):
                yield Input(kind, name, make, f"{seed} {kind} {name} {number}")


def by_chance(seed: int, count: int) -> Iterator[list[Input]]:
    """Inputs by chance, as many at a time as one process tries."""
    for start in range(0, count, TOGETHER):
        listed = []
        for number in range(start, min(count, start + TOGETHER)):
            make = FUZZ[number % len(FUZZ)]
            kind = make.__module__.rpartition(".")[2]
            listed.append(Input("fuzz", kind, make, f"{seed} fuzz {number}"))
        yield listed


def tried(one: Input, folder: Path, model: Path, real: bool = False) -> Found:
    """Make an input in a fresh folder, and try it; the folder is removed."""
    folder.mkdir()
    with open_for_removal(folder):
        case = one.make(random.Random(one.seed), folder, model)
        found = attempt(case, folder)[1]
        if real and not any(found):
            found = really(case, folder)
    shutil.rmtree(folder)
    return found


def tried_together(listed: list[Input], folder: Path, model: Path) -> list[Found]:
    """The same for several, in one process."""
    folder.mkdir()
    folders = [folder / str(number) for number in range(len(listed))]
    for each in folders:
        each.mkdir()
    cases = [
        one.make(random.Random(one.seed), each, model)
        for one, each in zip(listed, folders, strict=True)
    ]
    found = attempts(cases, folders)
    shutil.rmtree(folder)
    return found


def really(case: Case, folder: Path) -> Found:
    """The same by a command that starts as a user's does; for a check that is refused, `train`,
    which must be refused by the same and begin nothing."""
    verb, *more = case.argv or ("",)
    if verb == "check" and case.right == {2}:
        verb = "train"
    argv = [word for word in (verb, *more) if word]
    modules = os.pathsep.join([str(folder / "modules"), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | case.environment | {"PYTHONPATH": modules}
    environment |= {"HOME": str(folder / "home"), "TMPDIR": str(folder / "tmp"), "COLUMNS": "250"}
    try:
        ran = subprocess.run(
            [sys.executable, "-m", "asyncrl", *argv],
            cwd=folder / "cwd",
            env=environment,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=4 * case.seconds,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Found([], [f"{argv}: no end"], [], [], [])
    text = ran.stdout + ran.stderr
    traced = [text[-1500:]] if "Traceback" in text or ran.returncode < 0 else []
    wrong = [] if ran.returncode in case.right or traced else [f"{ran.returncode}: {text[-400:]}"]
    begun = [str(path) for path in (folder / "cwd").glob("runs/*")]
    return Found(traced, [], wrong, [], begun)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kinds", default=ALL, help="commas between them; or none")
    parser.add_argument("--each", type=int, default=3)
    parser.add_argument("--fuzz", type=int, default=0)
    parser.add_argument("--real", type=int, default=200, help="one of so many; 0: none")
    parser.add_argument("--only", default="", help="makers with this in their name")
    parser.add_argument("--keep", type=Path, help="a folder for the model and run to begin with")
    given = parser.parse_args()
    kinds = [kind for kind in given.kinds.split(",") if kind in KINDS]
    of_ports = given.kinds == ALL or "ports" in given.kinds.split(",")
    tally, begun = Tally(), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="strangers-") as name:
        work = Path(name).resolve()
        base = given.keep.absolute() if given.keep else work / "base"
        base.mkdir(exist_ok=True)
        models.make_base(base / "model")
        if {*kinds} & {"runs", "stores"}:
            run_directories.make_base(base)
        if of_ports:
            for number, name in enumerate(("a machine's", "a run's")):
                (folder := work / f"ports-{number}").mkdir()
                draw = random.Random(f"{given.seed} ports {name}")
                count = STRANGERS * given.each
                found = ports.visited(draw, folder, count, cluster=not number)
                tally.add(Input("ports", name, data.fuzzed, str(given.seed)), found, count)
        prepare(light=not kinds)
        adopt()
        for number, one in enumerate(inputs(given.seed, kinds, given.each, given.only)):
            real = bool(given.real) and number % given.real == given.real - 1
            tally.add(one, tried(one, work / "case", base / "model", real))
        for listed in by_chance(given.seed, given.fuzz):
            for one, found in zip(
                listed, tried_together(listed, work / "cases", base / "model"), strict=True
            ):
                tally.add(one, found)
            if tally.inputs["fuzz"] % 1000 < TOGETHER:
                print(
                    f"{tally.inputs['fuzz']:,} by chance, {time.monotonic() - begun:.0f} s",
                    flush=True,
                )
    print("\n".join(tally.table()))
    print(f"seed {given.seed}, {time.monotonic() - begun:.0f} s; found: {tally.total()}")
    return int(tally.total() > 0)


if __name__ == "__main__":
    sys.exit(main())
