"""Preferences of prompts for engines with a tag: which waiting calls are placed first, and where.

Invariant: no engine that a waiting call may use stays idle for a preference, and a call is passed
over only by others that may use the room now. A tag that no connected engine has is no preference.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from asyncrl.actors.coordinator.engine_pool import EnginePool
from asyncrl.config import Config
from asyncrl.config.tags import actors_by_tag, preferred_tags
from asyncrl.experience.call import Call
from asyncrl.experience.group import Group
from asyncrl.explain.run_status import TagCounts
from asyncrl.messages import Split


class Preferences:
    """The tags that prompts prefer, and the engines that have them. `label(split, prompt_index)`
    names a prompt's task. `counts` are the leases of prompts that prefer each tag."""

    def __init__(
        self, engines: EnginePool, config: Config, label: Callable[[Split, int], str]
    ) -> None:
        self._engines, self._label = engines, label
        self._tags = preferred_tags(config)
        self._actors = actors_by_tag(config) if self._tags else {}
        self.counts = {tag: TagCounts() for tag in self._tags.values()}

    def __bool__(self) -> bool:
        """True if any prompts prefer a tag."""
        return bool(self._tags)

    def tag_of(self, group: Group) -> str:
        """The tag that the group's prompt prefers; empty if none."""
        if not self._tags:
            return ""
        return self._tags.get(self._label(group.split, group.prompt_index), "")

    def actors(self, tag: str) -> Collection[str]:
        """The names of the engines' actors with this tag; none for an empty tag."""
        return self._actors.get(tag, ())

    def rooms(self, split: Split, version: int | None) -> dict[str, int]:
        """The calls that engines of each tag may still get, without tags of no engine that offers
        this service."""
        found = dict[str, int]()
        for tag, actors in self._actors.items():
            here = [self._engines.get(name) for name in actors]
            serving = [each for each in here if each and (split, version) in each.services]
            if serving:
                found[tag] = sum(max(0, each.room(split)) for each in serving)
        return found

    def count(self, group: Group, engine: str) -> None:
        """Count a lease of a call of this group to the engine of this name."""
        if tag := self.tag_of(group):
            counts = self.counts[tag]
            there = engine in self._actors[tag]
            self.counts[tag] = TagCounts(counts.there + there, counts.elsewhere + (not there))


def preferred_first(
    waiting: Sequence[Call], room: int, rooms: Mapping[str, int], tag_of: Callable[[Call], str]
) -> list[Call]:
    """At most `room` of the calls that wait, in their order, but those that prefer a tag without
    room come after all others. `rooms` has the calls that engines of each tag may still get.

    Example: two wait for `long`, whose engine has one place, and one prefers nothing.

    >>> calls = [Call(id=id, group=id, max_new_tokens=8) for id in range(3)]
    >>> tags = ["long", "long", ""]
    >>> [one.id for one in preferred_first(calls, 3, {"long": 1}, lambda call: tags[call.id])]
    [0, 2, 1]
    """
    left = dict(rooms)
    first, later = list[Call](), list[Call]()
    for call in waiting:
        if len(first) >= room:
            break
        tag = tag_of(call)
        if left.get(tag) == 0:
            later.append(call)
            continue
        first.append(call)
        if tag in left:
            left[tag] -= 1
    return [*first, *later][:room]
