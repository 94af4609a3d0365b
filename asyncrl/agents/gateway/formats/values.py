"""Arguments that a form writes without types: the tool's schema gives them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

_TYPES: dict[str, tuple[type, ...]] = {
    "null": (type(None),),
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
    "array": (list,),
    "object": (dict,),
}
_PYTHON = {"True": True, "False": False, "None": None}
"""Words of templates that print a value as Python does."""


def typed(text: str, schema: Any) -> Any:
    """The value of a text by its schema. Without a type it is what JSON makes of it, else a text.

    >>> typed("5", {"type": "integer"}), typed("5", {"type": "string"}), typed("True", {})
    (5, '5', True)
    >>> typed("[1, 2]", {"type": "array"}), typed("[1", {"type": "array"}), typed("a b", {})
    ([1, 2], '[1', 'a b')
    """
    types = _types(schema)
    if types == {"string"}:
        return text
    try:
        value = _PYTHON[text] if text in _PYTHON else msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, ValueError):
        return text
    if isinstance(value, str):
        return text
    if not types or any(_is(value, kind) for kind in types):
        return value
    if "string" in types:
        return text
    return value


def _is(value: Any, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    if kind == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, _TYPES.get(kind, ()))


def _types(schema: Any) -> set[str]:
    """The types that a schema names, of all its alternatives; none if it names none."""
    if not isinstance(schema, Mapping):
        return set()
    named = schema.get("type")
    types = {named} if isinstance(named, str) else set[str]()
    if isinstance(named, list):
        types = {kind for kind in named if isinstance(kind, str)}
    for word in ("anyOf", "oneOf", "allOf"):
        inner = schema.get(word)
        for part in inner if isinstance(inner, list) else []:
            types |= _types(part) if part is not schema else set()
    if not types and isinstance(values := schema.get("enum"), list):
        types = {"string"} if all(isinstance(value, str) for value in values) else set()
    return types


def property_of(schema: Any, name: str) -> Any:
    """The schema of one parameter; None if there is none."""
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    return properties.get(name) if isinstance(properties, Mapping) else None
