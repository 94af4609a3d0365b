"""Settings of the policies that do not learn: reference and teacher. What contradicts itself in
them, and what `check` says of them.

Every contradiction names its keys and a remedy, as `rules.contradictions` does. That a policy has
the model's vocabulary is looked at where files are read (`asyncrl.launch.model_directories`).
"""

from __future__ import annotations

from collections.abc import Iterator

from asyncrl.config.flow import max_group_size
from asyncrl.config.losses import advantage_of, drops_equal
from asyncrl.config.schema import Config, ReferenceConfig, TeacherConfig
from asyncrl.config.schema.section import Contradictions


def policy_contradictions(config: Config) -> Contradictions:
    """Those of a divergence in the reward."""
    reference = config.reference
    if reference.coefficient and reference.kl_in == "reward":
        yield from _in_reward(config)


def _in_reward(config: Config) -> Contradictions:
    """Rules of a divergence that is part of the reward."""
    train = config.train
    advantage = advantage_of(train)
    if train.unit == "rollout":
        yield (
            ("reference.kl_in", "train.unit"),
            "the reward that a rollout is compared with would be without it: set unit to group, "
            "or kl_in to loss or advantage",
        )
    if advantage.whole_step or advantage.several_rewards:
        yield (
            ("reference.kl_in", "train.advantage"),
            f"{advantage.kind} compares rewards of other micro-batches, of which it is not known: "
            "set kl_in to loss or advantage, or choose another advantage",
        )
    if drops_equal(config):
        yield (
            ("reference.kl_in", "rollout.filter"),
            "rewards that are equal differ by it, and the filter would leave their groups out: "
            "set filter to none, or kl_in to loss or advantage",
        )
    if (tokens := max_group_size(config) * config.engine.context_tokens) > train.micro_tokens:
        yield (
            ("reference.kl_in", "train.micro_tokens", "rollout.group_size"),
            "a group's rewards are known where it is whole, so it must fit in one micro-batch: "
            f"raise micro_tokens to {tokens}, or set kl_in to loss or advantage",
        )


def policy_rows(config: Config) -> Iterator[tuple[str, str, str]]:
    """Name, value and meaning of each policy beside the one that learns."""
    reference, teacher = config.reference, config.teacher
    if reference.coefficient:
        place = {
            "loss": "in each token's loss",
            "reward": "its sum subtracted from the rollout's reward",
            "advantage": "subtracted from each token's advantage",
        }[reference.kl_in]
        reset = (
            f"; it becomes the current policy every {reference.reset_every:,} steps, and the "
            "optimizer starts again"
            if reference.reset_every
            else ""
        )
        yield (
            "reference policy",
            reference.server or reference.path or "the initial policy",
            f"{reference.coefficient:g} of the divergence ({reference.estimator}) {place}{reset}; "
            f"{_memory(reference)}",
        )
    if teacher.coefficient:
        yield (
            "teacher",
            teacher.server or teacher.path,
            f"{teacher.coefficient:g} of log(teacher / current) added to each token's advantage; "
            f"{_memory(teacher)}",
        )

    if (supervised := config.supervised).coefficient:
        yield (
            "examples",
            supervised.path,
            f"{supervised.coefficient:g} of the mean loss of {supervised.batch:,} of them, drawn "
            "again for each update",
        )
    if config.train.ema:
        evaluated = (
            "evaluations are of it"
            if config.evaluation.weights == "ema"
            else "evaluations are of the current weights (evaluation.weights)"
        )
        yield (
            "average of weights",
            f"{config.train.ema:g}",
            f"over about {1 / (1 - config.train.ema):,.0f} versions; the trainer's memory holds it "
            f"too, at the end it is in model-ema, and {evaluated}",
        )


def _memory(policy: ReferenceConfig | TeacherConfig) -> str:
    if policy.server:
        return "the trainer waits for its server with each micro-batch"
    return "the trainer's memory holds its weights too, without gradients"
