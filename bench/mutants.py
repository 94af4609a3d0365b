"""Mutants: of small changes of the product that are drawn by a seed, the share that is noticed.

    make mutants                                           # the heart, 40 mutants
    make mutants MUTANTS='actors/coordinator --sample 400'
    make mutants MUTANTS='staleness --record /tmp/record'  # kept there, and read where it is

cosmic-ray changes a file of a clone of HEAD, one change at a time; changes that do not compile, and
`NOISE`, are not drawn. A change is judged by what reaches its lines, the fastest first: seeds of
the simulation up to `SIMULATION_S`, and then tests of each file of `TESTS` up to `TESTS_S`, until
one fails. What reaches which line is recorded first, by coverage, on the clone as it is.

Printed is each survivor as a diff, when it is judged: it gets a test, or is a change that has no
visible effect. At the end, or at Ctrl-C, there are by file the mutants killed, those that the
simulation killed of those that it reaches, and those that nothing reaches.

cosmic-ray and coverage in place of our own: they are kept by others. What is lost by it: no dropped
calls and no swapped arguments. The judges are forks of one warm process (`mutant_judge.py`), as
the start of Python and of pytest takes longer than most of them.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import json
import os
import queue
import random
import re
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
PYTHON = ROOT / ".venv" / "bin" / "python"
JUDGE = "bench/mutant_judge.py"
HEART = (
    *("asyncrl/experience", "actors/coordinator", "staleness", "asyncrl/journal"),
    *("asyncrl/algorithms", "weightsync"),
)
TESTS = (
    *("tests/experience", "tests/actors", "tests/journal", "tests/staleness", "tests/weightsync"),
    *("tests/algorithms", "tests/config", "tests/runtime", "tests/agents/gateway"),
    *("tests/sglang/test_server_hashes.py", "tests/sglang/test_sglang_checksums.py"),
    *("tests/training/test_experts.py", "tests/test_examples.py"),
)
SIMULATION_S, TESTS_S = 8.0, 40.0
"""Seconds of judges, as recorded, after which a mutant has survived them."""
FIRST_S = 1.5
"""Seconds of tests that are tried by themselves, because to collect all of them takes longer."""
CPU_S, SLOWER, LIMIT_S = 20.0, 4.0, 300.0
"""A mutant that hangs is killed: after `CPU_S` seconds of a core and `SLOWER` times those of its
judges, or after `LIMIT_S` seconds in which it does nothing."""
ORDERED, SAME, MEMBER = "Eq|NotEq|Lt|LtE|Gt|GtE", "Is|IsNot", "In|NotIn"
NOISE = re.compile(
    "core/(ReplaceBinaryOperator_(BitOr|Mod)_.*|.*_Bit(And|Or|Xor)|.*Shift|"
    + "|".join(
        f"ReplaceComparisonOperator_({one})_({other})"
        for one in (ORDERED, SAME, MEMBER)
        for other in (ORDERED, SAME, MEMBER)
        if one != other
    )
    + ")$"
)
"""Operators that change types in annotations and formats in texts, or what no one would write."""


class Change(NamedTuple):
    """A place where an operator of cosmic-ray changes a file, and the first line of it."""

    file: str
    line: int
    operator: str
    occurrence: int


@dataclass(frozen=True)
class Judged:
    """A mutant, and what noticed it: `simulation`, `tests`, or nothing. `reached` names those of
    the two that could have."""

    change: Change
    killed_by: str
    reached: frozenset[str]
    diff: str = ""

    def said(self) -> str:
        """A line about a killed mutant; the diff of a survivor."""
        if self.killed_by:
            return " ".join(["killed by", self.killed_by, *map(str, self.change)])
        return f"\n{'survived' if self.reached else 'not reached'}:\n{self.diff}\n"


@dataclass(frozen=True)
class Record:
    """Judges, the seconds of each, and by file and line the judges that reach it, as numbers."""

    judges: Sequence[str]
    seconds: Sequence[float]
    lines: dict[str, dict[str, list[int]]]

    def reaching(self, file: str, spans: Sequence[range]) -> list[int]:
        """The judges that reach a line of these spans of a file, in the order of `ordered`."""
        lines = self.lines.get(file, {})
        return self.ordered(
            {judge for span in spans for line in span for judge in lines.get(str(line), ())}
        )

    def of_room(self, file: str) -> list[int]:
        """The simulation's runs, and the tests of the folder that has a name of the path."""
        judges = enumerate(self.judges)
        parts = Path(file).parts
        return self.ordered(
            n for n, each in judges if "::" not in each or each.split("/")[1] in parts
        )

    def ordered(self, judges: Iterable[int]) -> list[int]:
        """The fastest test of each file, then the second of each, and so on; the fastest first. A
        line that every test reaches is the subject of one file.

        >>> tests = ["a.py::slow", "a.py::quick", "b.py::slower"]
        >>> Record(tests, [2.0, 1.0, 3.0], {}).ordered([0, 1, 2])
        [1, 2, 0]
        """
        place, of_file = dict[int, int](), Counter[str]()
        for judge in sorted(judges, key=lambda judge: self.seconds[judge]):
            file = self.judges[judge].partition("::")[0]
            place[judge] = of_file[file]
            of_file[file] += 1
        return sorted(place, key=place.__getitem__)

    def is_run(self, judge: int) -> bool:
        """True for a run of the simulation, which is no test."""
        return "::" not in self.judges[judge]

    def within(self, judges: Sequence[int], seconds: float) -> list[int]:
        """The first of the judges, as many as take so long; at least one.

        >>> Record(["a", "b", "c"], [1.0, 2.0, 3.0], {}).within([0, 1, 2], 3.5)
        [0, 1]
        """
        spent, chosen = 0.0, list[int]()
        for judge in judges:
            spent += self.seconds[judge]
            if chosen and spent > seconds:
                break
            chosen.append(judge)
        return chosen


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("rooms", nargs="*", default=HEART, help="folders or files; the heart")
    parser.add_argument("--sample", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--record", type=Path, help="keep what reaches which line in this file")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="judges at a time")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mutants-") as directory, ExitStack() as judges:
        clones = [Path(directory, str(job), "clone") for job in range(args.jobs)]
        for clone in clones:
            subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
        kept = (args.record or Path(directory, "record")).absolute()
        if not kept.exists():
            run_judge(clones[0], "record", str(kept), *TESTS).wait()
        record = Record(**json.loads(kept.read_text()))
        known = list(changes(clones[0], args.rooms))
        idle = queue.SimpleQueue[tuple[Path, subprocess.Popen[str]]]()
        for clone in clones:
            idle.put((clone, judges.enter_context(run_judge(clone, "serve"))))

        def judged_by_the_next(change: Change) -> Judged:
            clone, judge = idle.get()
            try:
                return tried(clone, change, record, judge)
            finally:
                idle.put((clone, judge))

        judged = []
        with ThreadPoolExecutor(args.jobs) as jobs, suppress(KeyboardInterrupt):
            drawn = programs(clones[0], draw(known, args.seed), args.sample)
            waiting = [jobs.submit(judged_by_the_next, change) for change in drawn]
            try:
                for done in as_completed(waiting):
                    judged.append(done.result())
                    print(judged[-1].said(), flush=True)
            finally:
                jobs.shutdown(cancel_futures=True)
        print(f"{len(judged)} mutants of {len(known)}", table(judged), sep="\n")


