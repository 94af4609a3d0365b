"""Fake prompts, engine, learner and verifiers. Invariant: without a fault, what each does is a
function of the seed, and exact.

Their attributes say what goes wrong; the kinds of fault (`fault_kinds.py`) set them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import numpy as np
import trio

from actors.verifier_process import TimedVerdict
from asyncrl.config import Config
from asyncrl.engines.options import EngineOptions
from asyncrl.engines.protocol import Chunk, Emit, Idle, Request
from asyncrl.engines.scripted import Script, ScriptedEngine
from asyncrl.ipc.messages import (
    MicroBatch,
    NoVerdict,
    Prepare,
    Publish,
    Scored,
    ScoreProximal,
    Split,
    TokenCount,
)
from asyncrl.simulation import policy
from asyncrl.simulation.observer import WorldObserver
from weightsync.errors import TransferError

if TYPE_CHECKING:
    import torch

NUMBER = "number"

Garbage = Literal[
    "vocabulary", "nan", "start", "long", "misparallel", "future", "uncommitted", "negative"
]


class FakeTask:
    """A task whose prompts are their own number, in digits."""

    sampled = policy.VOCABULARY

    def __init__(self, config: Config) -> None:
        self._sizes: dict[Split, int] = {
            "train": config.task.train_size,
            "evaluation": config.task.eval_size,
        }

    def size(self, split: Split) -> int:
        return self._sizes[split]

    def prompt(self, split: Split, prompt_index: int) -> str:
        return f"{prompt_index}"

    def encode(self, text: str) -> list[int]:
        return [1 + ord(letter) % (policy.VOCABULARY - 1) for letter in text]


class FakeWeights:
    """Weights that are a number, and their checksums."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.checksums = [number & 0xFFFFFFFF, number >> 32]

    @property
    def weights(self) -> Any:
        return {NUMBER: self.number}


