"""Verdicts as their messages tell of them. Invariant: a reward actor judges no more answers at a
time than it may, and is blamed for none before the answer has had its time.
"""

from __future__ import annotations

from asyncrl.config.judging import judge_s
from asyncrl.messages import (
    GroupScoreRequest,
    GroupScoreResult,
    Hello,
    Message,
    ScoreRequest,
    ScoreResult,
    Verdict,
)
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
        rollouts = list[int]()
        if isinstance(message, ScoreRequest):
            rollouts = [message.rollout]
        if isinstance(message, GroupScoreRequest):
            rollouts = message.rollouts
            self._whole(rollouts)
        for rollout in rollouts:
            self.asked[rollout] = start
            self.owed[start, rollout] = self._run.clock()

    def _whole(self, rollouts: list[int]) -> None:
        """A group is judged when no member of it is to come, and each that waits is there."""
        live = self._run.reference.rollouts
        for number in rollouts:
            group = live[number].group
            to_come = [one.id for one in live.values() if one.group is group and not one.sealed]
            self._run.hold("whole groups", not to_come, "it is judged without {}", to_come)

    def delivered(self, start: str, message: Message) -> list[tuple[int, Verdict]]:
        """The coordinator has received this from an actor. Returns the verdicts that it has to
        book."""
        if isinstance(message, Hello):
            # What its predecessor still says does not count: it is asked again.
            name = start.partition("/")[0]
            self.asked = {
                rollout: asked
                for rollout, asked in self.asked.items()
                if asked.partition("/")[0] != name
            }
        verdicts = list[tuple[int, Verdict]]()
        if isinstance(message, ScoreResult):
            verdicts = [(message.rollout, message.verdict)]
        if isinstance(message, GroupScoreResult):
            verdicts = message.verdicts
        for rollout, _ in verdicts:
            self.owed.pop((start, rollout), None)
        if any(self.asked.get(rollout) != start for rollout, _ in verdicts):
            return []
        for rollout, _ in verdicts:
            del self.asked[rollout]
        return verdicts

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
        patience = 6 * self._run.config.task.verdict_s + 30.0 + judge_s(self._run.config)
        self._run.hold(
            "blame",
            now - since > patience - 1e-6,
            "{} is blamed for a verdict that it owes for {} s of {}",
            start,
            now - since,
            patience,
        )
