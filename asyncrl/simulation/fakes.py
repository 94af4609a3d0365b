"""Fake prompts, engine, receiver and verifiers. Invariant: without a fault, what each does is an
exact function of what it is asked for, and of nothing that it knows from elsewhere.

Their attributes say what goes wrong; the kinds of fault (`fault_kinds.py`) set them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, cast

import msgspec
import numpy as np
import trio

from asyncrl.actors.verifier_process import TimedVerdict
from asyncrl.config import Config
from asyncrl.config.mix import each
from asyncrl.engines.options import EngineOptions
from asyncrl.engines.protocol import Chunk, Emit, Idle, Request
from asyncrl.engines.scripted import Script, ScriptedEngine
from asyncrl.messages import Finish, NoVerdict, Prepare, Scored, Split, Verdict
from asyncrl.simulation import policy
from asyncrl.simulation.fake_learner import NUMBER, Broadcast, checksums
from asyncrl.simulation.observer import WorldObserver
from asyncrl.tasks.prompt import Prompt, text_of
from asyncrl.weightsync.errors import TransferError
from asyncrl.weightsync.transport import Received

if TYPE_CHECKING:
    import torch

Garbage = Literal[
    "vocabulary", "nan", "start", "long", "misparallel", "future", "uncommitted", "negative"
]


class FakeTask:
    """A task whose prompts are their own number, in digits."""

    sampled = embedded = policy.VOCABULARY

    def __init__(self, config: Config) -> None:
        self._sizes: dict[Split, int] = {
            "train": sum(one.train_size for one in each(config.task)),
            "evaluation": sum(one.eval_size for one in each(config.task)),
        }

    def size(self, split: Split) -> int:
        return self._sizes[split]

    def prompt(self, split: Split, prompt_index: int) -> str:
        return f"{prompt_index}"

    def encode(self, prompt: Prompt) -> list[int]:
        return [1 + ord(letter) % (policy.VOCABULARY - 1) for letter in text_of(prompt)]


TORN = 0xDEAD
"""Weights of which half are of another version."""
REQUESTS = 4096
"""Requests that an engine remembers: more than it ever has at a time."""


class FakeEngine:
    """A scripted engine whose tokens are the policy's: those of the prompt, key, temperature and
    version that it is asked for."""

    def __init__(
        self,
        config: Config,
        seconds_per_token: Callable[[], float],
        idle: Idle,
        *,
        keeps_versions: bool = True,
    ) -> None:
        self._most = config.rollout.max_new_tokens
        self._pace = seconds_per_token
        self._numbers: dict[int, int] = {}
        self._averages: dict[int, int] = {}
        self._pinned: dict[tuple[int, int], int | None] = {}  # as the next one
        self._draws: dict[tuple[int, int], int] = {}  # by rollout and attempt
        self._inner = ScriptedEngine(
            self._script,
            EngineOptions.of(config),
            vocab_size=policy.VOCABULARY,
            idle=idle,
            keeps_versions=keeps_versions,
        )
        self.lag_s = 0.0  # before each emission
        self.dead = False
        self.crash = False
        self.garbage: Garbage = "nan"  # in the next so many chunks with tokens
        self.garbage_left = 0
        self.forget = False  # what aborted rollouts had since their last chunk
        self.makes_garbage: Callable[[], bool] = lambda: True
        self._live = 0  # what stands in its memory
        self._torn = False
        self.written: Callable[[bool], None] = lambda still: None
        self.resumed: Callable[[bool], None] = lambda whole: None
        self.loaded: Callable[[int, int, bool], None] = lambda version, weights, pin: None
        self.averaged: Callable[[int, int], None] = lambda version, weights: None

    @property
    def slots(self) -> int:
        return self._inner.slots

    @property
    def version(self) -> int | None:
        return self._inner.version

    @property
    def kept(self) -> set[int]:
        """The versions that it keeps until it is told to forget them."""
        return self._inner._kept

    @property
    def held(self) -> set[int]:
        """The rollouts that it decodes, or has to."""
        decoding = [slot.request for slot in self._inner._decoding]
        return {request.rollout for request in (*decoding, *self._inner._waiting)}

    def submit(self, requests: Sequence[Request]) -> None:
        self._inner.submit(requests)
        for request in requests:
            prompt = request.ids[: len(request.ids) - request.prefix_tokens]
            self._draws[request.rollout, request.attempt] = policy.draws(
                prompt.tobytes(), request.key, request.temperature
            )
            self._pinned[request.rollout, request.attempt] = request.version
        while len(self._draws) > REQUESTS:
            oldest = next(iter(self._draws))
            del self._draws[oldest], self._pinned[oldest]

    def interrupt(self, rollouts: Sequence[int]) -> None:
        self._inner.interrupt(rollouts)

    def abort(self) -> int:
        """Give everything back unasked, as an engine does that runs out of memory. Returns the
        number of rollouts."""
        held = self.held
        self._inner.interrupt([*held])
        return len(held)

    async def load(
        self, version: int, weights: Mapping[str, torch.Tensor] | None, *, pin: bool = False
    ) -> float:
        assert weights is not None
        number: Any = weights[NUMBER]
        seconds = await self._inner.load(version, None, pin=pin)
        self._numbers[version] = number
        self.loaded(version, number, pin or version in self._averages)
        return seconds

    async def keep(self, version: int, weights: Mapping[str, torch.Tensor] | None) -> float:
        assert weights is not None
        number: Any = weights[NUMBER]
        seconds = await self._inner.keep(version, None)
        self._averages[version] = number
        self.averaged(version, number)
        return seconds

    async def quiesce(self) -> Mapping[str, torch.Tensor]:
        await self._inner.quiesce()
        weights: Any = {NUMBER: self._write}
        return weights  # type: ignore[no-any-return]

    def _write(self, number: int) -> None:
        """Have other numbers in the memory that it decodes with."""
        self._live, self._torn = number, True
        self.written(self._inner.still)

    async def adopt(self, version: int, *, pin: bool = False) -> float:
        seconds = await self._inner.adopt(version, pin=pin)
        self._numbers[version], self._torn = self._live, False
        self.loaded(version, self._live, pin or version in self._averages)
        return seconds

    def resume(self) -> None:
        if self._inner.still:
            self.resumed(not self._torn)
        self._inner.resume()

    def unpin(self, version: int) -> None:
        self._inner.unpin(version)
        self._averages.pop(version, None)

    async def run(self, emit: Emit) -> None:
        async def deliver(chunks: Sequence[Chunk]) -> None:
            if self.crash:
                raise EngineCrash("the plan says that the engine crashes here")
            if self.lag_s:
                await trio.sleep(self.lag_s)
            if self.dead:
                await trio.sleep_forever()
            await emit([self._sampled(chunk) for chunk in chunks])

        await self._inner.run(deliver)

    def _script(self, request: Request) -> Script:
        draws = self._draws[request.rollout, request.attempt]
        most = request.prefix_tokens + request.max_new_tokens
        left = max(0, policy.length(draws, most) - request.prefix_tokens)
        ends: Literal["stop", "length"] = (
            "length" if request.prefix_tokens + left >= most else "stop"
        )
        return Script(np.zeros(left, np.int32), np.zeros(left, np.float32), self._pace(), ends)

    def _sampled(self, chunk: Chunk) -> Chunk:
        """The chunk with the tokens that the version's weights sample."""
        count = len(chunk.ids)
        if self.forget and chunk.finish == "interrupted":
            count = 0
        if not count:
            return msgspec.structs.replace(
                chunk, ids=np.zeros(0, np.int32), behaviour=np.zeros(0, np.float32)
            )
        of = self._pinned[chunk.rollout, chunk.attempt]
        averaged = of is not None and chunk.version in self._averages
        weights = (self._averages if averaged else self._numbers)[chunk.version]
        ids, behaviour = policy.sampled(
            weights,
            self._draws[chunk.rollout, chunk.attempt],
            chunk.start,
            chunk.start + count,
        )
        chunk = msgspec.structs.replace(chunk, ids=ids, behaviour=behaviour)
        if not self.garbage_left or not self.makes_garbage():
            return chunk
        self.garbage_left -= 1
        return self._garbled(chunk, self.garbage)

    def _garbled(self, chunk: Chunk, kind: Garbage) -> Chunk:
        replace = msgspec.structs.replace
        match kind:
            case "vocabulary":
                return replace(chunk, ids=chunk.ids + np.int32(policy.VOCABULARY))
            case "nan":
                return replace(chunk, behaviour=np.full(len(chunk.ids), np.nan, np.float32))
            case "start":
                return replace(chunk, start=chunk.start + 1)
            case "long":
                size = self._most + 1
                return replace(
                    chunk, ids=np.ones(size, np.int32), behaviour=np.full(size, -1.0, np.float32)
                )
            case "misparallel":
                return replace(chunk, behaviour=chunk.behaviour[:-1])
            case "future":
                return replace(chunk, version=chunk.version + 1000)
            case "uncommitted":
                return replace(chunk, version=max(self._numbers) + 1)
            case "negative":
                return replace(chunk, version=-1)