class FakeEngine:
    """A scripted engine whose tokens are the policy's. `keys` says whose a rollout is."""

    def __init__(
        self,
        config: Config,
        keys: Mapping[int, int],
        seconds_per_token: Callable[[], float],
        idle: Idle,
    ) -> None:
        self._keys = keys
        self._most = config.rollout.max_new_tokens
        self._pace = seconds_per_token
        self._numbers: dict[int, int] = {}
        self._inner = ScriptedEngine(
            self._script, EngineOptions.of(config.engine), vocab_size=policy.VOCABULARY, idle=idle
        )
        self.lag_s = 0.0  # before each emission
        self.dead = False
        self.crash = False
        self.garbage: Garbage = "nan"  # in the next so many chunks with tokens
        self.garbage_left = 0
        self.forget = False  # what aborted rollouts had since their last chunk
        self.made_garbage: Callable[[], None] = lambda: None
        self.loaded: Callable[[int, int], None] = lambda version, weights: None

    @property
    def slots(self) -> int:
        return self._inner.slots

    @property
    def version(self) -> int | None:
        return self._inner.version

    def submit(self, requests: Sequence[Request]) -> None:
        self._inner.submit(requests)

    def interrupt(self, rollouts: Sequence[int]) -> None:
        self._inner.interrupt(rollouts)

    def abort(self) -> int:
        """Give everything back unasked, as an engine does that runs out of memory. Returns the
        number of rollouts."""
        held = [slot.request.rollout for slot in self._inner._decoding] + [
            request.rollout for request in self._inner._waiting
        ]
        self._inner.interrupt(held)
        return len(held)

    async def load(
        self, version: int, weights: Mapping[str, torch.Tensor] | None, *, pin: bool = False
    ) -> float:
        assert weights is not None
        number: Any = weights[NUMBER]
        seconds = await self._inner.load(version, None, pin=pin)
        self._numbers[version] = number
        self.loaded(version, number)
        return seconds

    def unpin(self, version: int) -> None:
        self._inner.unpin(version)

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
        left = max(
            0, policy.length(self._keys[request.rollout], self._most) - request.prefix_tokens
        )
        ends: Literal["stop", "length"] = (
            "length" if request.prefix_tokens + left >= self._most else "stop"
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
        weights = self._numbers[chunk.version]
        ids, behaviour = policy.sampled(
            weights, self._keys[chunk.rollout], chunk.start, chunk.start + count
        )
        chunk = msgspec.structs.replace(chunk, ids=ids, behaviour=behaviour)
        if not self.garbage_left:
            return chunk
        self.made_garbage()
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


class FakeLearner:
    """A learner that adds up what it is given. It is the transfer, too: engines find what it sent
    in `broadcasts`, by publication."""

    store = "tcp:127.0.0.1:1"

    def __init__(
        self,
        version: int,
        weights: int,
        observer: WorldObserver,
        broadcasts: dict[int, Broadcast],
    ) -> None:
        self.version, self.weights = version, weights
        self._observer, self._broadcasts = observer, broadcasts
        self._added = 0
        self.seconds_per_token, self.step_s, self.send_s = 0.0005, 0.05, 0.02
        self.save_checkpoint: Callable[[FakeLearner, int], Any] = lambda learner, cursor: None
        """Writes a checkpoint: an async function that returns its path."""
        self.fail_send = False
        self.failed_send: Callable[[], None] = lambda: None

    async def accumulate(
        self, batch: MicroBatch, buffers: Sequence[memoryview]
    ) -> list[TokenCount]:
        self._observer.on_batch(batch, *buffers)
        ids, mask = np.frombuffer(buffers[0], np.int32), np.frombuffer(buffers[2], np.uint8)
        await trio.sleep(len(mask) * self.seconds_per_token)
        counts, at, place = [], 0, 0
        for sample in batch.samples:
            start, end = (
                at + sample.prompt_tokens,
                at + sample.prompt_tokens + sample.response_tokens,
            )
            lets = mask[place : place + sample.response_tokens]
            self._added += policy.contribution(
                self._observer.keys[sample.rollout], ids[start:end], lets, sample.reward
            )
            fresh = int(lets.sum())
            stale = sample.response_tokens - fresh
            counts.append(TokenCount(sample.rollout, fresh, {"stale": stale} if stale else {}))
            at, place = end, place + sample.response_tokens
        return counts

    async def score_proximal(self, message: ScoreProximal, buffers: Sequence[memoryview]) -> None:
        """Take as long as scoring takes: a fake learner needs no scores."""
        await trio.sleep(
            sum(sample.response_tokens for sample in message.samples) * self.seconds_per_token
        )

    async def step(self) -> dict[str, float]:
        await trio.sleep(self.step_s)
        self.weights = policy.stepped(self.weights, self._added & policy.MASK)
        self.version, self._added = self.version + 1, 0
        self._observer.on_step(self.version, self.weights)
        return {"loss": 0.0}

    async def save(self, cursor: int) -> Any:
        return await self.save_checkpoint(self, cursor)

    async def send(self, message: Publish) -> FakeWeights:
        broadcast = self._broadcasts.setdefault(message.publication, Broadcast())
        await trio.sleep(self.send_s)
        if self.fail_send:
            self.fail_send = False
            self.failed_send()
            raise TransferError("the plan says that this transfer fails")
        broadcast.number = self.weights
        broadcast.sent.set()
        return FakeWeights(self.weights)


class Broadcast:
    """The weights that the trainer sent in one publication."""

    def __init__(self) -> None:
        self.sent = trio.Event()
        self.number = 0


class FakeReceiver:
    """Reception of weights by an engine: those that the publication's broadcast holds."""

    def __init__(self, broadcasts: dict[int, Broadcast], deadline_s: float) -> None:
        self._broadcasts, self._deadline_s = broadcasts, deadline_s
        self.extra_s = 0.0
        self.fault: Literal["", "wrong", "error"] = ""
        self.failed: Callable[[], None] = lambda: None

    async def __call__(self, message: Prepare) -> FakeWeights:
        broadcast = self._broadcasts.setdefault(message.publication, Broadcast())
        with trio.move_on_after(self._deadline_s):
            await broadcast.sent.wait()
            await trio.sleep(0.01 + self.extra_s)
            fault, self.fault = self.fault, ""
            if fault:
                self.failed()
            if fault == "error":
                raise TransferError("the plan says that this reception fails")
            return FakeWeights(broadcast.number ^ (fault == "wrong"))
        raise TransferError(f"nothing within {self._deadline_s:g} s")


class FakeVerifiers:
    """A verdict after some seconds."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.hang = self.refuse = self.crash = False
        self.faulted: Callable[[str], None] = lambda what: None

    async def judge(self, split: Split, prompt_index: int, ids: bytes | memoryview) -> TimedVerdict:
        await trio.sleep(self.seconds)
        if self.crash:
            self.faulted("crash")
            raise VerifiersLost("the plan says that the verifiers are lost")
        if self.hang:
            self.faulted("hang")
            await trio.sleep_forever()
        if self.refuse:
            self.faulted("refuse")
            return TimedVerdict(NoVerdict("raised: RuntimeError: the plan says so"), self.seconds)
        return TimedVerdict(Scored(policy.reward(prompt_index, bytes(ids))), self.seconds)


class VerifiersLost(RuntimeError):
    """A fault of the plan."""


def prompts_of(
    steps: int, batch_groups: int, prompt_index: Callable[[int], int | None]
) -> list[list[int]]:
    """The prompts of each step where groups are trained in the order of the data."""
    found: Iterable[int | None] = map(prompt_index, range(steps * batch_groups))
    items = [number for number in found if number is not None]
    return [items[step * batch_groups : (step + 1) * batch_groups] for step in range(steps)]
