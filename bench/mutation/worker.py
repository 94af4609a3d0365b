"""The process that runs tests and seeds in a copy: it has imported the libraries, not the product,
and forks for each job. A job that hangs is killed, and so is whatever it started.

Reads jobs as lines of JSON, and answers each with a line:

    {"tests": {"tests/test_cli.py::test_version": 0.2}}      or {"seeds": {"17": 0.3}}
    {"at": null, "why": "", "records": [], "seconds": 1.2}

A job ends at the first failure, and `at` says where: a violation, a failed test, or a limit that
ran out (SIGALRM, not handled). With `marks`, a file, it is recorded which blocks each reached;
with `marked`, an expression of pytest's markers, no failure ends it.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import resource
import select
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

LIMIT_S, TIMES = 30.0, 10.0
"""A test or a seed may take so many seconds, and so many times what it took in the record."""
START_S = 120.0
"""Seconds to import the product and to collect tests."""
MEMORY, FILE = 8 << 30, 1 << 30
"""Bytes of memory and of a file that a process of a job may have."""
SUBREAPER = 36


def preload() -> None:
    """Import what takes long, and what has no state of a run. (Not reasoning_gym: the product
    imports it in its own way, and an import that failed would stay.)"""
    for name in (
        "h11",
        "httpx2",
        "hypothesis",
        "msgspec",
        "numpy",
        "openai",
        "pytest",
        "starlette.applications",
        "tokenizers",
        "torch",
        "transformers.models.qwen3.modeling_qwen3",
        "trio.testing",
    ):
        try:
            __import__(name)
        except ImportError:
            print(f"the worker goes on without {name}", file=sys.stderr)


def limit(seconds: float) -> None:
    """End this process in `seconds` times what they may stretch to."""
    signal.setitimer(signal.ITIMER_REAL, LIMIT_S + TIMES * seconds)


class Marked:
    """The blocks that were reached since the last look, by their numbers."""

    def __init__(self, path: str) -> None:
        with open(path, "r+b") as file:  # noqa: PTH123 (mmap wants a file)
            self._marks = mmap.mmap(file.fileno(), 0)

    def taken(self) -> set[int]:
        """The blocks reached; forgets them."""
        marks = self._marks[:]
        self._marks[:] = bytes(len(marks))
        return {number for number, mark in enumerate(marks) if mark}

    def put(self, blocks: set[int]) -> None:
        """These were reached too."""
        for block in blocks:
            self._marks[block] = 1


class Said:
    """Words of a job to the worker, in a file that outlives it."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("w")
        self.at = "the start"

    def line(self, **values: Any) -> None:
        self.at = values.get("at", self.at)
        self._file.write(json.dumps(values) + "\n")
        self._file.flush()


class Tests:
    """pytest's plugin that says which test runs and fails, and which blocks each reached.

    What an import, or a fixture of a whole file or folder, reached counts for each test with it.
    """

    def __init__(self, said: Said, job: dict[str, Any]) -> None:
        self._said, self._seconds = said, job["tests"]
        self._marked = Marked(job["marks"]) if "marks" in job else None
        self._imported: set[int] | None = None
        self._shared: dict[str, set[int]] = {}
        self._failed: str | None = None

    def hooks(self) -> object:
        """The plugin."""
        import pytest

        outer = self

        class Hooks:
            @pytest.hookimpl(trylast=True)
            def pytest_configure(self, config: pytest.Config) -> None:
                from hypothesis import HealthCheck, Phase, settings

                settings.register_profile(
                    "mutants",
                    deadline=None,
                    derandomize=True,
                    database=None,
                    suppress_health_check=[HealthCheck.too_slow],
                    phases=(Phase.explicit, Phase.generate),
                )
                settings.load_profile("mutants")

            @pytest.hookimpl(wrapper=True)
            def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
                outer._said.line(at=item.nodeid)
                outer._failed = None
                limit(outer._seconds.get(item.nodeid, 60.0))
                began = time.perf_counter()
                if outer._marked is not None:
                    before = outer._marked.taken()
                    outer._imported = before if outer._imported is None else outer._imported
                try:
                    return (yield)
                finally:
                    limit(START_S)
                    if outer._marked is not None:
                        blocks = outer._marked.taken() | (outer._imported or set())
                        for name in getattr(item, "fixturenames", ()):
                            blocks |= outer._shared.get(name, set())
                        outer._said.line(
                            test=item.nodeid,
                            seconds=round(time.perf_counter() - began, 3),
                            failed=outer._failed,
                            blocks=sorted(blocks),
                        )

            @pytest.hookimpl(wrapper=True)
            def pytest_fixture_setup(self, fixturedef: Any) -> Iterator[None]:
                if outer._marked is None or fixturedef.scope == "function":
                    return (yield)
                before = outer._marked.taken()
                try:
                    return (yield)
                finally:
                    own = outer._marked.taken()
                    outer._shared[fixturedef.argname] = own
                    outer._marked.put(before | own)

            def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
                if report.failed or (report.skipped and report.when == "setup"):
                    outer._failed = "failed" if report.failed else "skipped"
                if report.failed:
                    outer._said.line(failed=report.nodeid)

            def pytest_collectreport(self, report: pytest.CollectReport) -> None:
                if report.failed:
                    outer._said.line(failed=report.nodeid)

        return Hooks()


