"""Sums over judged responses: what a policy answers, for people. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from operator import add
from typing import NamedTuple, Self

import numpy as np

from asyncrl.experience.episode import Turn, rewritten
from asyncrl.experience.rollout import Rollout
from asyncrl.messages import Scored

MOST_FIGURES = 64
"""Names of figures that a step has, at most: those of several verifiers."""
MOST_ROLES = 16
"""Roles of agents' calls that a step has figures of, at most."""


class RoleSums(NamedTuple):
    """Sums over the turns in one role: their number, their tokens, and of those that have a reward
    their number and rewards."""

    turns: int = 0
    tokens: int = 0
    rewarded: int = 0
    reward: float = 0.0

    @classmethod
    def of(cls, turn: Turn) -> Self:
        """Those of one turn."""
        return cls(1, turn.tokens, int(turn.reward is not None), turn.reward or 0.0)

    def merge(self, other: RoleSums) -> RoleSums:
        """The sums of both."""
        return RoleSums(*map(add, self, other))


class ResponseSums(NamedTuple):
    """Sums over `responses` that have a reward: of their rewards, of those that are `exact` (fully
    right) and `truncated` (cut at their budget), of their `tokens`, and of the `surprise` of these
    (minus the log-probability that they were sampled with, in nats). Of episodes also their calls
    behind the first one (`later`), and those of them in whose context a reply was `rewritten`.

    `figures` are those of verifiers, each with its number of responses and their sum; `roles` the
    sums of turns by the role that an agent named.

    >>> some = ResponseSums(2, reward=1.0, exact=1, truncated=0, tokens=10, surprise=5.0)
    >>> some.metrics()["reward"], some.metrics()["entropy"]
    (0.5, 0.5)
    """

    responses: int = 0
    reward: float = 0.0
    exact: int = 0
    truncated: int = 0
    tokens: int = 0
    surprise: float = 0.0
    later: int = 0
    rewritten: int = 0
    figures: Mapping[str, tuple[int, float]] = {}
    roles: Mapping[str, RoleSums] = {}

    @classmethod
    def of(cls, rollouts: Iterable[Rollout]) -> Self:
        """Those of the rollouts that have a reward and still their tokens."""
        sums = cls()
        for rollout in rollouts:
            if isinstance(rollout.verdict, Scored):
                logprobs = np.frombuffer(rollout.behaviour, "<f4")
                sums = sums.merge(
                    cls(
                        1,
                        rollout.verdict.reward,
                        int(rollout.verdict.exact),
                        int(rollout.truncated),
                        rollout.tokens,
                        -float(logprobs.sum(dtype=np.float64)),
                        max(0, len(rollout.turns) - 1),
                        rewritten(rollout.turns, rollout.strands),
                        {name: (1, value) for name, value in rollout.verdict.figures.items()},
                        _by_role(rollout.turns),
                    )
                )
        return sums

    def merge(self, other: ResponseSums) -> Self:
        """The sums of both."""
        sums = type(self)(*map(add, self[:-2], other[:-2]))
        return sums._replace(
            figures=_merged(self.figures, other.figures), roles=_both(self.roles, other.roles)
        )

    def metrics(self) -> dict[str, float]:
        """The number of `responses`, and means by name: `reward`, `exact` and `truncated` (shares),
        `response_tokens`, and `entropy`, nats a token (the surprise of what was sampled is the
        entropy in expectation). Of episodes their `turns`, and the share of the calls behind the
        first one that are `rewritten`; of each figure of a verifier its mean over the responses
        that have it, as `figure_` and its name; of each role its `role_NAME_turns` in a response,
        the `role_NAME_tokens` of a turn, and the `role_NAME_reward` of a turn that has one. Nothing
        where there is no response."""
        if not self.responses:
            return {}
        of_episodes = {
            "turns": 1 + self.later / self.responses,
            "rewritten": self.rewritten / max(1, self.later),
        }
        return {
            "responses": float(self.responses),
            "reward": self.reward / self.responses,
            "exact": self.exact / self.responses,
            "truncated": self.truncated / self.responses,
            "response_tokens": self.tokens / self.responses,
            "entropy": self.surprise / self.tokens if self.tokens else 0.0,
            **(of_episodes if self.later else {}),
            **{f"figure_{name}": total / count for name, (count, total) in self.figures.items()},
            **self._of_roles(),
        }

    def _of_roles(self) -> dict[str, float]:
        found: dict[str, float] = {}
        for name, role in sorted(self.roles.items()):
            found[f"role_{name}_turns"] = role.turns / self.responses
            found[f"role_{name}_tokens"] = role.tokens / role.turns
            if role.rewarded:
                found[f"role_{name}_reward"] = role.reward / role.rewarded
        return found


def _by_role(turns: Iterable[Turn]) -> dict[str, RoleSums]:
    """The sums of turns that have a role."""
    found: dict[str, RoleSums] = {}
    for turn in turns:
        if turn.role:
            found = _both(found, {turn.role: RoleSums.of(turn)})
    return found


def _both(some: Mapping[str, RoleSums], others: Mapping[str, RoleSums]) -> dict[str, RoleSums]:
    """The sums of roles of both; of those that one has already, where together they are too
    many."""
    found = dict(some)
    for name, sums in others.items():
        if name in found or len(found) < MOST_ROLES:
            found[name] = found.get(name, RoleSums()).merge(sums)
    return found


def _merged(
    some: Mapping[str, tuple[int, float]], others: Mapping[str, tuple[int, float]]
) -> dict[str, tuple[int, float]]:
    """The sums of figures of both; of those that one has already, where together they are too
    many."""
    found = dict(some)
    for name, (count, total) in others.items():
        before = found.get(name, (0, 0.0))
        if name in found or len(found) < MOST_FIGURES:
            found[name] = before[0] + count, before[1] + total
    return found
