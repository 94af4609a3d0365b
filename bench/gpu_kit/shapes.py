"""Models of known shapes with random weights, and the micro-batches that they learn from."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel, Qwen3Config

from asyncrl.config.schema import TrainConfig
from asyncrl.messages import MicroBatch, Sample, Span
from asyncrl.training.forward import log_probabilities, shares
from asyncrl.training.packing import pack


class Shape(NamedTuple):
    """Sizes of a Qwen3 model. `tied`: its output layer has the weights of its embedding."""

    hidden: int
    inner: int
    layers: int
    heads: int
    kv_heads: int
    head: int = 128
    vocabulary: int = 151_936
    tied: bool = True

    def config(self, initializer_range: float = 0.02) -> Qwen3Config:
        """The model's configuration."""
        return Qwen3Config(
            vocab_size=self.vocabulary,
            hidden_size=self.hidden,
            intermediate_size=self.inner,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            num_key_value_heads=self.kv_heads,
            head_dim=self.head,
            tie_word_embeddings=self.tied,
            max_position_embeddings=40_960,
            initializer_range=initializer_range,
            bos_token_id=None,
            eos_token_id=None,
            pad_token_id=None,
            architectures=["Qwen3ForCausalLM"],
        )

    @property
    def of_layers(self) -> int:
        """Parameters of the layers' matrices."""
        queries, keys = self.heads * self.head, self.kv_heads * self.head
        attention = self.hidden * (2 * queries + 2 * keys)
        return self.layers * (attention + 3 * self.hidden * self.inner)


QWEN3 = {
    "0.6B": Shape(1024, 3072, 28, 16, 8),
    "1.7B": Shape(2048, 6144, 28, 16, 8),
    "4B": Shape(2560, 9728, 36, 32, 8),
    "8B": Shape(4096, 12288, 36, 32, 8, tied=False),
    "32B": Shape(5120, 25600, 64, 64, 8, tied=False),
}
"""Sizes of Qwen3's dense models, from their config.json."""
MIDDLE = Shape(1024, 3072, 4, 16, 8, vocabulary=32_000)
"""A few layers of the smallest of them."""
TINY = Shape(32, 64, 2, 4, 2, head=16, vocabulary=61)
"""One that processors compute in no time."""


def build(
    shape: Shape, dtype: torch.dtype, device: str, *, initializer_range: float = 0.02
) -> PreTrainedModel:
    """A model with random weights, always the same on one kind of device."""
    torch.manual_seed(0)
    with torch.device(device):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(
            shape.config(initializer_range), dtype=dtype
        )
    model.train(False)
    return model


def settings(device: str, *, recompute: bool = False) -> TrainConfig:
    """Settings of a learner on this device."""
    return TrainConfig(device=device, lr=1e-5, lr_warmup_steps=0, recompute_activations=recompute)


class Work(NamedTuple):
    """A micro-batch of a learner's first step, and its buffers."""

    batch: MicroBatch
    buffers: tuple[bytes, bytes, bytes]

    @property
    def tokens(self) -> int:
        """Tokens of all samples, prompts included."""
        return sum(each.prompt_tokens + each.response_tokens for each in self.batch.samples)


def work(
    model: PreTrainedModel, prompt: int, response: int, groups: int = 1, seed: int = 0
) -> Work:
    """Two samples a group, one of them right, of so many tokens. Their behaviour policy is the
    model itself."""
    rng = np.random.default_rng(seed)
    count, longest = 2 * groups, prompt + response
    ids = rng.integers(0, model.config.vocab_size, (count, longest)).astype(np.int32)
    ids[1::2, :prompt] = ids[::2, :prompt]
    samples = [
        Sample(each, each // 2, prompt, response, float(each % 2), [Span(0, prompt, longest)])
        for each in range(count)
    ]
    behaviour = torch.zeros(count * response)
    with torch.no_grad():
        for packed in pack(
            ids.ravel(),
            [prompt] * count,
            [response] * count,
            shared=shares(model),
            device=model.device.type,
        ):
            behaviour[packed.tokens] = log_probabilities(model, packed, 1.0).cpu().float()
    rewards = {group: [0.0, 1.0] for group in range(groups)}
    arrived = np.ones(count * response, np.uint8)
    return Work(
        MicroBatch(0, 0, samples, rewards),
        (ids.tobytes(), behaviour.numpy().tobytes(), arrived.tobytes()),
    )


def again(given: Work, step: int) -> Work:
    """The same as a micro-batch of another step."""
    batch = given.batch
    return given._replace(batch=MicroBatch(step, 0, batch.samples, batch.rewards))
