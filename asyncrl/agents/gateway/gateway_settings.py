"""Names and bounds of a gateway. Invariant: the cost of a request is bounded by the context that an
engine has."""

from __future__ import annotations

import msgspec

from asyncrl.tasks.images.image_source import IMAGE_BYTES

_BODY_BYTES, _TOKEN_BYTES = 64 << 10, 32
_ITEMS, _TOKEN_ITEMS = 4096, 2


class Settings(msgspec.Struct, frozen=True):
    """`model` is the name that agents ask for; `context_tokens` and `vocabulary` are the engine's.
    At most `calls` run at a time, each for at most `call_s` seconds. A body arrives within `body_s`
    seconds, and waits at most as long to be read. With `as_sampled` a chat's earlier replies
    are the tokens that were sampled, whatever its template makes of them. `strict`: a parameter
    without effect is refused, and so is another model's name. `blind` is the reason why images are
    not read, the end of a sentence; empty if they are."""

    model: str
    context_tokens: int
    vocabulary: int
    calls: int = 256
    call_s: float = 600.0
    body_s: float = 30.0
    as_sampled: bool = False
    strict: bool = False
    blind: str = "this model reads text alone"

    @property
    def body_bytes(self) -> int:
        """The size of a request's body at most: 64 KiB, and 32 bytes for each token of context.
        Example: 192 KiB for 4,096 tokens. (A letter that JSON escapes takes six bytes, and tokens
        of such letters have three or four.)"""
        return _BODY_BYTES + _TOKEN_BYTES * self.context_tokens

    @property
    def most_bytes(self) -> int:
        """The size of a body with images at most: their bytes in base64 come on top."""
        return self.body_bytes + (0 if self.blind else 4 * (IMAGE_BYTES // 3 + 1))

    @property
    def items(self) -> int:
        """The number of commas in a request's JSON at most, and so about that of its items: 4,096,
        and two for each token of context."""
        return _ITEMS + _TOKEN_ITEMS * self.context_tokens
