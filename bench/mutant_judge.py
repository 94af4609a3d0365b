"""A warm process that judges mutants (`mutants.py`), and the record of which judge reaches which
line. Invariant: the process has imported libraries and nothing of the product, so that each fork of
it imports the product as it lies in the working directory.

A judge is a test, by its id, or a run of the simulation (`simulate 3`, `simulate_agents 3`). Tests
that start processes are none, because a line that is reached there is not recorded. Seconds are the
processor's, since a busy machine is no reason to judge by something else.

    python mutant_judge.py record FILE TESTS…   # what each judge takes, and what it reaches
    python mutant_judge.py serve                # an order a line, a word for each
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Generator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import hypothesis
import pytest

PACKAGES = "asyncrl", "actors", "staleness", "weightsync"
LIBRARIES = "hypothesis", "msgspec", "numpy", "rich", "tokenizers", "torch", "trio", "trio.testing"
OPTIONS = "-q", "-p", "no:cacheprovider"
HERE_ALONE = "not explore and not soak and not slow and not processes"
RUNS = ("simulate", range(16)), ("simulate_agents", range(4))
"""Runs of the simulation: of every seed the one without episodes, of some that with them."""
FOUND = {pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.INTERRUPTED, pytest.ExitCode.INTERNAL_ERROR}
BYTES = 8 << 30
"""Most memory of a mutant."""


def main() -> None:
    verb, *words = sys.argv[1:]
    if verb == "record":
        record(Path(words[0]), words[1:])
    else:
        serve()


def is_run(judge: str) -> bool:
    """True for a run of the simulation.

    >>> is_run("simulate 3"), is_run("tests/actors/test_own.py::test_a_run")
    (True, False)
    """
    return "::" not in judge


def record(file: Path, tests: Sequence[str]) -> None:
    """Write the seconds of each judge that passes, and by file and line those that reach it."""
    import coverage  # type: ignore[import-not-found, unused-ignore]  # of the mutants' environment

    cover = coverage.Coverage(data_file=None, config_file=False, source=PACKAGES)
    watch = Watch(cover)
    cover.start()
    importlib.import_module("asyncrl.simulation.run")
    for run, seeds in RUNS:
        for seed in seeds:
            judge = f"{run} {seed}"
            cover.switch_context(judge)
            begun = time.process_time()
            if violation(judge) is None:
                watch.seconds[judge] = time.process_time() - begun
    cover.switch_context("")
    pytest.main([*OPTIONS, "-m", HERE_ALONE, *tests], plugins=[watch])
    cover.stop()
    judges = [judge for judge in watch.seconds if judge not in watch.failed]
    number = {judge: place for place, judge in enumerate(judges)}
    data = cover.get_data()
    lines = {
        str(Path(path).relative_to(Path.cwd())): {
            line: sorted(number[judge] for judge in reached if judge in number)
            for line, reached in data.contexts_by_lineno(path).items()
        }
        for path in data.measured_files()
    }
    seconds = [round(watch.seconds[judge], 4) for judge in judges]
    file.write_text(json.dumps({"judges": judges, "seconds": seconds, "lines": lines}))


class Watch:
    """Plugin of pytest that tells coverage which test runs."""

    def __init__(self, cover: Any) -> None:
        self._cover = cover
        self.seconds: dict[str, float] = {}
        self.failed: set[str] = set()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        self._cover.switch_context(item.nodeid)
        begun = time.process_time()
        try:
            return (yield)
        finally:
            self.seconds[item.nodeid] = time.process_time() - begun
            self._cover.switch_context("")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.outcome != "passed":
            self.failed.add(report.nodeid)


def serve() -> None:
    """Obey orders from standard input: `{"judges": …, "log": …, "cpu_s": …, "limit_s": …}`."""
    for name in LIBRARIES:
        importlib.import_module(name)
    for line in sys.stdin:
        order = json.loads(line)
        if not (child := os.fork()):
            _become(order)
        print(_end(child, order["limit_s"]), flush=True)


def _become(order: dict[str, Any]) -> None:
    """Judge in this process, and end it."""
    code = 1
    try:
        os.setsid()
        resource.setrlimit(resource.RLIMIT_DATA, (BYTES, BYTES))
        resource.setrlimit(resource.RLIMIT_CPU, (order["cpu_s"], order["cpu_s"]))
        log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(log, 1)
        os.dup2(log, 2)
        code = int(killed(order["judges"]))
    except BaseException:  # noqa: BLE001 a mutant may raise anything
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)


def _end(child: int, limit_s: float) -> str:
    """Wait for a child as long as it may take. `killed` if it failed or hangs, or `survived`."""
    ends = time.monotonic() + limit_s
    while not (done := os.waitpid(child, os.WNOHANG))[0] and time.monotonic() < ends:
        time.sleep(0.01)
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    if not done[0]:
        os.waitpid(child, 0)
    return "survived" if done[0] and done[1] == 0 else "killed"


def killed(judges: Sequence[str]) -> bool:
    """True if one of the judges notices the change."""
    for judge in filter(is_run, judges):
        if said := violation(judge):
            print(f"{judge}: {said}")
            return True
    tests = {judge: None for judge in judges if not is_run(judge)}
    if not tests:
        return False
    files = dict.fromkeys(test.partition("::")[0] for test in tests)
    hypothesis.settings.register_profile(
        "mutants",  # as "ci" (tests/conftest.py), but for the minutes that it takes to shrink
        deadline=None,
        max_examples=40,
        derandomize=True,
        phases=(hypothesis.Phase.explicit, hypothesis.Phase.generate),
    )
    options = *OPTIONS, "-x", "--hypothesis-profile=mutants"
    return pytest.main([*options, *files], plugins=[Chosen(tests)]) in FOUND


class Chosen:
    """Plugin of pytest that runs these tests alone."""

    def __init__(self, tests: dict[str, None]) -> None:
        self._tests = tests

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [item for item in items if item.nodeid in self._tests]


def violation(judge: str) -> str | None:
    """The violation that a run of the simulation shows."""
    run, seed = judge.split()
    report = getattr(importlib.import_module("asyncrl.simulation.run"), run)(int(seed))
    return None if report.violation is None else str(report.violation)


if __name__ == "__main__":
    main()
