"""The embedded engine: the async shell around `Batcher`. Invariant: one thread at a time touches
the model, and a load or an interrupt waits for one decode step, not for one chunk."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial

import torch
import trio
from transformers import PreTrainedModel

from asyncrl.engines.embedded.batcher import Batcher
from asyncrl.engines.embedded.embedded_options import EmbeddedOptions
from asyncrl.engines.embedded.engine_images import EngineImages
from asyncrl.engines.protocol import Emit, Idle, Request
from asyncrl.engines.request_checks import refuse_misfit


class EmbeddedEngine:
    """An `AveragingEngine` and `DirectEngine` (see `protocol`) for any transformers causal
    language model with full attention.

    The engine owns `model` from here on, and samples nothing before the first `load`. Memory:
    `slots * context_tokens` keys and values a layer, and the weights; as much again for each
    version that is kept at a time, and never freed. `idle` counts waits named `weights` and
    `requests`. `images` are those of the run, for a model that reads them.

    Threads: torch's current setting (`torch.set_num_threads`) is used and never changed. Raises
    ValueError for a model with attention other than full, or a context the model cannot hold.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        options: EmbeddedOptions,
        *,
        idle: Idle = nullcontext,
        images: EngineImages | None = None,
    ) -> None:
        self._batcher = Batcher(model, options, images)
        self._options, self._idle = options, idle
        self._model_turn = trio.Semaphore(1)  # no lock: no task owns a paused engine
        self._stood: float | None = None
        self._news = trio.Event()

    @property
    def slots(self) -> int:
        return self._options.slots

    @property
    def version(self) -> int | None:
        return self._batcher.version

    @property
    def packed_from(self) -> int:
        """The smallest number of rows for which it multiplies with packed weights, configured or
        measured."""
        return self._batcher.packed_from

    def submit(self, requests: Sequence[Request]) -> None:
        for request in requests:
            refuse_misfit(
                request,
                vocab_size=self._batcher.vocab_size,
                context_tokens=self._options.context_tokens,
            )
        self._batcher.submit(requests)
        self._news.set()

    def interrupt(self, rollouts: Sequence[int]) -> None:
        self._batcher.interrupt(rollouts)
        self._news.set()

    async def load(
        self, version: int, weights: Mapping[str, torch.Tensor] | None, *, pin: bool = False
    ) -> float:
        """Load as the protocol says; `weights` are copied, and may be any of the names that tied
        parameters share.

        Raises ValueError, with nothing changed, for None and for names or shapes that are not
        exactly the model's."""
        checked = self._given(version, weights)
        return await self._paused(partial(self._batcher.load, version, checked, pin=pin))

    async def keep(self, version: int, weights: Mapping[str, torch.Tensor] | None) -> float:
        """Keep an average as the protocol says; `weights` and ValueError as in `load`."""
        checked = self._given(version, weights)
        return await self._paused(partial(self._batcher.keep, version, checked))

    async def quiesce(self) -> Mapping[str, torch.Tensor]:
        if self._stood is None:
            with self._batcher.paused():
                await self._model_turn.acquire()
            self._stood = trio.current_time()
        return self._batcher.weights

    async def adopt(self, version: int, *, pin: bool = False) -> float:
        assert self._stood is not None, "adopt() needs a quiesced engine"
        await trio.to_thread.run_sync(partial(self._batcher.adopt, version, pin=pin))
        stood = trio.current_time() - self._stood
        self.resume()
        return stood

    def resume(self) -> None:
        if self._stood is not None:
            self._stood = None
            self._model_turn.release()
            self._news.set()

    def unpin(self, version: int) -> None:
        self._batcher.unpin(version)
        self._news.set()

    async def run(self, emit: Emit) -> None:
        while True:
            self._news = trio.Event()
            if not self._batcher.has_work:
                await self._wait()
            async with self._model_turn:
                chunks = await trio.to_thread.run_sync(
                    self._batcher.advance, self._options.chunk_tokens
                )
            if chunks:
                await emit(chunks)

    def _given(
        self, version: int, weights: Mapping[str, torch.Tensor] | None
    ) -> Mapping[str, torch.Tensor]:
        if weights is None:
            raise ValueError(
                f"version {version} came without weights; the embedded engine decodes with a "
                "model and needs them"
            )
        self._batcher.refuse_weights(weights)
        return weights

    async def _paused(self, work: Callable[[], None]) -> float:
        """Carry out `work` between two decode steps, in a thread. Returns the seconds it took."""
        with self._batcher.paused():
            async with self._model_turn:
                begun = trio.current_time()
                await trio.to_thread.run_sync(work)
                pause = trio.current_time() - begun
        self._news.set()
        return pause

    async def _wait(self) -> None:
        with self._idle("weights" if self.version is None else "requests"):
            await self._news.wait()
