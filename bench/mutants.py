"""A mutation score of the product: of small changes drawn by a seed, the share that the simulation
notices, and the share that the simulation or the tests notice.

    .venv/bin/python bench/mutants.py --seed 0 --sample 400            # hours: all of it
    .venv/bin/python bench/mutants.py --sample 60 --simulation-only    # minutes
    .venv/bin/python bench/mutants.py --files 'asyncrl/experience/*' --sample 50

Each mutant is one change in a copy of the checkout, which has a Python of its own. It meets the
seeds of the simulation (0 to 199) that reach it, and the tests that reach it, the quickest first,
until each has found it. Seeds and tests that do not reach a mutant are not run: without it or with
it they do the same. Which do is recorded first, once (`.cache/mutants/`). A mutant with which a
test or a seed takes ten times as long, and half a minute more, is found too.

Verdicts are kept at once: a run that was stopped goes on with the same command. `--again` tries
survivors once more, after tests were written. Survivors that change no behaviour are listed in
`bench/mutation/equivalent.toml`, each with the reason; they are not counted.

The operators are our own (`bench/mutation/operators.py`): mutmut runs pytest alone, in one process,
and leaves out what is decorated; cosmic-ray pays a start of torch for each mutant and test run, and
has neither dropped calls nor arguments swapped; mutatest is not kept any more.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, contextmanager
from fnmatch import fnmatch
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from mutation.operators import Mutant, alters, mutants
from mutation.records import SEEDS, Records, test_files
from mutation.report import Equivalents, Fate, Kept, Verdict, survivors, table
from mutation.trees import ROOT, Tree, digest, product

CACHE = ROOT / ".cache" / "mutants"
WORKER = Path(__file__).with_name("mutation") / "worker.py"
FIRST_S, GROWTH = 4.0, 4.0
"""Recorded seconds of the tests that are run first, and how much more each time."""
MARKED = "not explore and not soak"
"""Tests that count: those of `make test`."""
SHARE = 25
"""Seeds that are recorded at a time."""
RECORD_S = 1800.0
"""Seconds after which the record of a file of tests is cut short."""
ALONE = ["unshare", "--pid", "--mount-proc", "--fork", "--kill-child"]
"""A mutant that kills processes by a wrong number meets its own ones only."""
AS_USER = ["--map-current-user"]
One = TypeVar("One")
Came = TypeVar("Came")


class Worker:
    """A copy of the checkout, and the process that runs jobs in it."""

    def __init__(self, root: Path) -> None:
        self.tree = Tree(root)
        alone = ALONE + AS_USER * (os.geteuid() != 0)
        argv = [*alone, str(self.tree.python), str(WORKER), str(self.tree.root)]
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        self._process = subprocess.Popen(
            argv,
            env=environment | {"OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, **job: Any) -> dict[str, Any]:
        """Run a job. Raises RuntimeError where the worker is gone."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        if not (said := self._process.stdout.readline()):
            raise RuntimeError(f"a worker ended with exit code {self._process.wait()}")
        found: dict[str, Any] = json.loads(said)
        return found

    def close(self) -> None:
        """End the process, and all that it started."""
        self._process.kill()
        self._process.communicate()


@contextmanager
def workers(count: int) -> Iterator[list[Worker]]:
    """So many workers, for the block."""
    with ExitStack() as stack:
        made = []
        for _ in range(count):
            root = stack.enter_context(tempfile.TemporaryDirectory(prefix="mutants-"))
            made.append(worker := Worker(Path(root)))
            stack.callback(worker.close)
        yield made


def shared(
    made: list[Worker], all_: Sequence[One], do: Callable[[Worker, One], Came]
) -> Iterator[tuple[One, Came]]:
    """`do` each, every worker one at a time, in the order in which they are done."""
    free = queue.SimpleQueue[Worker]()
    for worker in made:
        free.put(worker)

    def one(item: One) -> tuple[One, Came]:
        worker = free.get()
        try:
            return item, do(worker, item)
        finally:
            free.put(worker)

    began = time.monotonic()
    with ThreadPoolExecutor(len(made)) as pool:
        waiting = {pool.submit(one, item) for item in all_}
        try:
            for count, future in enumerate(as_completed(waiting), 1):
                yield future.result()
                said = f"\r{count} of {len(all_)}, {time.monotonic() - began:,.0f} s "
                print(said, end="", file=sys.stderr, flush=True)
        finally:
            for future in waiting:
                future.cancel()
    print(file=sys.stderr)


# What reaches what


def record(records: Records, tests: list[str], simulation: bool, jobs: int) -> None:
    """Record these files of tests, and the simulation if asked to."""
    if not tests and not simulation:
        return
    print(f"recording {len(tests)} files of tests", file=sys.stderr)
    with workers(jobs) as made:
        marked = {worker: worker.tree.mark() for worker in made}

        def seeds(worker: Worker, share: range) -> list[dict[str, Any]]:
            wanted = {str(seed): 60.0 for seed in share}
            came = worker.ask(seeds=wanted, marks=str(marked[worker][1]))
            if came["at"] is not None:
                raise SystemExit(f"without a mutant {came['at']} fails: {came['why']}")
            return list(came["records"])

        def file(worker: Worker, path: str) -> list[dict[str, Any]]:
            marks = str(marked[worker][1])
            came = worker.ask(tests={path: 0.0}, marked=MARKED, marks=marks, limit_s=RECORD_S)
            if any(one["failed"] == "failed" for one in came["records"]):
                print(f"\n{path}: tests that fail without a mutant do not count", file=sys.stderr)
            return list(came["records"])

        names = marked[made[0]][0]
        if simulation:
            shares = [SEEDS[at : at + SHARE] for at in range(0, len(SEEDS), SHARE)]
            said = [one for _, came in shared(made, shares, seeds) for one in came]
            records.keep("simulation", names, said)
        for path, said in shared(made, tests, file):
            records.keep(path, names, said)


