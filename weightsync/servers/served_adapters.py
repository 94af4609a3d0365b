"""Adapters on one server, which keeps their base: a name for each version. Invariant: a request is
decoded with one adapter to the end of its stream, its tokens carry that adapter's version, and no
request names an adapter before the server computed with it what the trainer does.

    the first    the server's base is compared with the run's, by checksums and a canary
    load         unused adapters unloaded → files as peft's → loaded under a name of its own
    canary       the server's log-probabilities with that adapter against the trainer's
    use          by requests from then on; those that are underway keep theirs, and those of a
                 pinned version get it (`staleness.finish_on = own`, evaluations)

Nothing is paused, and a server without the newest adapter decodes on with those that it has. Its
base never changes: its own name of the base's weights comes with each event, and is looked at.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence, Set
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import trio
from numpy.typing import NDArray

from asyncrl.engines import canary
from asyncrl.engines.servers.errors import Misread
from asyncrl.engines.servers.served import ServerClient
from asyncrl.engines.servers.server_types import ServerSpan, StreamEvent
from asyncrl.training.adapters import adapters, base_parameters, write_adapters
from asyncrl.training.checkpoint_names import CheckpointNames
from asyncrl.weightsync.servers.weight_loader import NotLoaded, acquainted, verify

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

OURS = "asyncrl-"
"""The beginning of each adapter's name."""


class _Adapter:
    """An adapter on the server, whose name begins with `ours`, and the number of its streams."""

    def __init__(self, version: int, ours: str) -> None:
        self.version, self.streams = version, 0
        # a version may be loaded again after a resume, and then has other numbers
        self.name = f"{ours}{version}-{uuid.uuid4().hex}"


