"""Settings that contradict rollouts that fork (`rollout.fork`): what would bias the gradient, and
what knows of no forks."""

from __future__ import annotations

from collections.abc import Iterator

from asyncrl.config.losses import loss_mean, objective_of
from asyncrl.config.schema import Config
from asyncrl.config.schema.section import Contradictions

OFF = "or fork to off"


def fork_contradictions(config: Config) -> Contradictions:
    """Contradictions of forks. Each would bias the gradient, or could not run."""
    if config.rollout.fork == "off":
        return
    yield from _of_sizes(config)
    for keys, wrong, why in [*_unknown(config), *_biased(config)]:
        if wrong:
            yield ("rollout.fork", *keys), f"{why}, {OFF}"


def _of_sizes(config: Config) -> Contradictions:
    rollout = config.rollout
    roots, rest = divmod(rollout.group_size, rollout.fork_leaves)
    if rest or roots < 2:
        yield (
            ("rollout.group_size", "rollout.fork_leaves"),
            "a group begins with group_size / fork_leaves rollouts, and the baseline of one is of "
            "the others: make group_size a multiple of fork_leaves, at least twice as large",
        )
    elif rollout.k_min > roots:
        yield (
            ("rollout.k_min", "rollout.fork_leaves"),
            f"a group whose responses are short has {roots} rollouts, and would never be trained: "
            f"lower k_min to {roots} or less, or fork_leaves",
        )
    if rollout.fork_after >= rollout.max_new_tokens:
        yield (
            ("rollout.fork_after", "rollout.max_new_tokens"),
            "a response of so many tokens is complete before it can fork: lower fork_after",
        )


def _unknown(config: Config) -> Iterator[tuple[tuple[str, ...], bool, str]]:
    """Keys, whether they are set so, and why that knows of no forks."""
    rollout, train = config.rollout, config.train
    yield ("agent.run",), bool(config.agent.run), "an agent forks by calling twice: remove run"
    yield (
        ("foreign.source",),
        config.foreign.source != "none",
        "foreign answers are not branches of a tree: set source to none",
    )
    yield ("share.path",), bool(config.share.path), "runs share only whole answers: remove path"
    yield (
        ("rollout.sizing",),
        rollout.sizing != "fixed",
        "forks set the size of a group: set sizing to fixed",
    )
    yield (
        ("train.replay_groups",),
        train.replay_groups > 0,
        "trees cannot be replayed: set replay_groups to 0",
    )
    yield (
        ("train.router_replay",),
        train.router_replay,
        "the experts of a parent's tokens are not a fork's: set router_replay to false",
    )
    yield (
        ("staleness.finish_on",),
        config.staleness.finish_on == "own",
        "a fork begins under a later version than its parent: set finish_on to mixed",
    )


def _biased(config: Config) -> Iterator[tuple[tuple[str, ...], bool, str]]:
    """Keys, whether they are set so, and why that would bias the gradient of a tree."""
    rollout, train = config.rollout, config.train
    yield (
        ("train.advantage",),
        train.advantage != "rloo" or train.credit != "episode",
        "a shared token has the sum of what is below it, which is exact with leave-one-out rewards "
        "alone: set advantage to rloo and credit to episode",
    )
    yield (
        ("train.unit",),
        train.unit != "group",
        "a tree is trained whole: set unit to group",
    )
    yield (
        ("train.keep",),
        train.keep != "all",
        "a tree without some of its leaves is biased: set keep to all",
    )
    yield (
        ("rollout.prune",),
        rollout.prune != "none",
        "a tree without some of its leaves is biased: set prune to none",
    )
    yield (
        ("rollout.truncated",),
        rollout.truncated == "mask",
        "tokens that a cut response shares with others would be masked too: set truncated to keep",
    )
    yield (
        ("train.group_weight",),
        train.group_weight == "mean",
        "the number of leaves depends on the responses: set group_weight to none",
    )
    yield (
        ("train.loss_mean",),
        loss_mean(train) == "rollout",
        "the mean over a fork's own tokens would weigh short branches more: set loss_mean to token "
        "or constant",
    )
    objective = objective_of(train)
    yield (
        ("train.objective",),
        objective.by_rollout or objective.ratio not in ("none", "token"),
        f"{train.objective} has one ratio for a rollout, and a fork has a part of one: set "
        "objective to clip",
    )
    by_rollout = [one.kind for one in config.staleness.correction if one.by_rollout]
    yield (
        ("staleness.correction",),
        bool(by_rollout),
        f"{', '.join(by_rollout)} judges a rollout by all of its tokens, and a fork has a part of "
        "them: use corrections of tokens (icepop, token_tis)",
    )
    for table, policy in (("reference", config.reference), ("teacher", config.teacher)):
        yield (
            (f"{table}.coefficient",),
            policy.coefficient > 0,
            "its term would count each branch as a rollout of its own: set coefficient to 0",
        )
