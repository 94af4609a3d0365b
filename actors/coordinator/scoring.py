"""Asks reward actors for the verdicts on sealed rollouts.

Invariant: a sealed rollout is with exactly one reward actor, or waits for one, or for the rest of
its group, where a judge sees groups. The rollouts of a lost actor are asked again. Verdicts of a
group are journalled without waiting between them, so a crash finds all of them or none. Of an
episode a verifier judges the last reply, unless its agent gave it a reward.
"""

from __future__ import annotations

import logging
from collections import deque

import msgspec

from asyncrl.actors.coordinator.common_failure import ANSWERS, CommonFailure
from asyncrl.actors.coordinator.event_store import EventStore
from asyncrl.actors.coordinator.held_groups import HeldGroups
from asyncrl.actors.coordinator.judge_watch import JudgeWatch
from asyncrl.actors.coordinator.peers import Peer, Roster
from asyncrl.algorithms.overlong import overlong_penalty
from asyncrl.config import Config
from asyncrl.config.flow import penalty_band
from asyncrl.config.judging import AHEAD, judge_s, judges_groups, most_held
from asyncrl.experience.episode import last_context
from asyncrl.experience.events import Judged
from asyncrl.experience.group import Group
from asyncrl.experience.image_marks import without_images
from asyncrl.experience.rollout import Rollout
from asyncrl.messages import (
    Finish,
    GroupScoreRequest,
    GroupScoreResult,
    NoVerdict,
    Scored,
    ScoreRequest,
    ScoreResult,
    Verdict,
)
from asyncrl.runtime.processes.standstill import RunClock

Question = tuple[int, ...]
"""Rollouts of a group that are judged together; mostly one."""

logger = logging.getLogger(__name__)


