"""Episodes as their events tell of them. Invariant: it shares no code with the product's heart, and
keeps whole contexts where the product keeps what is new of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from asyncrl.experience import events as e


@dataclass
class ReferenceCall:
    """A call: its whole context, the version of each sampled token, and if the present attempt has
    made it (`used`). `over`: its answer is complete; `buried`: it failed for good."""

    id: int
    context: bytes
    key: int
    budget: int
    ids: bytearray = field(default_factory=bytearray)
    behaviour: bytearray = field(default_factory=bytearray)
    versions: list[int] = field(default_factory=list)
    used: bool = True
    over: bool = False
    buried: bool = False
    finish: str = ""
    holder: str = ""
    attempt: int = 0

    @property
    def path(self) -> bytes:
        """All that it was given and sampled."""
        return self.context + bytes(self.ids)


@dataclass
class ReferenceEpisode:
    """An episode, which is member `seat[1]` of group `seat[0]`. `used` are the present attempt's
    calls, in the order in which it made them."""

    id: int
    seat: tuple[int, int]
    budget: int
    status: Literal["waiting", "played", "sealed"] = "waiting"
    attempt: int = 0
    failures: int = 0
    holder: str = ""
    calls: dict[int, ReferenceCall] = field(default_factory=dict)
    used: list[int] = field(default_factory=list)
    notes: dict[str, bytes] = field(default_factory=dict)
    rewards: dict[int | None, float] = field(default_factory=dict)
    failed: dict[int, str] = field(default_factory=dict)

    @property
    def tokens(self) -> int:
        """Sampled tokens that are live."""
        return sum(len(call.versions) for call in self.calls.values() if not call.buried)

    def spent(self) -> int:
        """Sampled tokens of the calls that the present attempt has made."""
        return sum(len(self.calls[id].versions) for id in self.used)


class ReferenceEpisodes:
    """All episodes that are not over, and the tokens of all that were."""

    def __init__(self, events: Iterable[e.AnyEvent] = ()) -> None:
        self.episodes: dict[int, ReferenceEpisode] = {}
        self.whose: dict[int, ReferenceEpisode] = {}  # by call
        self.generated = self.trained = 0
        self.discarded = Counter[str]()
        for event in events:
            self.apply(event)

    @property
    def live(self) -> int:
        """Sampled tokens of episodes that are not over."""
        return sum(episode.tokens for episode in self.episodes.values())

    def call(self, id: int) -> ReferenceCall | None:
        """The call of this number; None if there is none."""
        return self.whose[id].calls[id] if id in self.whose else None

    def apply(self, event: e.AnyEvent) -> None:
        """Take the event in."""
        match event:
            case e.Admitted():
                for id in range(event.first, event.first + event.size):
                    seat = event.group, id - event.first
                    self.episodes[id] = ReferenceEpisode(id, seat, event.max_new_tokens)
            case e.Begun():
                episode = self.episodes[event.rollout]
                episode.status, episode.attempt = "played", event.attempt
                episode.holder = event.holder
            case e.Called():
                self._call(event)
            case e.Reused():
                episode = self.episodes[event.rollout]
                episode.calls[event.call].used = True
                episode.used.append(event.call)
            case e.Leased():
                call = self.whose[event.rollout].calls[event.rollout]
                call.holder, call.attempt = event.holder, event.attempt
            case e.Extended():
                call = self.whose[event.rollout].calls[event.rollout]
                call.ids += event.ids
                call.behaviour += event.behaviour
                call.versions += [event.version] * (len(event.ids) // 4)
                self.generated += len(event.ids) // 4
            case e.Requeued():
                self.whose[event.rollout].calls[event.rollout].holder = ""
            case e.Answered():
                call = self.whose[event.call].calls[event.call]
                call.holder, call.over, call.finish = "", True, event.finish
            case e.Cut():
                call = self.whose[event.call].calls[event.call]
                self.discarded["unused"] += len(call.versions) - event.tokens
                del call.ids[4 * event.tokens :], call.behaviour[4 * event.tokens :]
                del call.versions[event.tokens :]
                call.over, call.finish = True, ""
            case e.Noted():
                self.episodes[event.rollout].notes[event.name] = event.value
            case e.Rewarded():
                self.episodes[event.rollout].rewards[event.call] = event.reward
            case e.ToolFailed():
                self.episodes[event.rollout].failed[event.call] = event.tool
            case e.Left():
                episode = self.episodes[event.rollout]
                episode.status, episode.holder, episode.used = "waiting", "", []
                episode.failures += event.failed
                episode.rewards, episode.failed = {}, {}
                for call in episode.calls.values():
                    call.used = False
            case e.Sealed():
                episode = self.episodes[event.rollout]
                episode.status, episode.holder = "sealed", ""
                for call in list(episode.calls.values()):
                    if call.used or call.buried:
                        continue
                    self.discarded["orphaned"] += len(call.versions)
                    del episode.calls[call.id]
                for id in [id for id, whose in self.whose.items() if whose is episode]:
                    del self.whose[id]
            case e.Buried() if event.rollout in self.episodes:
                self._end(self.episodes.pop(event.rollout), event.reason)
            case e.Buried():
                episode = self.whose[event.rollout]
                call = episode.calls[event.rollout]
                self.discarded[event.reason] += len(call.versions)
                call.buried, call.holder = True, ""
                if call.used:
                    episode.used.remove(call.id)
                    episode.rewards.pop(call.id, None)
                    episode.failed.pop(call.id, None)
            case e.Discarded():
                self._end(self.episodes.pop(event.rollout), event.reason)
            case e.Dropped():
                for episode in [x for x in self.episodes.values() if x.seat[0] == event.group]:
                    self._end(self.episodes.pop(episode.id), event.reason)
            case e.LateTokens():
                self.generated += event.tokens
                self.discarded["late"] += event.tokens
            case e.Trained():
                self.trained += event.trained
                self.discarded.update(event.discarded)
                del self.episodes[event.rollout]
            case _:
                pass

    def _call(self, event: e.Called) -> None:
        episode, before = self.episodes[event.rollout], b""
        if event.after is not None:
            before = episode.calls[event.after[0]].path[: 4 * event.after[1]]
        episode.calls[event.call] = ReferenceCall(
            event.call, before + event.given, event.key, event.max_new_tokens
        )
        episode.used.append(event.call)
        self.whose[event.call] = episode

    def _end(self, episode: ReferenceEpisode, reason: str) -> None:
        self.discarded[reason] += episode.tokens
        for id in episode.calls:
            self.whose.pop(id, None)
