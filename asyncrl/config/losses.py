"""Contradictions in the settings of the loss. Invariant: a loss that passes here is one that its
formulas define. The rules use the declarations of corrections, objective and advantage, and never
their names. Every rule names the keys that contradict each other and a remedy, as
`rules.contradictions` does.
"""

from __future__ import annotations

from typing import Any

from asyncrl.algorithms.advantages import Advantage, GroupAdvantage
from asyncrl.algorithms.advantages.credit import ByTurn, Credit
from asyncrl.algorithms.advantages.group_weight import GroupWeight
from asyncrl.algorithms.loss_mean import Mean
from asyncrl.algorithms.minibatches.minibatch_rule import MinibatchRule
from asyncrl.algorithms.objectives import ClipBounds, Objective
from asyncrl.algorithms.selection.filters import GroupFilter, NoFilter
from asyncrl.algorithms.selection.keep import KeepAll, KeepRule, number_kept
from asyncrl.config.loss_names import (
    ADVANTAGES,
    CREDITS,
    GROUP_WEIGHTS,
    MINIBATCH_RULES,
    OBJECTIVES,
)
from asyncrl.config.micro_tokens import micro_tokens
from asyncrl.config.schema import Config, StalenessConfig, TrainConfig
from asyncrl.config.schema.section import Contradictions
from asyncrl.config.selection_names import FILTERS, KEEPS


def loss_contradictions(config: Config) -> Contradictions:
    """Contradictions of corrections, objective, proximal policy and advantages, and of their
    tokens."""
    train, objective = config.train, objective_of(config.train)
    if "dual_clip" in objective.settings and train.dual_clip <= 1 + train.clip_hi:
        yield (
            ("train.dual_clip", "train.clip_hi"),
            "the second clip would overlap the first: dual_clip must be larger than 1 + clip_hi",
        )
    if objective.by_rollout and (mean := loss_mean(train)) != "rollout":
        yield (
            ("train.objective", "train.loss_mean"),
            f"{train.objective} is a loss of whole rollouts, but with {mean} long ones would count "
            "more: set loss_mean to auto or rollout",
        )
    if objective.of_foreign and config.foreign.source == "none":
        yield (
            ("train.objective", "foreign.source"),
            f"{train.objective} is for tokens that the policy did not sample, and there are none: "
            "set source, or objective to clip",
        )
    if objective.ratio != "none" and objective.bounded == "nowhere":
        yield from _unbounded(train, config.staleness)
    yield from _corrections(config)
    yield from _advantages(config)
    yield from _kept(config)
    yield from _minibatches(config)


def _minibatches(config: Config) -> Contradictions:
    train, agent = config.train, config.agent
    if minibatch_rule_of(train).by_turn:
        if not agent.run or agent.max_calls < 2:
            yield (
                ("train.minibatch_by", "agent.max_calls" if agent.run else "agent.run"),
                f"{train.minibatch_by} divides episodes by their turns, and there is one turn: "
                + ("raise max_calls" if agent.run else "set agent.run")
                + ", or minibatch_by to group",
            )
        for name in ("minibatches", "passes"):
            if getattr(train, name) > 1:
                yield (
                    ("train.minibatch_by", f"train.{name}"),
                    f"{train.minibatch_by} makes one update of each turn: set {name} to 1, or "
                    "minibatch_by to group",
                )
    elif not train.step_tokens and train.minibatches > train.batch_groups:
        yield (
            ("train.minibatches", "train.batch_groups"),
            "a minibatch has at least one whole group: lower minibatches to "
            f"{train.batch_groups}, or raise batch_groups",
        )


def objective_of(train: TrainConfig) -> Objective:
    """The objective that `train.objective` names."""
    return OBJECTIVES.find(train.objective)()


def advantage_of(train: TrainConfig) -> Advantage:
    """The advantage that `train.advantage` names."""
    return ADVANTAGES.find(train.advantage)()


def credit_of(train: TrainConfig) -> Credit:
    """The credit that `train.credit` names."""
    return CREDITS.find(train.credit)()


def group_weight_of(train: TrainConfig) -> GroupWeight:
    """The rule that `train.group_weight` names."""
    return GROUP_WEIGHTS.find(train.group_weight)()


def minibatch_rule_of(train: TrainConfig) -> MinibatchRule:
    """The rule that `train.minibatch_by` names."""
    return MINIBATCH_RULES.find(train.minibatch_by)()


def credited(train: TrainConfig) -> Advantage:
    """The advantage that a learner uses: that of `train.advantage`, turn by turn if the credit is
    by turn. Raises ValueError for one that cannot compare turns."""
    advantage, credit = advantage_of(train), credit_of(train)
    if not credit.by_turn:
        return advantage
    if not (isinstance(advantage, GroupAdvantage) and advantage.by_turn):
        raise ValueError(f"{advantage.kind} does not compare rewards to go")
    return ByTurn(advantage, credit)


