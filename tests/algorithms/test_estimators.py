"""Estimators of the gradient, each summed over every group that there can be: its cosine to the
true gradient, and its length. docs/research.md states the numbers, and this reads them from there.

The toy: a policy of two choices, of two and of three, with a reward of 0, 1/2 or 1; then a second
prompt, with weights of its own, which is solved less often; and then samples of an older policy.
"""

from __future__ import annotations

import math
import re
import struct
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations_with_replacement, product
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from asyncrl.algorithms.advantage_tensors import sample_weights
from asyncrl.algorithms.advantages import Advantage, MinVariance, RewardedSamples, Rloo
from asyncrl.algorithms.advantages.baseline import Prior, shrunk
from asyncrl.algorithms.advantages.by_chance import ByChance
from asyncrl.algorithms.advantages.by_root import by_stretch
from asyncrl.algorithms.advantages.group_mean import GroupMean
from asyncrl.algorithms.loss_mean import mean_weights
from asyncrl.algorithms.minibatches.seeupo import SeeUpo
from asyncrl.algorithms.objectives import ClipBounds, token_loss
from asyncrl.algorithms.selection.beginnings import Beginning
from asyncrl.algorithms.selection.filters import ZeroVariance
from asyncrl.algorithms.selection.group_size import ByDifficulty
from asyncrl.algorithms.selection.growth import GrowingGroup, GrowingSizing
from asyncrl.algorithms.selection.judged_group import JudgedGroup, JudgedMember
from asyncrl.algorithms.selection.live_group import LiveGroup, LiveMember
from asyncrl.algorithms.selection.prompt_history import History
from asyncrl.algorithms.selection.prune import PruneRule
from asyncrl.algorithms.selection.replay import Candidate, MostVariance
from asyncrl.algorithms.tokens import Tokens
from asyncrl.config.loss_names import (
    ADVANTAGES,
    CORRECTIONS,
    GROUP_WEIGHTS,
    MINIBATCH_RULES,
    OBJECTIVES,
)
from asyncrl.config.selection_names import PRUNES, SIZINGS, grows
from asyncrl.messages import DrawnMembers, ForkedMembers, PromptFacts, Sample
from asyncrl.staleness.corrections import Correction, apply_corrections

Gradient = NDArray[np.float64]
PAGE = Path(__file__).parents[2] / "docs" / "research.md"
PAPERS = PAGE.parent / "examples" / "papers"
MEMBERS = 4
PATHS = list(product(range(2), range(3)))


def softmax(logits: Sequence[float]) -> Gradient:
    grown = np.exp(np.array(logits))
    return np.asarray(grown / grown.sum())


class Policy(NamedTuple):
    """The first choice, and the second by the first."""

    first: Gradient
    second: tuple[Gradient, Gradient]

    def chance(self, a: int, b: int) -> float:
        return float(self.first[a] * self.second[a][b])

    def logs(self, a: int, b: int) -> list[float]:
        return [math.log(self.first[a]), math.log(self.second[a][b])]

    def scores(self, a: int, b: int) -> list[Gradient]:
        """The gradients of the two log-probabilities by the eight logits."""
        one, other = np.zeros(8), np.zeros(8)
        one[:2] = -self.first
        one[a] += 1
        other[2 + 3 * a : 5 + 3 * a] = -self.second[a]
        other[2 + 3 * a + b] += 1
        return [one, other]

    def entropies(self, a: int) -> list[float]:
        return [float(-(p * np.log(p)).sum()) for p in (self.first, self.second[a])]


POLICY = Policy(softmax([0.4, -0.3]), (softmax([0.2, -0.8, 0.5]), softmax([1.6, -0.4, -0.6])))
OLDER = Policy(softmax([0.25, -0.1]), (softmax([0.3, -0.6, 0.35]), softmax([1.35, -0.2, -0.5])))
TEACHER = Policy(softmax([0.1, 0.0]), (softmax([-1.0, 1.5, 0.5]), softmax([1.0, -2.0, 1.5])))
"""Of an expected reward of 0.82, where POLICY has 0.40."""
NEWER = Policy(POLICY.first, (softmax([0.0, -0.4, 0.5]), softmax([1.5, -0.7, 0.0])))
"""After an update of the second choice alone."""
REWARDS = (dict(zip(PATHS, (0.0, 1.0, 0.25, 0.75, 0.0, 1.0), strict=True)),)
"""Of the one prompt."""
TWO = tuple(
    dict(zip(PATHS, each, strict=True)) for each in ((0, 1, 1, 0, 1, 0), (0, 1, 0, 0, 0, 0))
)
"""Of two prompts, solved with a chance of 0.46 and of 0.10."""
FACTS = (PromptFacts(0, posterior=(3.0, 2.0)), PromptFacts(1, posterior=(1.0, 9.0)))


