"""Scripted parts of a run: its prompts, its learner, its verifiers, and a journal in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
import trio

from asyncrl.actors.trainer_actor import Write
from asyncrl.actors.verifier_process import TimedVerdict
from asyncrl.config import Config
from asyncrl.experience import events as e
from asyncrl.experience.experience import Experience
from asyncrl.messages import (
    Finish,
    LastRank,
    MicroBatch,
    Publish,
    Save,
    Scored,
    ScoreProximal,
    Split,
    TokenCount,
    Verdict,
)

STOP = 0
VOCABULARY = 64


class MemoryLog:
    """A journal that keeps its events."""

    def __init__(self) -> None:
        self.events: list[e.AnyEvent] = []
        self.kept: list[tuple[int, int, bytes]] = []  # number, version and state

    @property
    def appended(self) -> int:
        return len(self.events)

    durable = appended

    def append(self, event: e.AnyEvent) -> int:
        self.events.append(event)
        return len(self.events)

    def keep(self, version: int, experience: Experience) -> int:
        self.kept.append((len(self.events), version, msgspec.msgpack.encode(experience.snapshot())))
        return len(self.events)

    def compact(self, version: int) -> None:
        pass

    def abandon(self, version: int) -> None:
        pass

    async def room(self) -> None:
        await trio.lowlevel.checkpoint()

    async def flush(self) -> None:
        await trio.lowlevel.checkpoint()


class ScriptedTask:
    """Prompts that are their own number."""

    sampled = embedded = VOCABULARY

    def __init__(self, config: Config) -> None:
        self._sizes: dict[Split, int] = {
            "train": config.task.train_size,
            "evaluation": config.task.eval_size,
        }
        self.prompts: Callable[[Split, int], str] = lambda split, prompt_index: f"{prompt_index}"

    def size(self, split: Split) -> int:
        return self._sizes[split]

    def prompt(self, split: Split, prompt_index: int) -> str:
        return self.prompts(split, prompt_index)

    def encode(self, text: str) -> list[int]:
        return [1 + ord(letter) % (VOCABULARY - 1) for letter in text]


class ScriptedWeights:
    """Weights that a scripted trainer sends: the version, by which they are checked too."""

    average = None

    def __init__(self, version: int) -> None:
        self.weights: dict[str, object] = {}
        self.sent_bytes = 8
        self.canary: list[float] = []
        self.checksums = [1000 + version]


class ScriptedLearner:
    """Trains every token that its mask lets in, in so many seconds a token and a step."""

    def __init__(self, seconds_per_token: float = 0.0005, step_s: float = 0.05) -> None:
        self.version = 0
        self.store = "tcp:127.0.0.1:1"
        self.batches: list[tuple[MicroBatch, bytes]] = []
        self.to_score: list[ScoreProximal] = []
        self.saved: list[tuple[int, int]] = []
        self.models: list[tuple[int, str]] = []
        self.counts: list[TokenCount] = []
        self.last_rank: LastRank | None = None
        self._seconds_per_token, self._step_s = seconds_per_token, step_s

    async def accumulate(
        self, batch: MicroBatch, buffers: Sequence[memoryview]
    ) -> list[TokenCount]:
        assert batch.step == self.version
        mask = np.frombuffer(buffers[2], np.uint8)
        assert len(buffers[0]) == 4 * sum(
            s.prompt_tokens + s.response_tokens for s in batch.samples
        )
        assert len(buffers[1]) == 4 * len(mask) == 4 * sum(s.sampled_tokens for s in batch.samples)
        await trio.sleep(len(mask) * self._seconds_per_token)
        self.batches.append((batch, mask.tobytes()))
        counts, at = [], 0
        for sample in batch.samples:
            of_sample = mask[at : at + sample.sampled_tokens].tolist()
            left_out = {"stale": of_sample.count(0), "truncated": of_sample.count(2)}
            left_out["error"] = of_sample.count(3)
            discarded = {reason: count for reason, count in left_out.items() if count}
            counts.append(TokenCount(sample.rollout, of_sample.count(1), discarded))
            at += sample.sampled_tokens
        return counts

    async def score_proximal(self, message: ScoreProximal, buffers: Sequence[memoryview]) -> None:
        assert message.step == self.version
        assert len(buffers[0]) == 4 * sum(
            s.prompt_tokens + s.response_tokens for s in message.samples
        )
        self.to_score.append(message)

    async def step(self) -> dict[str, float]:
        await trio.sleep(self._step_s)
        self.version += 1
        return {"loss": 0.0}

    async def copy(self, save: Save) -> Write:
        self.models.append((self.version, save.models))
        if save.models == "alone":
            return partial(self.leave_models, self.version)
        return partial(self.write, self.version, save.cursor)

    async def leave_models(self, version: int) -> Path:
        """Write what the run leaves for use elsewhere."""
        await trio.sleep(self._step_s)
        return Path(f"/checkpoints/{version}")

    async def write(self, version: int, cursor: int) -> Path:
        """Write the copy of a version."""
        await trio.sleep(self._step_s)
        self.saved.append((version, cursor))
        return Path(f"/checkpoints/{version}")

    async def send(self, message: Publish) -> ScriptedWeights:
        await trio.sleep(0.02)
        return ScriptedWeights(self.version)


class ScriptedVerifiers:
    """A verdict after some seconds."""

    def __init__(self, verdict: Callable[[Split, int, bytes], Verdict], seconds: float) -> None:
        self._verdict, self._seconds = verdict, seconds
        self.asked = 0

    async def judge(
        self,
        split: Split,
        prompt_index: int,
        ids: bytes | memoryview,
        finish: Finish,
        prompt: bytes | memoryview = b"",
    ) -> TimedVerdict:
        self.asked += 1
        await trio.sleep(self._seconds)
        return TimedVerdict(self._verdict(split, prompt_index, bytes(ids)), self._seconds)


def by_length(split: Split, prompt_index: int, ids: bytes) -> Verdict:
    """Rewards that differ within a group."""
    return Scored(float(len(ids) // 4 % 2))
