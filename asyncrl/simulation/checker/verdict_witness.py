"""Verdicts as their messages tell of them. Invariant: a reward actor judges no more answers at a
time than it may, and is blamed for none before the answer has had its time.
"""

from __future__ import annotations

from asyncrl.messages import Hello, Message, ScoreRequest, ScoreResult
from asyncrl.simulation.checker.checked_run import CheckedRun


class VerdictWitness:
    """Hears the verdicts of one life. `asked` has the start that each rollout's verdict was asked
    of last, `owed` since when each start owes each verdict."""

    def __init__(self, run: CheckedRun) -> None:
        self._run = run
        self.asked: dict[int, str] = {}
        self.owed: dict[tuple[str, int], float] = {}

    def told(self, start: str, message: Message) -> None:
        """The coordinator tells an actor this."""
        if isinstance(message, ScoreRequest):
            self.asked[message.rollout] = start
            self.owed[start, message.rollout] = self._run.clock()

    def delivered(self, start: str, message: Message) -> bool:
        """The coordinator has received this from an actor. Returns True for a verdict that it has
        to book."""
        if isinstance(message, Hello):
            # What its predecessor still says does not count: it is asked again.
            name = start.partition("/")[0]
            self.asked = {
                rollout: asked
                for rollout, asked in self.asked.items()
                if asked.partition("/")[0] != name
            }
        if not isinstance(message, ScoreResult):
            return False
        self.owed.pop((start, message.rollout), None)
        if due := self.asked.get(message.rollout) == start:
            del self.asked[message.rollout]
        return due

    def judging(self, start: str, answers: int) -> None:
        """So many answers are judged at a time."""
        most = self._run.config.reward.concurrency
        self._run.hold(
            "slots", answers <= most, "{} judges {} answers at a time, of {}", start, answers, most
        )

    def overdue(self, start: str) -> None:
        """A reward actor is blamed for owing a verdict for too long."""
        now = self._run.clock()
        since = min((at for (whose, _), at in self.owed.items() if whose == start), default=now)
        patience = 6 * self._run.config.task.verdict_s + 30.0
        self._run.hold(
            "blame",
            now - since > patience - 1e-6,
            "{} is blamed for a verdict that it owes for {} s of {}",
            start,
            now - since,
            patience,
        )