class EngineCrash(RuntimeError):
    """A fault of the plan."""


class FakeReceiver:
    """Reception of weights by an engine: those that the publication's broadcast holds. `let_go`
    hears of each publication whose reception is over, for whatever reason."""

    def __init__(
        self,
        broadcasts: dict[int, Broadcast],
        deadline_s: float,
        let_go: Callable[[int], None],
    ) -> None:
        self._broadcasts, self._deadline_s, self._let_go = broadcasts, deadline_s, let_go
        self.extra_s = 0.0
        self.fault: Literal["", "wrong", "error"] = ""
        self.failed: Callable[[], None] = lambda: None

    async def join(self, message: Prepare) -> None:
        """Meet the trainer in a direct publication."""
        broadcast = self._broadcasts.setdefault(message.publication, Broadcast())
        try:
            with trio.move_on_after(self._deadline_s):
                await broadcast.opened.wait()
                return
        finally:
            self._let_go(message.publication)
        raise TransferError(f"no trainer within {self._deadline_s:g} s")

    async def receive(self, message: Prepare, own: Mapping[str, torch.Tensor]) -> Received:
        """Receive what the broadcast holds; a direct one where the engine has its weights, half of
        it before anything goes wrong."""
        try:
            if not message.direct:
                return await self._receive(message)
            broadcast, write = self._broadcasts[message.publication], cast(Any, own[NUMBER])
            with trio.move_on_after(self._deadline_s):
                await broadcast.sending.wait()
                write(TORN)
                received = await self._receive(message)
                write(cast(Any, received.weights)[NUMBER])
                return received
        finally:
            self._let_go(message.publication)
        raise TransferError(f"nothing within {self._deadline_s:g} s")

    async def _receive(self, message: Prepare) -> Received:
        broadcast = self._broadcasts.setdefault(message.publication, Broadcast())
        with trio.move_on_after(self._deadline_s):
            await broadcast.sent.wait()
            await trio.sleep(0.01 + self.extra_s)
            fault, self.fault = self.fault, ""
            if fault:
                self.failed()
            if fault == "error":
                raise TransferError("the plan says that this reception fails")
            number, average, wrong = broadcast.number, broadcast.average, fault == "wrong"
            if average is None:
                number ^= wrong
            else:
                average ^= wrong
            averaged = None if average is None else {NUMBER: average}
            weights: Any = {NUMBER: number}
            return Received(checksums(number, average), weights, cast(Any, averaged))
        raise TransferError(f"nothing within {self._deadline_s:g} s")


