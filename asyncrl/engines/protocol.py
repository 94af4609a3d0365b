"""What a rollout actor asks of an engine. Invariant: a chunk carries the version that sampled it,
as the engine itself says.

An engine is driven by one task (`run`); every other method is called from the same trio thread and
returns at once, except `load`. It owns no link and knows no coordinator: the rollout actor is its
shell.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from asyncrl.ipc.messages import Finish

if TYPE_CHECKING:
    import torch


class Request(msgspec.Struct, frozen=True):
    """One rollout to decode.

    `ids` is the prompt and the `prefix_tokens` response tokens that are known already, int32. At
    most `max_new_tokens` (at least 1) more are sampled, at `temperature` (0: greedy). The draw of
    response token i depends on (run seed, `key`, i) and the distribution alone. `version` pins the
    weights to a version the engine was told to keep; None follows whatever is current.
    """

    rollout: int
    attempt: int
    key: int
    ids: NDArray[np.int32]
    prefix_tokens: int
    max_new_tokens: int
    temperature: float
    version: int | None = None


class Chunk(msgspec.Struct, frozen=True):
    """Tokens of one rollout from response index `start` (prefix included), sampled under `version`.

    `ids` int32 and `behaviour` float32 have equal length, which may be 0 where only `finish` is
    news. `behaviour` is the log-probability of the temperature-scaled distribution (of the unscaled
    one where greedy) at the moment of sampling. A stop id is part of `ids`.
    """

    rollout: int
    attempt: int
    version: int
    start: int
    ids: NDArray[np.int32]
    behaviour: NDArray[np.float32]
    finish: Finish = ""


Idle = Callable[[str, float], None]
"""Where an engine says what it waited for (`weights`, `requests`), and for how many seconds."""

Emit = Callable[[Sequence[Chunk]], Awaitable[None]]


class Engine(Protocol):
    """Streams chunks, can be interrupted at a token boundary, loads a publication between two
    decode steps."""

    @property
    def slots(self) -> int:
        """How many rollouts it decodes at a time."""
        ...

    @property
    def version(self) -> int | None:
        """The version it decodes with; None before the first `load`: until then it samples
        nothing."""
        ...

    def submit(self, requests: Sequence[Request]) -> None:
        """Queue requests; those without a free slot wait inside. Raises ValueError for an id
        outside the vocabulary or a request that does not fit the context."""
        ...

    def interrupt(self, rollouts: Sequence[int]) -> None:
        """Stop these at the next token boundary. Each ends with a chunk whose `finish` is
        `interrupted`; unknown ones are ignored."""
        ...

    async def load(
        self, version: int, weights: Mapping[str, torch.Tensor] | None, *, pin: bool = False
    ) -> float:
        """Swap to `weights` (by parameter name; None for an engine without weights) between two
        decode steps, and return the seconds decoding stood still. With `pin`, also keep them to
        serve requests of that version until `unpin`; any number of versions may be kept, and all
        are decoded side by side."""
        ...

    def unpin(self, version: int) -> None:
        """Forget a pinned version. Requests still pinned to it end as `interrupted`."""
        ...

    async def run(self, emit: Emit) -> None:
        """Decode until cancelled, giving chunks to `emit` about every `chunk_tokens` steps, and at
        every finish, swap or interrupt."""
        ...
