"""A run in Python: its directory, and the contents of its files. Each property reads the files as
they are now, so a live run can be read again."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from asyncrl.config import Config, ConfigError
from asyncrl.explain.curve import Point
from asyncrl.explain.run_figures import Standing, standing
from asyncrl.explain.run_files import RunFiles
from asyncrl.explain.run_list import runs_in
from asyncrl.explain.summary import Summary
from asyncrl.explain.views.rollout_records import RolloutRecord, Wanted, records
from asyncrl.explain.why import why
from asyncrl.library.columns import columns
from asyncrl.library.kept_code import SETTINGS, refuse_kept_code, same_code
from asyncrl.library.train import start
from asyncrl.messages import Finish, Split
from asyncrl.runtime.output import complain
from asyncrl.runtime.run_dir import SUMMARY

STOP_S = 30.0
"""Seconds that a run may take to end, beyond those that it has to drain."""
LOOK_S = 0.1
"""Seconds between two looks at the lock: nothing waits for a lock within a bound, and a notebook's
process goes on when its run has ended."""


class Run:
    """The run in a directory. `status` is the exit status if `train` has just ended it (0 well, 130
    interrupted, else failed), and None if the directory was only opened.

    >>> Run("/nowhere")
    Traceback (most recent call last):
    asyncrl.config.errors.ConfigError: /nowhere: there is no such directory; give the directory of \
a run.
    """

    def __init__(
        self,
        path: str | Path,
        status: int | None = None,
        *,
        code: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Open a run. `code` has the digests of the files in its folder `code`, if this session
        wrote them. Raises ConfigError for a directory that is not a run's; one that has just
        ended may have lost it."""
        self.path = Path(path).absolute()
        self.status = status
        self._code = dict(code)
        if status is None:
            _ = self._files

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r})"

    @property
    def ok(self) -> bool:
        """True if the run has ended well."""
        if self.status is not None:
            return self.status == 0
        summary = self._files.summary
        return summary is not None and summary.ok

    @property
    def lives(self) -> bool:
        """True if a process works on the run."""
        return self._files.lives

    @property
    def state(self) -> Standing:
        """The state of the run, in words: `begins`, `goes on`, `ended`, `failed`, `stalled` or
        `killed`. Raises ConfigError."""
        return standing(self._files)

    @property
    def config(self) -> Config:
        """The run's settings, all of them. Raises ConfigError, also if they name code in the
        directory that this session did not write."""
        files = self._files
        self._refuse_unknown_code(())
        return files.config

    @property
    def settings(self) -> dict[str, Any]:
        """The settings by key, as they are written: nothing that they name is imported. Raises
        ConfigError."""
        return dict(self._files.settings)

    @property
    def curve(self) -> list[Point]:
        """Points of the curve so far: a `StepPoint` for each step, an `EvaluationPoint` for each
        evaluation. Raises ConfigError if they cannot be read."""
        return list(self._files.points())

    def columns(self) -> dict[str, list[Any]]:
        """The curve so far as columns of equal length, a row for each version:
        `pandas.DataFrame(run.columns())`. None where a version has no such number. Raises
        ConfigError."""
        return columns(self._files.points())

    @property
    def summary(self) -> Summary:
        """The totals of a run that has ended. Raises ConfigError if there are none."""
        if (summary := self._files.summary) is None:
            raise ConfigError(
                f"{self.path}: there is no {SUMMARY}, so the run has not ended; `why` explains "
                "its state."
            )
        return summary

    @property
    def model_path(self) -> Path:
        """The directory of the model after the last step, in Hugging Face's form. Raises
        ConfigError if the run has not made it."""
        return self._files.model

    model = model_path  # its name in the first version

    def rollouts(
        self,
        *,
        split: Split | None = None,
        prompt: int | None = None,
        reward_below: float | None = None,
        reward_above: float | None = None,
        finish: Finish | None = None,
        step: int | None = None,
        lag_above: int | None = None,
        failed: bool = False,
        living: bool = False,
        last: int | None = None,
    ) -> list[RolloutRecord]:
        """Records of the rollouts that fit and ended last, the newest first, as `asyncrl rollouts`
        shows them; 10 of them unless `last` is given. With `living`, of those that have not ended.
        Raises ConfigError."""
        wanted = Wanted(
            split=split,
            prompt=prompt,
            reward_below=reward_below,
            reward_above=reward_above,
            finish=finish,
            step=step,
            lag_above=lag_above,
            failed=failed,
            living=living,
            last=last,
        )
        return list(records(self._files, wanted, complain))

    def why(self) -> list[str]:
        """A few sentences about the state of the run, as `asyncrl why` prints them. Raises
        ConfigError."""
        return why(self._files, time.time())

    def stop(self, *, wait: bool = True) -> None:
        """Drain the run, as Ctrl-C in its terminal or cell does, and wait for its end, at most
        `supervision.grace_s` and half a minute. Nothing happens to a run that is over. Raises
        ConfigError if its process is not on this machine, or another user's."""
        files = self._files
        if not files.lives:
            return
        holder = files.holder
        if holder == os.getpid():
            raise ConfigError(
                f"{self.path}: this process trains the run; interrupt its cell or its terminal."
            )
        if holder is None:
            raise ConfigError(
                f"{self.path}: the process of the run is on another machine or in another "
                "container; stop it there, by Ctrl-C."
            )
        try:
            os.kill(holder, signal.SIGINT)
        except ProcessLookupError:
            pass  # it has just ended
        except PermissionError:
            raise ConfigError(
                f"{self.path}: its process {holder} is another user's; ask them to stop it."
            ) from None
        ends = time.monotonic() + float(files.settings["supervision.grace_s"]) + STOP_S
        while wait and files.lives:
            if time.monotonic() > ends:
                raise ConfigError(
                    f"{self.path}: the run has not ended yet; `why` explains its state, and "
                    "stop() once more ends it at once."
                )
            time.sleep(LOOK_S)

    def resume(self, config: Config | None = None, **code: Any) -> Run:
        """Go on with the run, to its end, and return it: with its own settings, or with those of
        `config`. Code of a notebook or a script is given again by the keywords of `train`; in the
        session that began the run it may be left out. Raises ConfigError."""
        if unknown := [name for name in code if name not in SETTINGS]:
            raise ConfigError(
                f"resume: {unknown[0]} is no kind of code; the kinds are {', '.join(SETTINGS)}."
            )
        self._refuse_unknown_code(
            [SETTINGS[name] for name, thing in code.items() if thing is not None]
        )
        config = config or self._files.config
        over = start(config, code, resume=self.path, known=self._code)
        return Run(over.run, over.status, code=over.code)

    def _refuse_unknown_code(self, named: Collection[str]) -> None:
        if not same_code(self.path, self._code):
            refuse_kept_code(self.path, named)

    @property
    def _files(self) -> RunFiles:
        """The files as they are now."""
        return RunFiles(self.path)


def open_run(path: str | Path) -> Run:
    """Open the run in a directory, alive or over. Raises ConfigError if there is none."""
    return Run(path)


def runs(folder: str | Path = "runs") -> list[Run]:
    """The runs in a folder, those that began last first. None where there is no such folder."""
    return [Run(files.path) for files in runs_in(Path(folder))]
