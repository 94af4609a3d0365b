"""The events of agents' episodes, taken into the reference state. Invariant: it shares no code with
the product's heart."""

from __future__ import annotations

from collections import Counter

from asyncrl.experience import events as e
from asyncrl.simulation.checker.reference_rollouts import (
    ReferenceAgentCall,
    ReferenceEpisode,
    ReferenceRollout,
)

OfEpisode = (
    e.Begun
    | e.Called
    | e.Reused
    | e.Answered
    | e.Cut
    | e.Noted
    | e.Rewarded
    | e.ToolFailed
    | e.Left
)
"""Events that say what an agent did, or what became of its calls."""


class ReferenceEpisodes:
    """The agents' `calls` that are live, by number, and the tokens that were `discarded` of them,
    by reason."""

    def __init__(self, discarded: Counter[str]) -> None:
        self.calls: dict[int, ReferenceAgentCall] = {}
        self._discarded = discarded

    def apply(self, event: OfEpisode, episode: ReferenceEpisode) -> None:
        """Take in an event of this episode."""
        match event:
            case e.Begun():
                episode.status, episode.attempt = "played", event.attempt
                episode.holder = event.holder
            case e.Called():
                self._call(event, episode)
            case e.Reused():
                episode.calls[event.call].used = True
                episode.calls[event.call].role = event.role
                episode.used.append(event.call)
            case e.Answered():
                call = episode.calls[event.call]
                call.holder, call.over, call.finish = "", True, event.finish
            case e.Cut():
                call = episode.calls[event.call]
                self._discarded["unused"] += call.shorten(event.tokens)
                call.over, call.finish = True, ""
            case e.Noted():
                episode.notes[event.name] = event.value
            case e.Rewarded():
                episode.rewards[event.call] = event.reward
                episode.keys[event.call] = event.key
            case e.ToolFailed():
                episode.failed[event.call] = event.tool
            case e.Left():
                episode.status, episode.holder, episode.used = "waiting", "", []
                episode.failures += event.failed
                episode.rewards, episode.keys, episode.failed = {}, {}, {}
                for call in episode.calls.values():
                    call.used = False

    def seal(self, seen: ReferenceRollout) -> None:
        """The episode of a rollout is over: what its agent used is the rollout's own."""
        episode = seen.episode
        assert episode is not None
        self.forget(episode)
        episode.status, episode.holder = "sealed", ""
        for call in episode.sampled:
            if not call.used:
                self._discarded["orphaned"] += len(call.versions)
                del episode.calls[call.id]
        for call in episode.turns:
            seen.ids += call.ids
            seen.behaviour += call.behaviour
            seen.versions += call.versions
        seen.attempt = episode.attempt

    def bury(self, call: ReferenceAgentCall, reason: str) -> None:
        """A call failed for good."""
        episode = call.episode
        self._discarded[reason] += len(call.versions)
        call.buried, call.holder = True, ""
        del self.calls[call.id]
        if call.used:
            episode.used.remove(call.id)
            episode.rewards.pop(call.id, None)
            episode.keys.pop(call.id, None)
            episode.failed.pop(call.id, None)

    def forget(self, episode: ReferenceEpisode) -> None:
        """No call of this episode is live any more."""
        for id in episode.calls:
            self.calls.pop(id, None)

    def _call(self, event: e.Called, episode: ReferenceEpisode) -> None:
        before = b""
        if event.after is not None:
            before = episode.calls[event.after[0]].path[: 4 * event.after[1]]
        call = ReferenceAgentCall(event, before + event.given, episode)
        self.calls[call.id] = episode.calls[call.id] = call
        episode.used.append(call.id)
