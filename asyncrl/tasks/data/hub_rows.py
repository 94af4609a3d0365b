"""Rows of a data set by its name, through the package `datasets`: from its cache, or from the hub.
No code of a data set runs: the versions that are allowed have no way to."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, NamedTuple

from asyncrl.config.errors import installs
from asyncrl.config.paths import HUB
from asyncrl.escape import escaped
from asyncrl.tasks import TaskError
from asyncrl.tasks.data.arrow_library import arrow

REACH_S = 10.0
"""Seconds in which the hub answers at first; the package itself asks for a minute."""
THREADS_S = 1.0
"""Seconds to wait for threads of the package to end. What it reads from its cache leaves none
behind, and so a process that reads there can close the sandbox around itself."""
SPLIT = "train"
"""The split of a name without one."""


class HubName(NamedTuple):
    """The parts of a path that is a name: `hub:ORG/NAME[@REVISION][:CONFIG[:SPLIT]]`.

    >>> HubName.of("hub:org/sums@v1:main:test")
    HubName(name='org/sums', revision='v1', config='main', split='test')
    """

    name: str
    revision: str | None
    config: str | None
    split: str

    @classmethod
    def of(cls, path: str) -> HubName:
        """Read a path. Raises TaskError."""
        name, *rest = path.removeprefix(HUB).split(":")
        name, _, revision = name.partition("@")
        if not name or len(rest) > 2:
            raise TaskError(
                f"task.path is {path!r}, and a data set's name is "
                "hub:ORG/NAME[@REVISION][:CONFIG[:SPLIT]]"
            )
        config, split = [*rest, "", ""][:2]
        return cls(name, revision or None, config or None, split or SPLIT)


class HubRows:
    """The rows of a data set, which `datasets` maps from its cache.

    >>> HubRows("hub:org/sums:a:b:c")
    Traceback (most recent call last):
    asyncrl.tasks.TaskError: task.path is 'hub:org/sums:a:b:c', and a data set's name is \
hub:ORG/NAME[@REVISION][:CONFIG[:SPLIT]]
    """

    small = False

    def __init__(self, path: str) -> None:
        """Raises TaskError."""
        self._path = path
        self._rows: Any = _loaded(path)
        self.small = (self._rows.dataset_size or 2**62) <= 2**26

    @property
    def digest(self) -> str:
        """A name for what the rows follow from."""
        return str(self._rows._fingerprint)

    def __len__(self) -> int:
        return len(self._rows)

    def row(self, index: int) -> Any:
        """A row. Raises LookupError if it cannot be read."""
        try:
            return self._rows[index]
        except Exception as error:  # decoders of features are the package's
            raise LookupError(f"it cannot be read ({escaped(str(error), 200)})") from error

    def place(self, index: int) -> str:
        return f"{self._path}, row {index + 1}"


def _loaded(path: str) -> Any:
    """The data set: from the cache if it is there, so that all processes read the same."""
    wanted = HubName.of(path)
    arrow(path)
    try:
        import datasets
    except ModuleNotFoundError as error:
        raise TaskError(
            f"task.path is {path!r}, which the package datasets loads: {installs('datasets')}, or "
            "give the path of its files"
        ) from error
    import tqdm

    datasets.disable_progress_bars()
    tqdm.tqdm.monitor_interval = 0  # its thread
    errors, threads = list[Exception](), _threads()
    for load in (_of_cache, _of_hub):
        try:
            found = load(datasets, wanted)
            end = time.monotonic() + THREADS_S
            while _threads() > threads and time.monotonic() < end:
                time.sleep(0.01)  # the package's own, which nobody can join, end a moment later
            return found
        except Exception as error:  # noqa: BLE001  of the package, the network, or files
            errors.append(error)
    said = escaped(str(errors[-1]).strip().partition("\n")[0], 300)
    raise TaskError(
        f"task.path is {path!r}, which is not in the cache of datasets and cannot be loaded "
        f"({said}); look at the name and the network, or give the path of its files"
    ) from errors[-1]


def _threads() -> int:
    """Threads of this process, where the system tells."""
    try:
        return sum(1 for _ in Path("/proc/self/task").iterdir())
    except OSError:
        return 0


def _load(datasets: Any, wanted: HubName) -> Any:
    return datasets.load_dataset(
        wanted.name, wanted.config, split=wanted.split, revision=wanted.revision
    )


def _of_cache(datasets: Any, wanted: HubName) -> Any:
    from huggingface_hub import constants

    before = datasets.config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE
    datasets.config.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE = True
    try:
        return _load(datasets, wanted)
    finally:
        datasets.config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE = before


def _of_hub(datasets: Any, wanted: HubName) -> Any:
    from huggingface_hub import HfApi

    HfApi().dataset_info(wanted.name, revision=wanted.revision, timeout=REACH_S)
    return _load(datasets, wanted)
