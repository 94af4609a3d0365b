"""Several updates of one step: minibatches and passes, the exact proximal policy, corrections that
look at the whole of what is updated with; against a plain loop in float64."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from some_values import some
from test_learner import assert_close, run
from training_world import TEMPERATURE, Rollout, alone, build, micro_batch, rollouts

from asyncrl.config.schema import StalenessConfig, TrainConfig
from asyncrl.messages import Span
from asyncrl.staleness.corrections import IcePop, M2po, TopEntropy
from asyncrl.training.learner import Learner

LR, BETAS = 3e-3, (0.9, 0.99)
GROUPS = (4, 3, 2, 3)


def learner(
    correction: tuple[Any, ...] = (), proximal: str = "behaviour", **settings: Any
) -> Learner:
    train = TrainConfig(
        lr=LR, lr_warmup_steps=0, grad_clip=1e9, **{"advantage": "dr_grpo"} | settings
    )
    staleness = StalenessConfig(correction=correction, proximal=proximal)  # type: ignore[arg-type]
    return Learner(build("qwen3"), train, staleness, TEMPERATURE)


def groups(seed: int, noise: float = 0.3) -> list[Rollout]:
    """Four uneven groups, one after the other, of version 0."""
    every = rollouts(build("qwen3"), seed, count=sum(GROUPS), noise=noise, temperature=TEMPERATURE)
    ends = [sum(GROUPS[: at + 1]) for at in range(len(GROUPS))]
    for place, rollout in enumerate(every):
        rollout.group = sum(place >= end for end in ends)
        rollout.reward = float(place % 3)
        rollout.spans = [Span(0, 0, len(rollout.response))]
    return every


Token = tuple[torch.Tensor, float, float, float]
"""Current log-probability, behaviour's, that of the policy that the step starts from, advantage."""
LossOf = Callable[[Token], torch.Tensor | None]


class Plain:
    """A policy in float64, and AdamW by hand of one tensor at a time."""

    def __init__(self) -> None:
        self.model = copy.deepcopy(build("qwen3")).double().eval()
        self.parameters = list(self.model.parameters())
        self.mean = [torch.zeros_like(p) for p in self.parameters]
        self.square = [torch.zeros_like(p) for p in self.parameters]
        self.taken = 0

    def tokens(self, every: Sequence[Rollout], some: Sequence[Rollout], start: Any) -> list[Token]:
        found: list[Token] = []
        for rollout in some:
            rewards = [r.reward for r in every if r.group == rollout.group]
            advantage = rollout.reward - sum(rewards) / len(rewards)
            for t, current in enumerate(alone(self.model, rollout, TEMPERATURE)):
                if rollout.mask[t]:
                    found.append(
                        (
                            current,
                            rollout.behaviour[t],
                            float(start[rollout.number][t]),
                            advantage,
                        )
                    )
        return found

    def update(self, loss: torch.Tensor) -> None:
        self.model.zero_grad()
        loss.backward()
        self.taken += 1
        with torch.no_grad():
            for p, mean, square in zip(self.parameters, self.mean, self.square, strict=True):
                assert p.grad is not None
                mean += (1 - BETAS[0]) * (p.grad - mean)
                square += (1 - BETAS[1]) * (p.grad**2 - square)
                unbiased = mean / (1 - BETAS[0] ** self.taken)
                p -= LR * unbiased / ((square / (1 - BETAS[1] ** self.taken)).sqrt() + 1e-8)


def surrogate(ratio: torch.Tensor, a: float) -> torch.Tensor:
    return -torch.minimum(ratio * a, ratio.clamp(0.8, 1.28) * a)


def trained(every: list[Rollout], parts: list[list[Rollout]], passes: int, proximal: str) -> Plain:
    """The policy after all updates."""
    plain = Plain()
    with torch.no_grad():
        start = {r.number: alone(plain.model, r, TEMPERATURE).tolist() for r in every}
    for _ in range(passes):
        for part in parts:
            found = [
                surrogate((current - (begun if proximal == "recompute" else before)).exp(), a)
                for current, before, begun, a in plain.tokens(every, part, start)
            ]
            loss = torch.stack(found).mean()
            plain.update(loss)
    return plain


