"""A run in Python: its directory, and the contents of its files. Each property reads the files as
they are now, so a live run can be read again."""

from __future__ import annotations

import time
from pathlib import Path

from asyncrl.config import Config, ConfigError
from asyncrl.explain.curve import Point
from asyncrl.explain.run_files import RunFiles
from asyncrl.explain.summary import Summary
from asyncrl.explain.views.rollout_records import RolloutRecord, Wanted, records
from asyncrl.explain.why import why
from asyncrl.messages import Finish, Split
from asyncrl.runtime.output import complain
from asyncrl.runtime.run_dir import SUMMARY


class Run:
    """The run in a directory. `status` is the exit status if `train` has just ended it (0 well, 130
    interrupted, else failed), and None if the directory was only opened.

    >>> Run("/nowhere")
    Traceback (most recent call last):
    asyncrl.config.errors.ConfigError: /nowhere: there is no such directory; give the directory of \
a run.
    """

    def __init__(self, path: str | Path, status: int | None = None) -> None:
        """Open a run. Raises ConfigError for a directory that is not a run's; one that has just
        ended may have lost it."""
        self.path = Path(path).absolute()
        self.status = status
        if status is None:
            _ = self._files

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r})"

    @property
    def ok(self) -> bool:
        """True if the run has ended, and ended well."""
        if self.status is not None:
            return self.status == 0
        files = self._files
        return not files.lives and files.summary is not None and files.summary.ok

    @property
    def lives(self) -> bool:
        """True if a process works on the run."""
        return self._files.lives

    @property
    def config(self) -> Config:
        """The run's settings, all of them. Raises ConfigError."""
        return self._files.config

    @property
    def curve(self) -> list[Point]:
        """Points of the curve so far: a `StepPoint` for each step, an `EvaluationPoint` for each
        evaluation. Raises ConfigError if they cannot be read."""
        return list(self._files.points())

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
    def model(self) -> Path:
        """The directory of the model after the last step, in Hugging Face's form. Raises
        ConfigError if the run has not made it."""
        return self._files.model

    def rollouts(
        self,
        *,
        split: Split | None = None,
        prompt: int | None = None,
        reward_below: float | None = None,
        finish: Finish | None = None,
        last: int | None = None,
    ) -> list[RolloutRecord]:
        """Records of the newest rollouts that fit, as `asyncrl rollouts` shows them; 10 of them
        unless `last` is given. Raises ConfigError."""
        wanted = Wanted(
            split=split, prompt=prompt, reward_below=reward_below, finish=finish, last=last
        )
        return records(self._files, wanted, complain)

    def why(self) -> list[str]:
        """A few sentences about the state of the run, as `asyncrl why` prints them. Raises
        ConfigError."""
        return why(self._files, time.time())

    @property
    def _files(self) -> RunFiles:
        """The files as they are now."""
        return RunFiles(self.path)
