"""Events that cannot happen, beside each that does. Invariant: they follow from the event and the
reference alone, and each differs from what can happen in one thing: a number is one too large or
too small, a name is empty or taken, an array has no whole tokens.

The heart must refuse them and change nothing (`asyncrl.experience.transitions`); the comparison of
the states shows whether it has.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from msgspec.structs import replace

from asyncrl.experience import events as e
from asyncrl.messages import ForeignAnswer, Scored
from asyncrl.simulation.checker.reference_rollouts import ReferenceAgentCall, ReferenceCall
from asyncrl.simulation.checker.reference_state import ReferenceState

NOBODY = -1
"""The number of no group, rollout or call."""
MEMBERS = 2**17
"""Members of a group, at most."""
RARE = (
    *(e.Forked, e.Grown, e.Imported, e.Pruned, e.Taken),
    *(e.StoredForReplay, e.Replayed, e.Published),
)
"""Events beside which all impossible ones are tried; beside every second other, one is, in turn."""

Changes = Iterator[Mapping[str, Any]]
"""Fields of an event that make it impossible."""


def impossible(mine: ReferenceState, event: e.AnyEvent) -> list[e.AnyEvent]:
    """All events of this kind that cannot happen where this one does."""
    return [replace(event, **change) for change in _changes(mine, event)]


def in_turn(mine: ReferenceState, event: e.AnyEvent, number: int) -> list[e.AnyEvent]:
    """Those that are tried beside the `number`-th event of a run."""
    if isinstance(event, RARE):
        return impossible(mine, event)
    if number % 2 or not (changes := _changes(mine, event)):
        return []
    return [replace(event, **changes[number // 2 % len(changes)])]


def _changes(mine: ReferenceState, event: e.AnyEvent) -> list[Mapping[str, Any]]:
    return [*_of_attempts(event), *_CHANGES.get(type(event), _none)(mine, event)]


def _of_attempts(event: e.AnyEvent) -> Changes:
    if (attempt := getattr(event, "attempt", None)) is not None:
        yield {"attempt": attempt - 1}
        yield {"attempt": attempt + 1}
    for name in ("reason", "holder"):
        if hasattr(event, name):
            yield {name: ""}


def _none(mine: ReferenceState, event: e.AnyEvent) -> Changes:
    return iter(())


def _beside(name: str, number: int) -> Changes:
    """The numbers before and after one that is due."""
    yield {name: number - 1}
    yield {name: number + 1}


def _admitted(mine: ReferenceState, event: e.Admitted) -> Changes:
    yield from _beside("group", event.group)
    yield from _beside("first", event.first)
    yield from ({"size": 0}, {"size": MEMBERS + 1}, {"max_new_tokens": 0}, {"prompt_index": -1})
    yield from ({"prompt": event.prompt + b"\0"}, {"restarts": NOBODY}, {"imports": -1})
    yield from ({"leaves": 0}, {"leaves": MEMBERS // event.size + 1}, {"most": MEMBERS + 1})
    if event.size > 1:
        yield {"most": event.size - 1}
    if event.restarts is not None:
        yield {"prompt_index": event.prompt_index + 1}
    if event.split == "evaluation":
        yield {"most": event.size}
    if event.split == "evaluation" or event.played:
        yield from ({"imports": 1}, {"leaves": 2})


def _forked(mine: ReferenceState, event: e.Forked) -> Changes:
    parent = mine.rollouts[event.rollout]
    before = len(parent.shared) // 4
    yield from _beside("first", event.first)
    # 0 is no place: it ends the forks of one that is sealed
    places = (before, before + len(parent.versions))
    yield from ({"at": at} for at in places if at)


def _grown(mine: ReferenceState, event: e.Grown) -> Changes:
    group = mine.groups[event.group]
    yield from _beside("first", event.first)
    yield from ({"group": NOBODY}, {"size": len(group.members) - 1}, {"size": group.most + 1})


def _imported(mine: ReferenceState, event: e.Imported) -> Changes:
    group = mine.groups[event.group]
    yield from _beside("first", event.first)
    yield {"group": NOBODY}
    answer = ForeignAnswer("file", "a line", 0, bytes(4))
    yield {"answers": [answer] * (group.imports + 1)}
    for wrong in (
        {"source": "own"},
        {"ids": b""},
        {"ids": bytes(5)},
        {"ids": bytes(4 * (group.event.max_new_tokens + 1))},
        {"behaviour": bytes(8)},
        {"version": -1},
        {"version": mine.newest + 1},
        {"finish": "interrupted"},
    ):
        yield {"answers": [replace(answer, **wrong)]}


def _leased(mine: ReferenceState, event: e.Leased) -> Changes:
    yield {"rollout": NOBODY}


def _extended(mine: ReferenceState, event: e.Extended) -> Changes:
    call = mine.call(event.rollout)
    assert call is not None
    more = bytes(4 * (_budget(call) - len(call.versions) + 1))
    yield from _beside("start", event.start)
    yield from ({"version": -1}, {"behaviour": event.behaviour[4:]})
    yield {"ids": b"", "behaviour": b""}
    yield {"ids": event.ids + b"\0", "behaviour": event.behaviour + b"\0"}
    yield {"ids": more, "behaviour": more, "routing": b""}
    if call.group.event.version is not None:
        yield from _beside("version", event.version)


def _budget(call: ReferenceCall) -> int:
    if isinstance(call, ReferenceAgentCall):
        return call.budget
    return call.group.event.max_new_tokens - call.group.begins[call.id]


def _routed(mine: ReferenceState, event: e.RoutingKnown) -> Changes:
    call = mine.call(event.rollout)
    assert call is not None
    yield from ({"start": -1}, {"start": len(call.versions) - event.tokens + 1})
    yield from ({"tokens": 0}, {"routing": b""}, {"routing": event.routing + b"\0"})


def _sealed(mine: ReferenceState, event: e.Sealed | e.Answered) -> Changes:
    yield from ({"finish": ""}, {"finish": "interrupted"})


def _called(mine: ReferenceState, event: e.Called) -> Changes:
    episode = mine.episode(event.rollout)
    assert episode is not None
    yield from _beside("call", event.call)
    yield from ({"given": b"", "after": None}, {"given": event.given + b"\0"})
    yield {"given": struct.pack("<i", -(2**31))}  # a part of an image that it has not
    yield from ({"images": ("0" * 64,) * 2}, {"images": ("no hash",)})
    yield from ({"max_new_tokens": 0}, {"max_new_tokens": episode.budget + 1})
    yield from ({"temperature": wrong} for wrong in (-1.0, math.inf, math.nan))
    yield from ({"key": call.key} for call in episode.calls.values() if not call.buried)
    yield {"after": (NOBODY, 1)}
    if event.after is not None:
        parent = episode.calls[event.after[0]]
        yield from ({"after": (parent.id, end)} for end in (-1, 0, len(parent.path) // 4 + 1))


def _cut(mine: ReferenceState, event: e.Cut) -> Changes:
    episode = mine.episode(event.rollout)
    assert episode is not None
    call = episode.calls[event.call]
    before = len(call.context) // 4
    ends = [next.after[1] for next in episode.calls.values() if next.after[0] == call.id]
    needed = max([0, *(end - before for end in ends)])
    yield from ({"tokens": needed - 1}, {"tokens": len(call.versions) + 1}, {"call": NOBODY})


def _reused(mine: ReferenceState, event: e.Reused) -> Changes:
    episode = mine.episode(event.rollout)
    assert episode is not None
    buried = [call.id for call in episode.calls.values() if call.buried]
    yield from ({"call": call} for call in (NOBODY, *episode.used, *buried))


def _noted(mine: ReferenceState, event: e.Noted) -> Changes:
    episode = mine.episode(event.rollout)
    assert episode is not None
    yield from ({"name": name} for name in ("", *episode.notes))


def _rewarded(mine: ReferenceState, event: e.Rewarded) -> Changes:
    episode = mine.episode(event.rollout)
    assert episode is not None
    yield from ({"reward": wrong} for wrong in (math.nan, math.inf, -math.inf))
    unused = [call for call in episode.calls if call not in episode.used]
    yield from ({"call": call} for call in (NOBODY, *unused, *episode.rewards))


def _tool_failed(mine: ReferenceState, event: e.ToolFailed) -> Changes:
    episode = mine.episode(event.rollout)
    assert episode is not None
    unused = [call for call in episode.calls if call not in episode.used]
    yield {"tool": ""}
    yield from ({"call": call} for call in (NOBODY, *unused, *episode.failed))


def _buried(mine: ReferenceState, event: e.Buried | e.Discarded) -> Changes:
    yield {"rollout": NOBODY}


def _spared(mine: ReferenceState, event: e.Spared) -> Changes:
    seen = mine.rollouts[event.rollout]
    yield from ({"tokens": seen.looked}, {"tokens": len(seen.versions) + 1})
    yield from ({"chance": wrong} for wrong in (0.0, math.nextafter(1.0, 2.0), math.nan))


def _pruned(mine: ReferenceState, event: e.Pruned) -> Changes:
    yield from ({"kept": -1}, {"kept": len(mine.rollouts[event.rollout].versions) + 1})


def _late(mine: ReferenceState, event: e.LateTokens) -> Changes:
    yield from ({"tokens": 0}, {"tokens": -1})


def _judged(mine: ReferenceState, event: e.Judged) -> Changes:
    seen = mine.rollouts[event.rollout]
    verdict = event.verdict if isinstance(event.verdict, Scored) else Scored(1.0)
    wrong = [replace(verdict, reward=reward) for reward in (math.nan, math.inf, -math.inf)]
    wrong += [replace(verdict, parts=[*verdict.parts, math.nan], figures={})]
    wrong += [replace(verdict, figures={"of": math.nan})]
    errors = [[(0, seen.tokens + 1)], [(-1, 1)], [(0, 0)], [(1, 0)]]
    errors += [[(0, 2), (1, 3)], [(2, 3), (0, 1)]] * (seen.tokens > 2)
    wrong += [replace(verdict, errors=one) for one in errors]
    others = [other.verdict for other in mine.members(seen.group) if other.own]
    if (scored := next((v for v in others if isinstance(v, Scored)), None)) is not None:
        wrong += [replace(verdict, parts=[*scored.parts, 0.0])]
    yield from ({"verdict": verdict} for verdict in wrong)


def _taken(mine: ReferenceState, event: e.Taken) -> Changes:
    first = event.rollouts[0]
    yield from ({"step": (mine.published or 0) - 1}, {"rollouts": []}, {"left_out": [NOBODY]})
    yield from ({"rollouts": [*event.rollouts, more]} for more in (NOBODY, first))
    yield {"left_out": [*event.left_out, first]}
    yield from ({"left_out": [*event.left_out, more]} for more in event.left_out[:1])
    unjudged = (seen.id for seen in mine.rollouts.values() if seen.verdict is None)
    if (other := next(unjudged, None)) is not None:
        yield from ({"rollouts": [*event.rollouts, other]}, {"left_out": [*event.left_out, other]})


def _trained(mine: ReferenceState, event: e.Trained) -> Changes:
    yield from _beside("trained", event.trained)
    lost, tokens = event.discarded, event.trained + sum(event.discarded.values())
    yield {"trained": -1, "discarded": {"stale": tokens + 1}}
    yield {"trained": tokens + 1, "discarded": {"stale": -1}}
    yield {"discarded": {**lost, "": 0}}


def _stored(mine: ReferenceState, event: e.StoredForReplay) -> Changes:
    last = max(mine.groups[event.group].steps.values())
    yield from ({"group": NOBODY}, {"until": last})


def _replayed(mine: ReferenceState, event: e.Replayed) -> Changes:
    yield from ({"groups": groups} for groups in ([], [NOBODY], [*event.groups, event.groups[0]]))
    yield {"step": min(mine.kept[group][0] for group in event.groups) + 1}


def _dropped(mine: ReferenceState, event: e.Dropped) -> Changes:
    yield {"group": NOBODY}
    yield from ({"group": number} for number, group in mine.groups.items() if group.steps)
    if mine.groups[event.group].event.split == "evaluation":
        yield {"restart": True}


def _published(mine: ReferenceState, event: e.Published) -> Changes:
    yield {"version": (mine.published or 0) - 1}
    steps = [seen.step for seen in mine.rollouts.values() if seen.step is not None]
    if steps:
        yield {"version": min(steps) + 1}


_CHANGES: dict[type, Callable[[ReferenceState, Any], Changes]] = {
    e.Admitted: _admitted,
    e.Forked: _forked,
    e.Grown: _grown,
    e.Imported: _imported,
    e.Leased: _leased,
    e.Extended: _extended,
    e.RoutingKnown: _routed,
    e.Sealed: _sealed,
    e.Called: _called,
    e.Answered: _sealed,
    e.Cut: _cut,
    e.Reused: _reused,
    e.Noted: _noted,
    e.Rewarded: _rewarded,
    e.ToolFailed: _tool_failed,
    e.Buried: _buried,
    e.Discarded: _buried,
    e.Spared: _spared,
    e.Pruned: _pruned,
    e.LateTokens: _late,
    e.Judged: _judged,
    e.Taken: _taken,
    e.Trained: _trained,
    e.StoredForReplay: _stored,
    e.Replayed: _replayed,
    e.Dropped: _dropped,
    e.Published: _published,
}