class Scoring:
    """The answers that each reward actor has to judge."""

    def __init__(self, store: EventStore, roster: Roster, config: Config, clock: RunClock) -> None:
        self._store = store
        self._clock = clock
        self._roster = roster
        self._played = bool(config.agent.run)
        self._capacity = most_held(config)
        self._held = HeldGroups(store.experience) if judges_groups(config) else None
        # tokens over which a long response loses its reward; 0: it does not
        self._band = penalty_band(config.rollout)
        self.patience_s = 2 * (AHEAD + 1) * config.task.verdict_s + 30.0 + judge_s(config)
        """Seconds in which a reward actor answers: within the verifier's deadline, after what it
        was given before, and once more for a worker that died; then within the judge's."""
        self._due: deque[Question] = deque()  # what is with no reward actor
        self._listed = 0  # the number of the last sealing that was put there
        # question → (reward actor, deadline), the earliest deadline first
        self._with: dict[Question, tuple[str, float]] = {}
        self._load: dict[str, int] = {}  # answers that each reward actor has
        before = store.experience.ledger.rollouts.trained > 0
        self.failures = CommonFailure(ANSWERS, succeeded_before=before)
        """Answers that got a verdict, and those that did not."""
        self.judge = JudgeWatch()
        """The last verdicts, as far as a judge on a server gave none."""
        self.slowest: tuple[float, int] = (0.0, -1)
        """Seconds of the slowest verdict, and the prompt's index; -1 before the first."""
        self.last_activity = clock.now()
        """Seconds on the run's clock when a verdict came last."""

    def dispatch(self) -> None:
        """Request every verdict that is due, as far as reward actors have room."""
        experience = self._store.experience
        for sealed in experience.to_judge(self._listed):
            self._listed = sealed.sealed
            if self._played and (agent_reward := _given(sealed)) is not None:
                self._judge(sealed, agent_reward)
                if self._held is not None:  # an agent may judge some of a group, and leave others
                    self._held.settled(sealed)
            elif self._held is None or experience.groups[sealed.group].split != "train":
                self._due.append((sealed.id,))
            else:
                self._held.hold(sealed)
        if self._held is not None:
            self._due.extend(self._held.whole())
        while self._due:
            question = tuple(number for number in self._due[0] if number in experience.rollouts)
            if not question:  # its group was dropped meanwhile
                self._due.popleft()
                continue
            peer = min(
                self._roster.of("reward"), key=lambda p: self._load.get(p.name, 0), default=None
            )
            if (
                peer is None
                or self._load.get(peer.name, 0) + len(question) > self._capacity
                or not peer.has_room()
            ):
                return
            self._due.popleft()
            self._with[question] = peer.name, self._clock.now() + self.patience_s
            self._load[peer.name] = self._load.get(peer.name, 0) + len(question)
            self._ask(peer, [experience.rollouts[number] for number in question])

    def _ask(self, peer: Peer, rollouts: list[Rollout]) -> None:
        """Ask a reward actor for the verdicts on rollouts of a group: those on several together, or
        on one alone."""
        group = self._store.experience.groups[rollouts[0].group]
        replies = [_reply(rollout) for rollout in rollouts]
        finishes = [finish for _, finish in replies]
        ids = [
            rollout.shared + bytes(rollout.ids[len(rollout.ids) - 4 * tokens :])
            for rollout, (tokens, _) in zip(rollouts, replies, strict=True)
        ]
        continued = [_continued(group, rollout) for rollout in rollouts]
        if self._held is None or group.split != "train":
            request = ScoreRequest(rollouts[0].id, group.split, group.prompt_index, finishes[0])
            peer.send(request, ids[0], continued[0])
            return
        together = GroupScoreRequest(
            [rollout.id for rollout in rollouts],
            group.split,
            group.prompt_index,
            finishes,
            [len(part) // 4 for part in ids],
            [len(part) // 4 for part in continued],
        )
        peer.send(together, b"".join(ids), b"".join(continued))

    def on_score_result(self, sender: Peer, message: ScoreResult) -> None:
        """Record a verdict. One from an actor that was replaced meanwhile is ignored, because
        another actor returns it."""
        self._on_verdicts(sender, [(message.rollout, message.verdict)], message.seconds)

    def on_group_result(self, sender: Peer, message: GroupScoreResult) -> None:
        """Record the verdicts on a group's rollouts, as `on_score_result` does."""
        self._on_verdicts(sender, message.verdicts, message.seconds)

    def _on_verdicts(
        self, sender: Peer, verdicts: list[tuple[int, Verdict]], seconds: float
    ) -> None:
        question = tuple(number for number, _ in verdicts)
        asked, _ = self._with.get(question, ("", 0.0))
        if asked != sender.name:
            return
        self._release(question)
        for number, verdict in verdicts:
            if (rollout := self._store.experience.rollouts.get(number)) is not None:
                self._on_verdict(rollout, verdict, seconds)

    def _on_verdict(self, rollout: Rollout, verdict: Verdict, seconds: float) -> None:
        shown, shared = _reply(rollout)[0], rollout.shared_tokens
        if isinstance(verdict, Scored) and not verdict.fits(shared + shown):
            verdict = NoVerdict("error spans: they are not in the response")
        if isinstance(verdict, Scored):  # it was shown the last tokens alone, or a parent's, too
            before = rollout.tokens - shown - shared
            errors = [
                (max(0, start + before), end + before)
                for start, end in verdict.errors
                if end + before > 0
            ]
            verdict = msgspec.structs.replace(verdict, errors=errors)
        self.last_activity = self._clock.now()
        prompt_index = self._store.experience.groups[rollout.group].prompt_index
        self.slowest = max(self.slowest, (seconds, prompt_index))
        self._judge(rollout, verdict)

    def _judge(self, rollout: Rollout, verdict: Verdict) -> None:
        """Write down a verdict, with the penalty of a long response, if it can be one of its
        group's."""
        group = self._store.experience.groups[rollout.group]
        if isinstance(verdict, Scored) and group.split == "train" and self._band:
            shared = rollout.shared_tokens
            most = shared + rollout.max_new_tokens
            penalty = overlong_penalty(shared + rollout.tokens, most, self._band)
            verdict = verdict.penalized(penalty)
        if isinstance(verdict, Scored) and not group.comparable(
            verdict
        ):  # its siblings were judged before the verifier was changed
            verdict = NoVerdict(
                f"other rewards: {len(verdict.parts)} of them, where others of the group have "
                f"{len(group.parts[0])}"
            )
        self.judge.note(verdict.reason if isinstance(verdict, NoVerdict) else "")
        if isinstance(verdict, Scored):
            self.failures.success()
        elif self.failures.failure(verdict.reason, group.id, self._clock.now()):
            logger.warning(
                "an answer to prompt %d has no verdict: %s (%s)",
                group.prompt_index,
                verdict.reason,
                self.failures.so_far,
            )
        self._store.record(Judged(rollout.id, verdict))

    def held(self, name: str) -> int:
        """Count the answers that a reward actor has."""
        return self._load.get(name, 0)

    def lose(self, peer: Peer) -> None:
        """A reward actor is gone: its answers are asked again."""
        lost = [question for question, (name, _) in self._with.items() if name == peer.name]
        for question in lost:
            self._release(question)
        self._due.extendleft(reversed(lost))

    def overdue(self, now: float) -> str | None:
        """The reward actor that has owed a verdict for too long; None if there is none."""
        for name, deadline in self._with.values():
            return name if deadline < now else None
        return None

    @property
    def pending(self) -> bool:
        """True if a verdict is owed, or still to be asked for."""
        return bool(self._with or self._due)

    def _release(self, question: Question) -> None:
        name, _ = self._with.pop(question)
        self._load[name] -= len(question)


def _given(rollout: Rollout) -> Verdict | None:
    """The verdict on an episode that no verifier is asked for: its agent's own, or none where
    nothing was sampled. None: a verifier is."""
    if not rollout.turns:
        return NoVerdict("no turn: the agent asked the model for nothing")
    return None if rollout.agent_reward is None else Scored(rollout.agent_reward)


def _continued(group: Group, rollout: Rollout) -> bytes:
    """The ids that the model continued by what a verifier is shown: the prompt, and of an episode
    all that its last turn had before it."""
    if not rollout.turns:
        return group.prompt
    context = last_context(rollout.ids, rollout.turns, rollout.strands)
    return without_images(context) if rollout.images else context


def _reply(rollout: Rollout) -> tuple[int, Finish]:
    """The tokens that a verifier is shown, the last of the rollout, and how they ended: of an
    episode, its last turn."""
    if not rollout.turns:
        return rollout.tokens, rollout.finish
    last = rollout.turns[-1]
    return last.tokens, last.finish
