"""A league against naive self-play on a matrix game whose equilibrium is known in closed form.

The game is rock, paper, scissors with other stakes: paper beats rock for 1, scissors beat paper for
2, rock beats scissors for 3. It is symmetric, so its value is 0 and a policy's exploitability is
the most that an answer wins against it; its equilibrium plays rock, paper and scissors in the ratio
2 : 3 : 1, with an exploitability of 0. A policy is the softmax of three logits, and learns by
REINFORCE from groups of eight games with the mean of the group as baseline, as a run does.

In naive self-play the opponent is the policy itself. In a league it is a past version, kept every
20 steps and drawn by asyncrl's own rules (docs/policies.md), at most 16 of them. Two policies are
judged: the last one, and the mixture of the last 16 that were kept, which a league can play.

    python bench/league.py [--seeds 8] [--steps 2000] [--lr 0.2]
"""

from __future__ import annotations

import argparse
import statistics
from collections import Counter, defaultdict

import numpy as np
from numpy.typing import NDArray

from asyncrl.algorithms.selection.league import LeagueRule, PastVersion, drawn, superfluous
from asyncrl.config.selection_names import LEAGUES

WON = np.array([[0.0, -1.0, 3.0], [1.0, 0.0, -2.0], [-3.0, 2.0, 0.0]])
"""The stakes that rock, paper and scissors (rows) win against each (columns)."""
EQUILIBRIUM = np.array([2.0, 3.0, 1.0]) / 6.0
GROUPS, GAMES = 8, 8
"""Groups of a step, and games of a group, which has one opponent."""
EVERY, HELD = 20, 16

Policy = NDArray[np.float64]


def exploitability(policy: Policy) -> float:
    """The most that an answer wins against a policy.

    >>> exploitability(EQUILIBRIUM) < 1e-12, exploitability(np.array([1.0, 0.0, 0.0]))
    (True, 1.0)
    """
    return float((WON @ policy).max())


def softmax(logits: Policy) -> Policy:
    weights = np.exp(logits - logits.max())
    return weights / weights.sum()


class League:
    """The past versions, and what they have won, from 0 (lost by 3) to 1."""

    def __init__(self, rule: LeagueRule, seed: int) -> None:
        self._rule, self._seed = rule, seed
        self.kept = dict[int, Policy]()
        self._games, self._won = Counter[int](), defaultdict[int, float](float)

    def keep(self, step: int, policy: Policy) -> None:
        self.kept[step] = policy
        if len(self.kept) > HELD:
            del self.kept[superfluous([*self.kept])]

    def draw(self, group: int) -> int:
        past = [
            PastVersion(step, games := self._games[step], self._won[step] / max(1, games))
            for step in sorted(self.kept)
        ]
        return drawn(self._rule, past, f"{self._seed}/{group}")

    def end(self, step: int, its: NDArray[np.float64]) -> None:
        self._games[step] += len(its)
        self._won[step] += float(((its + 3.0) / 6.0).sum())


def sampled(policies: list[Policy], draws: np.random.Generator) -> NDArray[np.int64]:
    """Choices in the games of each group: [groups, games]."""
    chances = np.cumsum(policies, 1)[:, None, :2]
    return (draws.random((len(policies), GAMES, 1)) > chances).sum(-1)


def learned(way: str, seed: int, steps: int, lr: float) -> tuple[float, float]:
    """Exploitability of the last policy, and of the mixture of the last that were kept."""
    draws = np.random.default_rng(seed)
    logits = draws.normal(0.0, 1.0, 3)
    league = None if way == "naive" else League(LEAGUES.find(way)(), seed)
    recent = list[Policy]()
    for step in range(steps):
        policy = softmax(logits)
        if step % EVERY == 0:
            recent = [*recent, policy][-HELD:]
            if league is not None:
                league.keep(step, policy)
        groups = range(step * GROUPS, (step + 1) * GROUPS)
        versions = [] if league is None else [league.draw(group) for group in groups]
        against = [policy] * GROUPS if league is None else [league.kept[one] for one in versions]
        mine = sampled([policy] * GROUPS, draws)
        won = WON[mine, sampled(against, draws)]
        for version, of_group in zip(versions, won, strict=False):
            assert league is not None, "it drew the versions"
            league.end(version, -of_group)
        advantages = won - won.mean(1, keepdims=True)
        logits = logits + lr * (advantages[..., None] * (np.eye(3)[mine] - policy)).mean((0, 1))
    mixture = recent if league is None else [*league.kept.values()]
    return exploitability(softmax(logits)), exploitability(np.mean(mixture, 0))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--lr", type=float, default=0.2)
    options = parser.parse_args()
    for way in ("naive", *LEAGUES):
        found = [learned(way, seed, options.steps, options.lr) for seed in range(options.seeds)]
        for what, column in zip(("last policy", "mixture"), zip(*found, strict=True), strict=True):
            print(
                f"{way}, {what}: exploitability median {statistics.median(column):.3f}, "
                f"worst {max(column):.3f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
