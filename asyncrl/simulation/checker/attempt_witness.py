"""Records of the attempts at episodes, and of their calls."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from asyncrl.simulation.checker.reference_rollouts import ReferenceAgentCall, ReferenceEpisode
from asyncrl.simulation.checker.reference_state import ReferenceState

Asked = tuple[bytes, int, float, int]
"""Context of a call, the tokens that its agent asked for, its temperature, and its place among
equal ones."""


@dataclass
class AttemptWitness:
    """One attempt, over or not: who played it, the notes that it began with, its calls, in its own
    order (None of one that was refused), the tokens of each answer that were sent, the answers
    that have ended, and those of which it had enough."""

    holder: str
    notes: dict[str, bytes]
    calls: list[int | None] = field(default_factory=list)
    said: dict[int, int] = field(default_factory=dict)
    closed: set[int] = field(default_factory=set)
    enough: set[int] = field(default_factory=set)


@dataclass
class CallWitness:
    """All tokens that were ever sampled of a call, and the ends that its answer had: how many
    tokens, and by what, empty where it was cut. `spent`: the attempts that had it cut at the
    episode's budget."""

    ids: bytearray = field(default_factory=bytearray)
    behaviour: bytearray = field(default_factory=bytearray)
    versions: list[int] = field(default_factory=list)
    ends: list[tuple[int, str]] = field(default_factory=list)
    spent: set[int] = field(default_factory=set)


@dataclass
class AttemptRecords:
    """Records of one life: of all attempts, by rollout and attempt, and of all calls, by number."""

    attempts: dict[tuple[int, int], AttemptWitness] = field(default_factory=dict)
    sampled: dict[int, CallWitness] = field(default_factory=dict)


class EpisodesRun(Protocol):
    """A run that is checked."""

    reference: ReferenceState

    def hold(self, invariant: str, true: bool, sentence: str, *values: object) -> None: ...

    def violated(
        self, invariant: str, sentence: str, cause: BaseException | None = None
    ) -> None: ...


def tokens_needed(
    episode: ReferenceEpisode, call: ReferenceAgentCall, tokens: int
) -> tuple[int, int]:
    """The fewest and the most tokens of a call that are kept where its agent needs so many: those,
    and what the contexts of others share with it."""
    shared = [
        len(_common(call.path, other.context)) - len(call.context)
        for other in episode.calls.values()
        if other is not call
    ]
    sampled = len(call.versions)
    return min(sampled, tokens), min(sampled, max([tokens, *(n // 4 for n in shared)]))


def _common(one: bytes, other: bytes) -> bytes:
    """The tokens that two texts begin with alike."""
    size = min(len(one), len(other)) // 4
    a, b = np.frombuffer(one[: 4 * size], np.int32), np.frombuffer(other[: 4 * size], np.int32)
    differ = np.flatnonzero(a != b)
    return one[: 4 * int(differ[0] if len(differ) else size)]
