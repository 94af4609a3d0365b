"""A learner that adds up what it is given, and its exact proximal policy. Invariant: it trains what
is in the buffers, and nothing that it knows from elsewhere.

It is the transfer, too: engines find what it sent in `broadcasts`, by publication.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import trio
from numpy.typing import NDArray

from asyncrl.messages import (
    LastRank,
    MeasureLoss,
    MicroBatch,
    Publish,
    Sample,
    Save,
    ScoreProximal,
    TokenCount,
)
from asyncrl.simulation import policy
from asyncrl.simulation.observer import WorldObserver
from asyncrl.weightsync.errors import TransferError
from asyncrl.weightsync.transport import Sent

NUMBER = "number"


def checksums(number: int, average: int | None = None) -> list[int]:
    """Those of weights that are a number, and of their average, where there is one."""
    both = (number,) if average is None else (number, average)
    return [half for one in both for half in (one & 0xFFFFFFFF, one >> 32)]


class Broadcast:
    """The weights that the trainer sent in one publication."""

    def __init__(self) -> None:
        self.opened, self.sending, self.sent = trio.Event(), trio.Event(), trio.Event()
        self.number = 0
        self.average: int | None = None


class FakeProximal:
    """Scores of tokens under the versions that sampled them, as a learner keeps them
    (`asyncrl.training.proximal_logprobs`): a token is scored while its version is the learner's, or
    is held. At most `most` earlier versions are."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._scores: dict[int, NDArray[np.float32]] = {}  # NaN where unknown
        self._held: dict[int, int] = {}
        self._trained: set[int] = set()
        self._oldest = -1

    def copy(self) -> FakeProximal:
        """The copy of it that a checkpoint has."""
        other = FakeProximal(self.most)
        other._scores = {rollout: scores.copy() for rollout, scores in self._scores.items()}
        other._held = dict(self._held)
        return other

    def score(self, message: ScoreProximal, ids: memoryview, version: int, weights: int) -> None:
        """Score what is asked for, and forget the rollouts that do not live."""
        tokens, at = np.frombuffer(ids, np.int32), 0
        for sample in message.samples:
            at += sample.prompt_tokens
            response = tokens[at : at + sample.response_tokens]
            at += sample.response_tokens
            self._scores[sample.rollout] = self.known(sample, response, {version: weights})
        live = self._trained.union(message.live)
        self._oldest = version if message.oldest is None else min(version, message.oldest)
        self._scores = {r: scores for r, scores in self._scores.items() if r in live}

    def known(
        self, sample: Sample, response: NDArray[np.int32], own: dict[int, int]
    ) -> NDArray[np.float32]:
        """The scores of a response's tokens: those that were kept, and those of versions that are
        held or `own`; NaN where there is neither."""
        scores = np.full(sample.response_tokens, np.nan, np.float32)
        kept = self._scores.get(sample.rollout, scores[:0])
        scores[: len(kept)] = kept[: len(scores)]
        for span in sample.spans:
            start, end = span.start - sample.prompt_tokens, span.end - sample.prompt_tokens
            weights = own.get(span.version, self._held.get(span.version))
            if weights is not None:
                unknown = np.isnan(scores[start:end])
                made = policy.scores(weights, response[start:end], start)
                scores[start:end][unknown] = made[unknown]
        return scores

    def remember(self, sample: Sample, scores: NDArray[np.float32]) -> None:
        """Keep the scores of a rollout that is trained now, and may be trained again."""
        self._scores[sample.rollout] = scores
        self._trained.add(sample.rollout)

    def close(self, version: int, weights: int) -> None:
        """Hold the weights of a version that ends, and release those that no more tokens come
        of."""
        self._held[version] = weights
        since = max(self._oldest, version - self.most + 1)
        self._held = {v: number for v, number in self._held.items() if v >= since}
        self._trained.clear()


def loss_of(weights: int) -> float:
    """The loss of the step that made these weights: any number, and seldom that of others."""
    return float(weights & 0xFFFFFF)