# Mutants


def drawn(patterns: list[str], seed: int, sample: int) -> list[Mutant]:
    """A sample of the mutants of the files that a pattern names. A larger sample of the same seed
    has a smaller one in it."""
    sources = {
        path: (ROOT / path).read_text()
        for path in product()
        if any(fnmatch(path, pattern) for pattern in patterns)
    }
    every = [mutant for path, source in sources.items() for mutant in mutants(path, source)]
    random.Random(f"mutants/{seed}").shuffle(every)
    print(f"{len(every):,} mutants of {len(sources)} files", file=sys.stderr)
    chosen = (mutant for mutant in every if alters(mutant, sources[mutant.path]))
    return list(islice(chosen, sample))


def judged(worker: Worker, mutant: Mutant, records: Records, tests_s: float) -> Verdict:
    """The verdict on a mutant; its tests have `tests_s` recorded seconds, and none if that is 0.

    Tests are not asked of what the simulation has found."""
    began = time.monotonic()
    seeds, tests = records.seeds(mutant), records.tests(mutant)
    left, by_tests, ran = 0, "", bool(tests_s)
    with worker.tree.mutated(mutant):
        by_seeds = worker.ask(seeds=seeds) if seeds else {"at": None}
        if by_seeds["at"] is None and tests_s:
            for share in growing(tests, tests_s):
                came = worker.ask(tests=share)
                left += len(share)
                if came["at"] is not None:
                    by_tests = came["at"]
                    break
            left = len(tests) - left
        else:
            ran = False
    return Verdict(
        mutant,
        fate(bool(seeds), by_seeds["at"]),
        by_seeds["at"] or "",
        fate(bool(tests), by_tests) if ran else "not run",
        by_tests,
        left,
        round(time.monotonic() - began, 1),
    )


def fate(reached: bool, by: str | None) -> Fate:
    """The fate of a mutant."""
    return "killed" if by else "survived" if reached else "unreached"


def growing(tests: Mapping[str, float], most_s: float) -> Iterator[dict[str, float]]:
    """Shares of the tests, each longer than the one before, of `most_s` recorded seconds in all.

    >>> list(growing({"a": 3.0, "b": 2.0, "c": 9.0, "d": 90.0}, 20.0))
    [{'a': 3.0}, {'b': 2.0, 'c': 9.0}]
    """
    share, size, taken = dict[str, float](), FIRST_S, 0.0
    for name, seconds in tests.items():
        if taken + seconds > most_s:
            continue  # a test of another folder may still fit
        if share and sum(share.values()) + seconds > size:
            yield share
            share, size = {}, size * GROWTH
        share[name] = seconds
        taken += seconds
    if share:
        yield share


def main() -> None:
    about = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    about.add_argument("--seed", type=int, default=0, help="of the sample")
    about.add_argument("--sample", type=int, default=400, help="mutants (400)")
    about.add_argument("--files", nargs="+", default=["*"], metavar="PATTERN", help="that count")
    about.add_argument("--tests", nargs="+", default=["tests"], metavar="PATH", help="that count")
    about.add_argument("--tests-s", type=float, default=120.0, help="recorded seconds a mutant")
    about.add_argument("--simulation-only", action="store_true", help="run no test")
    about.add_argument("--jobs", type=int, default=os.cpu_count(), help="mutants at a time")
    about.add_argument("--record", action="store_true", help="record again what is recorded")
    about.add_argument("--again", action="store_true", help="try survivors again")
    about.add_argument("--report", action="store_true", help="run nothing, print what is known")
    chosen = about.parse_args()

    made_of = digest(product())
    records = Records(CACHE / "reached", made_of)
    kept = Kept(CACHE / f"verdicts-{made_of}.jsonl")
    equivalents = Equivalents()
    sample = drawn(chosen.files, chosen.seed, chosen.sample)
    counted = [mutant for mutant in sample if equivalents.reason(mutant) is None]
    tests = [] if chosen.simulation_only else test_files(chosen.tests)
    if not chosen.report:
        old = tests if chosen.record else records.missing(tests)
        record(records, old, chosen.record or records.simulation_missing(), chosen.jobs)
        records.load(tests)
        tests_s = 0.0 if chosen.simulation_only else chosen.tests_s

        def due(mutant: Mutant) -> bool:
            known = kept.of.get(mutant)
            if known is None or (chosen.again and not known.killed):
                return True
            return not known.killed and known.tests == "not run" and bool(tests)

        with workers(chosen.jobs) as made:
            waiting = [mutant for mutant in counted if due(mutant)]
            judge = partial(judged, records=records, tests_s=tests_s)
            for _, verdict in shared(made, waiting, judge):
                kept.add(verdict)
    known = [kept.of[mutant] for mutant in counted if mutant in kept.of]
    print("\n".join(survivors(known, equivalents)))
    print()
    print("\n".join(table(known)))
    print(
        f"\nseed {chosen.seed}: {len(sample)} mutants drawn, {len(sample) - len(counted)} of them "
        f"listed as equivalent, {len(counted) - len(known)} not run; "
        f"{sum(one.seconds for one in known):,.0f} s of one worker"
    )
    if records.aged:
        print(f"{records.aged} files of tests were recorded with another product: see --record")


if __name__ == "__main__":
    main()
