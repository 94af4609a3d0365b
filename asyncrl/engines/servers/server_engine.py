"""The engine shell around a server. Invariant: chunks that leave were sampled under the version
they carry, by weights whose load was verified, and every request that was submitted ends exactly
once.

    submit ─▶ waiting ─▶ live: one task and one stream each ─▶ chunks ─▶ emit, some for many streams

While weights change the gate is shut: no request and no abort goes to the server, which loses those
that arrive in a pause, and no chunk leaves. A request that the server ended unasked (by a pause, or
by another client's abort) is resumed with its tokens.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import numpy as np
import trio
from numpy.typing import NDArray

from asyncrl.engines.options import EngineOptions
from asyncrl.engines.protocol import Emit, Idle, Request
from asyncrl.engines.request_checks import refuse_misfit
from asyncrl.engines.servers.chunk_outbox import ChunkOutbox
from asyncrl.engines.servers.errors import RequestRefused, ServerError, ServerGone
from asyncrl.engines.servers.served import KeepsVersions, Served
from asyncrl.engines.servers.server_images import ServerImages
from asyncrl.engines.servers.server_routing import RoutingLayout, certain
from asyncrl.engines.servers.server_types import FinishReason
from asyncrl.engines.servers.spans import SpanError, SpanStream, TokenRun
from asyncrl.messages import Finish
from asyncrl.runtime.ipc.waits import Pulse

if TYPE_CHECKING:
    import torch

LoadWeights = Callable[
    [int, "Mapping[str, torch.Tensor]", Sequence[float], Callable[[], None]], Awaitable[float]
]
"""Loads these weights into the server as this version, with its canary. Pauses the server for it,
and calls the function argument just before that. Returns when the weights are verified and the
server decodes again, with the seconds that it was paused."""

GATHER_S = 0.02
"""Seconds that a chunk may wait for others: streams deliver events one by one, and a frame for each
would cost more than its content."""

ABORTS, ABORT_S = 3, 5.0
"""The number of aborts of a request, and the seconds to wait after each, before its connection is
closed."""

PATIENCE_S = 30.0
"""Seconds after which a server that has requests but sends nothing is asked whether it is ready."""

HELD = 256
"""The most tokens of a request whose version may be unknown at a time, because weights changed
within an event. With more, its stream is cut, which reveals the versions, and the request is sent
again. That costs a prefill, where a crash or a lapsed lease would lose all of them."""

SUSPECT = 3
"""Failed streams in a row, or attempts of one request without a token, after which the server
counts as broken."""

_log = logging.getLogger(__name__)


class _LiveRequest:
    """A request that has a slot: `known` are the response tokens received so far, `done` their
    number."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.known: list[NDArray[np.int32]] = []
        self.done = 0
        # the id of its stream; empty between two
        self.rid = ""
        # true once the stream sent anything, so that the server's scheduler is known to have it
        self.streamed = False
        self.stopped = False
        # what the server said of the last stream that failed
        self.why = ""
        # the scope that its stream runs in, and its end
        self.stream, self.over = trio.CancelScope(), trio.Event()
        self.ended = trio.Event()


