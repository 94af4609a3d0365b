"""Beginnings of responses: what is known of a response before its end. Invariant: it follows from
tokens and log-probabilities of the journal alone.
"""

from __future__ import annotations

import math
from array import array

import msgspec

RUN = 4
"""Tokens of the runs whose repetition is counted."""


class Beginning(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The first `tokens` tokens of a response: their mean log-probability when they were sampled
    (`logprob`, at most 0), the share of their runs of `RUN` tokens that occurred before
    (`repetition`, 0 to 1), and the `solve_rate` of the prompt at the admission (0 to 1).

    >>> Beginning(512, -0.3, 0.05, 0.25).repetition
    0.05
    """

    tokens: int
    logprob: float
    repetition: float
    solve_rate: float


class JudgedBeginning(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A beginning of a response that is judged, and whether the response was fully `right`.

    >>> JudgedBeginning(Beginning(512, -0.3, 0.05, 0.25), right=True).right
    True
    """

    beginning: Beginning
    right: bool


def beginning(ids: bytes, behaviour: bytes, solve_rate: float) -> Beginning:
    """The beginning that has these tokens (`int32`), sampled with these log-probabilities
    (`float32`); without tokens its numbers are 0.

    >>> seven = array("i", [5, 6, 5, 6, 5, 6, 7]).tobytes()
    >>> beginning(seven, array("f", [-0.5] * 7).tobytes(), 0.25)
    Beginning(tokens=7, logprob=-0.5, repetition=0.25, solve_rate=0.25)
    """
    logs = array("f", behaviour)
    runs = [ids[at : at + 4 * RUN] for at in range(0, len(ids) - 4 * RUN + 1, 4)]
    return Beginning(
        len(logs),
        math.fsum(logs) / len(logs) if logs else 0.0,
        1 - len(set(runs)) / len(runs) if runs else 0.0,
        solve_rate,
    )
