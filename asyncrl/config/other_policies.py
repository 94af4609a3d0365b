"""Settings of the policies that do not learn, reference and teacher: their contradictions, and
their rows in `check`.

Every contradiction names its keys and a remedy, as `rules.contradictions` does. The vocabulary of a
policy is checked where files are read (`asyncrl.launch.model_directories`).
"""

from __future__ import annotations

from collections.abc import Iterator

from asyncrl.config.flow import max_group_size
from asyncrl.config.losses import advantage_of, drops_equal
from asyncrl.config.micro_tokens import micro_tokens
from asyncrl.config.schema import Config, ReferenceConfig, TeacherConfig
from asyncrl.config.schema.section import Contradictions


def policy_contradictions(config: Config) -> Contradictions:
    """Contradictions of a divergence in the reward."""
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
            "the rewards that a rollout is compared with would lack it: set unit to group, "
            "or kl_in to loss or advantage",
        )
    if advantage.whole_step or advantage.several_rewards:
        yield (
            ("reference.kl_in", "train.advantage"),
            f"{advantage.kind} compares rewards of other micro-batches, for which it is unknown: "
            "set kl_in to loss or advantage, or choose another advantage",
        )
    if drops_equal(config):
        yield (
            ("reference.kl_in", "rollout.filter"),
            "it makes equal rewards differ, but the filter would drop their groups: "
            "set filter to none, or kl_in to loss or advantage",
        )
    if (tokens := max_group_size(config) * config.engine.context_tokens) > micro_tokens(config):
        yield (
            ("reference.kl_in", "train.micro_tokens", "rollout.group_size"),
            "a group's rewards are known only where it is whole, so it must fit in one "
            "micro-batch: "
            f"raise micro_tokens to {tokens}, or set kl_in to loss or advantage",
        )


def policy_rows(config: Config) -> Iterator[tuple[str, str, str]]:
    """Name, value and meaning of each policy beside the one that learns."""
    reference, teacher = config.reference, config.teacher
    if reference.coefficient:
        target = {
            "loss": "in each token's loss",
            "reward": "its sum subtracted from the rollout's reward",
            "advantage": "subtracted from each token's advantage",
        }[reference.kl_in]
        reset = (
            f"; it becomes the current policy every {reference.reset_every:,} steps, and the "
            "optimizer is reset"
            if reference.reset_every
            else ""
        )
        yield (
            "reference policy",
            reference.server or reference.path or "the initial policy",
            f"{reference.coefficient:g} of the divergence ({reference.estimator}) {target}{reset}; "
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
            "it is evaluated"
            if config.evaluation.weights == "ema"
            else "the current weights are evaluated (evaluation.weights)"
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
