"""Messages as hypothesis draws them."""

from __future__ import annotations

from typing import Annotated, get_args, get_origin

import msgspec
from hypothesis import strategies as st


def of_type(kind: object) -> st.SearchStrategy:
    """Values of a message's type, or of a field's; hypothesis cannot look into msgspec's structs by
    itself."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return st.builds(
            kind, **{field.name: of_type(field.type) for field in msgspec.structs.fields(kind)}
        )
    if get_origin(kind) is list:
        return st.lists(of_type(get_args(kind)[0]), max_size=3)
    if get_origin(kind) is tuple and get_args(kind)[-1] is ...:
        return st.lists(of_type(get_args(kind)[0]), max_size=3).map(tuple)
    if get_origin(kind) is tuple:
        return st.tuples(*map(of_type, get_args(kind)))
    if get_origin(kind) is dict:
        return st.dictionaries(*map(of_type, get_args(kind)), max_size=3)
    if get_origin(kind) is Annotated:
        (limits,) = kind.__metadata__  # type: ignore[attr-defined]
        return _within(kind.__origin__, limits)  # type: ignore[attr-defined]
    if kind is float:
        return st.floats(allow_nan=False)
    if kind is int:
        return st.integers(-(2**63), 2**64 - 1)
    if kind is str:
        return st.text(st.characters(codec="utf-8"), max_size=20)
    if get_args(kind) and get_origin(kind) is not None and "Literal" not in str(get_origin(kind)):
        return st.one_of(*map(of_type, get_args(kind)))
    return st.from_type(kind)


def _within(kind: object, limits: msgspec.Meta) -> st.SearchStrategy:
    """Values of a field's type that keep its limits; none is longer than 20, unless it must be."""
    if kind is float:
        return st.floats(limits.ge, limits.le)
    if kind is int:
        return st.integers(limits.ge, limits.le)
    least = limits.min_length or 0
    most = max(least, min(limits.max_length or 20, 20))
    if kind is bytes:
        return st.binary(min_size=least, max_size=most)
    if kind is str and limits.pattern:
        return st.from_regex(limits.pattern, fullmatch=True)
    if kind is str:
        return st.text(st.characters(codec="utf-8"), min_size=least, max_size=most)
    if get_origin(kind) is tuple:
        of = of_type(get_args(kind)[0])
        return st.lists(of, min_size=least, max_size=min(most, 3)).map(tuple)
    keys, values = map(of_type, get_args(kind))
    return st.dictionaries(keys, values, min_size=least, max_size=most)
