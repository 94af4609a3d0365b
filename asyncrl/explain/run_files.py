"""The files of a run, read: the one place that knows which file of a run's directory holds what.
Invariant: the run is not changed, held up or waited for, and nothing of it is executed, unless
`config` is asked for. What is read at once has a bound.

A path that is not a run, a missing file or a damaged one raises ConfigError, with one sentence."""

from __future__ import annotations

import fcntl
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from asyncrl import config as configuration
from asyncrl.config import Config, ConfigError
from asyncrl.config.errors import usable
from asyncrl.config.load import read_numbers, settings_in
from asyncrl.config.paths import exists, is_file, is_folder
from asyncrl.escape import escaped
from asyncrl.explain import curve, run_start, run_status, summary
from asyncrl.explain.curve import Point
from asyncrl.explain.curve_reader import CurveReader
from asyncrl.explain.run_disk import takes_no_more
from asyncrl.explain.run_start import RunStart
from asyncrl.explain.run_status import RunStatus
from asyncrl.explain.summary import Summary
from asyncrl.files import open_regular, read_regular
from asyncrl.runtime import run_dir
from asyncrl.runtime.run_dir import RUN_TOML
from asyncrl.words import sentence

if TYPE_CHECKING:
    from asyncrl.journal import SqliteHistory

TOML_BYTES = 2**20
"""Most bytes of a run.toml."""

SHOWN = 40
"""Characters of a version that are shown."""

T = TypeVar("T")


