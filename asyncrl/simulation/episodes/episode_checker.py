"""The checker of a world of episodes: each event and each message is judged against the reference.
Invariant: it believes the messages, the events, and what engines with those weights really sample.
"""

from __future__ import annotations

from collections import Counter
from itertools import count

import numpy as np

from actors.coordinator.playing import PlayingLimits
from asyncrl.experience import events as e
from asyncrl.experience.experience import Experience
from asyncrl.ipc.messages import (
    Ask,
    Chunks,
    Enough,
    GiveFailure,
    GiveReward,
    Message,
    Note,
    Play,
    Played,
    Reply,
)
from asyncrl.simulation import policy
from asyncrl.simulation.episodes.episode_reference import ReferenceEpisode, ReferenceEpisodes
from asyncrl.simulation.observer import WorldObserver

TEMPERATURE = 1.0

Asked = tuple[bytes, int, int]
"""Context of a call, the tokens that its agent asked for, and its place among equal ones."""


class EpisodeChecker(WorldObserver):
    """Watches one run of episodes. `weights` are those of each version; `steady` agents do the same
    in each attempt."""

    def __init__(self, limits: PlayingLimits, weights: dict[int, int], *, steady: bool) -> None:
        super().__init__()
        self.limits, self.weights, self.steady = limits, weights, steady
        self.events: list[e.AnyEvent] = []
        self.reference = ReferenceEpisodes()
        self._seeds: dict[tuple[int, int], int] = {}  # by seat
        self._asked: dict[int, Asked] = {}  # by call
        self._keys: dict[tuple[tuple[int, int], Asked], int] = {}  # by seat
        self._now: tuple[str, Message, bytes] | None = None  # what the coordinator is handling
        self._numbers: dict[tuple[int, int], list[int | None]] = {}  # by attempt, its calls
        self._said: dict[tuple[int, int, int], int] = {}  # tokens of an answer that were sent
        self._closed: set[tuple[int, int, int]] = set()  # answers that have ended
        self._delivered = 0

    # -------------------------------------------------------------------------------------- a life

    def crashed(self, durable: int) -> None:
        """Of all events only the first `durable` are left, and everybody starts anew."""
        del self.events[durable:]
        self.reference = ReferenceEpisodes(self.events)
        self._now, self._numbers, self._said = None, {}, {}
        self._closed.clear()
        self._delivered = self.reference.generated

    def look(self, experience: Experience) -> None:
        """Compare the product's state with the reference, between two messages."""
        mine, tokens = self.reference, experience.ledger.tokens
        due = mine.generated, mine.trained, mine.live, +mine.discarded
        written = tokens.total, tokens.trained, tokens.live, Counter(tokens.discarded)
        self.hold("ledger", due == written, "tokens: {}, and the ledger says {}", due, written)
        self.hold("ledger", experience.ledger.balances(), "the ledger does not balance")
        self.hold(
            "tokens are booked",
            self._delivered == mine.generated,
            "{} tokens were delivered, and {} booked",
            self._delivered,
            mine.generated,
        )
        for episode in mine.episodes.values():
            theirs = experience.rollouts[episode.id].episode
            if theirs is None:
                continue
            for call in theirs.calls:
                mine_ = episode.calls[call.id]
                self.hold(
                    "contexts stay",
                    theirs.context(call) == (mine_.path if mine_.buried else mine_.context),
                    "call {} has another context than it was asked with",
                    call.id,
                )

    def over(self, experience: Experience) -> None:
        """Nothing is live any more."""
        self.hold(
            "liveness",
            not self.reference.episodes and not experience.calls,
            "rollouts {} and calls {} are live at the end",
            list(self.reference.episodes),
            list(experience.calls),
        )

    # ------------------------------------------------------------------------------------ messages

    def on_handling(self, sender: str, message: Message, buffers: tuple[bytes, ...]) -> None:
        """The coordinator is about to handle this."""
        self._now = sender, message, buffers[0] if buffers else b""
        if isinstance(message, Chunks):
            self._delivered += sum(head.count for head in message.heads)
        if isinstance(message, Ask) and (episode := self._played(sender, message)) is not None:
            self._numbers[episode.id, episode.attempt].append(None)

    def on_handled(self) -> None:
        """The coordinator has handled it."""
        assert self._now is not None
        (sender, message, _), self._now = self._now, None
        if isinstance(message, Played):
            episode = self.reference.episodes.get(message.rollout)
            same = episode is not None and episode.attempt == message.attempt
            self.hold(
                "once",
                not (same and episode is not None and episode.status == "played")
                or episode.holder != sender,
                "rollout {} is still played, and its agent has ended",
                message.rollout,
            )

    def on_sent(self, start: str, message: Message, buffers: tuple[bytes, ...]) -> None:
        """The coordinator sends this to the actor `start`."""
        match message:
            case Play():
                episode = self.reference.episodes[message.rollout]
                self._numbers[episode.id, episode.attempt] = []
                seed = self._seeds.setdefault(episode.seat, message.seed)
                self.hold(
                    "replay",
                    (message.attempt, message.notes, message.seed, episode.holder)
                    == (episode.attempt, episode.notes, seed, start),
                    "{} is played by {}, and due is attempt {} with {}",
                    message,
                    start,
                    episode.attempt,
                    episode.notes,
                )
            case Reply():
                self._replied(start, message, *buffers)
            case _:
                pass

    def _replied(self, start: str, message: Reply, ids: bytes, behaviour: bytes) -> None:
        answer = message.rollout, message.attempt, message.number
        episode = self.reference.episodes.get(message.rollout)
        if episode is None or (episode.attempt, episode.holder) != (message.attempt, start):
            return self.violated("answers", f"{message} is of an attempt that is over")
        self.hold("answers", answer not in self._closed, "{} comes after the end", message)
        number = self._numbers[answer[:2]][message.number]
        call = None if number is None else episode.calls[number]
        if message.refused:
            self._closed.add(answer)
            self.hold(
                "bounds",
                call.buried if call is not None else self._may_refuse(episode),
                "{}, and it may be answered",
                message,
            )
            return None
        if call is None:
            return self.violated("answers", f"{message} answers what was refused")
        start_, end = self._said.get(answer, 0), self._said.get(answer, 0) + len(ids) // 4
        self._said[answer] = end
        same = (bytes(call.ids[4 * start_ : 4 * end]), bytes(call.behaviour[4 * start_ : 4 * end]))
        of_version = set(call.versions[start_:end]) <= {message.version}
        self.hold(
            "answers",
            same == (ids, behaviour) and of_version,
            "call {} is answered with other tokens than were sampled: {}",
            call.id,
            message,
        )
        if message.finish:
            self._closed.add(answer)
            spent = episode.spent() >= episode.budget
            whole = call.over and end == len(call.versions)
            self.hold(
                "answers",
                whole and message.finish == (call.finish or ("length" if spent else "stop")),
                "{} ends an answer of {} tokens after {}",
                message,
                len(call.versions),
                end,
            )
        return None

    def _may_refuse(self, episode: ReferenceEpisode) -> bool:
        """True if the call that is asked for may be refused."""
        assert self._now is not None
        _, message, context = self._now
        assert isinstance(message, Ask)
        asks = len(self._numbers[episode.id, episode.attempt])
        earlier = any(not call.used for call in episode.calls.values())
        left = self._budget(episode, message, context)
        return asks > self.limits.max_calls or left < (message.max_new_tokens if earlier else 1)

    def _budget(self, episode: ReferenceEpisode, ask: Ask, context: bytes) -> int:
        left = episode.budget - episode.spent()
        return min(ask.max_new_tokens, left, self.limits.context_tokens - len(context) // 4)

    def _played(self, sender: str, message: Ask | Enough | Note) -> ReferenceEpisode | None:
        """The episode that a message is of, if the sender plays it."""
        episode = self.reference.episodes.get(message.rollout)
        if episode is None or episode.status != "played" or episode.holder != sender:
            return None
        return episode if episode.attempt == message.attempt else None

    # -------------------------------------------------------------------------------------- events

    def on_event(self, number: int, event: e.AnyEvent) -> None:
        self.events.append(event)
        if self.violation is None:
            self._check(event)
        if self.violation is None:
            self.reference.apply(event)

    def _check(self, event: e.AnyEvent) -> None:
        match event:
            case e.Begun():
                self._begun(event)
            case e.Called():
                self._called(event)
            case e.Reused():
                self._reused(event)
            case e.Leased():
                self._leased(event)
            case e.Extended():
                self._extended(event)
            case e.Answered():
                self._answered(event)
            case e.Cut():
                self._cut(event)
            case e.Noted():
                self._of_message(event, Note(event.rollout, event.attempt, event.name, event.value))
            case e.Rewarded():
                self._rewarded(event)
            case e.ToolFailed():
                self._tool_failed(event)
            case e.Left() | e.Buried() if event.rollout in self.reference.episodes:
                self._left(event)
            case e.Sealed():
                self._sealed(event)
            case _:
                pass

    def _of_message(self, event: e.AnyEvent, due: Message) -> None:
        """Check that this very message made the event."""
        message = None if self._now is None else self._now[1]
        self.hold("what agents said", message == due, "{} follows from {}", event, message)

    def _begun(self, event: e.Begun) -> None:
        episode = self.reference.episodes[event.rollout]
        busy = sum(x.holder == event.holder for x in self.reference.episodes.values())
        self.hold(
            "once",
            episode.status == "waiting" and event.attempt == episode.attempt + 1,
            "{}, which is {}",
            event,
            episode,
        )
        self.hold(
            "bounds",
            busy < self.limits.concurrency,
            "{} has {} episodes, and begins another",
            event.holder,
            busy,
        )

    def _ask(self, event: e.Called | e.Reused) -> tuple[ReferenceEpisode, Ask, Asked]:
        """The call that is asked for, and its place among the equal ones of its attempt."""
        episode = self.reference.episodes[event.rollout]
        assert self._now is not None
        sender, message, context = self._now
        self.hold(
            "what agents said",
            isinstance(message, Ask)
            and (message.rollout, message.attempt, sender)
            == (event.rollout, event.attempt, episode.holder),
            "{} follows from {}",
            event,
            message,
        )
        assert isinstance(message, Ask)
        taken = {self._asked[id] for id in episode.used}
        budget = message.max_new_tokens
        place = next(n for n in count() if (context, budget, n) not in taken)
        return episode, message, (context, budget, place)

    def _known(self, episode: ReferenceEpisode, asked: Asked) -> list[int]:
        """Calls of earlier attempts that are the one that is asked for."""
        return [
            call.id
            for call in episode.calls.values()
            if not call.used and not call.buried and self._asked[call.id] == asked
        ]

    def _called(self, event: e.Called) -> None:
        episode, message, asked = self._ask(event)
        known = self._known(episode, asked)
        self.hold(
            "nothing is sampled again",
            not known,
            "{} is a new call, and call {} is the same of an earlier attempt",
            event,
            known,
        )
        before = b""
        if event.after is not None:
            before = episode.calls[event.after[0]].path[: 4 * event.after[1]]
        self.hold(
            "contexts stay",
            before + event.given == asked[0] and len(before) == 4 * (event.after or (0, 0))[1],
            "call {} was asked with another context",
            event.call,
        )
        due = self._budget(episode, message, asked[0])
        asks = len(self._numbers[event.rollout, event.attempt])
        self.hold(
            "bounds",
            asks <= self.limits.max_calls and event.max_new_tokens == due,
            "{} is the {}th of its attempt, and may have {} tokens",
            event,
            asks,
            due,
        )
        key = self._keys.setdefault((episode.seat, asked), event.key)
        others = {k for (r, a), k in self._keys.items() if (r, a) != (episode.seat, asked)}
        self.hold(
            "draws",
            key == event.key and key not in others and event.temperature == TEMPERATURE,
            "call {} has not the draws that its context and its place call for",
            event.call,
        )
        self._asked[event.call] = asked
        self._numbers[event.rollout, event.attempt][-1] = event.call
        if self.steady and not any(call.buried for call in episode.calls.values()):
            left = [call.id for call in episode.calls.values() if not call.used]
            self.hold(
                "replay",
                not left,
                "a steady agent makes call {} in place of {}",
                event.call,
                left,
            )

    def _reused(self, event: e.Reused) -> None:
        episode, _, asked = self._ask(event)
        known = self._known(episode, asked)
        self.hold(
            "replay", known[:1] == [event.call], "{}, and the call is one of {}", event, known
        )
        self._numbers[event.rollout, event.attempt][-1] = event.call

    def _leased(self, event: e.Leased) -> None:
        call, episode = self.reference.call(event.rollout), self.reference.whose.get(event.rollout)
        self.hold(
            "leases",
            call is not None
            and episode is not None
            and episode.status == "played"
            and call.used
            and not (call.over or call.buried or call.holder)
            and event.attempt == call.attempt + 1,
            "{}, of the call {} that nobody waits for",
            event,
            call,
        )

    def _extended(self, event: e.Extended) -> None:
        call = self.reference.call(event.rollout)
        if call is None or not call.holder or call.attempt != event.attempt or call.over:
            return self.violated("leases", f"{event} is of no leased call")
        ids, behaviour = policy.sampled(
            self.weights[event.version],
            policy.draws(call.context, call.key, TEMPERATURE),
            len(call.versions),
            len(call.versions) + len(event.ids) // 4,
        )
        self.hold(
            "version truth",
            (event.ids, event.behaviour) == (ids.tobytes(), behaviour.tobytes()),
            "call {}: version {} samples other tokens of its context",
            call.id,
            event.version,
        )
        return None

    def _answered(self, event: e.Answered) -> None:
        call = self.reference.call(event.call)
        assert call is not None
        whole = policy.length(policy.draws(call.context, call.key, TEMPERATURE), call.budget)
        self.hold(
            "whole",
            len(call.versions) == whole and bool(call.holder),
            "call {} is answered with {} of {} tokens",
            call.id,
            len(call.versions),
            whole,
        )

    def _cut(self, event: e.Cut) -> None:
        episode, message = self.reference.episodes[event.rollout], self._now and self._now[1]
        call = episode.calls[event.call]
        if not isinstance(message, Enough):
            over = episode.spent() - episode.budget
            self.hold(
                "bounds",
                over >= 0 and event.tokens >= len(call.versions) - over and not call.holder,
                "{} follows from {}, and {} of {} tokens are spent",
                event,
                message,
                episode.spent(),
                episode.budget,
            )
            return
        shared = [
            len(_common(call.path, other.context)) - len(call.context)
            for other in episode.calls.values()
            if other is not call
        ]
        most = min(len(call.versions), max([message.tokens, *(n // 4 for n in shared)]))
        least = min(len(call.versions), message.tokens)
        self.hold(
            "unused",
            least <= event.tokens <= most and call.used and not call.holder,
            "{} of {} tokens, of which {} to {} are needed",
            event,
            len(call.versions),
            least,
            most,
        )
        return

    def _rewarded(self, event: e.Rewarded) -> None:
        numbers = self._numbers[event.rollout, event.attempt]
        number = None if event.call is None else numbers.index(event.call)
        due = GiveReward(event.rollout, event.attempt, number, event.reward)
        self._of_message(event, due)

    def _tool_failed(self, event: e.ToolFailed) -> None:
        number = self._numbers[event.rollout, event.attempt].index(event.call)
        self._of_message(event, GiveFailure(event.rollout, event.attempt, number, event.tool))

    def _left(self, event: e.Left | e.Buried) -> None:
        episode = self.reference.episodes[event.rollout]
        message = None if self._now is None else self._now[1]
        failed = isinstance(message, Played) and bool(message.failed)
        last = episode.failures + 1 >= self.limits.attempts
        told = isinstance(event, e.Buried) or event.failed
        self.hold(
            "attempts",
            episode.status == "played"
            and told == failed
            and (not failed or isinstance(event, e.Buried) == last),
            "{} follows from {}, after {} failures of {}",
            event,
            message,
            episode.failures,
            self.limits.attempts,
        )

    def _sealed(self, event: e.Sealed) -> None:
        episode = self.reference.episodes[event.rollout]
        self._of_message(event, Played(event.rollout, event.attempt, event.finish))
        self.hold(
            "once",
            episode.status == "played" and episode.attempt == event.attempt,
            "{}, which is {}",
            event,
            episode.status,
        )


def _common(one: bytes, other: bytes) -> bytes:
    """The tokens that two texts begin with alike."""
    size = min(len(one), len(other)) // 4
    a, b = np.frombuffer(one[: 4 * size], np.int32), np.frombuffer(other[: 4 * size], np.int32)
    differ = np.flatnonzero(a != b)
    return one[: 4 * int(differ[0] if len(differ) else size)]