def filter_of(config: Config) -> GroupFilter:
    """The filter that `rollout.filter` names. One that drops equal rewards drops none where the
    advantage finds a signal in them: relative to the step they may have one."""
    found = FILTERS.find(config.rollout.filter)()
    silent = found.drops_equal and advantage_of(config.train).equal_has_signal
    return NoFilter() if silent else found


def keep_of(train: TrainConfig) -> KeepRule:
    """The rule that `train.keep` names."""
    return KEEPS.find(train.keep)()


def drops_equal(config: Config) -> bool:
    """True if groups with equal rewards are left out."""
    return filter_of(config).drops_equal


def loss_mean(train: TrainConfig) -> Mean:
    """The mean over a step that `train.loss_mean` selects."""
    if train.loss_mean != "auto":
        return train.loss_mean
    return "rollout" if objective_of(train).by_rollout else "token"


def clip_bounds(train: TrainConfig) -> ClipBounds:
    """The bounds for objectives."""
    return ClipBounds(train.clip_lo, train.clip_hi, train.dual_clip)


def ratios_weigh(train: TrainConfig, staleness: StalenessConfig) -> bool:
    """True if the ratio of the corrections may weight the loss. It may not where the objective's
    own ratio is the same: that of current to behaviour policy."""
    return staleness.proximal != "behaviour" or objective_of(train).ratio == "none"


def updates(train: TrainConfig) -> int:
    """Number of weight updates in a step; of a step by turns the least one."""
    return train.minibatches * train.passes


def one_update(train: TrainConfig) -> bool:
    """True if each step is one update of the weights, whatever it trains."""
    return updates(train) == 1 and not minibatch_rule_of(train).by_turn


def clips_nothing(train: TrainConfig, staleness: StalenessConfig) -> bool:
    """True if the objective has a ratio, and that ratio is always 1. (Where a step is one update,
    current and recomputed policy are one.)"""
    alone = staleness.proximal == "recompute" and one_update(train)
    return alone and objective_of(train).ratio != "none"


def designed(staleness: StalenessConfig) -> frozenset[str]:
    """Corrections of the list that leave out tokens by design, not because they are off-policy."""
    return frozenset(entry.kind for entry in staleness.correction if entry.by_design)


def bounded_above(staleness: StalenessConfig) -> bool:
    """True if a correction bounds the ratio of kept tokens, which is that of current to behaviour
    policy where proximal is behaviour."""
    return any(entry.bounds_ratio for entry in staleness.correction)


def _unbounded(train: TrainConfig, staleness: StalenessConfig) -> Contradictions:
    if staleness.proximal != "behaviour" and not clips_nothing(train, staleness):
        yield (
            ("train.objective", "staleness.proximal"),
            "this objective does not bound its ratio, and corrections bound another one, of "
            "proximal to behaviour policy: set proximal to "
            "behaviour, or objective to clip",
        )
    elif staleness.proximal == "behaviour" and not (
        bounded_above(staleness) or any(entry.trust_region for entry in staleness.correction)
    ):
        yield (
            ("train.objective", "staleness.correction"),
            "this objective does not bound its ratio, and no listed correction does: list icepop, "
            "mis, k3, dppo or m2po, or set objective to clip",
        )


def _corrections(config: Config) -> Contradictions:
    correction, weigh = config.staleness.correction, ratios_weigh(config.train, config.staleness)
    for entry in correction:
        if entry.is_empty:
            yield (
                ("staleness.correction",),
                f"the band [lo, hi] of {entry.kind} is empty: lower lo or raise hi",
            )
    kinds = [entry.kind for entry in correction]
    if again := next((kind for kind in kinds if kinds.count(kind) > 1), None):
        yield (
            ("staleness.correction",),
            f"{again} is listed twice, so its rejections could not be told apart: list it once",
        )
    pure = [entry.kind for entry in correction if entry.only_weighs]
    if pure and not weigh:
        yield (
            ("staleness.proximal", "staleness.correction", "train.objective"),
            f"the objective's ratio is already to the behaviour policy, and {pure[0]} would weight "
            f"by it again: remove {pure[0]}, "
            "set proximal to boundary, or objective to reinforce",
        )
    weighing = [entry.kind for entry in correction if entry.weighs_by_ratio]
    if len(weighing) > 1 and weigh:
        yield (
            ("staleness.correction", "staleness.proximal", "train.objective"),
            f"both {weighing[0]} and {weighing[1]} weight by the ratio, which would count twice: "
            "list one of them",
        )