class FakeLearner:
    """A learner whose weights are a number. `proximal` is None where nothing is scored."""

    store = "tcp:127.0.0.1:1"

    def __init__(
        self,
        version: int,
        weights: int,
        observer: WorldObserver,
        broadcasts: dict[int, Broadcast],
        proximal: FakeProximal | None = None,
        *,
        start: str = "trainer-0",
        holds: bool = False,
    ) -> None:
        """`start` names this start of the trainer. Where it `holds`, a micro-batch waits for the
        end of its step, and what became of its tokens is said then."""
        self.version, self.weights, self.proximal = version, weights, proximal
        self._observer, self._broadcasts, self._start = observer, broadcasts, start
        self._holds = holds
        self._held: list[TokenCount] = []
        self._added = 0
        self.counts: list[TokenCount] = []
        self.last_rank: LastRank | None = None
        self.seconds_per_token, self.batch_s, self.send_s = 0.0005, 0.0, 0.02
        self.step_s: Callable[[int], float] = lambda version: 0.05
        """Seconds of the step that makes a version."""
        self.computing: Callable[[float], object] = lambda seconds: None
        """Hears, as it begins, of each computation and of its seconds."""
        self.copy_s = 0.01
        """Seconds of a copy for a checkpoint, in which nothing else may be computed: its version is
        taken before them, and its weights after."""
        self.write_checkpoint: Callable[[int, int, int, FakeProximal | None], Any] = lambda *_: None
        """Writes a checkpoint of a version, its weights, a cursor and scores: an async function
        that returns its path."""
        self.fail_send = False
        self.flaky = False  # every other transfer fails
        self._sends = 0
        self.failed_send: Callable[[], object] = lambda: None

    async def accumulate(
        self, batch: MicroBatch, buffers: Sequence[memoryview]
    ) -> list[TokenCount]:
        self._observer.on_batch(batch, *buffers)
        ids, mask = np.frombuffer(buffers[0], np.int32), np.frombuffer(buffers[2], np.uint8)
        await self._compute(self.batch_s + len(mask) * self.seconds_per_token)
        counts, at, place = [], 0, 0
        for sample in batch.samples:
            start, end = (
                at + sample.prompt_tokens,
                at + sample.prompt_tokens + sample.response_tokens,
            )
            lets = mask[place : place + sample.sampled_tokens]
            sampled = [ids[at + span.start : at + span.end] for span in sample.spans]
            if self.proximal is not None:
                scores = self.proximal.known(sample, ids[start:end], {self.version: self.weights})
                self._observer.on_scores(batch.step, sample, scores, lets)
                self.proximal.remember(sample, scores)
            self._added += policy.contribution(
                ids[at:start].tobytes(), np.concatenate(sampled), lets, sample.reward
            )
            stale, fresh, cut, wrong = (int((lets == why).sum()) for why in range(4))
            left_out = {"stale": stale, "truncated": cut, "error": wrong}
            discarded = {reason: count for reason, count in left_out.items() if count}
            counts.append(TokenCount(sample.rollout, fresh, discarded))
            at, place = end, place + sample.sampled_tokens
        if not self._holds:
            return counts
        self._held += counts
        return []

    async def measure(
        self, message: MeasureLoss, buffers: Sequence[memoryview]
    ) -> tuple[float, int]:
        raise ValueError("no simulated run is supervised")

    async def _compute(self, seconds: float) -> None:
        self.computing(seconds)
        await trio.sleep(seconds)

    async def score_proximal(self, message: ScoreProximal, buffers: Sequence[memoryview]) -> None:
        await self._compute(
            sum(sample.response_tokens for sample in message.samples) * self.seconds_per_token
        )
        if self.proximal is not None:
            self.proximal.score(message, buffers[0], self.version, self.weights)

    async def step(self) -> dict[str, float]:
        await self._compute(self.step_s(self.version + 1))
        if self.proximal is not None:
            self.proximal.close(self.version, self.weights)
        self.weights = policy.stepped(self.weights, self._added & policy.MASK)
        self.version, self._added = self.version + 1, 0
        self.counts, self._held = self._held, []
        self._observer.on_step(self.version, self.weights)
        return {"loss": loss_of(self.weights)}

    async def copy(self, save: Save) -> Any:
        version = self.version
        await trio.sleep(self.copy_s)
        proximal = self.proximal and self.proximal.copy()
        if save.models == "alone":
            return partial(self._leave_models, version)
        return partial(self.write_checkpoint, version, self.weights, save.cursor, proximal)

    async def _leave_models(self, version: int) -> str:
        """Write what the run leaves for use elsewhere, which is nothing here."""
        await trio.sleep(self.copy_s)
        return f"/checkpoints/{version}"

    async def join(self, message: Publish) -> None:
        """Meet the engines of a direct publication."""
        await trio.sleep(self.send_s / 2)
        self._broadcasts.setdefault(message.publication, Broadcast()).opened.set()

    async def send(self, message: Publish) -> Sent:
        broadcast = self._broadcasts.setdefault(message.publication, Broadcast())
        broadcast.sending.set()
        try:
            await trio.sleep(self.send_s)
        finally:
            self._observer.on_let_go(self._start, message.publication)
        self._sends += 1
        if self.fail_send or (self.flaky and self._sends % 2):
            self.fail_send = False
            self.failed_send()
            raise TransferError("the plan says that this transfer fails")
        broadcast.number = self.weights
        broadcast.average = policy.average(self.weights) if message.average else None
        broadcast.sent.set()
        return Sent(checksums(broadcast.number, broadcast.average), 8, [])