class ServedAdapters:
    """The `Served` of an engine whose server gets adapters, and the `LoadWeights` of that engine
    (`load`).

    `model` is the run's base with adapters, whose numbers are those of the base; `shape` is the
    same model without adapters. The server reads files below `folder`. `text` is `canary.text`,
    `tolerance` in nats; `deadline_s` bounds a load. Several policies of a game may have one server:
    each loads and unloads adapters under the name of its own `policy` alone.
    """

    def __init__(
        self,
        client: ServerClient,
        model: PreTrainedModel,
        shape: PreTrainedModel,
        text: NDArray[np.int32],
        folder: Path,
        *,
        tolerance: float,
        deadline_s: float,
        policy: str = "",
    ) -> None:
        self._client, self._model, self._shape, self._text = client, model, shape, text
        self._folder, self._tolerance, self._deadline_s = folder, tolerance, deadline_s
        self._ours = f"asyncrl.{policy}." if policy else OURS  # no policy's name has a dot
        self._current: _Adapter | None = None
        self._old: list[_Adapter] = []
        self._pinned = set[int]()
        self._base = ""  # the server's name of the base's weights, once they were compared
        self.url, self.ready, self.abort = client.url, client.ready, client.abort
        self.exact = 0
        """Number of the base's tensors on the server that were compared byte by byte."""

    @property
    def loaded(self) -> list[int]:
        """The versions on the server, oldest first."""
        return [each.version for each in (*self._old, self._current) if each is not None]

    async def generate(
        self, rid: str, ids: NDArray[np.int32], **options: Any
    ) -> AsyncGenerator[StreamEvent, None]:
        """Stream one request of the newest version, as `Served` says."""
        assert self._current is not None, "nothing is sampled before the first load"
        async with aclosing(self._stream(self._current, rid, ids, **options)) as events:
            async for event in events:
                yield event

    async def generate_of(
        self, version: int, rid: str, ids: NDArray[np.int32], **options: Any
    ) -> AsyncGenerator[StreamEvent, None]:
        """Stream one request of a version, as `KeepsVersions` says."""
        kept = (each for each in (self._current, *reversed(self._old)) if each is not None)
        adapter = next(each for each in kept if each.version == version)
        async with aclosing(self._stream(adapter, rid, ids, **options)) as events:
            async for event in events:
                yield event

    def pin(self, version: int) -> None:
        """As `KeepsVersions.pin`."""
        self._pinned.add(version)

    def unpin(self, version: int) -> None:
        """As `KeepsVersions.unpin`."""
        self._pinned.discard(version)

    async def _stream(
        self, adapter: _Adapter, rid: str, ids: NDArray[np.int32], **options: Any
    ) -> AsyncGenerator[StreamEvent, None]:
        adapter.streams += 1
        try:
            events = self._client.generate(rid, ids, adapter=adapter.name, **options)
            async with aclosing(events):
                async for event in events:
                    yield self._of(adapter, event)
        finally:
            adapter.streams -= 1

    def _of(self, adapter: _Adapter, event: StreamEvent) -> StreamEvent:
        """The event under the adapter's version."""
        bases = {event.version, *(span.version for span in event.spans or ())}
        if bases != {self._base}:
            raise Misread(
                f"{self.url} sampled with a base called {max(bases - {self._base})!r}, and the one "
                f"that was compared is {self._base!r}: another client changed its weights"
            )
        version = str(adapter.version)
        whole = (ServerSpan(version, 0, event.start + len(event.ids)),)
        spans = whole if event.ending is not None else None
        return msgspec.structs.replace(event, version=version, spans=spans)

    async def load(
        self,
        version: int,
        weights: Mapping[str, Tensor],
        reference: Sequence[float],
        _: Callable[[], None],
    ) -> float:
        """Load the adapter in `weights` as `version`, verified, for all requests from now on.
        `reference` is the trainer's `canary.reference`. Returns the seconds that decoding was
        paused: none. Raises NotLoaded, in one sentence; requests are then served as before."""
        adapter = _Adapter(version, self._ours)
        try:
            with trio.fail_after(self._deadline_s):
                await self._put(adapter, weights)
                scores = await self._client.score(
                    self._text, extra_key=uuid.uuid4().hex, adapter=adapter.name
                )
            canary.compare(version, reference, scores, self._tolerance)
        except Exception as error:
            late = f"not done within {self._deadline_s:g} s"
            reason = late if isinstance(error, trio.TooSlowError) else str(error) or repr(error)
            raise NotLoaded(
                f"{self.url} did not get the adapters of version {version}, and continues with "
                f"those that it had: {reason}"
            ) from error
        if self._current is not None:
            self._old.append(self._current)
        self._current = adapter
        return 0.0

    async def _put(self, adapter: _Adapter, weights: Mapping[str, Tensor]) -> None:
        await self._unload_unused()
        if not self._base:
            await self._begin()
        folder = self._folder / adapter.name
        await trio.to_thread.run_sync(self._write, folder, weights)
        await self._client.load_adapter(adapter.name, str(folder))

    def _write(self, folder: Path, weights: Mapping[str, Tensor]) -> None:
        own = dict(adapters(self._model))
        for name, matrix in own.items():
            if name not in weights or weights[name].shape != matrix.shape:
                raise ValueError(f"the adapters are of another model ({name})")
        folder.mkdir(parents=True)
        write_adapters(folder, self._model, {name: weights[name] for name in own})

    async def _unload_unused(self) -> None:
        """Unload adapters that no request uses or will use, with their files: old versions that
        are not pinned, those of loads that failed, and an earlier actor's."""
        self._old = [each for each in self._old if each.streams or each.version in self._pinned]
        used = {each.name for each in (*self._old, self._current) if each is not None}
        for name in await self._client.adapters():
            if name.startswith(self._ours) and name not in used:
                await self._client.unload_adapter(name)
        await trio.to_thread.run_sync(self._remove_all_but, used)

    def _remove_all_but(self, used: Set[str]) -> None:
        """Remove the files of other adapters, which no server reads any more."""
        for folder in self._folder.iterdir() if self._folder.is_dir() else ():
            if folder.name not in used:
                shutil.rmtree(folder, ignore_errors=True)

    async def _begin(self) -> None:
        """Compare the server's base with the run's."""
        parameters = {name: each.detach() for name, each in base_parameters(self._model)}
        tensors = await trio.to_thread.run_sync(
            lambda: dict(CheckpointNames(self._shape).tensors(parameters))
        )
        checks = await acquainted(self._client, type(self._shape).__name__, tensors)
        if checks is not None:
            expected = await trio.to_thread.run_sync(checks.expect, tensors)
            self.exact = await verify(self._client, checks, expected)
        reference = partial(canary.reference, self._shape, parameters, self._text)
        own = await trio.to_thread.run_sync(reference)
        scores = await self._client.score(self._text, extra_key=uuid.uuid4().hex)
        try:
            canary.compare(-1, own, scores, self._tolerance)
        except canary.CanaryDied as died:
            _, _, how = str(died).partition(": ")
            raise ValueError(
                f"its base has other weights than the model that the run began with: {how}"
            ) from died
        self._base = (await self._client.model_info()).weight_version
