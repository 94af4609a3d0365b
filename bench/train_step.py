"""A training step on packed rollouts against the same step padded to the longest, in real tokens a
second.

All train the same rollouts, other ones every step, with the same loss (GRPO advantages, IcePop
band, clip, AdamW) from the same weights, and must report the same loss value. They take turns; the
table has medians and ratios of medians. `padded` is what a plain training loop does: one rectangle,
an attention mask, float32 log-softmax. `padded, oneDNN` is the same with asyncrl's linear layers,
so that what comes from packing alone can be seen; `apart` is asyncrl without sharing: each rollout
has its group's prompt computed for itself. Three shapes of lengths, in groups of 8 with one prompt:
`task` (mean 37 tokens, longest 54, 18 of them the prompt's), `tail` (4 of the 128 rollouts up to
four times as long) and `prompt` (32 rollouts of about 100 tokens after prompts of 200). `--large`
measures a 12 x 512 model on 32 rollouts (1 of them long) instead of 4 x 128 on 128; `--threads`
sets torch's threads. `--pieces` compares instead, in seconds of processors, the gradient of a step
whose groups come one, two, four and all in a micro-batch.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple
from unittest.mock import patch

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel, Qwen3Config

from asyncrl.algorithms.advantage_tensors import advantage_tensors
from asyncrl.algorithms.advantages import Grpo, RewardedSamples
from asyncrl.config.schema import StalenessConfig, TrainConfig
from asyncrl.messages import MicroBatch, Sample, Span
from asyncrl.staleness.corrections import IcePop
from asyncrl.training.learner import Learner
from asyncrl.training.linear import accelerate

SIZE, VOCABULARY = 8, 64
BAND = IcePop()


class Step(NamedTuple):
    """The rollouts of one optimizer step, as a learner gets them."""

    batch: MicroBatch
    buffers: tuple[bytes, bytes, bytes]

    @property
    def tokens(self) -> int:
        return sum(s.prompt_tokens + s.response_tokens for s in self.batch.samples)


def build(large: bool) -> PreTrainedModel:
    """A Qwen3-style model with random weights, always the same."""
    torch.manual_seed(0)
    layers, width = (12, 512) if large else (4, 128)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=width,
        intermediate_size=3 * width,
        num_hidden_layers=layers,
        num_attention_heads=width // 32,
        num_key_value_heads=width // 64,
        head_dim=32,
        tie_word_embeddings=True,
    )
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config)
    model.train(False)
    return model


def lengths(shape: str, count: int, rng: np.random.Generator) -> tuple[int, list[int]]:
    """Tokens of a prompt, and of each of `count` rollouts with it."""
    if shape == "prompt":
        return 200, np.rint(rng.normal(300, 15, count)).astype(int).tolist()
    drawn = np.clip(np.rint(rng.normal(37, 7, count)), 20, 54).astype(int)
    drawn[0] = 54
    if shape == "tail":
        drawn[: count // 32] = (220, 180, 150, 120)[: count // 32]
    return 18, drawn.tolist()


def rollouts(
    model: PreTrainedModel, prompt: int, sizes: Sequence[int], rng: np.random.Generator
) -> Step:
    """Random rollouts of `sizes` tokens, the prompt's among them. Behaviour is close to the model's
    own policy (most ratios within the clip, a few outside of the band)."""
    samples, ids = [], []
    for index, size in enumerate(sizes):
        samples.append(
            Sample(
                index,
                index // SIZE,
                prompt,
                size - prompt,
                float(rng.integers(0, 2)),
                [Span(0, prompt, size)],
            )
        )
        ids.append(rng.integers(0, VOCABULARY, size).astype(np.int32))
        ids[-1][:prompt] = ids[index - index % SIZE][:prompt]
    behaviour = []
    with torch.no_grad():
        for sample, row in zip(samples, ids, strict=True):
            x = torch.from_numpy(row.astype(np.int64))
            every = model(x[None]).logits[0, :-1].log_softmax(-1).gather(1, x[1:, None])[:, 0]
            behaviour.append(every[sample.prompt_tokens - 1 :].numpy())
    noisy = np.concatenate(behaviour) + rng.normal(0, 0.15, sum(map(len, behaviour)))
    rewards: dict[int, list[float]] = {}
    for sample in samples:
        rewards.setdefault(sample.group, []).append(sample.reward)
    return Step(
        MicroBatch(0, 0, samples, rewards),
        (
            np.concatenate(ids).tobytes(),
            noisy.astype(np.float32).tobytes(),
            np.ones(len(noisy), np.uint8).tobytes(),
        ),
    )


class Padded:
    """The plain way: one rectangle, as wide as the longest rollout."""

    def __init__(self, model: PreTrainedModel, train: TrainConfig) -> None:
        self.model, self.train = model, train
        self.optimizer = torch.optim.AdamW(
            model.parameters(),
            lr=train.lr,
            betas=(train.beta1, train.beta2),
            weight_decay=train.weight_decay,
            foreach=True,
        )

    def step(self, step: Step) -> float:
        samples = step.batch.samples
        width = max(s.prompt_tokens + s.response_tokens for s in samples)
        ids = torch.zeros(len(samples), width, dtype=torch.int64)
        attention, answered = (
            torch.zeros_like(ids),
            torch.zeros(len(samples), width, dtype=torch.bool),
        )
        behaviour = torch.zeros(len(samples), width)
        flat, logs = (
            np.frombuffer(step.buffers[0], np.int32),
            np.frombuffer(step.buffers[1], np.float32),
        )
        at = log_at = 0
        for row, s in enumerate(samples):
            end = s.prompt_tokens + s.response_tokens
            ids[row, :end] = torch.from_numpy(flat[at : at + end].astype(np.int64))
            attention[row, :end] = 1
            answered[row, s.prompt_tokens : end] = True
            behaviour[row, s.prompt_tokens : end] = torch.from_numpy(
                logs[log_at : log_at + s.response_tokens].copy()
            )
            at, log_at = at + end, log_at + s.response_tokens
        given = RewardedSamples(samples, step.batch.rewards, {})
        advantage = advantage_tensors(Grpo(), given).value[:, None]
        logits = self.model(ids, attention_mask=attention, use_cache=False).logits[:, :-1].float()
        current = -F.cross_entropy(
            logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none"
        ).view(len(samples), -1)
        ratio = (current - behaviour[:, 1:]).exp()
        kept = answered[:, 1:] & (ratio >= BAND.lo) & (ratio <= BAND.hi)
        bounded = ratio.clamp(1 - self.train.clip_lo, 1 + self.train.clip_hi)
        loss: Tensor = (
            -torch.minimum(ratio * advantage, bounded * advantage) * kept
        ).sum() / kept.sum()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.train.grad_clip)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return float(loss.detach())


class Packed:
    """Train a step as asyncrl does."""

    def __init__(
        self, model: PreTrainedModel, train: TrainConfig, staleness: StalenessConfig
    ) -> None:
        self.learner = Learner(model, train, staleness, temperature=1.0)

    def step(self, step: Step) -> float:
        batch = step.batch
        self.learner.accumulate(
            MicroBatch(self.learner.version, 0, batch.samples, batch.rewards), step.buffers
        )
        return self.learner.step()["loss"]


class Apart(Packed):
    """Train a step as asyncrl would if no two prompts were alike."""

    def step(self, step: Step) -> float:
        with patch("asyncrl.training.learner.shares", lambda _: False):
            return super().step(step)


def measure(shape: str, large: bool, warm_up: int, rounds: int) -> None:
    """`warm_up` steps before the first that counts: every step has other rollouts, but kernels are
    compiled when a shape is new."""
    rng = np.random.default_rng(0)
    count = 32 if large or shape == "prompt" else 128
    train, staleness = TrainConfig(lr=1e-5, lr_warmup_steps=0), StalenessConfig()
    model = build(large)
    steps = [rollouts(model, *lengths(shape, count, rng), rng) for _ in range(warm_up + rounds)]
    faster = build(large)
    accelerate(faster)
    contestants = {
        "padded": Padded(build(large), train),
        "padded, oneDNN": Padded(faster, train),
        "apart": Apart(build(large), train, staleness),
        "packed": Packed(build(large), train, staleness),
    }
    seconds: dict[str, list[float]] = {key: [] for key in contestants}
    for turn, step in enumerate(steps):
        losses = {}
        for key, contestant in contestants.items():
            start = time.perf_counter()
            losses[key] = contestant.step(step)
            if turn >= warm_up:
                seconds[key].append((time.perf_counter() - start) / step.tokens)
        assert max(losses.values()) - min(losses.values()) < 1e-4, f"the losses differ: {losses}"
    medians = {key: statistics.median(values) for key, values in seconds.items()}
    rates = "".join(f"{1 / value:16,.0f}" for value in medians.values())
    ratios = "".join(
        f"{medians[key] / medians['packed']:9.2f}" for key in ("padded", "padded, oneDNN", "apart")
    )
    print(f"{shape:<6}{steps[0].tokens:7,}{rates}{ratios}", flush=True)


def pieces(step: Step, groups: int) -> Iterator[Step]:
    """A step in micro-batches of so many groups."""
    of_ids = of_sampled = 0
    samples = step.batch.samples
    for first in range(0, len(samples), groups * SIZE):
        part = samples[first : first + groups * SIZE]
        ids = of_ids + sum(s.prompt_tokens + s.response_tokens for s in part)
        sampled = of_sampled + sum(s.response_tokens for s in part)
        rewards = {s.group: step.batch.rewards[s.group] for s in part}
        buffers = (
            step.buffers[0][4 * of_ids : 4 * ids],
            step.buffers[1][4 * of_sampled : 4 * sampled],
            step.buffers[2][of_sampled:sampled],
        )
        yield Step(MicroBatch(0, first, part, rewards), buffers)
        of_ids, of_sampled = ids, sampled


def measure_pieces(shape: str, large: bool) -> None:
    """Print what smaller micro-batches take, over a whole step."""
    rng, count = np.random.default_rng(0), 32 if large else 128
    model = build(large)
    step = rollouts(model, *lengths(shape, count, rng), rng)
    learner = Learner(model, TrainConfig(), StalenessConfig(), temperature=1.0)
    seconds: dict[int, list[float]] = {each: [] for each in (1, 2, 4, count // SIZE)}
    for turn in range(6):
        for groups, found in seconds.items():
            began = time.process_time()
            for piece in pieces(step, groups):
                batch = piece.batch
                batch = MicroBatch(learner.version, batch.index, batch.samples, batch.rewards)
                learner.accumulate(batch, piece.buffers)
            if turn:
                found.append(time.process_time() - began)
            learner.step()
    *small, whole = (statistics.median(found) for found in seconds.values())
    told = "".join(f"{each / whole:9.2f}" for each in small)
    print(f"{shape:<6}{whole:9.2f} s{told}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--pieces", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    warm_up, rounds = (1, 1) if arguments.large else (3, 7)
    print(
        f"{'12 x 512' if arguments.large else '4 x 128'}, vocabulary {VOCABULARY}, "
        f"{arguments.threads} thread(s)"
    )
    if arguments.pieces:
        print(f"{'':6}{'whole':>11}{'by 1':>9}{'by 2':>9}{'by 4':>9} groups, over whole")
        for shape in ("task", "tail", "prompt"):
            measure_pieces(shape, arguments.large)
        return
    print(
        f"{'':6}{'tokens':>7}{'padded':>16}{'padded, oneDNN':>16}{'apart':>16}{'packed':>16}   "
        "packed / each (real tokens/s)"
    )
    for shape in ("task", "tail", "prompt"):
        measure(shape, arguments.large, warm_up, rounds)


if __name__ == "__main__":
    main()
