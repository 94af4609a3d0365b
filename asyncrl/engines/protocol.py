"""The protocol of engines: requests that a rollout actor submits, and chunks that come back.
Invariant: a chunk carries the version that sampled it, as reported by the engine.

An engine is driven by one task (`run`); every other method is called from the same trio thread and
returns at once, except `load`. It has no link to the coordinator: the rollout actor is its shell.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import msgspec
import numpy as np
from numpy.typing import NDArray

from asyncrl.messages import Finish

if TYPE_CHECKING:
    import torch


class Request(msgspec.Struct, frozen=True):
    """One rollout to decode.

    `ids` is the prompt and the `prefix_tokens` response tokens that are known already, int32. At
    most `max_new_tokens` (at least 1) more are sampled, at `temperature` (0: greedy). The draw of
    response token i depends on (run seed, `key`, i) and the distribution alone. `version` pins the
    request to a version that the engine keeps; None follows the current one. `images` are the
    hashes of those that the prompt's placeholders stand for, in their order; of an agent's call, a
    part of image `n` of them is the id `-1 - n`.

    A prompt of three tokens, of whose response two are known; three more are to come, at the
    response's indices 2, 3 and 4:

    >>> request = Request(
    ...     rollout=7, attempt=1, key=7, ids=np.array([11, 12, 13, 21, 22], np.int32),
    ...     prefix_tokens=2, max_new_tokens=3, temperature=1.0,
    ... )
    >>> len(request.ids) - request.prefix_tokens  # tokens of the prompt
    3
    """

    rollout: int
    attempt: int
    key: int
    ids: NDArray[np.int32]
    prefix_tokens: int
    max_new_tokens: int
    temperature: float
    version: int | None = None
    images: tuple[str, ...] = ()


class Chunk(msgspec.Struct, frozen=True):
    """Tokens of one rollout from response index `start` (prefix included), sampled under `version`.

    `ids` int32 and `behaviour` float32 have equal length, which may be 0 where only `finish` is
    new. `behaviour` is the log-probability of the temperature-scaled distribution (of the unscaled
    one where greedy) at the moment of sampling. A stop id is part of `ids`. `why` is the reason of
    an end that was not asked for. `routing` are the experts of a mixture that tokens were predicted
    with, uint8 [tokens, bytes] (`asyncrl.algorithms.routing.records`), 255 where unknown: of the
    last tokens up to the end of this chunk, which may be more than it has, or fewer; None where the
    engine does not record them, or learns them at the end of a response.

    An answer to the request above in two chunks, between which the weights changed:

    >>> first = Chunk(7, 1, 4, 2, np.array([23], np.int32), np.array([-0.7], np.float32))
    >>> last = Chunk(7, 1, 5, 3, np.array([24, 0], np.int32), np.zeros(2, np.float32), "stop")
    >>> [(c.version, c.start, c.start + len(c.ids), c.finish) for c in (first, last)]
    [(4, 2, 3, ''), (5, 3, 5, 'stop')]
    """

    rollout: int
    attempt: int
    version: int
    start: int
    ids: NDArray[np.int32]
    behaviour: NDArray[np.float32]
    finish: Finish = ""
    why: str = ""
    routing: NDArray[np.uint8] | None = None


def refusal(request: Request, version: int | None, why: str) -> Chunk:
    """The chunk that ends a request which the engine refuses.

    >>> request = Request(
    ...     rollout=7, attempt=1, key=7, ids=np.array([11, 999], np.int32), prefix_tokens=0,
    ...     max_new_tokens=3, temperature=1.0,
    ... )
    >>> refusal(request, 4, "no such id").finish
    'refused'
    """
    none = np.zeros(0, np.int32)
    return Chunk(
        request.rollout,
        request.attempt,
        version or 0,
        request.prefix_tokens,
        none,
        none.astype(np.float32),
        "refused",
        why,
    )


Idle = Callable[[str], AbstractContextManager[object]]
"""Counts the seconds of its block as a wait of that name (`weights`, `requests`)."""

Emit = Callable[[Sequence[Chunk]], Awaitable[None]]
"""A receiver of chunks: those of all slots at a time, in the order of sampling within a rollout."""


class Engine(Protocol):
    """Streams chunks, can be interrupted at a token boundary, loads a publication between two
    decode steps.

    A script of three tokens, in chunks of two, under version 4:

    >>> import trio
    >>> from asyncrl.engines.options import EngineOptions
    >>> from asyncrl.engines.scripted import Script, ScriptedEngine
    >>> ids, behaviour = np.array([7, 8, 0], np.int32), np.full(3, -0.7, np.float32)
    >>> sizes = EngineOptions(slots=1, context_tokens=16, chunk_tokens=2)
    >>> engine: Engine = ScriptedEngine(lambda _: Script(ids, behaviour, 0.0), sizes, vocab_size=10)
    >>> async def decode() -> None:
    ...     async def emit(chunks: Sequence[Chunk]) -> None:
    ...         for chunk in chunks:
    ...             print(chunk.version, chunk.start, chunk.ids.tolist(), chunk.finish or "…")
    ...         if chunks[-1].finish:
    ...             scope.cancel()
    ...         await trio.lowlevel.checkpoint()
    ...
    ...     with trio.CancelScope() as scope:
    ...         await engine.load(4, None)
    ...         engine.submit([Request(1, 1, 1, np.array([5], np.int32), 0, 8, 1.0)])
    ...         await engine.run(emit)
    >>> trio.run(decode)
    4 0 [7, 8] …
    4 2 [0] stop
    """

    @property
    def slots(self) -> int:
        """Rollouts that it decodes at a time."""
        ...

    @property
    def version(self) -> int | None:
        """The version it decodes with; None before the first `load`: until then it samples
        nothing."""
        ...

    def submit(self, requests: Sequence[Request]) -> None:
        """Queue requests; those without a free slot wait inside. Raises ValueError, and queues
        none of them, for an id outside the vocabulary or a request that does not fit the
        context. One that is refused later ends with a chunk whose `finish` is `refused`."""
        ...

    def interrupt(self, rollouts: Sequence[int]) -> None:
        """Stop these at the next token boundary. Each ends with a chunk whose `finish` is
        `interrupted`; unknown ones are ignored."""
        ...

    async def load(
        self, version: int, weights: Mapping[str, torch.Tensor] | None, *, pin: bool = False
    ) -> float:
        """Swap to `weights` (by parameter name; None for an engine without weights) between two
        decode steps, and return the seconds that decoding was paused.

        With `pin`, an engine that keeps versions (`Capabilities`) also keeps these to serve
        requests of that version until `unpin`; any number may be kept, and all are decoded side by
        side. An engine that does not keep versions ends requests of other versions as
        `interrupted`."""
        ...

    def unpin(self, version: int) -> None:
        """Forget a pinned version. Requests still pinned to it end as `interrupted`."""
        ...

    async def run(self, emit: Emit) -> None:
        """Decode until cancelled, giving chunks to `emit` about every `chunk_tokens` steps, and at
        every finish, swap or interrupt."""
        ...


@runtime_checkable
class AveragingEngine(Engine, Protocol):
    """An engine that also keeps an average of the weights (`Capabilities.keeps_averages`).

    An average of version 4 is kept, and answers; the engine has no current version yet, so a
    request that is not pinned waits:

    >>> import trio
    >>> from asyncrl.engines.options import EngineOptions
    >>> from asyncrl.engines.scripted import Script, ScriptedEngine
    >>> script = Script(np.array([7, 0], np.int32), np.full(2, -0.7, np.float32), 0.0)
    >>> sizes = EngineOptions(slots=2, context_tokens=16, chunk_tokens=2)
    >>> engine: AveragingEngine = ScriptedEngine(lambda _: script, sizes, vocab_size=10)
    >>> trio.run(engine.keep, 4, None), engine.version
    (0.0, None)
    """

    async def keep(self, version: int, weights: Mapping[str, torch.Tensor] | None) -> float:
        """Keep the average of `version` to serve requests of that version until `unpin`, and return
        the seconds that decoding was paused. The current weights do not change."""
        ...


@runtime_checkable
class CanaryEngine(Engine, Protocol):
    """An engine that compares the canary (`Capabilities.compares_canary`).

    An engine without servers has no canary:

    >>> from asyncrl.engines.scripted import ScriptedEngine
    >>> hasattr(ScriptedEngine, "expect")
    False
    """

    def expect(self, version: int, canary: Sequence[float]) -> None:
        """Set the trainer's log-probabilities of the canary under `version`, which is loaded next
        (`asyncrl.engines.canary`)."""
        ...


@runtime_checkable
class DirectEngine(Engine, Protocol):
    """An engine into whose weights a publication may write directly
    (`Capabilities.direct_transport`). It is paused from `quiesce` to `adopt`, or to `resume` if
    nothing was written:

    >>> import trio
    >>> from asyncrl.engines.options import EngineOptions
    >>> from asyncrl.engines.scripted import Script, ScriptedEngine
    >>> script = Script(np.array([7, 0], np.int32), np.full(2, -0.7, np.float32), 0.0)
    >>> sizes = EngineOptions(slots=2, context_tokens=16, chunk_tokens=2)
    >>> engine: DirectEngine = ScriptedEngine(lambda _: script, sizes, vocab_size=10)
    >>> async def publish() -> int | None:
    ...     await engine.quiesce()
    ...     await engine.adopt(4)
    ...     return engine.version
    >>> trio.run(publish)
    4
    """

    async def quiesce(self) -> Mapping[str, torch.Tensor]:
        """Pause at the next token boundary, and return the engine's own weights by parameter name,
        tied ones once, for writing. A paused engine just returns them."""
        ...

    async def adopt(self, version: int, *, pin: bool = False) -> float:
        """Continue with the written weights as `version`; `pin` as in `load`. Returns the seconds
        that decoding was paused."""
        ...

    def resume(self) -> None:
        """Continue with unchanged weights, since nothing was written. Does nothing if the engine is
        decoding."""
        ...
