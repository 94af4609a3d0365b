"""The scripted engine: tokens, speeds, lengths and failures from a script. Invariant: torch is not
imported, and the same script, requests and clock give the same chunks.

Time is trio's clock, so under a virtual clock a run takes no time. A slot decodes one token every
`seconds_per_token` of its own script.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Literal

import msgspec
import numpy as np
import trio
from numpy.typing import NDArray

from asyncrl.engines.draws import stream, uniforms
from asyncrl.engines.options import EngineOptions
from asyncrl.engines.protocol import Chunk, Emit, Idle, Request
from asyncrl.engines.request_checks import refuse_misfit
from asyncrl.messages import Finish

if TYPE_CHECKING:
    import torch


class Script(msgspec.Struct, frozen=True):
    """The scripted course of one request.

    `ids` (int32) and `behaviour` (float32) are the tokens that follow the request's prefix, and
    `ends` says what follows the last: `stop` and `length` finish the rollout, `hang` never does,
    `crash` raises `ScriptedCrash` from `run`. Cut at the request's budget, a script ends as
    `length`.
    """

    ids: NDArray[np.int32]
    behaviour: NDArray[np.float32]
    seconds_per_token: float
    ends: Literal["stop", "length", "hang", "crash"] = "stop"


class ScriptedCrash(Exception):
    """Raised where the script has the engine crash."""


def hashed(
    *,
    vocab_size: int,
    stop_id: int,
    run_seed: int = 0,
    mean_tokens: float = 16.0,
    seconds_per_token: float = 0.001,
) -> Callable[[Request], Script]:
    """A script for whole-system runs: token i of a response is a hash of (run_seed, key, i); with
    probability `1 / mean_tokens` it is the stop id, else any other id with equal probability.
    `behaviour` is the logarithm of exactly these probabilities."""
    stop_at = 1.0 / mean_tokens
    others = vocab_size - 1

    def script(request: Request) -> Script:
        indices = np.arange(
            request.prefix_tokens, request.prefix_tokens + request.max_new_tokens, dtype=np.int64
        )
        drawn = uniforms(np.array([stream(run_seed, request.key)], np.uint64), indices)
        other = np.minimum(
            ((drawn - stop_at) / (1.0 - stop_at) * others).astype(np.int64), others - 1
        )
        stops = drawn < stop_at
        ids = np.where(stops, stop_id, other + (other >= stop_id)).astype(np.int32)
        behaviour = np.where(stops, math.log(stop_at), math.log((1.0 - stop_at) / others)).astype(
            np.float32
        )
        end = int(stops.argmax()) + 1 if stops.any() else len(ids)
        return Script(
            ids[:end], behaviour[:end], seconds_per_token, "stop" if stops.any() else "length"
        )

    return script


class _Slot:
    """A request being decoded: `done` of its script's tokens are emitted, the last of them at time
    `since`; the next chunk is complete when it is `due`."""

    def __init__(self, request: Request, script: Script, chunk_tokens: int, now: float) -> None:
        self.request, self.script, self.since, self.done = request, script, now, 0
        self.tokens = min(len(script.ids), request.max_new_tokens)
        self.ends = script.ends if len(script.ids) <= request.max_new_tokens else "length"
        self._chunk_tokens = chunk_tokens
        self.due = self._next()

    def _next(self) -> float:
        step = min(self._chunk_tokens, self.tokens - self.done)
        if step == 0 and self.ends == "hang":
            return math.inf
        return self.since + step * self.script.seconds_per_token

    def decoded(self, now: float) -> int:
        """Tokens of the script decoded by `now`, emitted or not. The small term compensates for
        rounding in sums of seconds."""
        pace = self.script.seconds_per_token
        return (
            self.tokens
            if pace == 0
            else min(self.tokens, self.done + math.floor((now - self.since) / pace + 1e-6))
        )

    def take(self, until: int, version: int, finish: Finish) -> Chunk:
        start, self.done = self.done, until
        self.since += (until - start) * self.script.seconds_per_token
        self.due = self._next()
        ids, behaviour = self.script.ids[start:until], self.script.behaviour[start:until]
        request = self.request
        return Chunk(
            request.rollout,
            request.attempt,
            version,
            request.prefix_tokens + start,
            ids,
            behaviour,
            finish,
        )


class ScriptedEngine:
    """An `AveragingEngine` and `DirectEngine` (see `protocol`) that plays `script`.

    `options.context_tokens` and `vocab_size` bound what `submit` accepts. `idle` counts
    waits named `weights` and `requests`. A request for a version that is not kept
    ends at once as `interrupted`. Without `keeps_versions` it holds one version at a time, as a
    server does: a load ends requests pinned to another.
    """

    def __init__(
        self,
        script: Callable[[Request], Script],
        options: EngineOptions,
        *,
        vocab_size: int,
        idle: Idle = nullcontext,
        keeps_versions: bool = True,
    ) -> None:
        self._script, self._options, self._keeps_versions = script, options, keeps_versions
        self._vocab_size, self._idle = vocab_size, idle
        self._version: int | None = None
        self._kept: set[int] = set()
        self._waiting: deque[Request] = deque()
        self._decoding: list[_Slot] = []
        self._ready: list[Chunk] = []
        self._news = trio.Event()
        self._stood: float | None = None

    @property
    def slots(self) -> int:
        return self._options.slots

    @property
    def version(self) -> int | None:
        return self._version

    def submit(self, requests: Sequence[Request]) -> None:
        for request in requests:
            refuse_misfit(
                request, vocab_size=self._vocab_size, context_tokens=self._options.context_tokens
            )
        self._waiting.extend(requests)
        self._news.set()

    def interrupt(self, rollouts: Sequence[int]) -> None:
        chosen = set(rollouts)
        self._end(lambda request: request.rollout in chosen)

    async def load(
        self, version: int, weights: Mapping[str, torch.Tensor] | None, *, pin: bool = False
    ) -> float:
        await trio.lowlevel.checkpoint()
        self._take_sampled()
        self._serve(version, pin)
        return 0.0

    async def quiesce(self) -> Mapping[str, torch.Tensor]:
        await trio.lowlevel.checkpoint()
        if self._stood is None:
            self._take_sampled()
            self._stood = trio.current_time()
            self._news.set()
        return {}

    @property
    def still(self) -> bool:
        """True from `quiesce` until `adopt` or `resume`."""
        return self._stood is not None

    async def adopt(self, version: int, *, pin: bool = False) -> float:
        await trio.lowlevel.checkpoint()
        assert self._stood is not None, "adopt() needs a quiesced engine"
        stood = trio.current_time() - self._stood
        self._serve(version, pin)
        self.resume()
        return stood

    def resume(self) -> None:
        if self._stood is not None:
            stood = trio.current_time() - self._stood
            for slot in self._decoding:
                slot.since, slot.due = slot.since + stood, slot.due + stood
            self._stood = None
            self._news.set()

    def _take_sampled(self) -> None:
        """Collect the tokens sampled so far under the current version."""
        now = self._now()
        for slot in self._decoding:
            until = slot.decoded(now)
            if slot.request.version is None and until > slot.done:
                self._ready.append(slot.take(until, self._sampled_by(slot.request), ""))

    def _now(self) -> float:
        """The time at which all tokens are decoded."""
        return trio.current_time() if self._stood is None else self._stood

    def _serve(self, version: int, pin: bool) -> None:
        self._version = version
        if not self._keeps_versions:
            self._kept.clear()
            self._end(lambda request: request.version not in (None, version))
        if pin:
            self._kept.add(version)
        self._news.set()

    async def keep(self, version: int, weights: Mapping[str, torch.Tensor] | None) -> float:
        await trio.lowlevel.checkpoint()
        self._kept.add(version)
        self._news.set()
        return 0.0

    def unpin(self, version: int) -> None:
        if version in self._kept:
            self._kept.remove(version)
            self._end(lambda request: request.version == version)

    async def run(self, emit: Emit) -> None:
        while True:
            self._refill()
            self._news = trio.Event()
            if not self._ready:
                decoding = self._decoding if self._stood is None else []
                await self._wait(min([slot.due for slot in decoding], default=None))
            self._collect()
            chunks, self._ready = self._ready, []
            if chunks:
                await emit(chunks)

    def _sampled_by(self, request: Request) -> int:
        version = self._version if request.version is None else request.version
        assert version is not None, "nothing is sampled before the first load"
        return version

    def _end(self, chosen: Callable[[Request], bool]) -> None:
        """Interrupt the chosen requests, with their tokens so far."""
        now = self._now()
        for slot in [slot for slot in self._decoding if chosen(slot.request)]:
            self._decoding.remove(slot)
            self._ready.append(
                slot.take(slot.decoded(now), self._sampled_by(slot.request), "interrupted")
            )
        for request in [request for request in self._waiting if chosen(request)]:
            self._waiting.remove(request)
            self._ready.append(self._unstarted(request))
        self._news.set()

    def _unstarted(self, request: Request) -> Chunk:
        version = request.version if request.version is not None else self._version
        nothing = np.zeros(0, np.int32)
        start = request.prefix_tokens
        return Chunk(
            request.rollout,
            request.attempt,
            version or 0,
            start,
            nothing,
            nothing.astype(np.float32),
            "interrupted",
        )

    def _refill(self) -> None:
        now = trio.current_time()
        for request in [
            r for r in self._waiting if r.version is not None and r.version not in self._kept
        ]:
            self._waiting.remove(request)
            self._ready.append(self._unstarted(request))
        options = self._options
        while (
            self._version is not None
            and self._stood is None
            and self._waiting
            and len(self._decoding) < options.slots
        ):
            request = self._waiting.popleft()
            self._decoding.append(_Slot(request, self._script(request), options.chunk_tokens, now))

    async def _wait(self, due: float | None) -> None:
        if due is not None:
            with trio.move_on_at(due):
                await self._news.wait()
            return
        with self._idle("weights" if self._version is None else "requests"):
            await self._news.wait()

    def _collect(self) -> None:
        """Chunks that are complete by now, including final ones."""
        now = self._now()
        for slot in [slot for slot in self._decoding if slot.due <= now]:
            until = min(slot.tokens, slot.done + self._options.chunk_tokens)
            ended = until == slot.tokens
            if ended and slot.ends == "crash":
                raise ScriptedCrash(
                    f"the script of rollout {slot.request.rollout} ends in a crash after {until} "
                    "tokens"
                )
            finish: Finish = slot.ends if ended and slot.ends in ("stop", "length") else ""
            self._ready.append(slot.take(until, self._sampled_by(slot.request), finish))
            if finish:
                self._decoding.remove(slot)