Failing = Literal["", "hang", "crash", "raise", "timeout", "nan", "parts"]
"""A way in which verifiers fail: they hang, or lose their process; each answer has no verdict for
one of three reasons, or another number of rewards than others of its group."""


class _Scorer(Protocol):
    """Gives each answer its verdict."""

    def scored(self, prompt_index: int, ids: bytes) -> Scored: ...


class FakeVerifiers:
    """A verdict after some seconds: what `rewards` says of the answer. `fails` says how they fail;
    `open` counts the answers that are judged now."""

    def __init__(
        self, seconds: float, rewards: _Scorer, observer: WorldObserver, start: str
    ) -> None:
        """`start` names this start of the reward actor."""
        self.seconds = seconds
        self._rewards, self._observer, self._start = rewards, observer, start
        self.fails: Failing = ""
        self.faulted: Callable[[], None] = lambda: None
        self.open = 0

    async def judge(
        self,
        split: Split,
        prompt_index: int,
        ids: bytes | memoryview,
        finish: Finish,
        prompt: bytes | memoryview = b"",
    ) -> TimedVerdict:
        self.open += 1
        self._observer.on_judging(self._start, self.open)
        try:
            verdict = await self._verdict(prompt_index, bytes(ids))
            return TimedVerdict(verdict, self.seconds)
        finally:
            self.open -= 1

    async def _verdict(self, prompt_index: int, ids: bytes) -> Verdict:
        await trio.sleep(self.seconds)
        if not self.fails:
            return self._rewards.scored(prompt_index, ids)
        self.faulted()
        match self.fails:
            case "hang":
                await trio.sleep_forever()
            case "raise":
                return NoVerdict("raised: RuntimeError: the plan says so")
            case "timeout":
                return NoVerdict("timeout")
            case "nan":
                return NoVerdict("not finite")
            case "parts":
                found = self._rewards.scored(prompt_index, ids)
                return Scored(found.reward, [*found.parts, found.reward])
        raise VerifiersLost("the plan says that the verifiers are lost")


class VerifiersLost(RuntimeError):
    """A fault of the plan."""
