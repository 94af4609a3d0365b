"""Trials of the rules that a configuration names, before a run starts: each is asked about a
made-up prompt or group. Invariant: refused is what no run could use, such as an unknown name, a
negative weight, or no member kept; not what a rule raises else, which may need what is not made up,
such as the parts of a reward."""

from __future__ import annotations

import random
from functools import partial

from asyncrl.algorithms.advantages import RewardedSamples
from asyncrl.algorithms.advantages.group_weight import weights_of
from asyncrl.algorithms.selection.curriculum import PromptOrder
from asyncrl.algorithms.selection.growth import GrowingGroup
from asyncrl.algorithms.selection.judged_group import JudgedMember
from asyncrl.algorithms.selection.prompt_history import History
from asyncrl.config import Config
from asyncrl.config.asked_rules import first_size, grown_size, kept_places, next_prompt
from asyncrl.config.flow import max_group_size
from asyncrl.config.loss_names import GROUP_WEIGHTS
from asyncrl.config.selection_names import CURRICULA, KEEPS, SIZINGS, grows
from asyncrl.config.strategies import StrategyError, blamed, unknown_name
from asyncrl.messages import PromptFacts

PROMPTS = 64
"""Most prompts of the made-up stream."""
FACTS = (PromptFacts(0), PromptFacts(1, posterior=(9.0, 1.0)), PromptFacts(2, posterior=(1.0, 9.0)))
"""Of a new prompt, an easy one and a hard one."""


def try_rules(config: Config, prompts: int) -> None:
    """Ask each rule that chooses prompts (out of so many), sizes, members or weights. Raises
    ConfigError."""
    for trial in (partial(_curriculum, prompts=prompts), _sizing, _keep, _weight):
        try:
            trial(config)
        except StrategyError as error:
            cause = error.__cause__
            if cause is None or isinstance(cause, ValueError) or unknown_name(cause):
                raise error.before_a_run from cause


def _curriculum(config: Config, prompts: int) -> None:
    name = config.task.curriculum
    kind = CURRICULA.find(name)
    with blamed("curriculum", name):
        rule = kind(PromptOrder(min(prompts, PROMPTS), seed=config.run.seed, epochs=0))
    next_prompt(name, rule, History(), set(), prompts)


def _sizing(config: Config) -> None:
    name, most = config.rollout.sizing, max_group_size(config)
    kind = SIZINGS.find(name)
    with blamed("sizing", name):
        rule = kind(config.rollout.group_size, most)
    size = first_size(name, rule, History(), 0, most)
    if grows(rule) and size < most:
        for facts, right in zip(FACTS, (size // 2, size, 0), strict=True):
            grown_size(name, rule, GrowingGroup(size, _members(size, right), facts), most)


def _keep(config: Config) -> None:
    name, size = config.train.keep, config.rollout.group_size
    kind = KEEPS.find(name)
    with blamed("keep rule", name):
        rule = kind()
    members = _members(size, (size + 1) // 2)
    kept_places(name, rule, members, config.train.keep_members, random.Random(0))


def _weight(config: Config) -> None:
    name, size = config.train.group_weight, config.rollout.group_size
    kind = GROUP_WEIGHTS.find(name)
    rewards = {n: [1.0] * (size // 2) + [0.0] * (size - size // 2) for n in range(len(FACTS))}
    lengths = {n: [8] * size for n in rewards}
    with blamed("group weight", name):
        given = RewardedSamples([], rewards, {}, lengths=lengths, prompts=dict(enumerate(FACTS)))
        weights_of(kind(), given)


def _members(size: int, right: int) -> list[JudgedMember]:
    """Members of which so many are right, of different lengths."""
    return [
        JudgedMember(float(n < right), n < right, tokens=8 + n, logprob=-0.5) for n in range(size)
    ]