def whole(a: int, b: int, policy: Policy = POLICY) -> Gradient:
    return np.asarray(np.sum(policy.scores(a, b), axis=0))


def true(rewards: Sequence[Mapping[tuple[int, int], float]]) -> Gradient:
    of_prompts = [
        sum(POLICY.chance(*o) * r * whole(*o) for o, r in each.items()) for each in rewards
    ]
    return np.concatenate(of_prompts)


def classes(rewards: Mapping[tuple[int, int], float]) -> dict[float, tuple[float, Gradient]]:
    """The chance of each reward, and the mean score of a rollout that has it."""
    found = {}
    for value in sorted(set(rewards.values())):
        paths = [o for o in PATHS if rewards[o] == value]
        chances = np.array([POLICY.chance(*o) for o in paths])
        found[value] = float(chances.sum()), chances @ [whole(*o) for o in paths] / chances.sum()
    return found


def batch(groups: Mapping[int, Sequence[float]]) -> RewardedSamples:
    samples = [
        Sample(10 * group + n, group, 1, 2, r, [], member=n)
        for group, of_group in groups.items()
        for n, r in enumerate(of_group)
    ]
    lengths = {group: [2] * len(of_group) for group, of_group in groups.items()}
    prompts = {group: FACTS[group] for group in groups}
    return RewardedSamples(samples, groups, {}, lengths=lengths, prompts=prompts)


def values(advantage: Advantage, given: RewardedSamples) -> list[float]:
    found = advantage.of(given)
    assert not any(isinstance(each, Sequence) for each in found)
    return [each if isinstance(each, float) else 0.0 for each in found]


def by_reward(
    of_groups: Callable[[dict[int, Sequence[float]]], Sequence[float]],
    rewards: Sequence[Mapping[tuple[int, int], float]] = REWARDS,
    sizes: Sequence[int] = (MEMBERS, MEMBERS),
) -> Gradient:
    """The mean of the gradient over the groups of all prompts, where the factors of the rollouts
    follow from rewards alone."""
    tables = [classes(each) for each in rewards]
    draws = [product(t, repeat=size) for t, size in zip(tables, sizes, strict=False)]
    total = np.zeros((len(rewards), 8))
    for groups in product(*draws):
        chance = math.prod(t[r][0] for t, group in zip(tables, groups, strict=True) for r in group)
        factors = iter(of_groups(dict(enumerate(groups))))
        for prompt, group in enumerate(groups):
            for reward in group:
                total[prompt] += chance * next(factors) * tables[prompt][reward][1] / len(group)
    return total.ravel()


def orders(group: Sequence[object]) -> int:
    """The number of orders in which the members of a group may come."""
    return math.factorial(len(group)) // math.prod(map(math.factorial, Counter(group).values()))


def by_path(of_group: Callable[[Sequence[tuple[int, int]]], Sequence[Gradient]]) -> Gradient:
    """The mean of the gradient over the groups of the one prompt, from each rollout's part."""
    total = np.zeros(8)
    for group in combinations_with_replacement(PATHS, MEMBERS):
        chance = orders(group) * math.prod(POLICY.chance(*o) for o in group)
        total += chance * np.sum(of_group(group), axis=0) / MEMBERS
    return total


# ------------------------------------------------------------------------------- the estimators


def of_advantage(kind: str, rewards: Sequence[Mapping[tuple[int, int], float]]) -> Gradient:
    if kind == "min_variance":
        return by_path(of_least_variance)
    name = kind.partition(",")[0]
    advantage = ADVANTAGES.find(f"{PAPERS / 'd3s.py'}:D3s" if name == "d3s" else name)()

    def factors(groups: dict[int, Sequence[float]]) -> list[float]:
        given = batch(groups)
        if kind.startswith("first_k"):
            prior = Prior(0.3, 8.0) if "prior" in kind else Prior()
            samples = [
                msgspec.structs.replace(s, baseline=shrunk(others(groups, s), 2, prior, 4.0))
                for s in given.samples
            ]
            given = given._replace(samples=samples)
        return values(advantage, given)

    return by_reward(factors, rewards)


