"""A run in Python: its directory, and the contents of its files. Each property reads the files as
they are now, so a live run can be read again."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec

from asyncrl import config as configuration
from asyncrl.config import Config, ConfigError
from asyncrl.explain import curve, summary, why
from asyncrl.explain.curve import Point
from asyncrl.explain.summary import Summary
from asyncrl.explain.views.rollout_records import RolloutRecord, Wanted, records
from asyncrl.messages import Finish, Split
from asyncrl.runtime import run_dir
from asyncrl.runtime.output import complain


class Run:
    """The run in a directory. `status` is the exit status if `train` has just ended it (0 well, 130
    interrupted, else failed), and None if the directory was only opened.

    >>> Run("/nowhere")
    Traceback (most recent call last):
    asyncrl.config.errors.ConfigError: /nowhere: there is no such directory; give the directory of \
a run.
    """

    def __init__(self, path: str | Path, status: int | None = None) -> None:
        """Open a run. Raises ConfigError for a directory that is not a run's."""
        self.path = Path(path).absolute()
        self.status = status
        run_dir.refuse_no_run(self.path)

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r})"

    @property
    def ok(self) -> bool:
        """True if the run has ended, and ended well."""
        if self.status is not None:
            return self.status == 0
        return not run_dir.lives(self.path) and self._has_summary and self.summary.ok

    @property
    def lives(self) -> bool:
        """True if a process works on the run."""
        return run_dir.lives(self.path)

    @property
    def config(self) -> Config:
        """The run's settings, all of them. Raises ConfigError."""
        return configuration.read(self.path / run_dir.RUN_TOML)

    @property
    def curve(self) -> list[Point]:
        """Points of the curve so far: a `StepPoint` for each step, an `EvaluationPoint` for each
        evaluation. Raises ConfigError if they cannot be read."""
        path = self.path / run_dir.METRICS
        try:
            return list(curve.read(path))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise ConfigError(f"{path}: cannot be read ({error.strerror}).") from None

    @property
    def summary(self) -> Summary:
        """The totals of a run that has ended. Raises ConfigError if there are none."""
        path = self.path / run_dir.SUMMARY
        try:
            return summary.read(path)
        except FileNotFoundError:
            raise ConfigError(
                f"{self.path}: there is no {run_dir.SUMMARY}, so the run has not ended; "
                "`why` explains its state."
            ) from None
        except (OSError, msgspec.DecodeError) as error:
            raise ConfigError(f"{path}: cannot be read ({error}).") from None

    @property
    def model(self) -> Path:
        """The directory of the model after the last step, in Hugging Face's form. Raises
        ConfigError if the run has not made it."""
        path = self.path / run_dir.MODEL
        if not path.is_dir():
            raise ConfigError(
                f"{self.path}: there is no {run_dir.MODEL} in it: the run writes it after its last "
                "step."
            )
        return path

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
        return records(self.path, wanted, complain)

    def why(self) -> list[str]:
        """A few sentences about the state of the run, as `asyncrl why` prints them. Raises
        ConfigError."""
        return why.why(self.path, time.time())

    @property
    def _has_summary(self) -> bool:
        return (self.path / run_dir.SUMMARY).is_file()