class ServerEngine:
    """A `CanaryEngine` (see `protocol`) that is a server behind `client`, which must be
    ready to hold `options.slots` requests.

    It samples nothing before the first `load`. A server of whole weights holds one version: `pin`
    is not honoured, and a request for another version than the one served ends as `interrupted`, at
    the latest just before that is replaced. One that `keeps` versions, as adapters, serves each
    until it is unpinned. The draws cannot be keyed by a request's `key`: the server draws, so
    samples at a temperature differ from run to run. `behaviour` is as the server reports it: of the
    temperature-scaled distribution, and where greedy of the unscaled one.

    `images` shows those of requests to a server that reads them itself. A response that has the id
    of an image ends as `refused` where another stream would have to continue it.

    With a layout of `routing` each request asks for the experts of its tokens, which come with its
    end, in chunks that may be empty; those of a stream that breaks off are unknown.

    `stop_ids` end a rollout and are part of it. `idle` counts waits named `weights` and
    `requests`.

    `run` raises the server's ServerError where it is gone, or fails three streams in a row: it must
    be replaced. A request that the server refuses for what it is ends as `refused`. A
    single stream that fails, by a broken connection, another refusal or an inconsistency
    (fewer log-probabilities than ids, versions that contradict each other), ends its rollout as
    `interrupted` with the tokens that are certain, because a partial event would be a wrong chunk.
    An id outside the vocabulary or a log-probability that is no number is passed on: the
    coordinator validates chunks.
    """

    def __init__(
        self,
        client: Served,
        load: LoadWeights,
        options: EngineOptions,
        *,
        vocab_size: int,
        stop_ids: frozenset[int],
        idle: Idle = nullcontext,
        routing: RoutingLayout | None = None,
        keeps: KeepsVersions | None = None,
        images: ServerImages | None = None,
    ) -> None:
        self._client, self._load, self._options = client, load, options
        self._keeps, self._kept = keeps, set[int]()
        self._vocab_size, self._routing, self._images = vocab_size, routing, images
        self._stop_ids, self._idle = sorted(stop_ids), idle
        self._version: int | None = None
        self._canary: tuple[int, Sequence[float]] = (-1, ())
        self._waiting: deque[Request] = deque()
        self._live: list[_LiveRequest] = []
        self._stopping: list[_LiveRequest] = []
        self._outbox, self._work = ChunkOutbox(), Pulse()
        # earlier runs may have left a prefix cache of versions with the same numbers
        self._nonce = uuid4().hex
        self._loads, self._gate = trio.Lock(), trio.Event()
        self._failures, self._last_event_at = 0, 0.0

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
        pinned = [request for request in requests if request.version is not None]
        self._waiting.extendleft(reversed(pinned))  # the next version waits until they are answered
        self._waiting.extend(request for request in requests if request.version is None)
        self._work.set()

    def interrupt(self, rollouts: Sequence[int]) -> None:
        chosen = set(rollouts)
        self._stop(lambda request: request.rollout in chosen)

    def expect(self, version: int, canary: Sequence[float]) -> None:
        self._canary = version, canary

    async def load(
        self, version: int, weights: Mapping[str, torch.Tensor] | None, *, pin: bool = False
    ) -> float:
        """Load as the protocol says.

        Raises ValueError for None, and any error of the load. After an error, nothing that was
        decoded since the load began ever leaves, and the server must be replaced."""
        if weights is None:
            raise ValueError(
                f"version {version} came without weights; a server decodes with a model "
                "and needs them"
            )
        async with self._loads:
            stays = (None, version, *self._kept)
            while old := [live for live in self._live if live.request.version not in stays]:
                self._stop(lambda request: request.version not in stays)
                await old[0].ended.wait()
            pause = await self._load(version, weights, self._expected(version), self._shut)
            if pin and self._keeps is not None:
                self._keeps.pin(version)
                self._kept.add(version)
            self._serve(version)
        return pause

    def _expected(self, version: int) -> Sequence[float]:
        of, canary = self._canary
        return canary if of == version else ()

    def _serve(self, version: int | None) -> None:
        """Resume with verified weights; None: there are none yet."""
        self._version, self._last_event_at = version, trio.current_time()
        if version is not None:
            self._gate.set()
        self._work.set()
        self._outbox.wake()

    def _shut(self) -> None:
        if self._gate.is_set():  # else an abort waits for it already
            self._gate = trio.Event()

    def unpin(self, version: int) -> None:
        self._stop(lambda request: request.version == version)
        if version in self._kept and self._keeps is not None:
            self._kept.remove(version)
            self._keeps.unpin(version)

    async def run(self, emit: Emit) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._deliver, emit)
            nursery.start_soon(self._watch)
            while True:
                if self._gate.is_set():
                    self._place(nursery)
                cause = "weights" if self._version is None else "requests"
                with nullcontext() if self._live else self._idle(cause):
                    await self._work.wait()

    def _place(self, nursery: trio.Nursery) -> None:
        """Start the aborts that were requested, and the oldest requests that there is room for."""
        for live in self._stopping:
            nursery.start_soon(self._abort, live)
        self._stopping = []
        while self._waiting and len(self._live) < self._options.slots:
            request = self._waiting.popleft()
            if not self._serves(request.version) or (
                request.version not in (None, *self._kept) and self._loads.locked()
            ):
                # also where its version is about to be replaced
                self._finish(request, 0, "interrupted")
                continue
            live = _LiveRequest(request)
            self._live.append(live)
            nursery.start_soon(self._decode, live)

    def _serves(self, version: int | None) -> bool:
        """True if requests of this version are sampled; None: of any."""
        return version in (None, self._version, *self._kept)

    async def _deliver(self, emit: Emit) -> None:
        while True:
            await self._outbox.wait()
            await trio.sleep(GATHER_S)
            # before the first load nothing was sampled: then only ends leave
            if len(self._outbox) and (self._gate.is_set() or self._version is None):
                await emit(self._outbox.take())

    async def _watch(self) -> None:
        while True:
            await trio.sleep(PATIENCE_S / 2)
            gate, quiet = self._gate, trio.current_time() - self._last_event_at
            if (
                not self._live
                or not gate.is_set()
                or quiet < PATIENCE_S
                or await self._client.ready()
            ):
                continue
            if gate is self._gate:
                held = (
                    f"has sent nothing of {len(self._live)} requests for {quiet:.0f} s and is not "
                    "ready"
                )
                raise ServerGone(
                    f"{self._client.url} {held}: it hangs, or another client paused it"
                )

    # --------------------------------------------------------------------------------- one request

    async def _decode(self, live: _LiveRequest) -> None:
        """Decode a request to its end, over as many streams as the server needs."""
        finish: Finish = ""
        fruitless = 0
        while not finish:
            await self._gate.wait()
            if live.stopped or fruitless == SUSPECT or not self._serves(live.request.version):
                finish = "interrupted"
            elif live.done == live.request.max_new_tokens:
                finish = "length"
            else:
                before = live.done
                finish = await self._attempt(live)
                fruitless = 0 if live.done > before else fruitless + 1
        self._live.remove(live)
        live.ended.set()
        self._finish(live.request, live.done, finish, live.why)
        self._work.set()

    async def _attempt(self, live: _LiveRequest) -> Finish:
        """Run one stream, from the known tokens to its end. Returns an empty reason where the
        server ended it unasked."""
        assert self._version is not None, "nothing is sampled before the first load"
        request, first = live.request, live.done
        version = self._version if request.version is None else request.version
        stream, ending, cut = SpanStream(version), None, False
        generate = self._client.generate
        if self._keeps is not None:
            generate = partial(self._keeps.generate_of, version)
        live.rid, live.streamed, live.stream, live.over = (
            uuid4().hex,
            False,
            trio.CancelScope(),
            trio.Event(),
        )
        self._last_event_at = trio.current_time()
        try:
            asked = self._asked(live)
        except ValueError as error:  # also in a later stream, for what it sampled in an earlier one
            live.rid, live.why = "", str(error)
            live.over.set()
            return "refused"
        events = generate(
            live.rid,
            **asked,
            max_new_tokens=request.max_new_tokens - first,
            temperature=request.temperature,
            stream_interval=self._options.chunk_tokens,
            stop_ids=self._stop_ids,
            extra_key=f"{self._nonce}/{version}",
            routing=self._routing,
        )
        try:
            with live.stream:
                async with aclosing(events):
                    async for event in events:
                        live.streamed, self._last_event_at = True, trio.current_time()
                        self._give(live, first, stream.feed(event))
                        if (records := certain(event)) is not None:
                            known = records[: live.done - first]
                            self._outbox.route(request, first, known, stream.version)
                        ending = event.ending
                        if stream.held > HELD and not cut:
                            cut = True
                            self._stopping.append(live)
                            self._work.set()
        except (ServerError, SpanError) as error:
            live.why = str(error).partition("\n")[0]
            if isinstance(error, RequestRefused) and error.lasting:
                return "refused"
            await self._failed(live, error)
            return "interrupted"
        finally:
            live.rid = ""
            live.over.set()
        return self._ended(live, ending)

    def _asked(self, live: _LiveRequest) -> dict[str, Any]:
        """The known ids of a request, with its images. Raises ValueError for images that the server
        cannot be shown."""
        ids = np.concatenate([live.request.ids, *live.known])
        if self._images is None or not live.request.images:
            return {"ids": ids}
        return self._images.options(live.request, ids)

    def _ended(self, live: _LiveRequest, ending: FinishReason | None) -> Finish:
        if ending is None:
            return "interrupted"  # its connection was closed
        self._failures = 0
        if ending.type == "abort":
            return "interrupted" if live.stopped else ""
        return "stop" if ending.type == "stop" else "length"

    async def _failed(self, live: _LiveRequest, error: Exception) -> None:
        """Count a failed stream. Raises the error after too many, but not for a refusal while the
        server streams other requests."""
        _log.warning(
            "rollout %d is returned after %d tokens: %s", live.request.rollout, live.done, error
        )
        self._failures += 1
        gone = (
            isinstance(error, ServerGone) and self._gate.is_set() and not await self._client.ready()
        )
        streams = any(other.streamed and other.rid for other in self._live if other is not live)
        spared = isinstance(error, RequestRefused) and streams
        if gone or (self._failures >= SUSPECT and not spared):
            raise (
                error
                if isinstance(error, ServerError)
                else ServerError(f"{self._client.url}: a request {error}")
            ) from error

    async def _abort(self, live: _LiveRequest) -> None:
        """Abort a stream at the server. If it does not end, the connection is closed, which ends
        it, too.

        An abort that reaches the server before its request has reached the scheduler is lost, and
        so is each later one, so a stream that sent nothing yet is closed at once."""
        rid, stream, over = live.rid, live.stream, live.over
        for _ in range(ABORTS):
            await self._gate.wait()
            if not rid or over.is_set():
                return  # it was between two streams, or this one has ended
            if not live.streamed:
                break
            try:
                await self._client.abort(rid)
            except ServerError as error:
                _log.warning("rollout %d could not be aborted: %s", live.request.rollout, error)
                break
            with trio.move_on_after(ABORT_S):
                await over.wait()
        if live.streamed and not over.is_set():
            _log.warning(
                "rollout %d did not end when it was aborted; its connection is closed",
                live.request.rollout,
            )
        stream.cancel()

    # --------------------------------------------------------------------------------- what leaves

    def _give(self, live: _LiveRequest, first: int, runs: Sequence[TokenRun]) -> None:
        self._outbox.add(live.request, first, runs)
        for run in runs:
            live.known.append(run.ids)
            live.done += len(run.ids)

    def _finish(self, request: Request, done: int, finish: Finish, why: str = "") -> None:
        version = self._version if request.version is None else request.version
        self._outbox.end(request, done, finish, version or 0, why)

    def _stop(self, chosen: Callable[[Request], bool]) -> None:
        """Interrupt the chosen requests: waiting ones at once, those at the server when they have
        ended there."""
        for request in [request for request in self._waiting if chosen(request)]:
            self._finish(request, 0, "interrupted")
        self._waiting = deque(request for request in self._waiting if not chosen(request))
        for live in self._live:
            if chosen(live.request) and not live.stopped:
                live.stopped = True
                self._stopping.append(live)
        self._work.set()