def run_judge(clone: Path, *words: str) -> subprocess.Popen[str]:
    """Start `mutant_judge.py` in the clone, by the product's interpreter, with coverage beside."""
    import coverage  # type: ignore[import-not-found, unused-ignore]

    beside = Path(coverage.__file__).parents[1]
    variables = [f"PYTHONPATH={clone}", f"BESIDE={beside}", "OMP_NUM_THREADS=1"]
    code = "import os, runpy, sys; sys.path.append(os.environ['BESIDE']); runpy.run_path"
    start = f"{code}({JUDGE!r}, run_name='__main__')"
    if words[0] == "serve":
        variables.append("PYTHONDONTWRITEBYTECODE=1")
    return subprocess.Popen(
        ["env", *variables, PYTHON, "-c", start, *words],
        cwd=clone,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE if words[0] == "serve" else None,
        text=True,
    )


def changes(clone: Path, rooms: Sequence[str]) -> Iterator[Change]:
    """All changes of the rooms' files, without those of `NOISE`."""
    from cosmic_ray.ast import (  # type: ignore[import-not-found, unused-ignore]
        ast_nodes,
        get_ast_from_path,
    )
    from cosmic_ray.plugins import (  # type: ignore[import-not-found, unused-ignore]
        get_operator,
        operator_names,
    )

    names = [name for name in sorted(operator_names()) if not NOISE.match(name)]
    operators = [(name, get_operator(name)) for name in names]
    for room in rooms:
        place = clone / room
        for path in sorted(place.rglob("*.py")) if place.is_dir() else [place]:
            tree = get_ast_from_path(path)
            for name, operator in operators:
                if operator.arguments():
                    continue
                places = (
                    start
                    for node in ast_nodes(tree)
                    for start, _ in operator().mutation_positions(node)
                )
                for occurrence, (line, _) in enumerate(places):
                    yield Change(str(path.relative_to(clone)), line, name, occurrence)


def draw(known: Sequence[Change], seed: int) -> list[Change]:
    """The changes in an order of the seed, whose first are the sample."""
    return random.Random(seed).sample(known, len(known))


def mutated(source: str, change: Change) -> str | None:
    """The source with the change; None if it does not compile, or is the same program."""
    from cosmic_ray.mutating import (  # type: ignore[import-not-found, unused-ignore]
        mutate_code,
    )
    from cosmic_ray.plugins import get_operator

    text = mutate_code(source, get_operator(change.operator)(), change.occurrence)
    try:
        same = text is None or ast.dump(ast.parse(text)) == ast.dump(ast.parse(source))
    except SyntaxError:
        return None
    return None if same else text


