"""Presets against NeMo-RL's published table (docs/about/performance-summary.md of NVIDIA-NeMo/RL,
release 0.4, and 0.8 for the rows of 30B-A3B): GRPO on H100s, 64 prompts of 32 responses a step, at
most 4,096 tokens; one step off with half of the devices for each side, or on policy with all for
both in turns.

Of the presets the trainer's speed is fitted to two of the rows (8B and 30B-A3B, one off); the five
others are said by them. Stated there: devices, mean sequence, devices of an engine (its recipes,
examples/configs/recipes/llm/performance). Ours: the preset's engine and trainer; a third more for a
trained token, as NeMo-RL computes log-probabilities once more; lengths lognormal with sigma 0.5,
cut at 4,096, which no page states.

On policy the same devices generate, and then train: nothing of a step is trained while the rest of
it is generated, as asyncrl's trainer does beside its engines. So generation is forecast with a
trainer that takes no time for a token, and the training of the step is added. A step is four
updates (the table's T-GBS of 512). Of release 0.3 the parts of a step are published
(https://nvidia-nemo.github.io/blog/2025/07/21/nemo-rl-v0.3, and its rerun in NVIDIA-NeMo/RL#959):
of 112 s of the 8B on one machine 58 are generation, 28 training, 18 log-probabilities, 5 the
passing of weights, and 3 are said to be none of these. These 8 s are in each row on policy. What is
left is generation: a preset's engine, as fast as vLLM's best, makes those responses in 38 s.

    python bench/nemo_rl.py
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from asyncrl.config import Config
from asyncrl.config.devices import DEVICES
from asyncrl.sizing.cluster_models import ClusterModel, LengthModel, TrainerModel
from asyncrl.sizing.forecast import Cluster, forecast
from asyncrl.sizing.presets import MODELS, engine_of, preset, token_us

SAMPLES, MEMBERS, LONGEST, PROMPT = 2048, 32, 4096, 100
UPDATE_S, UPDATES = 2.0, 4
"""Seconds of an optimizer step, as a preset has it; and of these in a step."""
BETWEEN_S = 8.0
"""Seconds of a step on policy in which devices pass weights, or do neither."""


class PublishedStep(NamedTuple):
    """A row: the model, devices of the whole cluster and of an engine, mean tokens of a sequence,
    and seconds of a step; `ahead` is how many steps generation is off."""

    name: str
    model: str
    devices: int
    of_engine: int
    tokens: float
    step_s: float
    ahead: int


ROWS = (
    PublishedStep("8B, on policy (0.3)", "8b", 8, 1, 895, 112.0, 0),
    PublishedStep("8B, on policy (0.4)", "8b", 16, 1, 1060, 97.7, 0),
    PublishedStep("8B, one off (0.4)", "8b", 16, 1, 1129, 74.6, 1),
    PublishedStep("32B, on policy (0.4)", "32b", 32, 4, 3206, 393.0, 0),
    PublishedStep("32B, one off (0.4)", "32b", 64, 4, 3207, 215.0, 1),
    PublishedStep("30B-A3B, on policy (0.8)", "30b-a3b", 32, 2, 3203, 192.0, 0),
    PublishedStep("30B-A3B, one off (0.8)", "30b-a3b", 32, 2, 3203, 152.0, 1),
)


def forecast_s(row: PublishedStep) -> float:
    """Seconds of a step, forecast: on policy those of generation, and then those of training."""
    sides = 1 + bool(row.ahead)
    engines, trainers = row.devices // sides // row.of_engine, row.devices // sides
    config = msgspec.convert(
        {
            "task": {"eval_size": 0},
            "engine": {
                "kind": "scripted",
                "slots": -(-SAMPLES * sides // engines),
                "context_tokens": LONGEST + PROMPT,
            },
            "rollout": {
                "actors": engines,
                "group_size": MEMBERS,
                "max_new_tokens": LONGEST - PROMPT,
                "filter": "none",
            },
            "staleness": {"depth": row.ahead, "max_lag": row.ahead},
            "train": {"batch_groups": SAMPLES // MEMBERS, "micro_tokens": 65_536},
            "reward": {"concurrency": 10**5},
        },
        Config,
    )
    model, mean = MODELS[row.model], row.tokens - PROMPT
    trained_us = 4 / 3 * token_us("h100", model)
    lengths = LengthModel(mean=1.15 * mean if mean > 2000 else mean, sigma=0.5, prompt=PROMPT)
    models = ClusterModel(
        engine=engine_of(DEVICES["h100"], model, context=PROMPT + mean / 2, devices=row.of_engine),
        length=lengths,
        trainer=TrainerModel(token_us=trained_us if row.ahead else 0.0, step_s=UPDATES * UPDATE_S),
        network=preset(f"h100-{row.model}", config).network,
    )
    trained_s = 1e-6 * trained_us * SAMPLES * mean / trainers
    after = 0.0 if row.ahead else trained_s + BETWEEN_S
    return forecast(config, models, Cluster(engines, trainers), 4.0).step_s + after


def main() -> None:
    print(f"{'row':<28}{'NeMo-RL: s/step':>16}{'tokens/s/GPU':>14}{'forecast':>10}{'ratio':>8}")
    for row in ROWS:
        seconds = forecast_s(row)
        speed = SAMPLES * row.tokens / row.step_s / row.devices
        print(
            f"{row.name:<28}{row.step_s:>16.1f}{speed:>14,.0f}{seconds:>10.1f}"
            f"{seconds / row.step_s:>8.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
