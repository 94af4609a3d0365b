"""One run at one moment, as pages and reports see it. Invariant: each file is read once, when it is
asked for first; of the curve what was added since it was read last.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path

from asyncrl.config import ConfigError
from asyncrl.explain.run_figures import RunFigures, Standing, run_figures, standing
from asyncrl.explain.run_files import RunFiles
from asyncrl.explain.run_status import RunStatus
from asyncrl.explain.views.kept_rollouts import KeptRollouts
from asyncrl.explain.views.seen_curve import SeenCurve, SeenCurves


class SeenRun:
    """The directory of a run at the moment `now`, in seconds since 1970, with its `curve` and
    its newest `rollouts` as far as they were read before."""

    def __init__(
        self,
        run: Path,
        now: float,
        curve: SeenCurve | None = None,
        rollouts: KeptRollouts | None = None,
    ) -> None:
        self.run, self.now = run, now
        self._curve = SeenCurve(run) if curve is None else curve
        self.rollouts = KeptRollouts(run) if rollouts is None else rollouts

    @cached_property
    def files(self) -> RunFiles:
        """The files of the run. Raises ConfigError."""
        return RunFiles(self.run)

    @cached_property
    def figures(self) -> RunFigures:
        """The numbers of the run. Raises ConfigError."""
        with self._curve.renewed() as sums:
            return run_figures(self.files, sums)

    @cached_property
    def curves(self) -> SeenCurves:
        """The columns of the run's curve. Raises ConfigError."""
        return self._curve.lines()

    @cached_property
    def standing(self) -> Standing:
        """The state of the run, in a word. Raises ConfigError."""
        return standing(self.files)

    @property
    def status(self) -> RunStatus | None:
        """The last run status, where one can be read."""
        with suppress(ConfigError):
            return self.files.last_status
        return None

    @property
    def said_status(self) -> RunStatus:
        """The last run status, for parts that have nothing without: why there is none is said by
        the diagnosis. Raises ConfigError."""
        if self.files.last_status is None:
            raise ConfigError("Not known: the run has no status yet.")
        return self.files.last_status

    @property
    def live(self) -> RunStatus | None:
        """The run status of a run that goes on; None of one that is over."""
        return self.status if self.standing == "goes on" else None


def moment(seconds: float) -> str:
    """Seconds since 1970 as a date and a time, in UTC.

    >>> moment(1e9), moment(1e300)
    ('2001-09-09 01:46:40 UTC', '–')
    """
    try:
        return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (ValueError, OverflowError, OSError):
        return "–"


def clock_time(seconds: float) -> str:
    """Seconds since 1970 as a time of day, in UTC.

    >>> clock_time(1e9)
    '01:46:40'
    """
    return moment(seconds)[11:19] or "–"