def spans(source: str, line: int) -> tuple[list[range], bool]:
    """The lines that whoever executes this line goes through, and whether it is executed at an
    import: then they are those of the function whose head it is in, or of all functions.

    >>> source = "class A:\\n    x = 1\\n    def f(self, y=2):\\n        return (\\n y)\\n"
    >>> [spans(source, line) for line in (5, 3, 2)]
    [([range(4, 6)], False), ([range(4, 6)], True), ([range(4, 6)], True)]
    """
    inner: ast.stmt | ast.ExceptHandler | None = None
    bodies = []
    inside = False
    for node in ast.walk(ast.parse(source)):  # what is inside of another comes after it
        if not isinstance(node, ast.stmt | ast.ExceptHandler):
            continue
        end = (node.end_lineno or node.lineno) + 1
        heads = [*getattr(node, "decorator_list", ()), node]
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            body = range(node.body[0].lineno, end)
            bodies.append(body)
            inside |= line in body
        if line in range(min(head.lineno for head in heads), end):
            inner = node
    if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef) and line < inner.body[0].lineno:
        return [range(inner.body[0].lineno, (inner.end_lineno or line) + 1)], True
    if inner is None or not inside:
        return bodies, True
    if isinstance(inner, ast.Match):
        return [range(line, line + 1)], False
    within = getattr(inner, "body", ())
    end = max(within[0].lineno, inner.lineno + 1) if within else (inner.end_lineno or line) + 1
    return [range(inner.lineno, end)], False


def programs(clone: Path, drawn: Sequence[Change], count: int) -> list[Change]:
    """The first of the changes, as many as counted, that make another program."""
    other = (each for each in drawn if mutated((clone / each.file).read_text(), each) is not None)
    return list(islice(other, count))


def tried(clone: Path, change: Change, record: Record, judge: subprocess.Popen[str]) -> Judged:
    """Judge a change that makes another program."""
    path = clone / change.file
    source = path.read_text()
    text = mutated(source, change)
    assert text is not None
    lines, imported = spans(source, change.line)
    reaching = record.reaching(change.file, lines)
    if imported and not reaching:
        reaching = record.of_room(change.file)
    runs = record.within([each for each in reaching if record.is_run(each)], SIMULATION_S)
    tests = record.within([each for each in reaching if not record.is_run(each)], TESTS_S)
    first = record.within(tests, FIRST_S)
    stages = ("simulation", runs), ("tests", first), ("tests", tests[len(first) :])
    path.write_text(text)
    try:
        killed_by = next(
            (name for name, judges in stages if judges and killed(judge, clone, record, judges)), ""
        )
    finally:
        path.write_text(source)
    pair = source.splitlines(), text.splitlines()
    diff = "\n".join(difflib.unified_diff(*pair, change.file, change.file, lineterm="", n=2))
    return Judged(change, killed_by, frozenset(name for name, judges in stages if judges), diff)


def killed(
    judge: subprocess.Popen[str], clone: Path, record: Record, judges: Sequence[int]
) -> bool:
    """True if one of these judges notices what the clone has now."""
    assert judge.stdin is not None and judge.stdout is not None
    order = {
        "judges": [record.judges[each] for each in judges],
        "log": str(clone.with_name("log")),
        "cpu_s": round(CPU_S + SLOWER * sum(record.seconds[each] for each in judges)),
        "limit_s": LIMIT_S,
    }
    print(json.dumps(order), file=judge.stdin, flush=True)
    if (said := judge.stdout.readline().strip()) not in ("killed", "survived"):
        sys.exit("the process that judges has ended; what it said is above")
    return said == "killed"


def table(judged: Sequence[Judged]) -> str:
    """The killed mutants, by file.

    >>> both = frozenset({"simulation", "tests"})
    >>> one = Judged(Change("a.py", 1, "", 0), "simulation", both)
    >>> two = Judged(Change("a.py", 2, "", 0), "tests", both)
    >>> print(table([one, two, Judged(Change("b.py", 3, "", 0), "", frozenset())]))
    a.py  2 of 2; the simulation 1 of 2
    b.py  0 of 1; the simulation 0 of 0; 1 not reached
    all   2 of 3; the simulation 1 of 2; 1 not reached
    """
    by_file: dict[str, list[Judged]] = defaultdict(list)
    for one in sorted(judged, key=lambda one: one.change):
        by_file[one.change.file].append(one)
    width = max(map(len, by_file), default=0)
    rows = []
    for name, ones in (*by_file.items(), ("all", judged)):
        dead = sum(bool(one.killed_by) for one in ones)
        by_simulation = sum(one.killed_by == "simulation" for one in ones)
        simulated = sum("simulation" in one.reached for one in ones)
        row = (
            f"{name:{width}}  {dead} of {len(ones)}; the simulation {by_simulation} of {simulated}"
        )
        nowhere = sum(not one.reached for one in ones)
        rows.append(f"{row}; {nowhere} not reached" if nowhere else row)
    return "\n".join(rows)


if __name__ == "__main__":
    main()
