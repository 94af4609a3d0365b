"""Small random models and rollouts, and the naive reference: each rollout alone, plain log-softmax,
loops, float64."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from functools import lru_cache

import msgspec
import numpy as np
import torch
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    LlamaConfig,
    PretrainedConfig,
    PreTrainedModel,
    Qwen3Config,
    Qwen3MoeConfig,
)

from asyncrl.config.schema import StalenessConfig, TrainConfig
from asyncrl.messages import MicroBatch, Sample, Span
from asyncrl.staleness.corrections import IcePop

VOCABULARY = 23
TEMPERATURE = 0.7
"""The temperature of sampling where it is not the subject: at 1 a formula that forgets it is
right."""
SIZES = {"vocab_size": VOCABULARY, "bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
CONFIGS: dict[str, PretrainedConfig] = {
    "qwen3": Qwen3Config(
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        tie_word_embeddings=True,
        initializer_range=0.3,
        **SIZES,
    ),
    "llama": LlamaConfig(
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        initializer_range=0.3,
        **SIZES,
    ),
    "gpt2": GPT2Config(
        n_embd=16, n_layer=2, n_head=2, n_positions=64, initializer_range=0.3, **SIZES
    ),
}
MIXTURE = Qwen3MoeConfig(
    hidden_size=16,
    moe_intermediate_size=24,
    num_experts=4,
    num_experts_per_tok=2,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=2,
    head_dim=8,
    initializer_range=0.3,
    **SIZES,
)
Buffers = tuple[bytes, bytes, bytes]


def build(name: str, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """A random model of an architecture, always the same, with its dropout as configured."""
    torch.manual_seed(3)
    config = MIXTURE if name == "mixture" else CONFIGS[name]
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=dtype)
    return model


class Rollout:
    """One rollout with everything that is known of it."""

    def __init__(
        self, number: int, group: int, reward: float, prompt: Sequence[int], response: Sequence[int]
    ) -> None:
        self.number, self.group, self.reward = number, group, reward
        self.prompt, self.response = list(prompt), list(response)
        self.behaviour = [0.0] * len(self.response)
        self.mask = [1] * len(self.response)
        self.spans = [Span(0, 0, len(self.response))]
        self.parts: list[float] = []
        self.baseline: float | None = None
        self.turns: list[tuple[int, int]] = []

    @property
    def sample(self) -> Sample:
        """Its head in a micro-batch; `spans` of this class count from the response's start."""
        given = len(self.prompt)
        return Sample(
            self.number,
            self.group,
            given,
            len(self.response),
            self.reward,
            [
                Span(span.version, given + span.start, given + span.end, span.source)
                for span in self.spans
            ],
            self.baseline,
            turns=self.turns,
        )


def rollouts(
    model: PreTrainedModel, seed: int, count: int = 9, noise: float = 0.6, temperature: float = 1.0
) -> list[Rollout]:
    """Rollouts in uneven groups, some tokens stale, behaviour around the model's own policy: some
    ratios clipped, some out of the band."""
    return copy.deepcopy(_rollouts(SamplingModel(model), seed, count, noise, temperature))


