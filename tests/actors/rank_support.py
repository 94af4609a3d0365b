"""Errors of ranks, as tests look for them."""

from __future__ import annotations

from typing import TypeVar

E = TypeVar("E", bound=BaseException)


def leaves(error: BaseException) -> list[BaseException]:
    """Errors of a group, which may hold groups."""
    if not isinstance(error, BaseExceptionGroup):
        return [error]
    return [leaf for each in error.exceptions for leaf in leaves(each)]


def only(error: BaseException, kind: type[E], but: tuple[type[BaseException], ...] = ()) -> E:
    """The one error of this kind; all others are of the kinds `but`."""
    errors = [leaf for leaf in leaves(error) if isinstance(leaf, kind)]
    others = [leaf for leaf in leaves(error) if not isinstance(leaf, (kind, *but))]
    assert len(errors) == 1, leaves(error)
    assert not others, others
    return errors[0]
