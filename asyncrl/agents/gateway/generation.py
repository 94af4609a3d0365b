"""An answer of the model as it arrives. Invariant: every sampled token arrives once, in a piece;
the last piece has a `finish`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from asyncrl.messages import Finish


class GeneratedPiece(msgspec.Struct, frozen=True):
    """Tokens sampled under `version`: `ids` int32 and `behaviour` float32 (see
    `engines.protocol.Chunk`) have equal length, which may be 0. The piece with a `finish` is the
    last. With `refused`, a sentence, the answer does not come, or ends here."""

    ids: NDArray[np.int32]
    behaviour: NDArray[np.float32]
    version: int
    finish: Finish = ""
    refused: str = ""


class Generation(Protocol):
    """An answer that is being sampled. Iterate over its pieces."""

    def __aiter__(self) -> AsyncIterator[GeneratedPiece]: ...

    def interrupt(self, needed: int) -> None:
        """Stop at the next token, because only the first `needed` tokens are used; the last piece
        then says `interrupted`. An answer that has already ended does not change."""
        ...

    def abandon(self) -> None:
        """Stop likewise, because the agent has left or died."""
        ...
