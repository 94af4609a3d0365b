"""A toy of the main job, for choices of what is generated: it learns in a second where that takes
minutes, so each way has many seeds.

A prompt asks for 3 of 24 skills, and is solved if the token of each is right; the policy has four
logits for a skill. So prompts are of any difficulty, from never to nearly always solved, and what
one teaches helps others: the 512 prompts return, and nothing can be learned by heart. Each step
generates groups, with the product's curricula, sizes, growth, history and advantages (grpo), until
32 are trained, on policy. `half_step` trains 16, `no_filter_2` 64, of which about half have equal
rewards: what a filter generates for its 32.

The table has what each way took until held-out prompts are solved with a chance of 0.8: steps,
generated tokens, the share in groups of equal rewards, those generated for each trained; and over
the first way's with the same seed, the tokens and the trained tokens (medians over seeds).

    python bench/skills.py [--seeds 8] [--ways plain,half]
    python bench/skills.py --shared       # four runs that share groups (SAPO), and four that do not
"""

from __future__ import annotations

import argparse
import statistics
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from selection import UntilBoth

from asyncrl.algorithms.advantages.normalization import all_equal, normalized
from asyncrl.algorithms.selection.beginnings import JudgedBeginning
from asyncrl.algorithms.selection.curriculum import Curriculum, Difficulty, InOrder, PromptOrder
from asyncrl.algorithms.selection.dars import Dars
from asyncrl.algorithms.selection.group_size import ByDifficulty, Fixed, Sizing
from asyncrl.algorithms.selection.growth import GrowingGroup
from asyncrl.algorithms.selection.judged_group import JudgedMember
from asyncrl.algorithms.selection.live_group import LiveGroup, LiveMember
from asyncrl.algorithms.selection.prompt_history import History
from asyncrl.algorithms.selection.prune import NoPruning, PruneRule
from asyncrl.algorithms.selection.prune_balance import Balance
from asyncrl.algorithms.selection.prune_converged import Converged
from asyncrl.algorithms.selection.prune_unlikely import Unlikely
from asyncrl.config.selection_names import grows
from asyncrl.messages import PromptFacts

Numbers = NDArray[np.float64]
Answers = NDArray[np.int64]
PROMPTS, HELD_OUT, SKILLS, ASKED, OPTIONS = 512, 256, 24, 3, 4
GROUPS, STEPS, GOAL = 32, 1000, 0.8
RATE, BETAS = 0.05, (0.9, 0.99)
RUNS, CLIP = 4, (0.2, 0.28)
SHARED = {"8 own": (8, 0), "4 own": (4, 0), "4 own, 4 foreign": (4, 4)}


class Way(NamedTuple):
    """A choice: sizes, the curriculum, whether equal rewards are filtered, whether groups of all
    sizes count alike (`train.group_weight = "mean"`), the groups of a step, and the rule that is
    asked about each rollout after its first token."""

    sizing: Sizing
    curriculum: type[Curriculum] = InOrder
    filters: bool = True
    mean: bool = False
    groups: int = GROUPS
    prune: PruneRule = NoPruning(0.5)


