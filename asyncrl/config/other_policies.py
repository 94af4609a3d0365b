"""Settings of the policies that do not learn: reference and teacher. What contradicts itself in
them, and what `check` says of them.

Every contradiction names its keys and a remedy, as `rules.contradictions` does. That a policy has
the model's vocabulary is looked at where files are read (`asyncrl.launch.model_directories`).
"""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

from asyncrl.config.engines import capabilities
from asyncrl.config.flow import max_group_size
from asyncrl.config.losses import advantage_of, drops_equal
from asyncrl.config.schema import Config, ReferenceConfig, TeacherConfig

Contradictions = Iterator[tuple[tuple[str, ...], str]]


def policy_contradictions(config: Config) -> Contradictions:
    """Those of `[reference]`, `[teacher]` and `[supervised]`."""
    reference, teacher = config.reference, config.teacher
    yield from _named("reference", config, reference)
    yield from _named("teacher", config, teacher)
    if teacher.coefficient and not teacher.path:
        yield (
            ("teacher.coefficient", "teacher.path"),
            "there is no teacher: name its model directory in teacher.path (of one that a "
            "server has, the directory of its tokenizer)",
        )
    if reference.reset_every and (reference.path or reference.server):
        yield (
            ("reference.reset_every", "reference.path", "reference.server"),
            "a reference that becomes the current policy begins as the model that the run starts "
            "from: remove path and server, or set reset_every to 0",
        )
    if config.staleness.proximal == "ema" and not config.train.ema:
        yield (
            ("staleness.proximal", "train.ema"),
            "there is no average of the weights: set ema to its decay, as 0.9",
        )
    if config.evaluation.weights == "ema":
        yield from _evaluated_average(config)
    if bool(config.supervised.coefficient) != bool(config.supervised.path):
        yield (
            ("supervised.coefficient", "supervised.path"),
            "examples need both: set coefficient and path, or neither",
        )
    if reference.coefficient and reference.kl_in == "reward":
        yield from _in_reward(config)


def _evaluated_average(config: Config) -> Contradictions:
    """Rules of an evaluation of the average."""
    if not config.train.ema:
        yield (
            ("evaluation.weights", "train.ema"),
            "there is no average to evaluate: set ema to its decay, as 0.99, or weights to current",
        )
    if not capabilities(config.engine.kind).keeps_averages:
        yield (
            ("evaluation.weights", "engine.kind"),
            "this engine keeps no average beside the weights that training is sampled with: set "
            "weights to current and evaluate model-ema apart, or set kind to embedded",
        )
    if config.staleness.finish_on == "own":
        yield (
            ("evaluation.weights", "staleness.finish_on"),
            "engines keep each version's own weights for the rollouts that end under it, and a "
            "version's average in the same place: set finish_on to mixed, or weights to current",
        )


def _named(name: str, config: Config, policy: ReferenceConfig | TeacherConfig) -> Contradictions:
    if not policy.coefficient and (policy.path or policy.server):
        yield (
            (f"{name}.coefficient", f"{name}.path", f"{name}.server"),
            f"with a coefficient of 0 the {name} does nothing: set coefficient, or remove path "
            "and server",
        )
    if policy.api_key_file and not policy.server:
        yield (
            (f"{name}.api_key_file", f"{name}.server"),
            "a key is for a server: set server, or remove api_key_file",
        )
    if not policy.server:
        return
    found = urlsplit(policy.server)
    if found.scheme not in ("http", "https") or not found.hostname:
        yield (f"{name}.server",), "an address is http://host:port"
    if config.rollout.temperature != 1:
        yield (
            (f"{name}.server", "rollout.temperature"),
            "a server scores tokens at temperature 1, and divergence is of the policies that "
            "sample: set temperature to 1, or give the model in path alone",
        )


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
            "optimizer begins anew"
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
            "anew for each update",
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