def others(groups: Mapping[int, Sequence[float]], sample: Sample) -> list[float]:
    """The rewards of the other members, in their order."""
    return [r for n, r in enumerate(groups[sample.group]) if n != sample.member]


def of_least_variance(group: Sequence[tuple[int, int]]) -> list[Gradient]:
    given = batch({0: [REWARDS[0][o] for o in group]})
    norms = torch.tensor([float(whole(*o) @ whole(*o)) for o in group])

    class Norms:
        def exact(self) -> tuple[torch.Tensor, torch.Tensor]:
            return torch.ones(len(group)), norms

        from_logits = exact

    found = values(MinVariance(), given._replace(gradients=Norms()))
    return [value * whole(*o) for value, o in zip(found, group, strict=True)]


def of_sharpened(kind: str, rewards: Sequence[Mapping[tuple[int, int], float]]) -> Gradient:
    """XRPO's bonus for right answers that are less likely than the mean of their group."""

    def parts(group: Sequence[tuple[int, int]]) -> list[Gradient]:
        found = ADVANTAGES.find("grpo")().of_group([rewards[0][o] for o in group])
        means = [math.fsum(POLICY.logs(*o)) / 2 for o in group]
        middle = math.fsum(means) / len(means)
        factors = []
        for o, value, of_one in zip(group, found, means, strict=True):
            assert value is not None
            novel = 2.5 * (1 - math.exp(of_one - middle))
            right = rewards[0][o] == 1
            factors.append(value + min(max(novel, 0.0), 0.5 * max(value, 0.0)) * right)
        return [factor * whole(*o) for factor, o in zip(factors, group, strict=True)]

    return by_path(parts)


def of_weight(kind: str, rewards: Sequence[Mapping[tuple[int, int], float]]) -> Gradient:
    rule = GROUP_WEIGHTS.find(kind)()

    def factors(groups: dict[int, Sequence[float]]) -> list[float]:
        given = batch(groups)
        weights = sample_weights(rule, given).double().tolist()
        return [w * v for w, v in zip(weights, values(Rloo(), given), strict=True)]

    return by_reward(factors, rewards)


def of_filter(kind: str, rewards: Sequence[Mapping[tuple[int, int], float]]) -> Gradient:
    """The mean over the groups that the filter leaves."""
    share = 0.0
    tables = [classes(each) for each in rewards]
    for table in tables:
        for group in product(table, repeat=MEMBERS):
            chance = math.prod(table[r][0] for r in group)
            share += chance * ZeroVariance().keeps(JudgedGroup(group)) / len(tables)

    def factors(groups: dict[int, Sequence[float]]) -> list[float]:
        kept = {n: ZeroVariance().keeps(JudgedGroup(of)) for n, of in groups.items()}
        given = batch(groups)
        return [
            v * kept[s.group] / share
            for v, s in zip(values(Rloo(), given), given.samples, strict=True)
        ]

    return by_reward(factors, rewards)


def of_replay(kind: str, rewards: Sequence[Mapping[tuple[int, int], float]]) -> Gradient:
    """One of two groups of the prompt, the one that is replayed."""
    table = classes(rewards[0])
    total = np.zeros(8)
    for groups in product(combinations_with_replacement(table, MEMBERS), repeat=2):
        chance = float(math.prod(map(orders, groups)))
        chance *= math.prod(table[r][0] for group in groups for r in group)
        candidates = [Candidate(n, 0, [group]) for n, group in enumerate(groups)]
        (chosen,) = MostVariance().choose(candidates, count=1)
        for value, r in zip(Rloo().of_group(groups[chosen]), groups[chosen], strict=True):
            total += chance * value * table[r][1] / MEMBERS
    return total