WAYS = {
    "plain": Way(Fixed(8, 8)),
    "half": Way(Fixed(4, 4)),
    "twice": Way(Fixed(16, 16)),
    "eightfold": Way(Fixed(64, 64)),
    "half_step": Way(Fixed(8, 8), groups=GROUPS // 2),
    "no_filter": Way(Fixed(8, 8), filters=False),
    "no_filter_2": Way(Fixed(8, 8), filters=False, groups=2 * GROUPS),
    "unlikely": Way(Fixed(8, 8), prune=Unlikely(0.5)),
    "balance": Way(Fixed(8, 8), prune=Balance(0.5)),
    "converged": Way(Fixed(8, 8), prune=Converged(0.2)),
    "chosen": Way(Fixed(8, 8), Difficulty),
    "sized": Way(ByDifficulty(8, 48)),
    "dars": Way(Dars(8, 40)),
    "dars_mean": Way(Dars(8, 40), mean=True),
    "both": Way(UntilBoth(8, 48)),
    "both_small": Way(UntilBoth(4, 16)),
    "chosen_sized": Way(ByDifficulty(8, 48), Difficulty),
    "chosen_both": Way(UntilBoth(8, 48), Difficulty),
    "chosen_small": Way(UntilBoth(4, 16), Difficulty),
}


class Took(NamedTuple):
    """The steps and tokens that a run took to the goal."""

    steps: int
    generated: int
    trained: int
    equal: int


class Policy:
    """Four logits for each skill, of which the first is the right token's; Adam."""

    def __init__(self, seed: int) -> None:
        self.draw = np.random.default_rng(seed)
        self.logits = np.zeros((SKILLS, OPTIONS))
        self.logits[:, 0] = self.draw.normal(0.0, 1.5, SKILLS)
        self.moments = np.zeros((2, SKILLS, OPTIONS))
        self.asked = np.array(
            [self.draw.permutation(SKILLS)[:ASKED] for _ in range(PROMPTS + HELD_OUT)]
        )
        self.steps = 0

    @property
    def chances(self) -> Numbers:
        powers = np.exp(self.logits)
        return np.asarray(powers / powers.sum(axis=1, keepdims=True))

    @property
    def accuracy(self) -> float:
        """The mean chance that a held-out prompt is solved."""
        return float(self.chances[self.asked[PROMPTS:], 0].prod(axis=1).mean())

    def answers(self, prompt: int, count: int, chances: Numbers) -> Answers:
        """Sampled answers, a token for each skill."""
        bounds = chances[self.asked[prompt]].cumsum(axis=1)
        drawn = self.draw.random((count, ASKED, 1))
        return np.asarray(np.minimum((drawn > bounds).sum(axis=2), OPTIONS - 1))

    def update(self, gradient: Numbers) -> None:
        self.steps += 1
        for moment, beta, value in zip(
            self.moments, BETAS, (gradient, gradient * gradient), strict=True
        ):
            moment *= beta
            moment += (1 - beta) * value
        first, second = (
            moment / (1 - beta**self.steps)
            for moment, beta in zip(self.moments, BETAS, strict=True)
        )
        self.logits += RATE * first / (np.sqrt(second) + 1e-8)


def run(way: Way, seed: int) -> Took:
    """Train until the goal, or for STEPS."""
    policy, history = Policy(seed), History()
    curriculum = way.curriculum(PromptOrder(PROMPTS, seed=seed, epochs=0))
    generated = trained = equal = 0
    while policy.accuracy < GOAL and policy.steps < STEPS:
        chances, gradient = policy.chances, np.zeros((SKILLS, OPTIONS))
        live, counted, groups, judged = set[int](), 0.0, 0, list[JudgedBeginning]()
        while groups < way.groups:
            following = curriculum.next(history, live)
            assert following is not None
            prompt = following.prompt_index
            live.add(prompt)
            history.admit(*following)
            answers, rewards = group(policy, way, history, prompt, chances)
            if not isinstance(way.prune, NoPruning):
                begun = LiveGroup(
                    begin(policy, prompt, answers, chances), 0, facts(history, prompt)
                )
                rest = survivors(way.prune, begun, history, policy)
                generated += len(answers) - len(rest)
                answers, rewards = answers[rest], [rewards[n] for n in rest]
                judged += [
                    JudgedBeginning(begun.beginning(begun.members[n]), reward == 1)
                    for n, reward in zip(rest, rewards, strict=True)
                ]
            history.record(prompt, rewards, len(rewards))
            generated += answers.size
            if all_equal(rewards):
                equal += answers.size
                if way.filters:
                    continue
            trained += answers.size
            weight = 1 / len(rewards) if way.mean else 1.0
            counted += weight * answers.size
            values, groups = normalized(rewards), groups + 1
            for place, skill in enumerate(policy.asked[prompt]):
                pulls = np.bincount(answers[:, place], values, OPTIONS)
                gradient[skill] += weight * (pulls - sum(values) * chances[skill])
        policy.update(gradient / counted)
        for one in judged:
            history.judge(one.beginning, one.right)
    return Took(policy.steps, generated, trained, equal)


def group(
    policy: Policy, way: Way, history: History, prompt: int, chances: Numbers
) -> tuple[Answers, list[float]]:
    """The answers of a group, which may grow, and their rewards."""
    answers = policy.answers(prompt, way.sizing.size(history, prompt), chances)
    while True:
        rewards = [float(not row.any()) for row in answers]
        if not grows(way.sizing):
            return answers, rewards
        members = [JudgedMember(reward, right=reward == 1) for reward in rewards]
        most = way.sizing.grow(GrowingGroup(len(answers), members))
        if most == len(answers):
            return answers, rewards
        answers = np.concatenate([answers, policy.answers(prompt, most - len(answers), chances)])


def together(own: int, foreign: int, seed: int) -> Took:
    """Four runs at a time, which begin alike, on the same prompts: each has `own` answers and up to
    `foreign` ones of the others in a group (SAPO), whose ratios are clipped. The mean of a run."""
    policies = [Policy(seed) for _ in range(RUNS)]
    for n, policy in enumerate(policies):
        policy.draw = np.random.default_rng([seed, n])
    stream, position, total = PromptOrder(PROMPTS, seed=seed, epochs=0), 0, Counter[str]()
    while statistics.fmean(policy.accuracy for policy in policies) < GOAL:
        chances = np.array([policy.chances for policy in policies])
        gradients, groups = np.zeros_like(chances), [0] * RUNS
        while min(groups) < GROUPS:
            prompt, position = stream.prompt_index(position), position + 1
            asked = policies[0].asked[prompt]
            said = {
                n: policies[n].answers(prompt, own, chances[n])
                for n in range(RUNS)
                if groups[n] < GROUPS
            }
            total["generated"] += own * ASKED * len(said)
            for n, answers in said.items():
                pool = [(m, row) for m, rows in said.items() if m != n for row in rows]
                taken = policies[n].draw.permutation(len(pool))[:foreign]
                members = [(n, row) for row in answers] + [pool[at] for at in taken]
                rewards = [float(not row.any()) for _, row in members]
                total["equal" if all_equal(rewards) else "trained"] += own * ASKED
                if not all_equal(rewards):
                    groups[n] += 1
                    gradients[n, asked] += pulls_of(members, rewards, n, chances[:, asked])
        for policy, gradient in zip(policies, gradients, strict=True):
            policy.update(gradient / (GROUPS * (own + foreign) * ASKED))
    each = (total[name] // RUNS for name in ("generated", "trained", "equal"))
    return Took(policies[0].steps, *each)


def pulls_of(
    members: Sequence[tuple[int, Answers]], rewards: Sequence[float], run: int, chances: Numbers
) -> Numbers:
    """The gradient of a group by the logits of its skills; `chances` are those of each run."""
    pulls = np.zeros((ASKED, OPTIONS))
    for (source, row), value in zip(members, normalized(rewards), strict=True):
        for place, token in enumerate(row):
            ratio = float(chances[run, place, token] / chances[source, place, token])
            if ratio < 1 + CLIP[1] if value > 0 else ratio > 1 - CLIP[0]:
                pulls[place] -= value * ratio * chances[run, place]
                pulls[place, token] += value * ratio
    return pulls


def facts(history: History, prompt: int) -> PromptFacts:
    """The facts that a rule may know of the prompt."""
    return PromptFacts(prompt, posterior=history.posterior(prompt))


def begin(policy: Policy, prompt: int, answers: Answers, chances: Numbers) -> list[LiveMember]:
    """The members of a group after their first token."""
    skill = policy.asked[prompt][0]
    return [
        LiveMember(
            *("live", 1, np.int32(OPTIONS * skill + token).tobytes()),
            np.float32(np.log(chances[skill, token])).tobytes(),
        )
        for token in answers[:, 0]
    ]


def survivors(rule: PruneRule, begun: LiveGroup, history: History, policy: Policy) -> list[int]:
    """The members that the rule lets go on; at least two."""
    members = list(begun.members)
    for n, member in enumerate(members):
        known = begun._replace(members=members, asked=n, judged=history.judged)
        ending = rule.ends(known._replace(judged_count=history.judged_count))
        going = sum(one.state == "live" for one in members)
        ends = ending and going > 2 and policy.draw.random() >= ending.chance
        members[n] = member._replace(state="ended" if ends else "live", asked=True)
    return [n for n, member in enumerate(members) if member.state == "live"]


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--shared", action="store_true", help="runs that share groups, instead")
    args = parser.parse_args(argv)
    seeds = range(args.seeds)
    ways = {name: partial(run, WAYS[name]) for name in args.ways.split(",")}
    if args.shared:
        ways = {name: partial(together, *numbers) for name, numbers in SHARED.items()}
    heads = ("there", "steps", "generated", "equal", "per trained", "tokens", "trained")
    print(f"{'way':>18}" + "".join(f"{head:>13}" for head in heads))
    first: list[Took] = []
    for name, way in ways.items():
        took = [way(seed) for seed in seeds]
        first = first or took
        pairs = list(zip(took, first, strict=True))
        cells = (
            sum(one.steps < STEPS for one in took),
            f"{statistics.median(one.steps for one in took):.0f}",
            f"{statistics.median(one.generated for one in took):,.0f}",
            f"{statistics.median(one.equal / one.generated for one in took):.2f}",
            f"{statistics.median(one.generated / one.trained for one in took):.2f}",
            f"{statistics.median(one.generated / peer.generated for one, peer in pairs):.2f}",
            f"{statistics.median(one.trained / peer.trained for one, peer in pairs):.2f}",
        )
        print(f"{name:>18}" + "".join(f"{cell!s:>13}" for cell in cells), flush=True)


if __name__ == "__main__":
    main()
