"""Lends the trainer's devices to generation, and takes them back (`rollout.lending = switch`).

Invariant: a lent engine gets rollouts only while the trainer is idle. As soon as the trainer gets
work, the engine must return its rollouts, which resume elsewhere from the last token.

    the trainer has nothing to do, and a loan is worth its switch     the lent engines are opened,
                                                                      and the step is taken whole
    the step is ready                                                 they are closed

A run whose other engines are all gone lends even if it does not pay.
"""

from __future__ import annotations

from collections.abc import Iterable

from asyncrl.actors.coordinator.chunks import ChunkIntake
from asyncrl.actors.coordinator.decisions import Decision, LoanEnded
from asyncrl.actors.coordinator.engine_pool import EngineHandle, EnginePool
from asyncrl.actors.coordinator.lending_choice import LendingChoice, Loan
from asyncrl.actors.coordinator.reclaiming import Reclaiming
from asyncrl.config import Config
from asyncrl.config.lending import lent_actors
from asyncrl.explain.run_status import LendingStatus


class LoanTimes:
    """The moments of one loan, in seconds on the run's clock: its begin, its first token and its
    end; None for what has not come."""

    def __init__(self, began: float) -> None:
        self.began = began
        self.first: float | None = None
        self.ended: float | None = None

    def streamed(self, times: Iterable[float]) -> None:
        """Note when the lent engines streamed last."""
        if self.first is None and self.ended is None:
            self.first = min((at for at in times if at > self.began), default=None)

    def given_back(self, now: float) -> Loan:
        """The loan, which has ended and is completely returned by `now`."""
        assert self.ended is not None
        first = self.ended if self.first is None else self.first
        return Loan(first - self.began, self.ended - first, now - self.ended)


class LentEngines:
    """The engines that are lent; a run may have none."""

    def __init__(
        self,
        engines: EnginePool,
        reclaiming: Reclaiming,
        chunks: ChunkIntake,
        config: Config,
    ) -> None:
        self._engines, self._reclaiming, self._chunks = engines, reclaiming, chunks
        self._names = lent_actors(config)
        own = config.rollout.actors - len(self._names)
        self._choice = LendingChoice(len(self._names) / own)
        self._loan: LoanTimes | None = None  # the last one, until all of it is given back
        self._waited_s, self._version = 0.0, 0  # for the step from this version on
        self._idle_since: float | None = None
        self._seconds, self._count = 0.0, 0  # of loans that are over; of all that began

    def __contains__(self, name: str) -> bool:
        """True for the name of an engine that is lent."""
        return name in self._names

    @property
    def whole_step(self) -> bool:
        """True if the trainer gets no part of a step until the step is ready."""
        return self._open or (self._choice.worth and _able(self._lent))

    @property
    def _lent(self) -> list[EngineHandle]:
        """The lent engines that are connected."""
        return [e for name in sorted(self._names) if (e := self._engines.get(name)) is not None]

    @property
    def _open(self) -> bool:
        """True while there is a loan."""
        return self._loan is not None and self._loan.ended is None

    def pump(self, idle: bool, version: int, now: float) -> list[Decision]:
        """Open or close the lent engines. The trainer has no work if `idle`; `version` is its
        last."""
        if not self._names:
            return []
        decisions: list[Decision] = []
        lent = self._lent
        lendable = idle and _able(lent)
        self._wait(idle, version, now)
        if self._loan is not None:
            self._loan.streamed(self._chunks.streamed.get(engine.name, 0.0) for engine in lent)
            if self._loan.ended is not None and not any(any(e.held.values()) for e in lent):
                self._choice.lent(self._loan.given_back(now))
                self._loan = None
        alone = len(lent) == len(self._engines)
        if lendable and not self._open and (self._choice.worth or alone):
            self._loan = LoanTimes(now)
            self._count += 1
        if not lendable and self._loan is not None and self._loan.ended is None:
            self._loan.ended = now
            self._seconds += now - self._loan.began
            decisions.append(LoanEnded(now - self._loan.began))
        for engine in lent:
            self._set(engine, closed=not self._open)
        return decisions

    def status(self, now: float) -> LendingStatus | None:
        """The state of lending; None where nothing is lent so."""
        if not self._names:
            return None
        under_way = now - self._loan.began if self._loan is not None and self._open else 0.0
        return LendingStatus(
            engines=len(self._names),
            worth=self._choice.worth,
            lent=self._open,
            loans=self._count,
            changes=self._choice.changes,
            seconds=self._seconds + under_way,
            cost_s=self._choice.cost_s,
            used_s=self._choice.used_s,
        )

    def _set(self, engine: EngineHandle, *, closed: bool) -> None:
        if closed and not engine.closed:
            self._engines.close(engine)
            self._reclaiming.drain(engine)
        elif engine.closed and not closed:
            self._engines.open(engine)

    def _wait(self, idle: bool, version: int, now: float) -> None:
        """Count the seconds for which the trainer waits, by step."""
        if self._idle_since is not None:
            self._waited_s += now - self._idle_since
        self._idle_since = now if idle else None
        if version != self._version:
            self._choice.waited(self._waited_s)
            self._version, self._waited_s = version, 0.0


def _able(lent: list[EngineHandle]) -> bool:
    """True if any of these has weights and was not told to end."""
    return any(engine.version is not None and not engine.draining for engine in lent)