def apart(subject: Learner, plain: Plain) -> float:
    """Mean distance of a weight. (Adam's step of a weight whose gradient is nearly nothing is all
    rounding, so the largest distance says less.)"""
    reference = dict(plain.model.named_parameters())
    distances = [
        (p.detach().double() - reference[name].detach()).abs().flatten()
        for name, p in subject.model.named_parameters()
    ]
    return float(torch.cat(distances).mean())


@pytest.mark.parametrize("proximal", some(["recompute", "behaviour"]))
@pytest.mark.parametrize(("minibatches", "passes"), [(2, 1), (1, 2), (2, 2)])
def test_the_weights_are_those_of_a_plain_loop(
    proximal: str, minibatches: int, passes: int
) -> None:
    """The ratio is to the policy that the step starts from (`recompute`) or to the one that
    sampled, and not to that of the last update."""
    every = groups(1)
    halves = [[r for r in every if r.group < 2], [r for r in every if r.group >= 2]]
    plain = trained(every, halves if minibatches == 2 else [every], passes, proximal)
    subject = learner(proximal=proximal, minibatches=minibatches, passes=passes)
    parts = [every[:5], every[5:9], every[9:]]  # groups lie across micro-batches
    _, metrics, _ = run(subject, parts)
    assert apart(subject, plain) < 1e-6
    assert metrics["updates"] == minibatches * passes and metrics["skipped"] == 0
    assert subject.version == 1
    told = {count.rollout: count for count in subject.counts}
    for rollout in every:
        assert told[rollout.number].trained == sum(rollout.mask)
    one = learner(proximal=proximal)
    run(one, parts)
    assert apart(one, plain) > 3e-4


def test_passes_are_clipped_around_the_start_of_the_step() -> None:
    """The first update's ratio is 1; later ones leave the band. With one update nothing is
    clipped."""
    every = groups(2)
    _, alone_, _ = run(learner(proximal="recompute"), [every])
    _, several, _ = run(learner(proximal="recompute", passes=6), [every])
    assert alone_["clip_fraction"] == 0 < several["clip_fraction"]


def test_divergence_is_of_the_policy_that_the_step_starts_from() -> None:
    """Learning within a step is no mismatch, and no age."""
    every = groups(2, noise=0.0)
    _, metrics, _ = run(learner(passes=4), [every])
    assert metrics["k3"] < 1e-6 and metrics["log_ratio_abs"] < 1e-4


@pytest.mark.explore
@settings(max_examples=4)
@given(st.lists(st.integers(0, 2), min_size=12, max_size=12), st.integers(1, 6))
def test_any_split_into_micro_batches_gives_the_same_weights(
    places: list[int], minibatches: int
) -> None:
    """Groups are numbered as they come; here the first of each comes in its order."""
    every = groups(3)
    firsts = {min(r.number for r in every if r.group == group) for group in range(4)}
    whole, split = (learner(minibatches=minibatches, passes=2) for _ in range(2))
    run(whole, [every])
    run(
        split,
        [
            [
                r
                for r, at in zip(every, places, strict=True)
                if (0 if r.number in firsts else at) == place
            ]
            for place in range(3)
        ],
    )
    pairs = zip(split.model.parameters(), whole.model.parameters(), strict=True)
    distances = [(got - expected).detach().abs().flatten() for got, expected in pairs]
    assert float(torch.cat(distances).mean()) < 2e-6


def of_entropy(every: list[Rollout], share: float) -> set[tuple[int, int]]:
    """(rollout, place) of the tokens of the largest entropy, in float64."""
    model = copy.deepcopy(build("qwen3")).double().eval()
    found: dict[tuple[int, int], float] = {}
    for rollout in every:
        ids = torch.tensor([rollout.prompt + rollout.response])
        with torch.no_grad():
            logs = (model(input_ids=ids).logits[0] / TEMPERATURE).log_softmax(-1)
        for t in range(len(rollout.response)):
            row = logs[len(rollout.prompt) - 1 + t]
            if rollout.mask[t]:
                found[rollout.number, t] = -float((row.exp() * row).sum())
    largest = sorted(found, key=lambda place: -found[place])
    return set(largest[: math.ceil(share * len(found))])


