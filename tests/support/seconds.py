"""Seconds that tests take, by folder: of the worker that runs a test, and of cores, with those of
the processes that have ended under it and under its warm process (`warm_process.py`). Printed at
the end of a session of two minutes or more.

With SECONDS_TSV=FILE in the environment, a line of each phase of a test is appended there: id,
phase, worker seconds, core seconds, outcome.
"""

from __future__ import annotations

import os
import sys
from collections import defaultdict
from collections.abc import Iterator
from io import FileIO
from pathlib import Path
from typing import Any

import pytest

LONG_S = 120.0


class Seconds:
    """A plugin of pytest: a worker adds to its reports what a phase cost, and who prints the
    summary adds that up."""

    def __init__(self) -> None:
        self._before = _of_cores()
        self._worker: dict[str, float] = defaultdict(float)
        self._cores: dict[str, float] = defaultdict(float)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Iterator[None]:
        report: Any = yield
        now = _of_cores()
        report.cores_s, self._before = now - self._before, now
        return report

    def pytest_runtest_logreport(self, report: Any) -> None:
        if "PYTEST_XDIST_WORKER" in os.environ:
            return
        folder = "/".join(report.nodeid.partition("::")[0].split("/")[:2])
        self._worker[folder] += report.duration
        cores_s = getattr(report, "cores_s", 0.0)  # one of a crashed worker has none
        self._cores[folder] += cores_s
        if path := os.environ.get("SECONDS_TSV"):
            figures = f"{report.duration:.2f}\t{cores_s:.2f}\t{report.outcome}"
            with Path(path).open("a") as file:
                file.write(f"{report.nodeid}\t{report.when}\t{figures}\n")

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if sum(self._worker.values()) < LONG_S:
            return
        terminalreporter.section("seconds of workers and of cores")
        rows = [(self._worker[name], self._cores[name], name) for name in self._worker]
        rows.append((sum(self._worker.values()), sum(self._cores.values()), "all"))
        for worker, cores, name in sorted(rows, reverse=True):
            terminalreporter.write_line(f"{worker:8.0f} {cores:8.0f}  {name}")


def _of_cores() -> float:
    """Seconds of cores that this process and its children that have ended took, and its warm
    process, which lives as long, with its own that have ended."""
    return sum(os.times()[:4]) + _of_warm()


def _of_warm() -> float:
    module = sys.modules.get("warm_process")
    if module is None or not module.warm.cache_info().currsize:
        return 0.0
    try:
        # without pathlib and open, which the test that has just ended may have replaced
        with FileIO(f"/proc/{module.warm().pid}/stat") as file:
            stat = file.read()
    except OSError:  # it has ended, or there is no such file
        return 0.0
    ticks = map(int, stat.rpartition(b")")[2].split()[11:15])
    return sum(ticks) / os.sysconf("SC_CLK_TCK")