def _advantages(config: Config) -> Contradictions:
    rollout, train = config.rollout, config.train
    advantage = advantage_of(train)
    size: tuple[str, Any] = ("rollout.group_size", rollout.group_size)
    if rollout.sizing != "fixed":
        size = ("rollout.group_size_max", max(rollout.group_size, rollout.group_size_max))
    if rollout.group_size == 1 and drops_equal(config):
        yield (
            ("rollout.filter", "rollout.group_size"),
            "one reward never varies, so every group would be filtered: raise group_size or set "
            "filter to none",
        )
    keeps_all = isinstance(keep_of(train), KeepAll)
    odd = rollout.sizing == "fixed" and rollout.group_size % 2 == 1
    if advantage.odd_group and keeps_all and not odd:
        yield (
            ("train.advantage", size[0]),
            f"{train.advantage} compares a group with the member in its middle, which it does not "
            f"train: set group_size to {rollout.group_size + 1 - rollout.group_size % 2}, and "
            "sizing to fixed",
        )
    if train.unit == "rollout" and advantage.unit != "rollout":
        yield (
            ("train.unit", "train.advantage"),
            "a rollout that is trained before its siblings are judged cannot be compared with "
            "all of them: set advantage to first_k, "
            "or unit to group",
        )
    if train.unit == "group" and advantage.unit != "group":
        yield (
            ("train.unit", "train.advantage"),
            "where whole groups are trained every reward is known: set unit to rollout, or "
            "advantage to rloo",
        )
    yield from _turns_and_branches(config)
    if train.unit == "rollout" and train.replay_groups:
        yield (
            ("train.unit", "train.replay_groups"),
            "only whole groups are trained again: set unit to group, or replay_groups to 0",
        )
    if train.unit == "rollout" and rollout.k_min >= rollout.group_size:
        yield (
            ("train.unit", "rollout.k_min", "rollout.group_size"),
            "a rollout has group_size - 1 others to be compared with: lower k_min or raise "
            "group_size",
        )
    if advantage.needs_gradients and size[1] * config.engine.context_tokens > micro_tokens(config):
        yield (
            ("train.advantage", "train.micro_tokens", size[0], "engine.context_tokens"),
            "a group's baseline needs the gradient of each of its rollouts, so it must fit in "
            "one micro-batch: raise micro_tokens to "
            f"{size[1] * config.engine.context_tokens}, or choose another advantage",
        )


def _turns_and_branches(config: Config) -> Contradictions:
    """Contradictions of `train.credit` and `train.branches`."""
    train = config.train
    advantage, credit = advantage_of(train), credit_of(train)
    if credit.by_turn and not (isinstance(advantage, GroupAdvantage) and advantage.by_turn):
        yield (
            ("train.credit", "train.advantage"),
            f"{train.advantage} cannot compare returns turn by turn without a bias: set "
            "advantage to rloo or dr_grpo (and unit to group), or credit to episode",
        )
    if credit.of_branches and (not config.agent.run or config.agent.max_calls < 2):
        yield (
            ("train.credit", "agent.max_calls" if config.agent.run else "agent.run"),
            f"{train.credit} is for agents that call twice from one context: "
            + ("raise max_calls" if config.agent.run else "set agent.run")
            + ", or credit to episode",
        )
    if credit.of_branches and train.branches == "branch":
        yield (
            ("train.credit", "train.branches"),
            f"{train.credit} has added up all that lies below a token, and branch would count the "
            "token once more for each end: set branches to token",
        )
    if train.branches == "branch" and (mean := loss_mean(train)) != "token":
        yield (
            ("train.branches", "train.objective" if mean == "rollout" else "train.loss_mean"),
            "a branch counts whole only in a mean over all tokens: set loss_mean to token, with an "
            "objective of tokens, or branches to token",
        )


def _kept(config: Config) -> Contradictions:
    """Contradictions of `train.keep`."""
    rollout, train = config.rollout, config.train
    if isinstance(keep_of(train), KeepAll):
        if train.keep_members:
            yield (
                ("train.keep_members", "train.keep"),
                "every member is kept: set keep to the rule that chooses, or keep_members to 0",
            )
        return
    least = most = rollout.group_size
    size = "rollout.group_size"
    if rollout.sizing != "fixed":
        size, most = "rollout.group_size_max", max(least, rollout.group_size_max)
    if train.unit == "rollout":
        yield (
            ("train.keep", "train.unit"),
            "members are chosen of a whole group, and a rollout is trained before its siblings are "
            "judged: set unit to group, or keep to all",
        )
    if train.keep_members >= most:
        yield (
            ("train.keep_members", size),
            "every member would be kept: lower keep_members, or set keep to all",
        )
    if number_kept(least, train.keep_members) == 1 and drops_equal(config):
        yield (
            ("train.keep", "train.keep_members", "rollout.filter"),
            "one reward never varies, so every group would be filtered: raise keep_members, or set "
            "filter to none",
        )
    odd = train.keep_members % 2 == 1 and train.keep_members <= least
    if advantage_of(train).odd_group and not odd:
        yield (
            ("train.advantage", "train.keep_members"),
            f"{train.advantage} compares what is kept with the member in its middle, which it does "
            "not train: set keep_members to an odd number below group_size",
        )