def of_moment(every: list[Rollout], hi: float) -> set[tuple[int, int]]:
    """(rollout, place) of the tokens that M2PO keeps, of the whole step: one token at a time."""
    model = build("qwen3")
    region: dict[tuple[int, int], float] = {}
    kept = set()
    for rollout in every:
        rewards = [r.reward for r in every if r.group == rollout.group]
        a = rollout.reward - sum(rewards) / len(rewards)
        with torch.no_grad():
            current = alone(model, rollout, TEMPERATURE).tolist()
        for t, behaviour in enumerate(rollout.behaviour):
            if rollout.mask[t]:
                kept.add((rollout.number, t))
                log = current[t] - behaviour
                if log * a > 0:
                    region[rollout.number, t] = log * log
    while region and sum(region.values()) / len(region) > hi:
        largest = max(region, key=lambda place: region[place])
        del region[largest]
        kept.remove(largest)
    return kept


@pytest.mark.parametrize("kind", ["top_entropy", "m2po"])
def test_a_correction_of_the_whole_step_sees_all_of_it(kind: str) -> None:
    """Whatever the micro-batches; and the gradient is that of the tokens that it keeps."""
    every = groups(4)
    correction = TopEntropy(share=0.2) if kind == "top_entropy" else M2po(hi=0.03)
    kept = of_entropy(every, 0.2) if kind == "top_entropy" else of_moment(every, 0.03)
    plain = Plain()
    losses = []
    for rollout in every:
        rewards = [r.reward for r in every if r.group == rollout.group]
        a = rollout.reward - sum(rewards) / len(rewards)
        current = alone(plain.model, rollout, TEMPERATURE)
        losses += [
            surrogate((current[t] - rollout.behaviour[t]).exp(), a)
            for t in range(len(rollout.response))
            if (rollout.number, t) in kept
        ]
    every_token = sum(sum(r.mask) for r in every)
    (torch.stack(losses).sum() / every_token).backward()
    expected = {n: p.grad for n, p in plain.model.named_parameters() if p.grad is not None}
    for parts in ([every], [[r] for r in every]):
        subject = learner((correction,), loss_divisor="all")
        gradients, metrics, _ = run(subject, parts)
        assert_close(gradients, expected, 1e-4)
        assert metrics["trained_tokens"] == len(kept) < every_token
        told = {count.rollout: count for count in subject.counts}
        for rollout in every:
            of_rollout = sum(number == rollout.number for number, _ in kept)
            assert told[rollout.number].trained == of_rollout
            left = sum(rollout.mask) - of_rollout
            assert told[rollout.number].discarded.get(kind, 0) == left


def test_a_whole_minibatch_is_looked_at_with_the_weights_of_its_update() -> None:
    """Tokens that leave M2PO's bound only because of the first update are left out of the next
    ones."""
    every = groups(5, noise=0.02)
    _, one, _ = run(learner((M2po(hi=0.004),)), [every])
    subject = learner((M2po(hi=0.004),), passes=4)
    _, several, _ = run(subject, [every])
    assert one["kept_fraction"] == 1 > several["kept_fraction"]
    # each token was trained at least once
    assert all(count.discarded.get("m2po", 0) == 0 for count in subject.counts)


def test_no_token_kept_in_a_minibatch_skips_its_update_alone() -> None:
    every = groups(6)
    for rollout in every:
        if rollout.group < 2:
            rollout.behaviour = [b - 9.0 for b in rollout.behaviour]
    subject = learner((IcePop(),), minibatches=2)
    _, metrics, _ = run(subject, [every])
    assert metrics["skipped"] == 0.5 and metrics["updates"] == 1 and subject.version == 1


def test_held_batches_are_of_their_step_alone() -> None:
    every = groups(7)
    subject = learner(passes=2)
    run(subject, [every])
    assert subject.accumulate(*micro_batch([], [], step=1)) == []
    metrics = subject.step()
    assert metrics["skipped"] == 1 and subject.counts == []


@pytest.mark.parametrize("proximal", ["loglinear", "boundary", "snapshot"])
def test_each_proximal_policy_is_kept_over_the_updates(proximal: str) -> None:
    """At lag 0 the version that sampled is that of the step, so all three are known: loglinear is
    the behaviour policy there, the others the start of the step."""
    every = groups(8)
    same = "behaviour" if proximal == "loglinear" else "recompute"
    found = [learner(proximal=kind, passes=3) for kind in (proximal, same)]
    for subject in found:
        run(subject, [every])
    for got, expected in zip(*(s.model.parameters() for s in found), strict=True):
        assert torch.allclose(got, expected, rtol=0, atol=1e-6)