class SamplingModel:
    """A model as it is now; one is another's equal if it samples the same."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model
        weights = b"".join(
            weight.detach().contiguous().view(torch.uint8).numpy().tobytes()
            for weight in model.parameters()
        )
        self._key = type(model), model.dtype, weights

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SamplingModel) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)


@lru_cache(maxsize=64)
def _rollouts(
    sampler: SamplingModel, seed: int, count: int, noise: float, temperature: float
) -> list[Rollout]:
    rng = np.random.default_rng(seed)
    exact = copy.deepcopy(sampler.model).double().eval()
    made = []
    for number in range(count):
        prompt, response = (
            rng.integers(0, VOCABULARY, int(n)).tolist()
            for n in (rng.integers(1, 6), rng.integers(0, 12))
        )
        rollout = Rollout(
            number, int(rng.integers(0, 3)), float(rng.integers(0, 3)), prompt, response
        )
        with torch.no_grad():
            own = alone(exact, rollout, temperature).numpy()
        rollout.behaviour = (own + rng.normal(0, noise, len(own))).astype(np.float32).tolist()
        rollout.mask = (rng.random(len(own)) < 0.9).astype(int).tolist()
        made.append(rollout)
    return made


def micro_batch(
    members: Sequence[Rollout], every: Sequence[Rollout], step: int = 0, index: int = 0
) -> tuple[MicroBatch, Buffers]:
    """A micro-batch of `members`; the rewards are those of `every` rollout of the step."""
    rewards, parts = dict[int, list[float]](), dict[int, list[list[float]]]()
    lengths = dict[int, list[int]]()
    samples = {r.number: r.sample for r in members}
    for r in every:  # all groups: some advantages are relative to the step
        if r.number in samples:
            samples[r.number] = msgspec.structs.replace(
                r.sample, member=len(rewards.get(r.group, []))
            )
        rewards.setdefault(r.group, []).append(r.reward)
        parts.setdefault(r.group, []).append(r.parts)
        lengths.setdefault(r.group, []).append(len(r.response))
    buffers = (
        np.array([i for m in members for i in m.prompt + m.response], dtype=np.int32).tobytes(),
        np.array([b for m in members for b in m.behaviour], dtype=np.float32).tobytes(),
        np.array([k for m in members for k in m.mask], dtype=np.uint8).tobytes(),
    )
    return MicroBatch(
        step,
        index,
        [samples[m.number] for m in members],
        rewards,
        parts if any(r.parts for r in every) else {},
        lengths,
    ), buffers


def alone(model: PreTrainedModel, rollout: Rollout, temperature: float) -> torch.Tensor:
    """Log-probability of each response token, from a float64 forward pass of this rollout alone."""
    exact = copy.deepcopy(model).double().eval() if model.dtype != torch.float64 else model
    ids = torch.tensor([rollout.prompt + rollout.response])
    every = torch.log_softmax(exact(input_ids=ids).logits[0].double() / temperature, dim=-1)
    places = range(len(rollout.prompt), ids.shape[1])
    return (
        torch.stack([every[at - 1, ids[0, at]] for at in places]) if places else every.new_zeros(0)
    )


def reference(
    model: PreTrainedModel,
    every: Sequence[Rollout],
    train: TrainConfig,
    staleness: StalenessConfig,
    temperature: float,
) -> tuple[dict[str, torch.Tensor], float, dict[int, tuple[int, dict[str, int]]]]:
    """Gradient of the mean loss by parameter, the mean loss, and (trained, discarded) by rollout,
    one token at a time."""
    exact = copy.deepcopy(model).double().eval()
    losses, counts = [], {}
    for rollout in every:
        rewards = [r.reward for r in every if r.group == rollout.group]
        mean = sum(rewards) / len(rewards)
        deviation = (
            math.sqrt(sum((r - mean) ** 2 for r in rewards) / (len(rewards) - 1))
            if len(rewards) > 1
            else 0.0
        )
        advantage = (rollout.reward - mean) / max(deviation, 1e-4) if len(set(rewards)) > 1 else 0.0
        trained, discarded = 0, dict[str, int]()
        for current, behaviour, fresh in zip(
            alone(exact, rollout, temperature), rollout.behaviour, rollout.mask, strict=True
        ):
            log = current - behaviour
            at = float(log.detach())
            if not fresh:
                discarded["stale"] = discarded.get("stale", 0) + 1
            elif not math.isfinite(at):
                discarded["nonfinite"] = discarded.get("nonfinite", 0) + 1
            elif any(
                isinstance(entry, IcePop) and not entry.lo <= math.exp(at) <= entry.hi
                for entry in staleness.correction
            ):
                discarded["icepop"] = discarded.get("icepop", 0) + 1
            else:
                r = torch.exp(log)
                losses.append(
                    -torch.minimum(
                        r * advantage, r.clamp(1 - train.clip_lo, 1 + train.clip_hi) * advantage
                    )
                )
                trained += 1
        counts[rollout.number] = (trained, discarded)
    loss = torch.stack(losses).mean()
    loss.backward()
    return (
        {name: p.grad for name, p in exact.named_parameters() if p.grad is not None},
        float(loss.detach()),
        counts,
    )
