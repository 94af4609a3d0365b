"""Has agents play rollouts as episodes.

Invariant: an episode is with one agents actor, for one attempt, or waits for one. Each call of its
agent is recorded in the heart before sampling, and is answered from the heart: first with tokens of
an earlier attempt.

    begin    a waiting episode goes to an agents actor (episode_placement.py)
    ask      the call is known by its key (reused), or is new (called); placement.py leases it
    reply    tokens go to the agent as they come, and the end of the answer after them
    over     what engines still have of it is taken back; the rollout is sealed, or waits for
             another attempt, or is buried after `attempts` that failed
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Literal

import msgspec

from asyncrl.actors.coordinator.attempts import (
    Attempt,
    PlayingLimits,
    episode_of,
    over_budget,
    rollout_key,
    shows,
    tokens_left,
)
from asyncrl.actors.coordinator.common_failure import EPISODES, CommonFailure
from asyncrl.actors.coordinator.episode_placement import REASON, EpisodePlacement
from asyncrl.actors.coordinator.event_store import EventStore
from asyncrl.actors.coordinator.peers import Peer
from asyncrl.actors.coordinator.reclaiming import Reclaiming
from asyncrl.escape import escaped
from asyncrl.experience.call import RolloutStatus
from asyncrl.experience.episode import AgentCall, gathered, unrewarded_end
from asyncrl.experience.events import (
    Begun,
    Buried,
    Called,
    Cut,
    Left,
    Noted,
    Reused,
    Rewarded,
    Sealed,
    ToolFailed,
)
from asyncrl.experience.group import Group
from asyncrl.experience.image_marks import numbered_by
from asyncrl.experience.rollout import Rollout
from asyncrl.explain.run_status import EpisodeCounts
from asyncrl.messages import (
    AgentMessage,
    Ask,
    Enough,
    Finish,
    GiveFailure,
    GiveReward,
    KeepGame,
    Note,
    Play,
    Played,
    Reply,
    Span,
    Split,
    Standing,
    StopPlaying,
)
from asyncrl.messages.game_messages import OUTCOME, PROMISED
from asyncrl.runtime.ipc.errors import LinkError
from asyncrl.runtime.processes.standstill import RunClock

logger = logging.getLogger(__name__)

GIVEN_UP = "game_given_up"
"""The reason for which a rollout is buried whose game another of its runs has given up."""

_encode = msgspec.msgpack.Encoder().encode


class Playing:
    """The episodes that are with agents."""

    def __init__(
        self,
        store: EventStore,
        placement: EpisodePlacement,
        reclaiming: Reclaiming,
        limits: PlayingLimits,
        temperature: Callable[[Group], float],
        clock: RunClock,
        standing: Callable[[], Standing | None] = lambda: None,
    ) -> None:
        """`standing` is that of the games, where the run is their host."""
        self._standing = standing
        self._store, self._placement, self._reclaiming = store, placement, reclaiming
        self._limits, self._temperature, self._clock = limits, temperature, clock
        self._attempts: dict[int, Attempt] = {}
        self.last_activity = clock.now()
        """Seconds on the run's clock of the last message of an agent."""
        before = store.experience.ledger.rollouts.trained > 0
        self.failures = CommonFailure(EPISODES, succeeded_before=before)
        """Attempts that were played to their end, and those that failed."""
        self.diverged = 0
        """Attempts that made another call than the one before had made."""

    # ------------------------------------------------------------------------------------- the loop

    def pump(self, oldest: int) -> None:
        """Do all due work for episodes: drop those whose newest token is older than the version
        `oldest`, which cannot be trained any more; end attempts whose rollout is over; reply."""
        for attempt in [a for a in self._attempts.values() if self._too_old(a, oldest)]:
            self._take_back_all(attempt)
            self._store.record(Buried(attempt.rollout, "stale"))
        self._end_stale()
        for attempt in self._attempts.values():
            self._end_if_spent(attempt)
            self._reply(attempt)

    def _too_old(self, attempt: Attempt, oldest: int) -> bool:
        """True for a training episode all of whose tokens are older than `oldest`. One without
        tokens is never too old."""
        rollout = self._store.experience.rollouts.get(attempt.rollout)
        if rollout is None or rollout.episode is None or self._split(rollout) != "train":
            return False
        if any(name.startswith((OUTCOME, PROMISED)) for name in rollout.episode.notes):
            return False
        newest = [call.spans[-1].version for call in rollout.episode.calls if call.spans]
        return bool(newest) and max(newest) < oldest

    def _end_stale(self) -> None:
        """Tell agents whose rollout is buried or dropped."""
        for rollout, attempt in list(self._attempts.items()):
            if not self._plays(attempt):
                attempt.peer.send(StopPlaying(rollout, attempt.attempt))
                del self._attempts[rollout]

    def _end_if_spent(self, attempt: Attempt) -> None:
        """End the answers of an episode that has sampled all that it may. Calls that sample at one
        time may have sampled more together: that is cut off before the agent sees it."""
        rollout = self._store.experience.rollouts[attempt.rollout]
        episode = episode_of(rollout)
        for number, sent in list(attempt.sent.items()):
            if (over := -tokens_left(rollout)) < 0:
                return  # there is more to sample where a call was dropped with its tokens
            call = self._call(attempt, number)
            self._take_back(call)
            tokens = max(call.tokens - over, episode.needed(call), sent)
            if call.status is RolloutStatus.WAITING or (call.finish and call.tokens > tokens):
                self._store.record(Cut(rollout.id, attempt.attempt, call.id, tokens))

    def begin(self, split: Split) -> None:
        """Give waiting episodes of `split` to agents actors, as many as may be live."""
        experience, live = self._store.experience, Counter[Peer]()
        for attempt in self._attempts.values():
            rollout = experience.rollouts.get(attempt.rollout)
            live[attempt.peer] += rollout is not None and self._split(rollout) == split
        most = max(0, self._placement.most - live.total())
        for rollout, peer in zip(
            experience.to_begin(split, most), self._placement.places(live), strict=False
        ):
            self._start(rollout, peer)

    def sit(self, rollout: Rollout, peer: Peer, ticket: int) -> None:
        """Begin a guest's rollout, for the agent of its host that sought it. An attempt of it that
        is under way is over: its agent has been played again."""
        if (attempt := self._attempts.get(rollout.id)) is not None:
            attempt.peer.send(StopPlaying(rollout.id, attempt.attempt))
            self._leave(attempt, "played_again", failed=False)
        self._start(rollout, peer, ticket)

    def give_up(self, rollout: Rollout) -> None:
        """Bury an unfinished rollout whose game another run has given up."""
        if (attempt := self._attempts.get(rollout.id)) is not None:
            self._take_back_all(attempt)
        self._store.record(Buried(rollout.id, GIVEN_UP))

    def promise(self, message: KeepGame) -> Literal["live", "ended", "over"]:
        """The state of an attempt, or of its rollout. From now on the game of a live one is not
        given up, also by a later attempt or after a resume: it is about to end well in other
        runs."""
        rollout = self._store.experience.rollouts.get(message.rollout)
        if rollout is None or rollout.status in (RolloutStatus.BURIED, RolloutStatus.WAITING):
            return "over"
        if rollout.status is not RolloutStatus.BEGUN:
            return "ended" if rollout.attempt == message.attempt else "over"
        attempt = self._attempts.get(rollout.id)
        if attempt is None or attempt.attempt != message.attempt:
            return "over"
        if PROMISED not in episode_of(rollout).notes:
            self._store.record(Noted(rollout.id, attempt.attempt, PROMISED, b"true"))
        return "live"

    def _start(self, rollout: Rollout, peer: Peer, ticket: int = 0) -> None:
        """Give an episode that waits to the agents actor `peer`."""
        episode, group = episode_of(rollout), self._store.experience.groups[rollout.group]
        number = episode.attempt + 1
        self._store.record(Begun(rollout.id, peer.name, number))
        self._attempts[rollout.id] = Attempt(peer, rollout.id, number)
        peer.send(
            Play(
                rollout=rollout.id,
                attempt=number,
                split=group.split,
                prompt_index=group.prompt_index,
                seed=rollout_key(group, rollout),
                max_new_tokens=rollout.max_new_tokens,
                temperature=self._temperature(group),
                notes=episode.notes,
                game=self._standing(),
                ticket=ticket,
            )
        )

    def observe(self) -> None:
        """Note that all due work is done: from now on agents work, and engines decode."""
        self._placement.observe(self.thinking)

    def _reply(self, attempt: Attempt) -> None:
        """Send the new tokens of its answers, and the ends of finished ones."""
        for number, sent in list(attempt.sent.items()):
            call = self._call(attempt, number)
            for span in call.spans:
                if span.end > sent:
                    self._say(attempt, number, call, max(span.start, sent), span)
            attempt.sent[number] = call.tokens
            if call.status is RolloutStatus.ANSWERED:
                end = Span(call.spans[-1].version if call.spans else 0, call.tokens, call.tokens)
                spent = tokens_left(self._store.experience.rollouts[attempt.rollout]) < 1
                ending: Finish = call.finish or ("length" if spent else "stop")
                self._say(attempt, number, call, call.tokens, end, ending)
                del attempt.sent[number]
                self._placement.call_ended()
            elif call.status is RolloutStatus.BURIED:
                self._refuse(attempt, number, "the engines could not answer this call")
                del attempt.sent[number]

    def _say(
        self,
        attempt: Attempt,
        number: int,
        call: AgentCall,
        start: int,
        span: Span,
        finish: Finish = "",
    ) -> None:
        """Send the tokens of a span from `start` on."""
        attempt.peer.send(
            Reply(attempt.rollout, attempt.attempt, number, span.version, finish),
            bytes(call.ids[4 * start : 4 * span.end]),
            bytes(call.behaviour[4 * start : 4 * span.end]),
        )

    def _refuse(self, attempt: Attempt, number: int, why: str, finish: Finish = "") -> None:
        attempt.peer.send(Reply(attempt.rollout, attempt.attempt, number, 0, finish, why), b"", b"")

    # ------------------------------------------------------------------------------------- messages

    def on_message(
        self, sender: Peer, message: AgentMessage, buffers: Sequence[bytes | memoryview]
    ) -> None:
        """Handle a message of an agents actor. Raises LinkError for an invalid one."""
        match message:
            case Ask():
                self.on_ask(sender, message, buffers[0])
            case Enough():
                self.on_enough(sender, message)
            case Note():
                self.on_note(sender, message)
            case GiveReward():
                self.on_reward(sender, message)
            case GiveFailure():
                self.on_failure(sender, message)
            case Played():
                self.on_played(sender, message)

    def on_ask(self, sender: Peer, message: Ask, ids: bytes | memoryview) -> None:
        """Handle a call of the agent. Raises LinkError for one that no gateway can send."""
        if (attempt := self._of(sender, message)) is None:
            return
        context = bytes(ids)
        new = message.number == len(attempt.calls) and message.max_new_tokens > 0
        if not new or not context or len(context) % 4 or not shows(message.images, context):
            raise LinkError(
                "malformed",
                f"{sender.name} asks for call {message.number} of rollout {message.rollout}, with "
                f"{len(context)} bytes of context and a budget of {message.max_new_tokens}",
            )
        rollout = self._store.experience.rollouts[message.rollout]
        group = self._store.experience.groups[rollout.group]
        episode, temperature = episode_of(rollout), self._temperature(group)
        settings = _encode([message.max_new_tokens, temperature, message.stops])
        asked = settings + context + "".join(message.images).encode()
        key = episode.next_key(rollout_key(group, rollout), asked)
        earlier = [
            call
            for call in episode.calls
            if call.id not in episode.used and call.status is not RolloutStatus.BURIED
        ]
        attempt.calls.append(None)
        known = next((call for call in earlier if call.key == key), None)
        if known is not None and episode.needed(known) <= tokens_left(rollout):
            self._store.record(Reused(rollout.id, attempt.attempt, known.id, message.role))
            attempt.answering(message.number, known.id)
            return
        budget = self._budget(rollout, message.max_new_tokens, len(context) // 4)
        if known is not None or len(attempt.calls) > self._limits.max_calls or budget < 1:
            why = over_budget(self._limits.max_calls, tokens=known is not None or budget < 1)
            self._refuse(attempt, message.number, why, "length")
            return
        if earlier and not attempt.diverged:
            attempt.diverged = True
            self.diverged += 1
        images = tuple(image for image in message.images if image not in episode.images)
        table = [*episode.images, *images]
        after, given = episode.locate(numbered_by(context, message.images, table))
        call = self._store.experience.next_rollout
        self._store.record(
            Called(
                rollout=rollout.id,
                attempt=attempt.attempt,
                call=call,
                after=after,
                given=given,
                key=key,
                max_new_tokens=budget,
                temperature=temperature,
                role=message.role,
                images=images,
            )
        )
        attempt.answering(message.number, call)

    def on_enough(self, sender: Peer, message: Enough) -> None:
        """Cut an answer of which the agent needs no more. Ended answers, and unknown calls, are
        ignored."""
        attempt = self._of(sender, message)
        if attempt is None or message.number not in attempt.sent:
            return
        call = self._call(attempt, message.number)
        episode = episode_of(self._store.experience.rollouts[attempt.rollout])
        self._take_back(call)
        if call.status is RolloutStatus.BURIED:
            return
        del attempt.sent[message.number]
        self._placement.call_ended()
        tokens = min(call.tokens, max(message.tokens, episode.needed(call)))
        if call.status is RolloutStatus.WAITING or (call.finish and call.tokens > tokens):
            self._store.record(Cut(attempt.rollout, attempt.attempt, call.id, tokens))

    def on_note(self, sender: Peer, message: Note) -> None:
        """Store a result of the agent for later attempts. The first of a name counts."""
        if (attempt := self._of(sender, message)) is None:
            return
        if message.name not in episode_of(self._store.experience.rollouts[attempt.rollout]).notes:
            self._store.record(Noted(attempt.rollout, attempt.attempt, message.name, message.value))

    def on_reward(self, sender: Peer, message: GiveReward) -> None:
        """Record a reward from the agent. Raises LinkError for one that no gateway sends: not
        finite, a duplicate, or of a call that was not made. One of a call that was refused or
        dropped is ignored."""
        if (attempt := self._of(sender, message)) is None:
            return
        episode = episode_of(self._store.experience.rollouts[attempt.rollout])
        call = None
        if message.number is not None and 0 <= message.number < len(attempt.calls):
            call = attempt.calls[message.number]
            if call not in episode.used:
                return  # it was refused or dropped: its agent does not know yet that it is no turn
        of_no_call = message.number is not None and call is None
        if of_no_call or call in episode.rewards or not math.isfinite(message.reward):
            raise LinkError(
                "malformed",
                f"{sender.name} gives rollout {message.rollout} the reward {message.reward} for "
                f"call {message.number}: not finite, given before, or of no call",
            )
        key = message.key if call is not None else ""
        self._store.record(Rewarded(attempt.rollout, attempt.attempt, call, message.reward, key))

    def on_failure(self, sender: Peer, message: GiveFailure) -> None:
        """Record a failed call of a tool. Raises LinkError for one that no gateway sends: of no
        call, a duplicate, or without a name. One of a call that was refused or dropped is
        ignored."""
        if (attempt := self._of(sender, message)) is None:
            return
        episode = episode_of(self._store.experience.rollouts[attempt.rollout])
        made = 0 <= message.number < len(attempt.calls)
        call = attempt.calls[message.number] if made else None
        if made and call not in episode.used:
            return  # as for a reward
        if call is None or call in episode.failed or not message.tool:
            raise LinkError(
                "malformed",
                f"{sender.name} says that call {message.number} of rollout {message.rollout} "
                "failed: it was not made, has failed before, or its tool has no name",
            )
        self._store.record(ToolFailed(attempt.rollout, attempt.attempt, call, message.tool))

    def on_played(self, sender: Peer, message: Played) -> None:
        """Handle the end of an attempt."""
        if (attempt := self._of(sender, message)) is None:
            return
        failed, text = message.failed, message.text
        if not failed:
            self._end_if_spent(attempt)
            self._take_back_all(attempt)
            if text := self._unrewarded(attempt, message.finish):
                failed = "no_reward"
        if failed:
            reason = escaped(f"{failed}: {text}", REASON)
            group = self._store.experience.rollouts[attempt.rollout].group
            if message.then == "wait":
                self._leave(attempt, failed, failed=False)
                return
            self._leave(attempt, failed, failed=True, last=message.then == "bury")
            self._placement.failed(sender, reason)
            if self.failures.failure(reason, group, self._clock.now()):
                logger.warning(
                    "the agent of rollout %d failed: %s (%s)",
                    attempt.rollout,
                    reason,
                    self.failures.so_far,
                )
        else:
            self.failures.success()
            self._store.record(Sealed(attempt.rollout, attempt.attempt, message.finish or "stop"))
            del self._attempts[attempt.rollout]
            self._placement.played(sender)

    def lose(self, peer: Peer) -> None:
        """Requeue the episodes of an agents actor that is gone, except those that had ended without
        its knowledge."""
        for attempt in [a for a in self._attempts.values() if a.peer is peer]:
            if self._plays(attempt):
                self._leave(attempt, "actor_lost", failed=False)
            else:
                del self._attempts[attempt.rollout]

    def leave(self, reason: str) -> None:
        """End every attempt: its episode waits for another one."""
        for attempt in list(self._attempts.values()):
            if self._plays(attempt):
                self._leave(attempt, reason, failed=False)
            else:
                del self._attempts[attempt.rollout]

    @property
    def thinking(self) -> int:
        """Count the agents that work: none of their calls waits for an answer."""
        return sum(not attempt.sent for attempt in self._attempts.values())

    @property
    def counts(self) -> EpisodeCounts:
        """Count the episodes."""
        return EpisodeCounts(
            live=len(self._attempts),
            thinking=self.thinking,
            most=self._placement.most,
            starts=self._placement.starts,
        )

    def held(self, name: str) -> int:
        """Count the episodes that an agents actor has."""
        return sum(attempt.peer.name == name for attempt in self._attempts.values())

    # --------------------------------------------------------------------------------- one attempt

    def _leave(self, attempt: Attempt, reason: str, *, failed: bool, last: bool = False) -> None:
        """End an attempt before its episode is over. After the `last`, or after `attempts` that
        failed, the rollout is buried."""
        self._take_back_all(attempt)
        del self._attempts[attempt.rollout]
        rollout = self._store.experience.rollouts[attempt.rollout]
        if failed and (last or episode_of(rollout).failures + 1 >= self._limits.attempts):
            logger.warning(
                "rollout %d is dropped after %d attempts of its agent; the last one ended by %s",
                rollout.id,
                attempt.attempt,
                reason,
            )
            self._store.record(Buried(rollout.id, reason))
        else:
            self._store.record(Left(rollout.id, attempt.attempt, reason, failed))

    def _unrewarded(self, attempt: Attempt, finish: Finish) -> str:
        """The sentence of an attempt that left an end of its tree without a reward; empty if it did
        not, or was cut off before it could give one."""
        rollout = self._store.experience.rollouts[attempt.rollout]
        if not self._limits.ends_rewarded or finish == "length" or self._split(rollout) != "train":
            return ""
        _, _, _, turns, _, _ = gathered(episode_of(rollout))
        end = unrewarded_end(turns)
        if end is None:
            return ""
        return (
            f"turn {end} of {len(turns)} is an end of the tree of calls without a reward, and "
            f"train.credit needs one at each: give it by episode.reward(x, call={end}), 0.0 too"
        )

    def _take_back_all(self, attempt: Attempt) -> None:
        """Stop all sampling for an attempt."""
        for call in list(episode_of(self._store.experience.rollouts[attempt.rollout]).calls):
            self._take_back(call)

    def _take_back(self, call: AgentCall) -> None:
        """Stop sampling for a call. Its tokens stay."""
        if call.status is RolloutStatus.LEASED:
            self._reclaiming.stop(call)
            self._reclaiming.take_back(call, "agent")

    def _budget(self, rollout: Rollout, asked: int, context: int) -> int:
        """The tokens that a call may sample: what is left of the episode's, and of the context."""
        return min(asked, tokens_left(rollout), self._limits.context_tokens - context)

    def _split(self, rollout: Rollout) -> Split:
        return self._store.experience.groups[rollout.group].split

    def _call(self, attempt: Attempt, number: int) -> AgentCall:
        call = attempt.calls[number]
        assert call is not None, "an answer is sent of calls that were made"
        return episode_of(self._store.experience.rollouts[attempt.rollout]).find(call)

    def _of(self, sender: Peer, message: AgentMessage) -> Attempt | None:
        """The attempt of a message; None if it is over, or another's."""
        attempt = self._attempts.get(message.rollout)
        if attempt is None or attempt.peer is not sender or attempt.attempt != message.attempt:
            return None
        self.last_activity = self._clock.now()
        return attempt if self._plays(attempt) else None

    def _plays(self, attempt: Attempt) -> bool:
        """True if the rollout of an attempt is neither buried nor dropped."""
        rollout = self._store.experience.rollouts.get(attempt.rollout)
        return rollout is not None and rollout.status is RolloutStatus.BEGUN
