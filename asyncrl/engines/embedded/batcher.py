"""Continuous batching over lanes: one that follows each load, and one for each version that is
kept; all are stepped in turn. Invariant: `load` and `advance` are called by one thread at a time,
and requests of the other methods, from any thread, are carried out between two decode steps, in
order.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

import msgspec
import torch
from torch import nn
from transformers import PreTrainedModel

from asyncrl.config.decodable import undecodable
from asyncrl.engines.embedded.embedded_options import EmbeddedOptions
from asyncrl.engines.embedded.engine_images import EngineImages
from asyncrl.engines.embedded.lane import Lane, unstarted
from asyncrl.engines.embedded.programs import computing
from asyncrl.engines.protocol import Chunk, Request, refusal
from asyncrl.tasks import TaskError


class Batcher:
    """The synchronous core of the embedded engine."""

    def __init__(
        self,
        model: PreTrainedModel,
        options: EmbeddedOptions,
        images: EngineImages | None = None,
    ) -> None:
        embeddings = model.get_input_embeddings()
        assert isinstance(embeddings, nn.Embedding)
        self.vocab_size = embeddings.num_embeddings
        stops, vocabulary = options.stop_ids, self.vocab_size
        name, context = type(model).__name__, options.context_tokens
        weights = (weight for weight, _ in model.named_parameters())
        if why := undecodable(
            name, model.config.get_text_config(), weights, context, stops, vocabulary
        ):
            raise ValueError(why)
        self._recompute = options.kv == "recompute"
        self._images = images
        self._current = Lane(model, options, self.vocab_size, images)
        # as measured: all lanes round alike
        self._options = msgspec.structs.replace(options, packed_from=self.packed_from)
        self._kept: dict[int, Lane] = {}
        # spare lanes of released versions: a lane costs a copy of the model, its cache and programs
        self._spare: list[Lane] = []
        self._asked: deque[Callable[[], None]] = deque()
        self._ready: list[Chunk] = []
        self._pauses = 0

    @property
    def version(self) -> int | None:
        return self._current.version

    @property
    def packed_from(self) -> int:
        return self._current.programs.packed_from

    @property
    def has_work(self) -> bool:
        return bool(self._asked or self._ready or any(lane.busy for lane in self._lanes))

    def submit(self, requests: Sequence[Request]) -> None:
        """Queue requests that were checked before."""
        self._asked.append(partial(self._queue, list(requests)))

    def interrupt(self, rollouts: Sequence[int]) -> None:
        chosen = frozenset(rollouts)
        self._asked.append(partial(self._end, lambda request: request.rollout in chosen))

    def unpin(self, version: int) -> None:
        self._asked.append(partial(self._forget, version))

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Make `advance` return after its current decode step, for the length of the block."""
        self._pauses += 1
        try:
            yield
        finally:
            self._pauses -= 1

    def refuse_weights(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Raise ValueError unless the names are exactly the parameters (of tied ones, any name) and
        the shapes theirs."""
        named = dict(self._current.model.named_parameters(remove_duplicate=False))
        for name, tensor in weights.items():
            if name not in named:
                raise ValueError(
                    f"the weights name {name!r}, which the engine's model does not have; load "
                    "weights of the same model"
                )
            if tensor.shape != named[name].shape:
                raise ValueError(
                    f"{name} has shape {tuple(tensor.shape)}; the engine's model has "
                    f"{tuple(named[name].shape)}"
                )
        loaded = {id(named[name]) for name in weights}
        missing = [name for name, parameter in named.items() if id(parameter) not in loaded]
        if missing:
            raise ValueError(
                f"the weights lack {missing[0]!r} and {len(missing) - 1} more; load all of the "
                "model's parameters"
            )

    def load(self, version: int, weights: Mapping[str, torch.Tensor], *, pin: bool) -> None:
        """Swap the current lane to `weights`, which were checked; with `pin`, also keep them in a
        lane of their own."""
        with computing():
            self._current.load(version, weights, recompute=self._recompute)
        if pin:
            self.keep(version, weights)

    @property
    def weights(self) -> dict[str, torch.Tensor]:
        """The current lane's own weights, tied ones once."""
        return {name: p.detach() for name, p in self._current.model.named_parameters()}

    def adopt(self, version: int, *, pin: bool) -> None:
        """Continue with the values written into `weights`, as after a `load` of them."""
        with computing():
            self._current.adopt(version, recompute=self._recompute)
        if pin:
            self.keep(version, self.weights)

    def keep(self, version: int, weights: Mapping[str, torch.Tensor]) -> None:
        """Serve requests of `version` with `weights`, which were checked, in a lane of their
        own."""
        while self._asked:  # reuse the lane of a released version
            self._asked.popleft()()
        if version not in self._kept:
            self._kept[version] = self._spare.pop() if self._spare else self._another()
        with computing():
            self._kept[version].load(version, weights, recompute=False)

    def advance(self, steps: int) -> list[Chunk]:
        """Decode up to `steps` tokens a slot. Returns every token that was sampled, in one chunk a
        rollout or two where one ended."""
        with computing():
            for _ in range(steps):
                while self._asked:
                    self._asked.popleft()()
                if self._pauses:
                    break
                lanes = [lane for lane in self._lanes if lane.busy]
                if not lanes:
                    break
                for lane in lanes:
                    self._ready += lane.step()
        for lane in self._lanes:
            self._ready += lane.flush()
        chunks, self._ready = self._ready, []
        return chunks

    @property
    def _lanes(self) -> list[Lane]:
        return [self._current, *self._kept.values()]

    def _another(self) -> Lane:
        return Lane(
            copy.deepcopy(self._current.model), self._options, self.vocab_size, self._images
        )

    def _queue(self, requests: Sequence[Request]) -> None:
        for asked in requests:
            try:
                request = self._marked(asked)
            except (ValueError, TaskError) as error:
                self._ready.append(refusal(asked, self.version, str(error)))
                continue
            if request.version is None:
                self._current.waiting.append(request)
            elif (kept := self._kept.get(request.version)) is not None:
                kept.waiting.append(request)
            else:
                self._ready.append(unstarted(request, request.version))

    def _marked(self, request: Request) -> Request:
        """The request, with ids that tell its images apart. Raises ValueError."""
        if not request.images:
            return request
        if self._images is None:
            raise ValueError("it has images, and this engine was opened without those of a run")
        return self._images.marked(request)

    def _end(self, chosen: Callable[[Request], bool]) -> None:
        for lane in self._lanes:
            self._ready += lane.interrupt(chosen)

    def _forget(self, version: int) -> None:
        if (lane := self._kept.pop(version, None)) is not None:
            self._ready += lane.interrupt(lambda _: True)
            lane.version = None
            self._spare.append(lane)
