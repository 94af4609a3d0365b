"""Types of the answers of an SGLang server. Invariant: a stream comes out as increments: each token
once, in order, with its log-probability.

A server sends a request's tokens as server-sent events. Each holds all tokens so far, or with
`--incremental-streaming-output` those that are new; the token count in each event tells which of
the two, whatever the server's options.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from asyncrl.engines.servers.server_routing import RoutingLayout, returned, unpacked
from asyncrl.engines.servers.server_types import (
    FinishReason,
    Garbled,
    ServerSpan,
    StreamEvent,
    StreamFailure,
    decode_event,
    token_ids,
)

T = TypeVar("T")

Entry = tuple[float | None, int, object]
"""Log-probability (null for NaN), token id, and the token's text, which a server without a
tokenizer omits."""


class ServerLoad(msgspec.Struct, frozen=True):
    """Requests that a server holds: `running` are being decoded, `queued` wait (as do retracted
    ones)."""

    running: int
    queued: int


class RankLoad(msgspec.Struct, frozen=True):
    """One rank's part of `GET /v1/loads`."""

    num_running_reqs: int
    num_waiting_reqs: int


class Loads(msgspec.Struct, frozen=True):
    """`GET /v1/loads`."""

    loads: list[RankLoad]


class ServerFailure(StreamFailure, frozen=True):
    """An error that SGLang sends in place of tokens."""

    message: str
    code: int = 400


class _Meta(msgspec.Struct, frozen=True):
    weight_version: str
    prompt_tokens: int = 0
    completion_tokens: int = 0
    finish_reason: FinishReason | None = None
    weight_versions: tuple[ServerSpan, ...] | None = None
    output_token_logprobs: list[Entry] = []
    cached_tokens: int = 0
    num_retractions: int = 0
    routed_experts: str | None = None


class _Output(msgspec.Struct, frozen=True):
    output_ids: list[int] = []
    meta_info: _Meta | None = None
    error: ServerFailure | None = None


class _ScoredMeta(msgspec.Struct, frozen=True):
    input_token_logprobs: list[Entry]


class PromptScores(msgspec.Struct, frozen=True):
    """The answer to a request that scores its prompt."""

    meta_info: _ScoredMeta


_OUTPUT = msgspec.json.Decoder(_Output)


class SglangIncrements:
    """The `Increments` of one request, which was asked for this `routing`."""

    def __init__(self, routing: RoutingLayout | None = None) -> None:
        self._done = 0
        self._routing = routing

    def read(self, data: bytes) -> StreamEvent | ServerFailure:
        output = decode_event(_OUTPUT, data)
        if output.error is not None:
            return output.error
        meta = output.meta_info
        if meta is None:
            raise Garbled(f"sent an event without meta_info: {data[:80]!r}")
        start, self._done = self._done, meta.completion_tokens
        new = self._done - start
        if new < 0:
            raise Garbled(f"took back tokens: {self._done} after {start}")
        ids, entries = (
            _newest(output.output_ids, new, start, "ids"),
            _newest(meta.output_token_logprobs, new, start, "log-probabilities"),
        )
        if [entry[1] for entry in entries] != ids:
            raise Garbled(
                f"sent log-probabilities of other tokens than those from index {start} on"
            )
        known, reason = token_ids(ids), meta.finish_reason
        rows = meta.routed_experts if self._routing is not None else None
        return StreamEvent(
            start=start,
            ids=known,
            behaviour=np.array([entry[0] for entry in entries], np.float32),  # None becomes NaN
            version=meta.weight_version,
            ending=reason,
            spans=meta.weight_versions,
            cached_tokens=meta.cached_tokens,
            retractions=meta.num_retractions,
            prompt_tokens=meta.prompt_tokens,
            routing=returned(
                None if rows is None else _numbers(rows),
                self._routing,
                self._done,
                None if reason is None else reason.type,
            ),
        )


def _numbers(text: str) -> NDArray[np.generic]:
    """The numbers of experts: int32, each row after the other."""
    content = unpacked(text)
    if len(content) % 4:
        raise Garbled(f"returned experts in {len(content)} bytes, which are no int32")
    return np.frombuffer(content, "<i4")


def _newest(sent: list[T], new: int, start: int, what: str) -> list[T]:
    """The last `new` entries: all that were sent, or all but the `start` known ones. An event
    without new tokens is not checked: the last one of an aborted request repeats earlier tokens,
    some or all."""
    if new == 0:
        return []
    if len(sent) != new and len(sent) != start + new:
        raise Garbled(f"sent {len(sent)} {what} where {new} are new of {start + new}")
    return sent[-new:]
