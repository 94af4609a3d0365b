"""Settings of the whole test tree: how properties are drawn, and who runs which file under `-n`."""

from __future__ import annotations

import gc
import importlib
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path, PurePath
from typing import Any
from zlib import crc32

import pytest
from green import ROOT, Green
from hypothesis import settings
from seconds import Seconds
from xdist.scheduler import LoadScopeScheduling

# A property has no deadline of its own, because shared machines are slow at times. `make test`
# draws a few examples, others each time, and CI forty, always the same ones (`.ci/run`), of which
# sixty more would be no news from one time to the next; `make soak` draws many, and others.
settings.register_profile("asyncrl", deadline=None, max_examples=10)
settings.register_profile("ci", deadline=None, max_examples=40, derandomize=True)
settings.register_profile("soak", deadline=None, max_examples=300)
settings.load_profile("asyncrl")

REAL = {
    "runs": "runs",
    "pages": "pages",
    "certificate": "pages",
    "sglang": "servers",
    "vllm": "servers",
}
"""The units of folders whose tests start whole runs and real servers, and share what these are
started from."""
HALVES = {"runs"}
"""Units of so many seconds that two workers have half of the files each."""
LONG = {
    "test_agent_pool",
    "test_agent_runs",
    "test_agents_seeds",
    "test_bad_paths",
    "test_boundaries",
    "test_collective",
    "test_embedded",
    "test_face",
    "test_features_of_ranks",
    "test_found",
    "test_fuzz",
    "test_gpu_kit",
    "test_hostile_answers",
    "test_lag_bound",
    "test_learner_losses",
    "test_lost_ranks",
    "test_memory",
    "test_modelled",
    "test_pains",
    "test_planted",
    "test_preflight",
    "test_proximal_policies",
    "test_rank_group",
    "test_reliability",
    "test_reward",
    "test_seeds",
    "test_sharded_memory",
    "test_strangers",
    "test_tasksets",
    "test_warmup",
    "test_wheel",
}
"""Files that take fifteen seconds of a worker or more (`SECONDS_TSV`, tests/support/seconds.py)."""


# A shell that starts the tests in the background ignores Ctrl-C, and so would all that they start:
# tests of Ctrl-C would wait until their deadlines.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


class ByFile(LoadScopeScheduling):
    """Gives a worker one file at a time, so that its tests share what its fixtures started.

    A unit of `REAL` counts as one file. Its tests start many processes each, several say how long
    a run or the start of a server may take, and those of a folder share one server or one run.
    """

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        unit = REAL.get(PurePath(file).parent.name, file)
        return f"{unit}-{crc32(file.encode()) % 2}" if unit in HALVES else unit


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    return ByFile(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[Any]:
    """Look for garbage in what tests make alone: all that is collected, and torch, stay to the end,
    and to look through them takes a fifth of a collection, and a second each time afterwards."""
    gc.disable()
    collected = yield
    gc.freeze()
    gc.enable()
    return collected


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put what takes long or waits first, so that no worker is left with it at the end. Runs and
    servers leave half of the cores idle: pages do, too, and come after what keeps cores busy."""
    if hasattr(config, "workerinput"):
        waits = {
            item.path
            for item in items
            if any(item.iter_markers("slow")) or any(item.iter_markers("processes"))
        }

        def place(item: pytest.Item) -> int:
            if (unit := REAL.get(item.path.parent.name)) is not None:
                return 2 if unit == "pages" else 0
            if item.path.stem in LONG:
                return 1
            return 3 if item.path in waits else 4

        items.sort(key=place)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--skip-green", action="store_true", help="leave out what passed before")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Seconds())
    if tx := config.getoption("tx", None):  # all workers import the product once
        # in no syntax tree: else each test file depended on all that it imports (green.py)
        python = importlib.import_module("warm_process").python_of_workers()
        config.option.tx = [f"{spec}//python={python}" for spec in tx]
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell's command in the background
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if config.option.skip_green and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Green(config), "green")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out files that are green (`green.py`)."""
    green = config.pluginmanager.get_plugin("green")
    skipped = getattr(config, "workerinput", {}).get("skipped", green.skipped if green else ())
    if skipped and collection_path.is_file():
        return str(collection_path.relative_to(ROOT)) in {*skipped} or None
    return None


@pytest.hookimpl(trylast=True)
def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Name a failed test at once: a session that is cut off prints no summary."""
    if report.failed and "PYTEST_XDIST_WORKER" not in os.environ:
        where = f"{report.nodeid} ({report.when}, {report.duration:.0f} s)"
        print(f"\nfailed: {where}", file=sys.stderr)
