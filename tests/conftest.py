"""Settings of the whole test tree: how properties are drawn, and who runs which file under `-n`."""

from __future__ import annotations

import os
import sys
from pathlib import PurePath
from typing import Any

import pytest
from hypothesis import settings
from seconds import Seconds
from xdist.scheduler import LoadScopeScheduling

# A property has no deadline of its own, because shared machines are slow at times. `make test`
# draws a few examples, others each time, and CI a hundred, always the same ones (`.ci/run`).
settings.register_profile("asyncrl", deadline=None, max_examples=15)
settings.load_profile("asyncrl")

REAL = {"runs": "runs", "sglang": "servers", "vllm": "servers"}
"""The units of folders whose tests start whole runs and real servers."""


class ByFile(LoadScopeScheduling):
    """Gives a worker one file at a time, so that its tests share what its fixtures started.

    A unit of `REAL` counts as one file. Its tests start many processes each, several say how long
    a run or the start of a server may take, and those of a folder share one server or one run.
    """

    def _split_scope(self, nodeid: str) -> str:
        path = PurePath(nodeid.partition("::")[0])
        return REAL.get(path.parent.name, str(path))


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    return ByFile(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put what takes long or waits first, so that no worker is left with it at the end."""
    if hasattr(config, "workerinput"):
        long = {
            item.path
            for item in items
            if any(item.iter_markers("slow")) or any(item.iter_markers("processes"))
        }

        def place(item: pytest.Item) -> tuple[bool, bool]:
            real = item.path.parent.name in REAL
            return not real, not real and item.path not in long

        items.sort(key=place)


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Seconds())


@pytest.hookimpl(trylast=True)
def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Name a failed test at once: a session that is cut off prints no summary."""
    if report.failed and "PYTEST_XDIST_WORKER" not in os.environ:
        where = f"{report.nodeid} ({report.when}, {report.duration:.0f} s)"
        print(f"\nfailed: {where}", file=sys.stderr)
