"""Types of the answers of servers of any kind. Invariant: an unreadable answer is a named error, in
bounded memory.

A server sends a request's tokens as server-sent events.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from asyncrl.escape import escaped

SAID = 300
"""The most characters of a server's own words in a message."""
_EVENT_BYTES, _TOKEN_BYTES = 1 << 16, 160
"""Bytes of an event beside its tokens, and bytes for each token: its id, its log-probability and,
where each has another version, its span. Real ones take 40."""

Mode = Literal["retract", "in_place", "abort"]
"""The effect of a pause on unfinished requests: they return to the queue and are recomputed, are
frozen with their cache, or end."""

T = TypeVar("T")


class Garbled(Exception):
    """Raised for an unreadable answer, with the reason as the end of a sentence that begins with
    the server's address."""


class ServerSpan(msgspec.Struct, frozen=True):
    """The output tokens `start` to `end` (half-open) were sampled under the weights called
    `version`."""

    version: str
    start: int
    end: int


class FinishReason(msgspec.Struct, frozen=True):
    """The end of a request: `type` is `stop`, `length` or `abort`. `status_code` is given where the
    server refused the request."""

    type: str
    message: str = ""
    status_code: int | None = None


class StreamEvent(msgspec.Struct, frozen=True):
    """The new tokens of one event: output tokens from index `start`, `ids` int32 and `behaviour`
    float32 of equal length, which may be 0.

    `version` is the newest that sampled any of them. The last one has `ending`, and `spans` where
    the server knows them; `routing` are the records of all new tokens of the stream, from its first
    on, if they were asked for and the server has them (`server_routing`). `prompt_tokens` are the
    ids of the request, with all that stand for its images.
    """

    start: int
    ids: NDArray[np.int32]
    behaviour: NDArray[np.float32]
    version: str
    ending: FinishReason | None = None
    spans: tuple[ServerSpan, ...] | None = None
    cached_tokens: int = 0
    retractions: int = 0
    routing: NDArray[np.uint8] | None = None
    prompt_tokens: int = 0


class StreamFailure(msgspec.Struct, frozen=True):
    """An error inside a stream, whose HTTP status was 200 by then."""

    message: str = ""
    code: int = 500


class ModelInfo(msgspec.Struct, frozen=True):
    """`GET /model_info`: the model that is served. `weight_version` is `default` until it is
    set."""

    model_path: str
    weight_version: str
    is_generation: bool = True
    model_type: str | None = None
    architectures: list[str] | None = None


class ServerInfo(msgspec.Struct, frozen=True):
    """`GET /server_info`: the start options that matter here."""

    version: str
    model_path: str = ""
    dtype: str = ""
    device: str = ""
    tp_size: int = 1
    dp_size: int = 1
    pp_size: int = 1
    speculative_algorithm: str | None = None
    disaggregation_mode: str = "null"
    skip_tokenizer_init: bool = False
    incremental_streaming_output: bool = False
    disable_radix_cache: bool = False
    context_length: int | None = None
    max_total_num_tokens: int | None = None
    max_running_requests: int | None = None
    max_req_input_len: int | None = None
    enable_return_routed_experts: bool = False
    enable_lora: bool | None = None
    max_lora_rank: int | None = None


class ServedModel(msgspec.Struct, frozen=True):
    """One entry of `GET /v1/models`; `parent` is an adapter's base."""

    id: str
    parent: str | None = None


class ServedModels(msgspec.Struct, frozen=True):
    """`GET /v1/models`: the base and its adapters."""

    data: list[ServedModel]


class RankChecksums(msgspec.Struct, frozen=True):
    """Hashes of one rank's weights: one for each tensor by name, and one of all together."""

    checksums: dict[str, str]
    per_gpu_checksum: str


class ServerAnswer(msgspec.Struct, frozen=True):
    """The answer of a control endpoint. Each has its own field for errors."""

    success: bool = True
    message: str = ""
    error_message: str | None = None  # of adapters
    ranks: list[RankChecksums] = []
    detail: msgspec.Raw = msgspec.Raw()
    error: msgspec.Raw = msgspec.Raw()

    def reason(self) -> str:
        """The server's reason, raw where that is no text; empty for none."""
        raw_reason = next(
            (bytes(raw) for raw in (self.error, self.detail) if raw not in _NONE), b""
        )
        said = self.message or self.error_message
        return escaped(said or raw_reason[: 4 * SAID].decode(errors="replace"), SAID)


_NONE = (msgspec.Raw(), msgspec.Raw(b"null"))
_SPARE_EVENTS = 64
"""Events of a stream without a token: an end, an error, a keep-alive comment."""


def decode(kind: type[T], body: bytes) -> T:
    """The `kind` in `body`. Raises Garbled where it is none."""
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Garbled(
            f"answered what is not {kind.__name__}: {escaped(str(error), SAID)}"
        ) from error


def decode_event(decoder: msgspec.json.Decoder[T], data: bytes) -> T:
    """The content of an event. Raises Garbled where it cannot be read."""
    try:
        return decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Garbled(f"sent an event that cannot be read: {escaped(str(error), SAID)}") from error


def token_ids(ids: list[int]) -> NDArray[np.int32]:
    """The ids of an event. Raises Garbled for an id outside any vocabulary."""
    try:
        return np.array(ids, np.int32)
    except OverflowError as error:
        raise Garbled(f"sent an id that no vocabulary has: {max(ids, key=abs)}") from error


def largest_event(tokens: int) -> int:
    """The bytes that an event of a stream of at most `tokens` tokens may have."""
    return _EVENT_BYTES + tokens * _TOKEN_BYTES


class StreamEvents:
    """Splitter of received bytes into the data of server-sent events. A stream has at most `tokens`
    tokens, and each event may repeat all so far, which bounds the bytes; one has the experts of
    tokens, in at most `routing` bytes."""

    def __init__(self, tokens: int, routing: int = 0) -> None:
        self._rest = bytearray()
        self._seen = 0
        event = largest_event(tokens)
        self._largest = event + routing
        self._left = (tokens + _SPARE_EVENTS) * event + routing

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The data of each event that these bytes complete. Raises Garbled for anything else."""
        self._left -= len(data)
        if self._left < 0:
            raise Garbled("sent more bytes than the requested tokens can take")
        self._rest += data
        start = 0
        while (end := self._rest.find(b"\n\n", max(start, self._seen - 1))) >= 0:
            if end - start > self._largest:
                break
            lines = bytes(self._rest[start:end])
            start = self._seen = end + 2
            if lines.startswith(b"data:"):
                yield lines[5:].lstrip()
            elif lines.strip() and not lines.startswith(b":"):
                raise Garbled(f"sent what is no event of a stream: {lines[:80]!r}")
        del self._rest[:start]
        self._seen = len(self._rest)
        if self._seen > self._largest:
            raise Garbled(
                f"sent an event of more than {self._largest} bytes, which no event of such a "
                "stream has"
            )