def of_sizing(kind: str, rewards: Sequence[Mapping[tuple[int, int], float]]) -> Gradient:
    """Groups of the sizes that a history of eight rollouts of each prompt gives, where rollouts
    count alike. A group's mean is the same whatever its size, so groups of four stand for it."""
    history = History()
    for prompt, solved in enumerate((4, 1)):
        history.admit(prompt, prompt)
        history.record(prompt, [1.0] * solved + [0.0] * (8 - solved), 8)
    sizes = [ByDifficulty(8, 32).size(history, prompt) for prompt in range(2)]
    assert sizes == [8, 11]
    return by_reward(
        lambda groups: [
            value * sizes[s.group] / (sum(sizes) / 2)
            for given in [batch(groups)]
            for value, s in zip(values(Rloo(), given), given.samples, strict=True)
        ],
        rewards,
    )


def of_growth(kind: str, rewards: Sequence[Mapping[tuple[int, int], float]]) -> Gradient:
    """Groups that grow from four rollouts to eight at most. Rollouts count alike, or with `mean`
    groups do; with `stages` a rollout is compared with those of earlier stages alone, and those of
    the first with each other."""
    name, _, way = kind.partition(", ")
    rule = SIZINGS.find(name)(MEMBERS, 2 * MEMBERS)
    assert grows(rule)
    of_prompts = []
    for prompt, each in enumerate(rewards):
        table, total = classes(each), np.zeros(8)
        for stages, chance in grown(rule, table, FACTS[prompt]).items():
            group = [r for stage in stages for r in stage]
            for value, r in zip(by_stage(stages, way), group, strict=True):
                total += chance * value * table[r][1]
        of_prompts.append(total)
    return np.concatenate(of_prompts)


Stages = tuple[tuple[float, ...], ...]
"""The rewards of each stage of a group."""


def grown(
    rule: GrowingSizing, table: Mapping[float, tuple[float, Gradient]], facts: PromptFacts
) -> dict[Stages, float]:
    """The chance of each group that has ended its growth."""
    ended: Counter[Stages] = Counter()
    open_: Counter[Stages] = Counter({(): 1.0})  # type: ignore[dict-item]
    size = {(): MEMBERS}
    while open_:
        stages, chance = open_.popitem()
        members = sum(map(len, stages))
        for more in combinations_with_replacement(sorted(table), size[stages] - members):
            now = (*stages, more)
            likely = chance * orders(more) * math.prod(table[r][0] for r in more)
            judged = [JudgedMember(r, right=r == 1) for stage in now for r in stage]
            wanted = rule.grow(GrowingGroup(len(judged), judged, facts))
            if wanted == len(judged) or len(judged) == 2 * MEMBERS:
                ended[now] += likely  # type: ignore[assignment]
            else:
                open_[now] += likely  # type: ignore[assignment]
                size[now] = wanted
    assert sum(ended.values()) == pytest.approx(1)
    return dict(ended)


def by_stage(stages: Stages, way: str) -> list[float]:
    """The factors of the members of a group, which add up to one group's of four."""
    group = [r for stage in stages for r in stage]
    if way == "stages":
        found = Rloo().of_group(stages[0])
        for n, stage in enumerate(stages[1:], 1):
            before = [r for earlier in stages[:n] for r in earlier]
            found = [*found, *(r - math.fsum(before) / len(before) for r in stage)]
        return [value / MEMBERS for value in found]
    given = batch({0: group})
    factor = float(sample_weights(GroupMean(), given)[0]) / GroupMean.counts if way else 1 / MEMBERS
    return [value * factor for value in values(Rloo(), given)]


def tokens_of(
    group: Sequence[tuple[int, int]], advantages: Sequence[float], sampler: Policy
) -> tuple[Tokens, torch.Tensor]:
    """Both tokens of each rollout, and their log-probabilities, which are learned."""
    current = torch.tensor([log for o in group for log in POLICY.logs(*o)], requires_grad=True)
    behaviour = torch.tensor([log for o in group for log in sampler.logs(*o)])
    count = len(current)
    tokens = Tokens(
        log_ratio=current - behaviour,
        mismatch=(current - behaviour).detach(),
        current=current,
        behaviour=behaviour,
        advantage=torch.tensor(advantages).float().repeat_interleave(2),
        lag=torch.full((count,), int(sampler is OLDER)),
        sample_index=torch.arange(len(group)).repeat_interleave(2),
        mask=torch.ones(count, dtype=torch.bool),
        entropy=torch.tensor([h for a, _ in group for h in POLICY.entropies(a)]),
        turn=torch.zeros(count, dtype=torch.int64),
        own=torch.full((count,), sampler is not TEACHER),
    )
    return tokens, current


