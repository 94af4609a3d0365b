"""Episodes as their events and messages tell of them. Invariant: it believes what agents say and
what they are told, the events, and nothing that the product keeps.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from itertools import count

from asyncrl.actors.coordinator.attempts import PlayingLimits
from asyncrl.experience import events as e
from asyncrl.messages import (
    Ask,
    Enough,
    GiveFailure,
    GiveReward,
    Message,
    Note,
    Play,
    Played,
)
from asyncrl.simulation.checker.attempt_witness import (
    Asked,
    AttemptRecords,
    AttemptWitness,
    CallWitness,
    EpisodesRun,
    tokens_needed,
)
from asyncrl.simulation.checker.branch_checks import ends_of
from asyncrl.simulation.checker.call_checks import check_whole
from asyncrl.simulation.checker.reference_rollouts import ReferenceEpisode
from asyncrl.simulation.checker.reply_witness import ReplyWitness


class EpisodeWitness:
    """Watches the episodes of a run. `temperature` is that of a group; `steady` agents do the same
    in each attempt."""

    def __init__(
        self,
        run: EpisodesRun,
        limits: PlayingLimits,
        concurrency: int,
        temperature: Callable[[e.Admitted], float],
        *,
        steady: bool,
    ) -> None:
        self._run, self._limits, self._concurrency = run, limits, concurrency
        self._temperature = temperature
        self._steady = steady
        self._records = AttemptRecords()
        self.replies = ReplyWitness(run, self._records, temperature)
        self._asked: dict[int, Asked] = {}  # by call
        self._keys: dict[tuple[int, Asked], int] = {}  # by the seed of an episode
        self._askers: dict[int, tuple[int, Asked]] = {}  # by key
        self.begin()

    def begin(self) -> None:
        """A life begins with what the reference has."""
        self._now: tuple[str, Message, bytes] | None = None  # what the coordinator is handling
        self._refusable = True  # the call that it is asked for
        # of attempts whose agents have ended: why they failed, and the answers they did not want
        self._ends: dict[tuple[int, int], tuple[str, Collection[int]]] = {}
        self._records.attempts = {}
        self._records.sampled = {
            call.id: CallWitness(
                bytearray(call.ids),
                bytearray(call.behaviour),
                list(call.versions),
                [(len(call.versions), call.finish)] if call.over else [],
            )
            for call in self._run.reference.agents.calls.values()
        }

    def _episode(self, id: int) -> ReferenceEpisode:
        episode = self._run.reference.episode(id)
        assert episode is not None, "it was looked for before"
        return episode

    # ------------------------------------------------------------------------------------ messages

    def ended(self, play: Play, failed: str, left: Collection[int]) -> None:
        """The agent of an attempt has ended, really so: it failed or not, and did not want the
        whole answers to the calls `left`."""
        self._ends[play.rollout, play.attempt] = failed, left

    def handling(self, sender: str, message: Message, buffers: Sequence[object]) -> None:
        """The coordinator is about to handle this, which the actor `sender` said."""
        context = bytes(buffers[0]) if isinstance(message, Ask) else b""  # type: ignore[call-overload]
        self._now = sender, message, context
        if isinstance(message, Enough) and (episode := self._played(sender, message)) is not None:
            self._records.attempts[episode.id, episode.attempt].enough.add(message.number)
        if isinstance(message, Played) and (episode := self._played(sender, message)) is not None:
            enough = self._records.attempts[episode.id, episode.attempt].enough
            failed, left = self._ends.get((episode.id, episode.attempt), (message.failed, enough))
            self._run.hold(
                "what agents said",
                message.failed == failed and enough <= set(left),
                "{} after enough of {}: its agent failed by {!r}, and had enough of {}",
                message,
                enough,
                failed,
                left,
            )
        if isinstance(message, Ask) and (episode := self._played(sender, message)) is not None:
            self._records.attempts[episode.id, episode.attempt].calls.append(None)
            self._refusable = self._may_refuse(episode, message, context)

    def handled(self) -> None:
        """The coordinator has handled it."""
        if self._now is None:
            return
        (sender, message, _), self._now = self._now, None
        if not isinstance(message, Ask | Played):
            return
        if (episode := self._played(sender, message)) is None:
            return
        self._run.hold(
            "once",
            isinstance(message, Ask),
            "rollout {} is still played, and its agent has ended",
            message.rollout,
        )
        if isinstance(message, Ask):
            call = self._records.attempts[episode.id, episode.attempt].calls[message.number]
            self._run.hold(
                "bounds",
                call is not None or self._refusable,
                "{} is refused, and may be answered",
                message,
            )

    def _may_refuse(self, episode: ReferenceEpisode, ask: Ask, context: bytes) -> bool:
        """True if the call that is asked for may be refused."""
        asks = len(self._records.attempts[episode.id, episode.attempt].calls)
        earlier = any(not call.used for call in episode.calls.values())
        left = self._budget(episode, ask, context)
        return asks > self._limits.max_calls or left < (ask.max_new_tokens if earlier else 1)

    def _budget(self, episode: ReferenceEpisode, ask: Ask, context: bytes) -> int:
        left = episode.budget - episode.spent()
        return min(ask.max_new_tokens, left, self._limits.context_tokens - len(context) // 4)

    def _played(self, sender: str, message: Ask | Enough | Played) -> ReferenceEpisode | None:
        """The episode that a message is of, if the sender plays it."""
        episode = self._run.reference.episode(message.rollout)
        if episode is None or episode.status != "played" or episode.holder != sender:
            return None
        return episode if episode.attempt == message.attempt else None

    # -------------------------------------------------------------------------------------- events

    def extended(self, event: e.Extended) -> None:
        """Tokens of a call came."""
        if (sampled := self._records.sampled.get(event.rollout)) is not None:
            sampled.ids += event.ids
            sampled.behaviour += event.behaviour
            sampled.versions += [event.version] * (len(event.ids) // 4)

    def check(self, event: e.AnyEvent) -> None:
        """Judge an event of an episode, before the reference takes it in."""
        match event:
            case e.Begun():
                self._begun(event)
            case e.Called():
                self._called(event)
            case e.Reused():
                self._reused(event)
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
            case e.Left() | e.Buried():
                self._left(event)
            case e.Sealed():
                self._sealed(event)
            case _:
                pass

    def _live(self, event: e.AnyEvent, id: int) -> ReferenceEpisode | None:
        """The episode that an event is of, if its agent plays it."""
        episode = self._run.reference.episode(id)
        self._run.hold(
            "once",
            episode is not None and episode.status == "played",
            "{}, and no agent plays: {}",
            event,
            episode and episode.status,
        )
        return episode

    def _of_message(self, event: e.AnyEvent, due: Message) -> None:
        """Check that this very message made the event."""
        message = None if self._now is None else self._now[1]
        self._run.hold("what agents said", message == due, "{} follows from {}", event, message)

    def _begun(self, event: e.Begun) -> None:
        episode = self._episode(event.rollout)
        split = episode.rollout.group.event.split
        busy = sum(
            other.holder == event.holder and other.rollout.group.event.split == split
            for other in self._run.reference.episodes
        )
        self._run.hold(
            "once",
            episode.status == "waiting" and event.attempt == episode.attempt + 1,
            "{}, which is {}",
            event,
            episode.status,
        )
        self._run.hold(
            "bounds",
            busy < self._concurrency,
            "{} has {} episodes, and begins another",
            event.holder,
            busy,
        )
        attempt = AttemptWitness(event.holder, dict(episode.notes))
        self._records.attempts[event.rollout, event.attempt] = attempt

    def _ask(self, event: e.Called | e.Reused) -> tuple[ReferenceEpisode, Ask, Asked]:
        """The call that is asked for, and its place among the equal ones of its attempt."""
        episode = self._episode(event.rollout)
        assert self._now is not None
        sender, message, context = self._now
        self._run.hold(
            "what agents said",
            isinstance(message, Ask)
            and (message.rollout, message.attempt, sender, message.role)
            == (event.rollout, event.attempt, episode.holder, event.role),
            "{} follows from {}",
            event,
            message,
        )
        assert isinstance(message, Ask)
        taken = {self._asked[id] for id in episode.used}
        due = context, message.max_new_tokens, self._temperature(episode.rollout.group.event)
        place = next(n for n in count() if (*due, n) not in taken)
        return episode, message, (*due, place)

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
        self._run.hold(
            "nothing is sampled again",
            not known,
            "{} is a new call, and call {} is the same of an earlier attempt",
            event,
            known,
        )
        before = b""
        if event.after is not None:
            before = episode.calls[event.after[0]].path[: 4 * event.after[1]]
        self._run.hold(
            "contexts stay",
            before + event.given == asked[0] and len(before) == 4 * (event.after or (0, 0))[1],
            "call {} was asked with another context",
            event.call,
        )
        due, calls = self._budget(episode, message, asked[0]), self._calls(event)
        self._run.hold(
            "bounds",
            len(calls) <= self._limits.max_calls and event.max_new_tokens == due,
            "{} is the {}th of its attempt, and may have {} tokens",
            event,
            len(calls),
            due,
        )
        asker = episode.seed, asked
        self._run.hold(
            "draws",
            self._keys.setdefault(asker, event.key) == event.key
            and self._askers.setdefault(event.key, asker) == asker
            and event.temperature == asked[2],
            "call {} has not the draws that its context and its place call for",
            event.call,
        )
        self._asked[event.call] = asked
        self._records.sampled[event.call] = CallWitness()
        calls[-1] = event.call
        if self._steady and not any(call.buried for call in episode.calls.values()):
            left = [call.id for call in episode.calls.values() if not call.used]
            self._run.hold(
                "replay",
                not left,
                "a steady agent makes call {} in place of {}",
                event.call,
                left,
            )

    def _reused(self, event: e.Reused) -> None:
        episode, _, asked = self._ask(event)
        known = self._known(episode, asked)
        self._run.hold(
            "replay", known[:1] == [event.call], "{}, and the call is one of {}", event, known
        )
        self._calls(event)[-1] = event.call

    def _calls(self, event: e.Called | e.Reused | e.Rewarded | e.ToolFailed) -> list[int | None]:
        return self._records.attempts[event.rollout, event.attempt].calls

    def _answered(self, event: e.Answered) -> None:
        call = self._run.reference.agents.calls[event.call]
        check_whole(self._run, call, call.draws, call.budget)  # type: ignore[arg-type]
        self._records.sampled[call.id].ends.append((len(call.versions), event.finish))

    def _cut(self, event: e.Cut) -> None:
        episode, message = self._episode(event.rollout), self._now and self._now[1]
        call = episode.calls[event.call]
        self._records.sampled[call.id].ends.append((event.tokens, ""))
        if not isinstance(message, Enough):
            self._records.sampled[call.id].spent.add(event.attempt)
            over = episode.spent() - episode.budget
            self._run.hold(
                "bounds",
                over >= 0 and event.tokens >= len(call.versions) - over and not call.holder,
                "{} follows from {}, and {} of {} tokens are spent",
                event,
                message,
                episode.spent(),
                episode.budget,
            )
            return
        least, most = tokens_needed(episode, call, message.tokens)
        self._run.hold(
            "unused",
            least <= event.tokens <= most and call.used and not call.holder,
            "{} of {} tokens, of which {} to {} are needed",
            event,
            len(call.versions),
            least,
            most,
        )

    def _rewarded(self, event: e.Rewarded) -> None:
        number = None if event.call is None else self._calls(event).index(event.call)
        due = GiveReward(event.rollout, event.attempt, number, event.reward, event.key)
        self._of_message(event, due)

    def _tool_failed(self, event: e.ToolFailed) -> None:
        number = self._calls(event).index(event.call)
        self._of_message(event, GiveFailure(event.rollout, event.attempt, number, event.tool))

    def _left(self, event: e.Left | e.Buried) -> None:
        episode = self._live(event, event.rollout)
        message = None if self._now is None else self._now[1]
        attempt = event.rollout, None if episode is None else episode.attempt
        failed = (
            isinstance(message, Played)
            and (message.rollout, message.attempt) == attempt
            and (bool(message.failed) or self._unrewarded(episode, message))
        )
        failures = 0 if episode is None else episode.failures
        last = failures + 1 >= self._limits.attempts
        told = isinstance(event, e.Buried) or event.failed
        self._run.hold(
            "attempts",
            told == failed and (not failed or isinstance(event, e.Buried) == last),
            "{} follows from {}, after {} failures of {}",
            event,
            message,
            failures,
            self._limits.attempts,
        )

    def _sealed(self, event: e.Sealed) -> None:
        episode = self._live(event, event.rollout)
        self._of_message(event, Played(event.rollout, event.attempt, event.finish))
        self._run.hold(
            "once",
            episode is not None and episode.attempt == event.attempt,
            "{} is of an attempt that is over",
            event,
        )
        message = None if self._now is None else self._now[1]
        self._run.hold(
            "branches",
            not (isinstance(message, Played) and self._unrewarded(episode, message)),
            "{}, and an end of its tree has no reward",
            event,
        )

    def _unrewarded(self, episode: ReferenceEpisode | None, message: Played) -> bool:
        """True if an episode that forks, and was not cut off, has an end without a reward."""
        if episode is None or not self._limits.ends_rewarded or message.finish == "length":
            return False
        turns, split = episode.turns, episode.rollout.group.event.split
        ends = ends_of(turns) if split == "train" else []
        lacking = (call for call in ends if call.id not in episode.rewards and call.finish)
        return len(ends) > 1 and any(lacking)
