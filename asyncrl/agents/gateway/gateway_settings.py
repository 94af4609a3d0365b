"""Names and bounds of a gateway. Invariant: the cost of a request is bounded by the context that an
engine has."""

from __future__ import annotations

import msgspec

from asyncrl.tasks.images.image_source import IMAGE_BYTES

_BODY_BYTES, _TOKEN_BYTES = 64 << 10, 32
_ITEMS, _TOKEN_ITEMS = 4096, 2


class Settings(msgspec.Struct, frozen=True):
    """`model` is the name that agents ask for; `context_tokens` and `vocabulary` are the engine's.
    At most `calls` run at a time, each for at most `call_s` seconds. A body must arrive within
    `body_s` seconds, and waits at most as long to be read. With `as_sampled` a chat's earlier
    replies are the tokens that were sampled, whatever its template makes of them. With `strict` a
    parameter without effect is refused, and so is another model's name. `blind` says why images are
    not read, as the end of a sentence; empty if they are read. They are fetched from `image_hosts`
    alone."""

    model: str
    context_tokens: int
    vocabulary: int
    calls: int = 256
    call_s: float = 600.0
    body_s: float = 30.0
    as_sampled: bool = False
    strict: bool = False
    blind: str = "this model reads only text"
    image_hosts: tuple[str, ...] = ()

    @property
    def body_bytes(self) -> int:
        """The largest body of a request: 64 KiB, and 32 bytes for each token of context. Example:
        192 KiB for 4,096 tokens. (A letter that JSON escapes takes six bytes, and tokens of such
        letters have three or four.)"""
        return _BODY_BYTES + _TOKEN_BYTES * self.context_tokens

    @property
    def most_bytes(self) -> int:
        """The largest body with images: that, and the images in base64."""
        return self.body_bytes + (0 if self.blind else 4 * (IMAGE_BYTES // 3 + 1))

    @property
    def items(self) -> int:
        """The most commas in a request's JSON, so about the most items: 4,096, and two for each
        token of context."""
        return _ITEMS + _TOKEN_ITEMS * self.context_tokens