def pulls(
    objective: str, corrections: Sequence[Correction], tokens: Tokens, current: torch.Tensor
) -> list[float]:
    """The factor of each token's score."""
    weighted = objective in ("reinforce", "clip")
    folded = apply_corrections(corrections, tokens, weighted=weighted)
    loss = token_loss(
        OBJECTIVES.find(objective)(), tokens._replace(mask=folded.kept), ClipBounds(hi=0.28)
    ).loss
    (found,) = torch.autograd.grad((folded.weight * loss).where(folded.kept, 0.0).sum(), current)
    return (-found).tolist()


def of_token_choice(kind: str, rewards: Sequence[Mapping[tuple[int, int], float]]) -> Gradient:
    found_by_name = CORRECTIONS.find(kind)
    correction = found_by_name(**{"share": 0.5} if found_by_name.rejects else {})

    def parts(group: Sequence[tuple[int, int]]) -> list[Gradient]:
        given = Rloo().of_group([rewards[0][o] for o in group])
        found = iter(pulls("reinforce", [correction], *tokens_of(group, given, POLICY)))
        return [next(found) * score for o in group for score in POLICY.scores(*o)]

    return by_path(parts)


def of_foreign(kind: str, rewards: Sequence[Mapping[tuple[int, int], float]]) -> Gradient:
    """Answers of a teacher that solves the prompt more often, whose probabilities are not known:
    so the trainer scores them, and their ratio is 1."""
    mean = sum(POLICY.chance(*o) * r for o, r in rewards[0].items())
    given = [rewards[0][o] - mean for o in PATHS]
    tokens, current = tokens_of(PATHS, given, TEACHER)
    found = pulls(kind, [], tokens._replace(log_ratio=current - current.detach()), current)
    total = np.zeros(8)
    for n, o in enumerate(PATHS):
        for pull, score in zip(found[2 * n : 2 * n + 2], POLICY.scores(*o), strict=True):
            total += TEACHER.chance(*o) * pull * score
    return total


def of_spliced(kind: str, rewards: Sequence[Mapping[tuple[int, int], float]]) -> Gradient:
    """Rollouts of which a part was replaced, trained as if the policy had drawn them. `cleaner`:
    the second option of the first choice is a failed call, and the first one its repair, after
    which the policy goes on. `scope`: the first choice stays, and the best second one follows.
    `half` of those that can be replaced are. Members are alike and independent, so the mean over
    groups is that of one member, less the mean reward."""
    name, _, way = kind.partition(", ")
    replaced, drawn = 0.5 if way else 1.0, np.zeros((2, 3))
    for a, b in PATHS:
        if name == "scope":
            after = np.eye(3)[max(range(3), key=lambda second, a=a: rewards[0][a, second])]  # type: ignore[misc]
            first = a
        else:
            after, first = (POLICY.second[0], 0) if a else (np.eye(3)[b], 0)
        drawn[a, b] += POLICY.chance(a, b) * (1 - replaced)
        drawn[first] += POLICY.chance(a, b) * replaced * after
    assert drawn.sum() == pytest.approx(1)
    mean = sum(drawn[o] * rewards[0][o] for o in PATHS)
    parts = [drawn[o] * (rewards[0][o] - mean) * whole(*o) for o in PATHS]
    return np.asarray(np.sum(parts, axis=0))


def of_older(kind: str, rewards: Sequence[Mapping[tuple[int, int], float]]) -> Gradient:
    """Samples of the older policy, less the expected reward."""
    objective, _, correction = kind.partition(" + ")
    corrections = [CORRECTIONS.find(correction)()] if correction else []
    mean = sum(POLICY.chance(*o) * r for o, r in rewards[0].items())
    given = [rewards[0][o] - mean for o in PATHS]
    found = pulls(objective, corrections, *tokens_of(PATHS, given, OLDER))
    total = np.zeros(8)
    for n, o in enumerate(PATHS):
        for pull, score in zip(found[2 * n : 2 * n + 2], POLICY.scores(*o), strict=True):
            total += OLDER.chance(*o) * pull * score
    return total


class Unclipped(SeeUpo):
    bound = 1e9


