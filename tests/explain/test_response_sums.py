"""Figures of responses: recounted from the events by plain sums, over any split of them."""

from __future__ import annotations

import math
import struct

from asyncrl.experience import events as e
from asyncrl.experience.episode import Turn
from asyncrl.experience.experience import Experience
from asyncrl.explain.response_sums import MOST_ROLES, ResponseSums, RoleSums
from asyncrl.messages import Finish, NoVerdict, Scored

RESPONSES: list[tuple[list[float], Finish, Scored | NoVerdict]] = [
    ([-1.0, -2.0], "stop", Scored(1.0, figures={"brief": 1.0})),
    ([-0.5], "length", Scored(0.25, figures={"brief": 0.0, "steps": -4.0})),
    ([-4.0, -0.25, -1.0], "length", Scored(0.0)),
    ([-9.0], "length", NoVerdict("timeout")),
]
"""Log-probabilities, finish and verdict of each member of a group."""


def judged() -> Experience:
    x = Experience()
    x.apply(e.Published(0))
    x.apply(e.Admitted(0, 0, len(RESPONSES), "train", 0, bytes(4), 16))
    for number, (logprobs, finish, verdict) in enumerate(RESPONSES):
        x.apply(e.Leased(number, "rollout-0", 1))
        behaviour = struct.pack(f"<{len(logprobs)}f", *logprobs)
        x.apply(e.Extended(number, 1, 0, 0, bytes(len(behaviour)), behaviour))
        x.apply(e.Sealed(number, 1, finish))
        x.apply(e.Judged(number, verdict))
    return x


def test_figures_are_means_over_responses_with_a_reward() -> None:
    rollouts = judged().groups[0].members
    scored = [r for r in RESPONSES if isinstance(r[2], Scored)]
    tokens = [logprob for logprobs, _, _ in scored for logprob in logprobs]
    expected = {
        "responses": 3.0,
        "reward": 1.25 / 3,
        "exact": 1 / 3,
        "truncated": 2 / 3,
        "response_tokens": len(tokens) / 3,
        "entropy": -math.fsum(tokens) / len(tokens),
        "figure_brief": 0.5,
        "figure_steps": -4.0,
    }
    assert ResponseSums.of(rollouts).metrics() == expected
    parts = ResponseSums.of(rollouts[:1]).merge(ResponseSums.of(rollouts[1:]))
    assert parts == ResponseSums.of(rollouts)
    assert ResponseSums().metrics() == ResponseSums.of(rollouts[3:]).metrics() == {}


def test_episodes_have_turns_and_the_share_of_replies_that_came_back_otherwise() -> None:
    sums = ResponseSums(4, tokens=8, later=6, rewritten=3).metrics()
    assert (sums["turns"], sums["rewritten"]) == (2.5, 0.5)
    assert "turns" not in ResponseSums(4, tokens=8).metrics(), "rollouts of one turn have none"


def test_turns_have_figures_of_each_role_that_agents_named() -> None:
    """Two episodes: a planner that is rewarded once, two turns of a critic, one without a role."""
    turns = [
        Turn(4, "stop", 0.5, role="planner"),
        Turn(2, "stop", role="planner"),
        Turn(3, "stop"),
        Turn(5, "stop", -1.0, role="critic"),
        Turn(1, "stop", 0.5, role="critic"),
    ]
    rollouts = judged().groups[0].members[:2]
    rollouts[0].turns, rollouts[1].turns = turns[:3], turns[3:]
    sums = ResponseSums.of(rollouts)
    assert sums == ResponseSums.of(rollouts[:1]).merge(ResponseSums.of(rollouts[1:]))
    assert {name: x for name, x in sums.metrics().items() if name.startswith("role_")} == {
        "role_planner_turns": 1.0,
        "role_planner_tokens": 3.0,
        "role_planner_reward": 0.5,
        "role_critic_turns": 1.0,
        "role_critic_tokens": 3.0,
        "role_critic_reward": -0.25,
    }
    many = ResponseSums(1, roles={f"r{n}": RoleSums(1, 1) for n in range(MOST_ROLES)})
    assert len(many.merge(sums).roles) == MOST_ROLES, "no more than these"
