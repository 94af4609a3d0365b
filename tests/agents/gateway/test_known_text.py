"""Tokens of texts that a session's model has seen or said."""

from __future__ import annotations

import numpy as np
import pytest
from gateway_world import ids

from asyncrl.agents.gateway.known_text import KnownText


def packed(tokens: list[int]) -> bytes:
    return np.array(tokens, np.int32).tobytes()


def test_known_text_has_the_tokens_that_were_packed() -> None:
    known = KnownText()
    assert known.longest(b"hi") == (0, b"")
    texts = [(b"hi:", 2), (b"hi:yo$", 4), (b"hi:yo", 3)]
    known.add(packed([1, 2]), packed([77, 9]), texts)
    assert known.longest(b"hi:yo$more") == (6, packed([1, 2, 77, 9]))
    assert known.longest(b"hi:yo, and more") == (5, packed([1, 2, 77]))
    assert known.longest(b"hi:no") == (3, packed([1, 2]))
    assert known.longest(b"hi") == (0, b"")
    known.add(packed([1, 2]), packed([7, 8, 9]), [(b"hi:", 2), (b"hi:yo$", 5)])
    assert known.longest(b"hi:yo$") == (6, packed([1, 2, 7, 8, 9])), "the latest of one text"


def test_a_long_conversation_is_kept_once() -> None:
    """A hundred turns of 20 tokens each: as many as there are, and not once for each turn."""
    known, context, text = KnownText(), [1], "q"
    for turn in range(100):
        reply = [*range(turn, turn + 10)]
        said = text + f"<{turn}>"
        known.add(packed(context), packed(reply), [(said.encode(), len(context) + 10)])
        context, text = [*context, *reply, *ids("next turn.")], said + "next turn."
    assert known.longest(text.encode()) == (len(text) - 10, packed(context[:-10]))
    assert sum(strand.tokens for strand in known._tree._strands) == 1 + 100 * 10 + 99 * 10


def test_what_cannot_be_is_refused_and_changes_nothing() -> None:
    known = KnownText()
    with pytest.raises(ValueError, match="int32"):
        known.add(packed([5]), b"odd", [(b"a", 1)])
    assert known.longest(b"a") == (0, b"")