def of_minibatches(kind: str, rewards: Sequence[Mapping[tuple[int, int], float]]) -> Gradient:
    """The update of the second choice, a turn, and then that of the first; their gradients are
    `true_turns`."""
    name, _, way = kind.partition(", ")
    rule = Unclipped() if way else MINIBATCH_RULES.find(name)()

    def parts(group: Sequence[tuple[int, int]]) -> list[Gradient]:
        changes = [NEWER.logs(*o)[1] - POLICY.logs(*o)[1] for o in group]
        factors = rule.carried(torch.ones(MEMBERS).double(), torch.tensor(changes))
        given = Rloo().of_group([rewards[0][o] for o in group])
        return [
            value * (factor * POLICY.scores(*o)[0] + POLICY.scores(*o)[1])
            for factor, value, o in zip(factors.tolist(), given, group, strict=True)
        ]

    return by_path(parts)


def true_turns() -> Gradient:
    """The gradient of the first choice where the second is made by the newer policy, and that of
    the second by the old one."""
    return np.asarray(
        sum(
            r * (NEWER.chance(*o) * NEWER.scores(*o)[0] + POLICY.chance(*o) * POLICY.scores(*o)[1])
            for o, r in REWARDS[0].items()
        )
    )


ENDS = (1, 0)
"""The path of the toy for means of losses that stands for all that begin with 1: there a response
ends at once, and the others have LONGEST tokens, all but two of which are certain."""
LONGEST = 4
UNEVEN = {(0, 0): 0.0, (0, 1): 1.0, (0, 2): 0.25, ENDS: 0.6}


def uneven(o: tuple[int, int]) -> tuple[float, list[Gradient]]:
    """The chance of a path of that toy, and the scores of its tokens."""
    if o == ENDS:
        return float(POLICY.first[1]), POLICY.scores(*o)[:1]
    return POLICY.chance(*o), [*POLICY.scores(*o), *[np.zeros(8)] * (LONGEST - 2)]


def of_mean(kind: str, rewards: Sequence[Mapping[tuple[int, int], float]]) -> Gradient:
    """A step of one group, whose responses differ in length; its gradient is `true_uneven`."""
    total = np.zeros(8)
    for group in combinations_with_replacement(UNEVEN, MEMBERS):
        chance = orders(group) * math.prod(uneven(o)[0] for o in group)
        scores = [uneven(o)[1] for o in group]
        index = torch.tensor([n for n, of_one in enumerate(scores) for _ in of_one])
        counted = torch.ones(len(index), dtype=torch.bool)
        weights = mean_weights(kind, counted, index, torch.ones(MEMBERS), LONGEST)  # type: ignore[arg-type]
        factors = iter((weights.of_token.double() / weights.divisor).tolist())
        for value, of_one in zip(Rloo().of_group([UNEVEN[o] for o in group]), scores, strict=True):
            for score in of_one:
                total += chance * value * next(factors) * score
    return total


def true_uneven() -> Gradient:
    parts = [
        chance * UNEVEN[o] * np.sum(scores, axis=0)
        for o in UNEVEN
        for chance, scores in [uneven(o)]
    ]
    return np.asarray(np.sum(parts, axis=0))


class Known:
    """The chance of success by the first choice, known exactly, in the place of a prediction."""

    def __init__(self, rewards: Mapping[tuple[int, int], float]) -> None:
        self._of = [sum(POLICY.second[a][b] * rewards[a, b] for b in range(3)) for a in range(2)]
        self.mean = float(POLICY.first @ self._of)

    def learn(self, judged: Sequence[object], count: int) -> bool:
        return True

    def of(self, beginning: Beginning) -> float:
        return float(self._of[-round(beginning.logprob)])


def ways(rule: PruneRule, first: Sequence[int]) -> Iterator[tuple[float, list[float | None]]]:
    """The ways in which a group with these first choices may be pruned: the chance of each, and the
    chances with which members went on, None for one that did not. All have sampled their first
    choice; then they are asked about, one after another, and two must be left."""
    open_ = [(1.0, list[float | None]())]
    for at in range(len(first)):
        then = []
        for chance, before in open_:
            members = [
                LiveMember(
                    "ended" if n < at and before[n] is None else "live",
                    *(1, struct.pack("<i", a), struct.pack("<f", -a), n < at),
                )
                for n, a in enumerate(first)
            ]
            left = sum(member.state == "live" for member in members)
            ending = rule.ends(LiveGroup(members, at)) if left > 2 else None
            q = 1.0 if ending is None else ending.chance
            then += [(chance * q, [*before, q])] * (q > 0)
            then += [(chance * (1 - q), [*before, None])] * (q < 1)
        open_ = then
    yield from open_


