"""The experts that a server returns with the end of a request, as records
(`asyncrl.algorithms.routing.records`). Invariant: a record is of the pass that predicted its token,
or is unknown.

A server returns a row for each position that it computed: the experts of the token there in each
layer, with or without a router. The row at the position before a token is of the pass that
predicted it, so rows are requested from the last position of the request on: row i is the record
of new token i.
"""

from __future__ import annotations

import binascii
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from asyncrl.engines.servers.server_types import Garbled, StreamEvent

UNKNOWN = 255
"""Each byte of the record of a token whose experts are unknown."""
ONE_BYTE = 256
"""The most experts that a byte has a number for."""
SENT_BYTES = 6
"""Bytes of an expert's number in an answer, at most: four, in base64."""

BLANK = 16
"""Tokens that cannot all have got expert 0 in every layer, where each gets one expert."""

Records = NDArray[np.uint8]
"""Of tokens that follow one another, uint8 [tokens, bytes]."""


class RoutingLayout(NamedTuple):
    """The layout of rows of a server: `chosen` experts in each of `layers` layers. Those in
    `routed`, in this order, have a router, which chooses among `experts`."""

    layers: int
    routed: tuple[int, ...]
    chosen: int
    experts: int

    def sent(self, tokens: int) -> int:
        """The most bytes of the rows of so many tokens in an answer."""
        return tokens * self.layers * self.chosen * SENT_BYTES


def unpacked(text: str) -> bytes:
    """Bytes from base64. Raises Garbled."""
    try:
        return binascii.a2b_base64(text, strict_mode=True)
    except (binascii.Error, ValueError) as error:
        raise Garbled(f"returned experts that are no base64: {error}") from error


def records(
    numbers: NDArray[np.generic], layout: RoutingLayout, tokens: int, *, whole: bool
) -> Records:
    """The records of the first of `tokens` new tokens, from a server's numbers in the order of its
    rows; of a `whole` response, of all of them. Raises Garbled where they cannot be those.

    >>> layout = RoutingLayout(layers=3, routed=(0, 2), chosen=2, experts=4)
    >>> rows = np.array([[[1, 2], [0, 0], [3, 0]], [[0, 1], [0, 0], [2, 1]]])
    >>> records(rows, layout, 2, whole=True).tolist()
    [[1, 2, 3, 0], [0, 1, 2, 1]]
    """
    row = layout.layers * layout.chosen
    if numbers.size % row:
        raise Garbled(
            f"returned {numbers.size} numbers of experts, which are not rows of {layout.chosen} in "
            f"{layout.layers} layers"
        )
    rows = numbers.reshape(-1, layout.layers, layout.chosen)
    if whole and len(rows) != tokens:
        raise Garbled(f"returned the experts of {len(rows)} tokens with the end of {tokens}")
    known = rows[:tokens, list(layout.routed)].astype(np.int64)
    distinct = (np.diff(np.sort(known, -1), axis=-1) > 0).all()
    blank = layout.chosen == 1 and len(known) >= BLANK and not known.any()
    possible = known.size == 0 or (known.min() >= 0 and known.max() < layout.experts)
    if not possible or not distinct or blank:
        raise Garbled(
            "returned experts that no router can have chosen: its kernels of this model do not "
            "record them"
        )
    flat = known.reshape(len(known), len(layout.routed) * layout.chosen)
    if layout.experts <= ONE_BYTE:
        return flat.astype(np.uint8)
    return flat.astype("<u2").view(np.uint8)


def returned(
    rows: NDArray[np.generic] | None,
    layout: RoutingLayout | None,
    tokens: int,
    reason: str | None,
) -> Records | None:
    """The records of a stream that ended after `tokens` new tokens, or continues (`reason` None):
    None if it has none. Raises Garbled where a complete response has none."""
    if layout is None or reason is None:
        return None
    whole = reason != "abort"
    if rows is None and whole and tokens:
        raise Garbled(
            "returned no experts with the end of a response: start it with "
            "--enable-return-routed-experts, and make any router pass on what is requested"
        )
    return None if rows is None else records(rows, layout, tokens, whole=whole)


def certain(event: StreamEvent) -> Records | None:
    """The records of a stream's last event, unknown where the server computed a token again, after
    it took the request back: with other weights than those that sampled it. None if it has none."""
    if event.routing is None or not event.retractions:
        return event.routing
    last = event.spans[-1] if event.spans else None
    # it may have been computed again by newer weights that have sampled nothing yet
    first = last.start if last is not None and last.version == event.version else len(event.routing)
    certain = event.routing.copy()
    certain[:first] = UNKNOWN
    return certain
