"""Minibatches of turns, the last ones first, with the ratio that is carried to earlier turns:
against a plain loop in float64."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch
from test_learner import run
from test_updates import GROUPS, Plain, apart, groups, learner
from training_world import TEMPERATURE, Rollout, alone, micro_batch

from asyncrl.algorithms.minibatches.minibatch_rule import ByGroup, MinibatchRule
from asyncrl.algorithms.minibatches.seeupo import SeeUpo
from asyncrl.config.strategies import StrategyError
from asyncrl.training.held import HeldBatch, HeldPart, carry
from asyncrl.training.learner import Learner

SEEUPO: dict[str, Any] = {"minibatch_by": "seeupo", "objective": "gspo"}


def episodes(seed: int) -> list[Rollout]:
    """Groups whose rollouts have from one turn to three, one of them without a token."""
    every = groups(seed, noise=0.05)
    for place, rollout in enumerate(every):
        length = len(rollout.response)
        cuts = [length // 3, length // 3 if place == 4 else length // 2, length][2 - place % 3 :]
        rollout.turns = [
            (turn, end - start)
            for turn, (start, end) in enumerate(zip([0, *cuts], cuts, strict=False))
        ]
    return every


def turn_of(rollout: Rollout) -> list[int]:
    return [turn for turn, count in rollout.turns for _ in range(count)]


def clip(value: float) -> float:
    return min(max(value, 0.8), 1.2)


def trained(
    every: list[Rollout], *, steps: int = 1, carried: bool = True
) -> tuple[Plain, list[float]]:
    """The policy after an update of each turn, and the factors of the rollouts at the end."""
    plain = Plain()
    for _ in range(steps):
        factor = [1.0] * len(every)
        with torch.no_grad():
            start = [alone(plain.model, r, TEMPERATURE).tolist() for r in every]
        for turn in (2, 1, 0):
            some = [
                [t for t, at in enumerate(turn_of(r)) if at == turn and r.mask[t]] for r in every
            ]
            losses = []
            for n, rollout in enumerate(every):
                if some[n]:
                    rewards = [r.reward for r in every if r.group == rollout.group]
                    a = (rollout.reward - sum(rewards) / len(rewards)) * factor[n]
                    logs = alone(plain.model, rollout, TEMPERATURE)[some[n]]
                    before = torch.tensor([rollout.behaviour[t] for t in some[n]])
                    mean = (logs - before).mean().exp()
                    losses.append(-torch.minimum(mean * a, mean.clamp(0.8, 1.28) * a))
            plain.update(torch.stack(losses).mean())
            with torch.no_grad():
                now = [alone(plain.model, r, TEMPERATURE).tolist() for r in every]
            for n, here in enumerate(some):
                if here and carried:
                    change = sum(now[n][t] - start[n][t] for t in here) / len(here)
                    factor[n] = clip(factor[n] * clip(math.exp(change)))
    return plain, factor


def test_the_weights_are_those_of_a_plain_loop() -> None:
    every = episodes(1)
    plain, factor = trained(every)
    assert any(value in (0.8, 1.2) for value in factor) and any(0.8 < v < 1.2 for v in factor)
    subject = learner(**SEEUPO)
    parts = [every[:5], every[5:9], every[9:]]  # groups lie across micro-batches
    _, metrics, counts = run(subject, parts)
    assert apart(subject, plain) < 1e-6
    assert metrics["updates"] == 3 and subject.version == 1
    assert [counts[r.number].trained for r in every] == [sum(r.mask) for r in every]
    assert apart(subject, trained(every, carried=False)[0]) > 1e-5
    run(subject, [every[:9], every[9:]])
    assert apart(subject, trained(every, steps=2)[0]) < 2e-6, "factors begin again with 1"


def test_of_one_turn_it_is_a_step_of_one_update() -> None:
    every = groups(2)
    assert len(every) == sum(GROUPS)
    found = [learner(), learner(minibatch_by="seeupo")]
    for subject in found:
        run(subject, [every[:7], every[7:]])
    for one, other in zip(*(subject.model.parameters() for subject in found), strict=True):
        assert torch.equal(one, other)


def test_strands_of_a_rollout_have_one_factor() -> None:
    """Two sequences of rollout 8 and one of rollout 5; a token that was masked, and one that is no
    number, count for nothing."""
    facts: Any = SimpleNamespace(
        mask=torch.tensor([True, True, False, True, True]),
        sample_index=torch.tensor([0, 0, 0, 1, 2]),
        turn=torch.tensor([0, 0, 0, 1, 0]),
    )
    samples: Any = [SimpleNamespace(rollout=n) for n in (8, 8, 5)]
    start, one = torch.tensor([-1.0, -2.0, -1.0, -1.0, -3.0]), torch.ones(3, dtype=torch.float64)
    blank = torch.zeros(5)
    held = HeldBatch(samples, facts, blank + 2, blank, start, None, None, blank, one)
    first: Any = SimpleNamespace(tokens=torch.tensor([3]))
    carry(SeeUpo(), [HeldPart(held, first)], [facts.mask[3:4]], [torch.tensor([-0.9])])
    tenth = math.exp(0.1)
    assert held.factors.tolist() == pytest.approx([tenth, tenth, 1.0])
    assert held.weighed.tolist() == pytest.approx([2 * tenth] * 4 + [2.0])
    later: Any = SimpleNamespace(tokens=torch.tensor([0, 1, 2, 4]))
    scores = torch.tensor([-1.2, math.nan, 5.0, -2.7])
    carry(SeeUpo(), [HeldPart(held, later)], [facts.mask[later.tokens]], [scores])
    fewer = math.exp(-0.1)  # ratio of e^-0.2 times that of e^0.1, both within the bounds
    assert held.factors.tolist() == pytest.approx([fewer, fewer, 1.2])


def test_a_turn_counts_whole_whatever_part_of_its_rollout_its_strand_is() -> None:
    found = []
    for share in (0.2, 1.0):
        every = groups(6)
        batch, buffers = micro_batch(every, every)
        samples = [
            msgspec.structs.replace(s, share=share if n % 3 else 1.0)
            for n, s in enumerate(batch.samples)
        ]
        subject = learner(loss_mean="rollout", minibatch_by="seeupo")
        subject.accumulate(msgspec.structs.replace(batch, samples=samples), buffers)
        subject.step()
        found.append([p.detach().clone() for p in subject.model.parameters()])
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


class Halves(MinibatchRule):
    """A rule that returns what it may not."""

    def numbers(self, groups: Any, turns: Any, count: int) -> Any:
        return groups / 2


def test_a_rule_that_returns_no_numbers_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    subject: Learner = learner(passes=2)
    monkeypatch.setattr(subject, "_minibatches", Halves())
    with pytest.raises(StrategyError, match="an integer of at least 0 for each token"):
        run(subject, [groups(3)])


def test_groups_are_divided_evenly_in_their_order() -> None:
    places = torch.tensor([0, 0, 1, 2, 3, 4, 4])
    for count in range(1, 8):
        found = ByGroup().numbers(places, torch.zeros_like(places), count).tolist()
        assert found == [place * count // 5 for place in places.tolist()]