def run_tests(said: Said, job: dict[str, Any]) -> None:
    """Run these tests, or all of these files."""
    import pytest

    options = ["-q", "--no-header", "-p", "no:cacheprovider", "-p", "no:timeout", "-o", "addopts="]
    chosen = ["-m", job["marked"]] if "marked" in job else ["-x"]
    status = pytest.main([*options, *chosen, *job["tests"]], plugins=[Tests(said, job).hooks()])
    if status not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        said.line(failed=f"pytest ended with {int(status)}")


def run_seeds(said: Said, job: dict[str, Any]) -> None:
    """Run these seeds."""
    from asyncrl.simulation.run import simulate

    seen = Marked(job["marks"]) if "marks" in job else None
    imported = set() if seen is None else seen.taken()
    for seed, seconds in job["seeds"].items():
        said.line(at=f"seed {seed}")
        limit(seconds)
        began = time.perf_counter()
        report = simulate(int(seed))
        if report.violation is not None:
            said.line(failed=f"seed {seed}", why=str(report.violation)[:300])
            return
        if seen is not None:
            taken = time.perf_counter() - began
            blocks = sorted(seen.taken() | imported)
            said.line(test=seed, seconds=round(taken, 3), failed=None, blocks=blocks)


def child(root: Path, job: dict[str, Any]) -> None:
    """Run a job in this process, which is its own."""
    os.setsid()
    os.chdir(root)
    null, log = os.open(os.devnull, os.O_RDWR), os.open("mutant.log", os.O_WRONLY | os.O_CREAT)
    os.ftruncate(log, 0)
    os.dup2(null, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE, FILE))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.setitimer(signal.ITIMER_REAL, START_S)
    said = Said(said_at(root))
    try:
        (run_tests if "tests" in job else run_seeds)(said, job)
    except BaseException as error:  # noqa: BLE001 (a mutant may raise anything)
        said.line(failed=said.at, why=repr(error)[:300])
        traceback.print_exc()
        return
    said.line(over=True)


def wait(pid: int, seconds: float) -> None:
    """Wait for a job's process, and end all that it left."""
    descriptor = os.pidfd_open(pid)
    if not select.select([descriptor], [], [], seconds)[0]:
        os.kill(pid, signal.SIGKILL)
    os.close(descriptor)
    os.waitpid(pid, 0)
    while left := orphans():
        for orphan in left:
            os.kill(orphan, signal.SIGKILL)
            os.waitpid(orphan, 0)


def orphans() -> list[int]:
    """The processes that became this one's children, because their parent ended."""
    return [int(pid) for pid in Path("/proc/thread-self/children").read_text().split()]


def said_at(root: Path) -> Path:
    """The file in which a job says how it goes."""
    return root / "mutant.jsonl"


def answer(root: Path, seconds: float) -> dict[str, Any]:
    """The fate of a job, from what it said."""
    whole = [line for line in said_at(root).read_text().splitlines(True) if line.endswith("\n")]
    lines = [json.loads(line) for line in whole]
    at = next((line for line in lines if "failed" in line and "test" not in line), None)
    over = any("over" in line for line in lines)
    if at is None and not over:
        last = ["the start", *(line["at"] for line in lines if "at" in line)]
        at = {"failed": last[-1], "why": "it did not end in time, or its process died"}
    return {
        "at": None if at is None else at["failed"],
        "why": "" if at is None else at.get("why", ""),
        "records": [line for line in lines if "test" in line],
        "seconds": round(seconds, 2),
    }


def main() -> None:
    root = Path(sys.argv[1])
    ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)
    preload()
    for line in sys.stdin:
        job = json.loads(line)
        began = time.perf_counter()
        wanted = sum((job.get("tests") or job["seeds"]).values())
        said_at(root).write_text("")
        pid = os.fork()
        if not pid:
            try:
                child(root, job)
            finally:
                os._exit(0)
        wait(pid, job.get("limit_s", 2 * START_S + 2 * TIMES * wanted + LIMIT_S))
        print(json.dumps(answer(root, time.perf_counter() - began)), flush=True)


if __name__ == "__main__":
    main()