def of_pruning(kind: str, rewards: Sequence[Mapping[tuple[int, int], float]]) -> Gradient:
    """The sum over the members that are trained, divided by the mean number of them."""
    name, _, way = kind.partition(", ")
    total, trained = np.zeros((len(rewards), 8)), 0.0
    for prompt, each in enumerate(rewards):
        rule = PRUNES.find(name)(0.9 if name == "unlikely" else 0.5)
        rule._odds = Known(each)  # type: ignore[attr-defined]
        for first in product(range(2), repeat=MEMBERS):
            for drawn, chances in ways(rule, first):
                here = [n for n, q in enumerate(chances) if q is not None]
                drawn *= math.prod(POLICY.first[a] for a in first)
                trained += drawn * len(here) / len(rewards)
                for second in product(range(3), repeat=len(here)):
                    paths = [(first[n], b) for n, b in zip(here, second, strict=True)]
                    chance = drawn * math.prod(POLICY.second[a][b] for a, b in paths)
                    given = batch({0: [each[o] for o in paths]})
                    advantage: Advantage = Rloo()
                    if way:
                        known = DrawnMembers(MEMBERS, [chances[n] or 0.0 for n in here])
                        advantage, given = ByChance(Rloo()), given._replace(drawn={0: known})
                    for value, o in zip(values(advantage, given), paths, strict=True):
                        total[prompt] += chance * value * whole(*o)
    return np.asarray(total.ravel() / trained)


class ForkedTree(NamedTuple):
    """A root whose first choice is `first`, with the second choice of each of its leaves, and what
    each counts for."""

    first: int
    second: tuple[int, ...]
    leaves: tuple[int, ...]


def grown_trees(kind: str) -> Iterator[tuple[float, ForkedTree]]:
    """Each tree that there can be, with its chance: it forks between the two choices, or not."""
    for a, b in PATHS:
        chance = POLICY.chance(a, b)
        if kind.startswith("surprise"):
            forks = a != int(POLICY.first.argmax())
        else:
            forks = kind != "seen" or b != int(POLICY.second[a].argmax())
        if not forks:
            yield chance, ForkedTree(a, (b,), (2 if kind != "surprise, counted" else 1,))
        for other in range(3) if forks else ():
            yield chance * float(POLICY.second[a][other]), ForkedTree(a, (b, other), (1, 1))


def of_forks(kind: str, rewards: Sequence[Mapping[tuple[int, int], float]]) -> Gradient:
    """Groups of two trees of up to two leaves, divided by the four leaves that these may have."""
    total = np.zeros((len(rewards), 8))
    for prompt, each in enumerate(rewards):
        for pair in product(grown_trees(kind), repeat=2):
            chance, trees = math.prod(p for p, _ in pair), [tree for _, tree in pair]
            earned = [[each[tree.first, b] for b in tree.second] for tree in trees]
            table = iter(_of_trees(kind, trees, earned))
            for tree in trees:
                for number, b in enumerate(tree.second):
                    before, after = POLICY.scores(tree.first, b)
                    value = next(table)
                    total[prompt] += chance * value[-1] * after
                    if number == 0:
                        total[prompt] += chance * value[0] * before
    return total.ravel() / MEMBERS


def _of_trees(
    kind: str, trees: Sequence[ForkedTree], earned: Sequence[Sequence[float]]
) -> Sequence[Sequence[float]]:
    """The values of each leaf's stretches: the first of a tree has the shared one, too."""
    flat = [reward for of_tree in earned for reward in of_tree]
    numbers = [n for n, tree in enumerate(trees) for _ in tree.second]
    if kind == "by depth":
        shared = ADVANTAGES.find("grpo")().of_group([math.fsum(r) / len(r) for r in earned])
        own = ADVANTAGES.find("grpo")().of_group(flat)
    elif kind == "all leaves":
        own = Rloo().of_group(flat)
        shared = [math.fsum(v for v, n in zip(own, numbers, strict=True) if n == m) for m in (0, 1)]
    else:
        below = [
            [(at + 1, 1)] if at + 1 < len(numbers) and numbers[at - 1 : at] != [n] == [m] else []
            for at, (n, m) in enumerate(zip(numbers, [*numbers[1:], -1], strict=True))
        ]
        leaves = [count for tree in trees for count in tree.leaves]
        return by_stretch(0, flat, ForkedMembers(numbers, leaves, below))
    return [[shared[n], v] for n, v in zip(numbers, own, strict=True)]


