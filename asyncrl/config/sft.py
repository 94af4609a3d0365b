"""A supervised run as settings: what `asyncrl sft` makes of a configuration. Invariant: the learner
that an RL run has minimizes exactly the mean negative log-likelihood of the marked tokens.

Each token of the data is trained as if it had been sampled by the present version, with the
advantage 1: `reinforce` is `-A log p`, and without corrections nothing weighs it. So there is no
second loss, and no second trainer.
"""

from __future__ import annotations

from msgspec.structs import replace

from asyncrl.config.errors import ConfigError
from asyncrl.config.schema import (
    Config,
    EngineConfig,
    EvaluationConfig,
    ModelConfig,
    PublicationConfig,
    RolloutConfig,
    StalenessConfig,
    TaskConfig,
    TrainConfig,
)

REWARD, BASELINE = 1.0, 0.0
"""Reward and baseline of each row: their difference is its advantage."""
LEARNED = frozenset(
    {
        "steps",
        "device",
        "ranks",
        "replicas",
        "context_ranks",
        "batch_groups",
        "step_tokens",
        "micro_tokens",
        "recompute_activations",
        "offload_activations",
        "attention",
        "router_aux",
        "router_bias_rate",
        "lr",
        "lr_warmup_steps",
        "lr_schedule",
        "weight_decay",
        "beta1",
        "beta2",
        "grad_clip",
        "ema",
        "eval_every",
        "checkpoint_every",
    }
)
"""Settings of `[train]` that mean in a supervised run what they mean in any other."""


def supervised_run(config: Config) -> Config:
    """The supervised run of a configuration. What only rewarded rollouts have (engines, rewards,
    staleness, publications, agents, other policies) is set to its default, so that the run.toml of
    an RL run can be used as it is. Raises ConfigError for what a supervised run cannot do."""
    if config.task.mix:
        raise ConfigError(
            "task.mix is set, and a supervised run learns one data set: leave it out, and put the "
            "rows into one file."
        )
    if config.cluster.kind != "local":
        raise ConfigError(
            f"cluster.kind is {config.cluster.kind!r}, and a supervised run stays on one machine: "
            "set it to local."
        )
    train = {name: getattr(config.train, name) for name in LEARNED}
    path = config.model.path
    return Config(
        task=replace(config.task, verifier=TaskConfig().verifier, curriculum="in_order"),
        # the bundled model learns here what its warm-up would teach it
        model=config.model if path else ModelConfig(warmup_steps=0, lora=config.model.lora),
        engine=EngineConfig(context_tokens=config.engine.context_tokens),
        evaluation=EvaluationConfig(),
        train=TrainConfig(objective="reinforce", advantage="first_k", unit="rollout", **train),
        staleness=StalenessConfig(proximal="behaviour", correction=()),
        # every token but the first may be learned, as the prediction of memory must know
        rollout=RolloutConfig(temperature=1.0, max_new_tokens=config.engine.context_tokens - 1),
        publication=PublicationConfig(),
        machine=config.machine,
        supervision=config.supervision,
        sft=replace(config.sft, run=True),
        run=config.run,
    )


def steps_of_epochs(config: Config, needed: int) -> int:
    """The steps of a run whose `task.epochs` take `needed` steps. The default of `train.steps` asks
    for nothing beside them, and larger ones end with the data. Raises ConfigError if other steps
    would end the run before its epochs."""
    epochs, steps = config.task.epochs, config.train.steps
    if steps < needed and steps != TrainConfig().steps:
        raise ConfigError(
            f"train.steps = {steps} would end the run before task.epochs = {epochs}, which "
            f"{'takes' if epochs == 1 else 'take'} {needed} steps of this data: set train.steps to "
            f"{needed} or more, or task.epochs to 0."
        )
    return needed
