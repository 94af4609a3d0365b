"""Advice that agrees: of two sentences that turn one setting in opposite directions, the more
pressing one is said. What is compared is what a person reads."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache

from asyncrl.explain.conditions.condition import Finding
from asyncrl.runtime.reasons import same

NO_MORE = "more generation is no remedy"
"""The words of a sentence with which more engines are not advised."""
GENERATION = ("rollout.actors", "engine.slots", "rollout.lent_actors")
"""Settings that give generation more of the machine."""
_KEY = r"[a-z_]+\.[a-z_0-9]+"
_MOVE = re.compile(
    rf"\b(raise|larger|lend|lower|smaller) ({_KEY}(?:(?:, or |, | or | and ){_KEY})*)"
)
_UP = ("raise", "larger", "lend")


@lru_cache(maxsize=256)
def moves(sentence: str) -> Mapping[str, int]:
    """The settings that a sentence advises to raise (1) or to lower (-1). `task.reward` is raised
    where parts of an answer get credit, and lowered where only right ones do.

    >>> moves("x: raise a.b, c.d or e.f, or lower g.h; set task.reward = 'exact'.")
    {'a.b': 1, 'c.d': 1, 'e.f': 1, 'g.h': -1, 'task.reward': -1}
    """
    found = dict[str, int]()
    for verb, keys in _MOVE.findall(sentence):
        found |= dict.fromkeys(re.findall(_KEY, keys), 1 if verb in _UP else -1)
    if NO_MORE in sentence:
        found |= dict.fromkeys(GENERATION, -1)
    if "task.reward = 'exact'" in sentence:
        found["task.reward"] = -1
    elif "credit for parts (task.reward" in sentence:
        found["task.reward"] = 1
    return found


def agreeing(found: Iterable[Finding]) -> tuple[Finding, ...]:
    """Those of which none advises against an earlier one.

    >>> said = [Finding("a", "lower x.y."), Finding("b", "raise x.y."), Finding("c", "lower x.y.")]
    >>> [one.name for one in agreeing(said)]
    ['a', 'c']
    """
    kept, turned = list[Finding](), dict[str, int]()
    for one in found:
        advised = moves(one.sentence)
        if all(turned.get(key, way) == way for key, way in advised.items()):
            turned |= advised
            kept.append(one)
    return tuple(kept)


def agreeing_sentences(sentences: Iterable[str]) -> list[str]:
    """As `agreeing`, of sentences; of those that differ in numbers alone the first."""
    different = {same(sentence): sentence for sentence in reversed([*sentences])}
    said = (Finding("", sentence) for sentence in reversed(different.values()))
    return [one.sentence for one in agreeing(said)]