KINDS: dict[str, Callable[[str, Sequence[Mapping[tuple[int, int], float]]], Gradient]] = {
    "advantage": of_advantage,
    "group_weight": of_weight,
    "sharpened": of_sharpened,
    "filter": of_filter,
    "sizing": of_sizing,
    "growth": of_growth,
    "pruning": of_pruning,
    "forks": of_forks,
    "replay": of_replay,
    "tokens": of_token_choice,
    "older": of_older,
    "foreign": of_foreign,
    "spliced": of_spliced,
    "loss_mean": of_mean,
    "minibatch_by": of_minibatches,
}
OWN_TRUTHS = {of_mean: true_uneven, of_minibatches: true_turns}
"""The gradients of kinds whose toy is another one."""


class Row(NamedTuple):
    """A row of the page: its kind, its name, and what it states; a dash states nothing."""

    kind: str
    name: str
    stated: tuple[str, ...]


def rows() -> list[Row]:
    found = re.findall(r"^\| (\w+) \| `([^|]+)` \| ([-\d. –|]+) \|$", PAGE.read_text(), re.M)
    return [Row(kind, name, tuple(map(str.strip, said.split("|")))) for kind, name, said in found]


def cosine_and_length(found: Gradient, true: Gradient) -> tuple[float, float]:
    length = float(np.linalg.norm(found))
    return float(found @ true) / length / float(np.linalg.norm(true)), length


def test_the_page_has_a_row_of_each_kind() -> None:
    assert {row.kind for row in rows()} == KINDS.keys() and len(rows()) > 20


def test_the_true_gradient_is_large_enough_to_show_something() -> None:
    step = 1e-6
    up, down = (
        sum(softmax([0.4 + d, -0.3])[a] * POLICY.second[a][b] * REWARDS[0][a, b] for a, b in PATHS)
        for d in (step, -step)
    )
    assert true(REWARDS)[0] == pytest.approx((up - down) / (2 * step), rel=1e-6)
    assert abs(true(REWARDS)).max() > 0.05


@pytest.mark.parametrize("row", rows(), ids=lambda row: f"{row.kind} {row.name}")
def test_an_estimator_is_what_the_page_states(row: Row) -> None:
    """An unbiased one has a cosine of 1 to six more digits than the page has."""
    estimate, (one, length, two) = KINDS[row.kind], row.stated
    if (one, length) != ("–", "–"):
        g = OWN_TRUTHS[estimate]() if estimate in OWN_TRUTHS else true(REWARDS)
        cosine, found = cosine_and_length(estimate(row.name, REWARDS), g)
        found /= float(np.linalg.norm(g))
        assert (f"{cosine:.4f}", f"{found:.2f}") == (one, length)
        pooled = estimate is of_growth and "stages" not in row.name  # exact for 0 and 1: see below
        assert one != "1.0000" or pooled or cosine == pytest.approx(1, abs=1e-7)
    if two != "–":
        cosine, _ = cosine_and_length(estimate(row.name, TWO), true(TWO))
        assert f"{cosine:.4f}" == two


@pytest.mark.parametrize("way", ["", ", mean", ", stages"])
@pytest.mark.parametrize("name", [name for name in SIZINGS if grows(SIZINGS.find(name)(2, 4))])
def test_growth_keeps_the_direction_of_each_prompt_where_rewards_are_0_and_1(
    name: str, way: str
) -> None:
    """A rule that looks at rewards alone is a factor of the prompt: members are exchangeable."""
    found, right = of_growth(name + way, TWO), true(TWO)
    for prompt in (slice(0, 8), slice(8, 16)):
        cosine, _ = cosine_and_length(found[prompt], right[prompt])
        assert cosine == pytest.approx(1, abs=1e-7)
