"""Keys of a row: dotted paths into its objects, and the keys that it has. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from asyncrl.escape import escaped
from asyncrl.words import whole

SHOWN = 8
"""Keys that a sentence lists, at most."""


def value_at(row: Any, path: str) -> Any:
    """The value at a dotted path, or None where there is none. A step goes into an object, into a
    list by its number, and into a text that is JSON, as tables have it.

    >>> value_at({"reward_model": {"ground_truth": "4"}}, "reward_model.ground_truth")
    '4'
    >>> value_at({"info": '{"answers": [4]}', "a.b": 1}, "info.answers.0")
    4
    """
    if isinstance(row, dict) and path in row:
        return row[path]
    value = row
    for step in path.split("."):
        value = _step(value, step)
    return value


def _step(value: Any, step: str) -> Any:
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        try:
            value = msgspec.json.decode(value)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            return None
    if isinstance(value, Mapping):
        return value.get(step)
    number = whole(step)
    if isinstance(value, list | tuple) and number is not None and number < len(value):
        return value[number]
    return None


def keys_of(row: Mapping[str, Any]) -> list[str]:
    """The keys of a row, and those of objects in it as dotted paths.

    >>> keys_of({"prompt": "1 + 1 =", "reward_model": {"style": "rule", "ground_truth": "2"}})
    ['prompt', 'reward_model.style', 'reward_model.ground_truth']
    """
    keys = list[str]()
    for name, value in row.items():
        inner = value if isinstance(value, Mapping) else {}
        keys += [f"{name}.{key}" for key in inner] or [str(name)]
    return keys


def listed(keys: Iterable[str]) -> str:
    """Keys in words, as far as they are shown.

    >>> listed(["question", "answer"]), listed([])
    ('question, answer', 'nothing')
    """
    shown = [escaped(key, 40) for key in keys]
    more = [f"{len(shown) - SHOWN} more"] if len(shown) > SHOWN else []
    return ", ".join(shown[:SHOWN] + more) or "nothing"


def nearest_key(name: str, keys: Iterable[str]) -> str:
    """Words on the key that is nearest to one that is not there; empty if none is near.

    >>> nearest_key("qestion", ["question", "answer"])
    '; did you mean question?'
    """
    choices = list(keys)
    close = difflib.get_close_matches(name, choices, n=1, cutoff=0.5)
    last = {choice.rpartition(".")[2]: choice for choice in choices}
    if not close:
        close = [last[key] for key in difflib.get_close_matches(name, list(last), n=1, cutoff=0.5)]
    return f"; did you mean {escaped(close[0], 40)}?" if close else ""
