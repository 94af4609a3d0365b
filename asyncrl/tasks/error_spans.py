"""Parts of an answer that its verifier found wrong: characters to tokens.

Invariant: the spans lie in the response, ascend and do not overlap, whatever a verifier returns.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from typing import Any

from asyncrl.tasks import NoReward

MOST = 64
"""Parts of one answer, at most."""

Spans = list[tuple[int, int]]


def token_spans(
    errors: Sequence[Any], text: str, ids: Sequence[int], decode: Callable[[Sequence[int]], str]
) -> Spans:
    """Return the tokens [start, end) of which these parts have a character. `text` is what `decode`
    makes of `ids`. Raises NoReward for more than `MOST` parts, and for one that is not [start, end)
    in the text.

    >>> words = ["one ", "two ", "three"]
    >>> decode = lambda ids: "".join(words[n] for n in ids)
    >>> token_spans([(9, 13), (2, 5)], "one two three", [0, 1, 2], decode)
    [(0, 3)]
    """
    if len(errors) > MOST:
        raise NoReward(f"error spans: {len(errors)} of them, and at most {MOST} may be")
    ends = _Ends(ids, decode)
    spans: Spans = []
    for start, end in sorted(_checked(error, text) for error in errors):
        # the first token that ends behind the start, and the first that ends at the end or behind
        first = bisect_right(ends, start, 0, len(ids))
        last = min(len(ids), bisect_left(ends, end, 0, len(ids)) + 1)
        if first >= last:
            continue
        if spans and first <= spans[-1][1]:
            spans[-1] = spans[-1][0], max(spans[-1][1], last)
        else:
            spans.append((first, last))
    return spans


class _Ends(Sequence[int]):
    """Characters of the text up to the end of each token, decoded on demand."""

    def __init__(self, ids: Sequence[int], decode: Callable[[Sequence[int]], str]) -> None:
        self._ids, self._decode = ids, decode

    def __len__(self) -> int:
        return len(self._ids)

    def __getitem__(self, index: Any) -> Any:
        return len(self._decode(self._ids[: index + 1]))


def _checked(error: Any, text: str) -> tuple[int, int]:
    pair = tuple(error) if isinstance(error, tuple | list) else ()
    if len(pair) != 2 or not all(type(bound) is int for bound in pair):
        raise NoReward("error spans: each is (start, end), two whole numbers")
    start, end = pair
    if not 0 <= start < end <= len(text):
        raise NoReward(f"error spans: one is outside the answer of {len(text)} characters")
    return start, end