class RunFiles:
    """The files of the run in the directory `path`. What a run says of itself as a whole is read
    when it is asked for first, and not again: for another moment open the run again."""

    def __init__(self, path: Path) -> None:
        if not is_folder(path):
            what = "this is not a directory" if exists(path) else "there is no such directory"
            raise ConfigError(f"{path}: {what}; give the directory of a run.")
        if not is_run(path) and is_game(path):
            raise ConfigError(
                f"{path}: this is the directory of a game; give that of one of its policies, which "
                "is in it."
            )
        if not is_run(path):
            raise ConfigError(
                f"{path}: there is no {RUN_TOML} in it, so it is not the directory of a run; give "
                "that of one, as the last lines of `asyncrl train` name it."
            )
        self.path = path

    @property
    def lives(self) -> bool:
        """True if a process has claimed the run by now, and has not ended."""
        try:
            with open_regular(self.path / run_dir.LOCK) as lock:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:  # there is no lock to have
            return False
        return False

    @property
    def holder(self) -> int | None:
        """The process that has claimed the run, as the kernel names it; None if it is not known, as
        on another machine."""
        try:
            inode = (self.path / run_dir.LOCK).stat().st_ino
            locks = Path("/proc/locks").read_text().splitlines()
        except OSError:
            return None
        for words in map(str.split, locks):  # 1: FLOCK ADVISORY WRITE PID MAJOR:MINOR:INODE …
            ours = words[5:6] and words[5].rpartition(":")[2] == str(inode)
            if ours and words[1:4] == ["FLOCK", "ADVISORY", "WRITE"] and int(words[4]) > 0:
                return int(words[4])
        return None

    # ---------------------------------------------------------------------------------- settings

    @property
    def config(self) -> Config:
        """The settings, checked: modules that they name are imported."""
        with self.of_its_version():
            return configuration.read(self.path / RUN_TOML)

    @contextmanager
    def of_its_version(self) -> Iterator[None]:
        """Add to a ConfigError about the settings inside the block that another version of asyncrl
        wrote them, if one did."""
        try:
            yield
        except ConfigError as error:
            start, ours = None, version("asyncrl")
            with suppress(ConfigError):
                start = self.start
            if start is None or start.asyncrl == ours:
                raise
            raise ConfigError(
                f"{error} The run was started by asyncrl {escaped(start.asyncrl, SHOWN)}, and this "
                f"is {ours}: use that version."
            ) from None

    @property
    def numbers(self) -> Config:
        """The settings for their numbers, without the user's modules: what names code is as by
        default."""
        with self.of_its_version():
            return read_numbers(self.path / RUN_TOML)

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The settings by key as they are written, none of them checked."""
        path = self.path / RUN_TOML
        if path.stat().st_size > TOML_BYTES:
            raise ConfigError(f"{path}: this has more than {TOML_BYTES} bytes, and is no run.toml.")
        return {".".join(setting.path): setting.value for setting in settings_in(path)}

    @property
    def supervised(self) -> bool:
        """True if the run is one of `asyncrl sft`."""
        return self.settings.get("sft.run") is True

    @property
    def tables(self) -> dict[str, Any]:
        """The settings as the tables of run.toml, for other tools."""
        return tomllib.loads(read_regular(self.path / RUN_TOML, TOML_BYTES).decode())

    # ------------------------------------------------------------------------ how the run stands

    @cached_property
    def stalled(self) -> bool:
        """True if the run's watchdog ended it."""
        return is_file(self.path / run_dir.STALL)

    @cached_property
    def last_status(self) -> RunStatus | None:
        """The run status that the run left last; None before it has said how it stands."""
        if self.stalled:
            return self._said(run_dir.STALL, run_status.read)
        found = self._said(run_dir.STATUS, run_status.read)
        if found is None and not self.lives:  # it was started again, and has not come far
            return self._said(run_dir.LAST_STATUS, run_status.read)
        return found

    @property
    def status(self) -> RunStatus:
        """The run status that the run left last, which there must be."""
        if self.last_status is not None:
            return self.last_status
        disk, whole = takes_no_more(self.path), game_of(self.path)
        if self.lives:
            what = f"it is starting, or preparing its model{f', and {disk}' if disk else ''}: "
            what += "try again in a minute"
        elif disk:
            what = (
                f"it ended before it began, and {disk}, and begin it with asyncrl train --resume "
                f"{whole}"
            )
        elif any(exists(self.path / name) for name in (run_dir.SUMMARY, run_dir.JOURNAL)):
            what = (
                f"{run_dir.STATUS} is not in it, as in a copy that is not whole: copy the run "
                f"again, or continue it by asyncrl train --resume {whole}"
            )
        else:
            what = (
                "it ended before it began: see its logs, or begin it with asyncrl train --resume "
                f"{whole}"
            )
        raise ConfigError(f"{self.path}: this run has no status yet; {what}.")

    @cached_property
    def start(self) -> RunStart | None:
        """The last start of the run; None of one that an earlier asyncrl started."""
        return self._said(run_dir.START, run_start.read)

    @cached_property
    def summary(self) -> Summary | None:
        """The totals of a run that has ended; None before."""
        return self._said(run_dir.SUMMARY, summary.read)

    def _said(self, name: str, read: Callable[[Path], T]) -> T | None:
        """The contents of a file; None where there is none."""
        path = self.path / name
        with usable(path, "read"):
            try:
                return read(path)
            except FileNotFoundError:
                return None
            except msgspec.DecodeError:
                raise ConfigError(
                    f"{path}: this is damaged, or of another asyncrl: use the one that wrote it, "
                    "or put back a copy of the file."
                ) from None

    # ----------------------------------------------------------------- what is read bit by bit

    def points(self) -> Iterator[Point]:
        """The points of the curve so far; none where there is no curve."""
        path = self.path / run_dir.METRICS
        with usable(path, "read"), suppress(FileNotFoundError):
            yield from curve.read(path)

    @contextmanager
    def journal(self) -> Iterator[SqliteHistory]:
        """The journal as it is when the block begins, for a fold of it in the block."""
        from asyncrl.experience.call import ImpossibleEvent
        from asyncrl.journal import JournalError, SqliteHistory  # who asks `why` waits for neither

        path = self.path / run_dir.JOURNAL
        if self.supervised:
            raise ConfigError(
                f"{self.path}: this run is supervised (asyncrl sft) and samples nothing, so there "
                "are no rollouts; its curve is shown by asyncrl report."
            )
        try:
            with SqliteHistory(path) as history:
                yield history
        except JournalError as error:
            raise ConfigError(sentence(error)) from None
        except (ImpossibleEvent, KeyError) as error:  # the latter of a journal of somebody else's
            raise ConfigError(
                f"{path}: its events do not follow from one another ({error}), so that its "
                "rollouts are not known."
            ) from None

    # ------------------------------------------------------------------------------------ models

    @property
    def initial(self) -> Path:
        """The directory of the model that the run started from, which may be gone."""
        return self.path / run_dir.INITIAL

    @property
    def model(self) -> Path:
        """The directory of the model after the last step, in Hugging Face's form."""
        if not is_folder(path := self.path / run_dir.MODEL):
            raise ConfigError(
                f"{self.path}: there is no {run_dir.MODEL} in it: the run writes it after its "
                "last step."
            )
        return path


def is_run(path: Path) -> bool:
    """True for the directory of a run."""
    return is_file(path / RUN_TOML)


def is_game(path: Path) -> bool:
    """True for the directory of a game, which has the run of each of its policies."""
    return is_file(path / run_dir.GAME)


def game_of(run: Path) -> Path:
    """The directory that `--resume` takes for a run: that of its game, or its own if it is in
    none."""
    return run.parent if is_game(run.parent) else run


def curve_of(run: Path) -> CurveReader:
    """A reader of the curve of a run, in whose directory there may be nothing yet."""
    return CurveReader(run / run_dir.METRICS)
