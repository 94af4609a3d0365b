"""Every objective, advantage and correction through a learner: the gradient is the same however the
rollouts are split."""

from __future__ import annotations

import copy
import logging
import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from some_values import some
from test_learner import assert_close, run
from training_world import TEMPERATURE, Rollout, alone, build, micro_batch, rollouts

from asyncrl.config.loss_names import CORRECTIONS
from asyncrl.config.schema import StalenessConfig, TrainConfig
from asyncrl.messages import Span
from asyncrl.staleness.corrections import IcePop
from asyncrl.training.learner import Learner

OBJECTIVES = ("clip", "dual_clip", "gspo", "cispo", "topr", "reinforce", "one_forward")
ADVANTAGES = (
    "grpo",
    "dr_grpo",
    "rloo",
    "mc_grpo",
    "gdpo",
    "reinforce_pp",
    "reinforce_pp_baseline",
    "first_k",
    "min_variance",
    "min_variance_logits",
)
GROUPS = (4, 3, 2)


def learner(
    correction: tuple[Any, ...] = (IcePop(),), proximal: str = "behaviour", **train: Any
) -> Learner:
    loss = TrainConfig(grad_clip=1e9, lr_warmup_steps=0, lr=1e-3, **train)
    return Learner(
        build("qwen3"), loss, StalenessConfig(correction=correction, proximal=proximal), TEMPERATURE
    )  # type: ignore[arg-type]


def groups(seed: int) -> list[list[Rollout]]:
    """Three uneven groups, one of them without signal, with parts and baselines, and a rollout
    without a response."""
    every = rollouts(build("qwen3"), seed, count=sum(GROUPS), noise=0.4, temperature=TEMPERATURE)
    ends = [sum(GROUPS[: at + 1]) for at in range(len(GROUPS))]
    for place, rollout in enumerate(every):
        rollout.group = sum(place >= end for end in ends)
        rollout.parts = [float(place % 3), float(place % 2)]
        rollout.reward = 1.0 if rollout.group == 2 else sum(rollout.parts)
        rollout.baseline = 0.75
    return [[r for r in every if r.group == group] for group in range(len(GROUPS))]


@pytest.mark.parametrize("objective", some(OBJECTIVES))
@pytest.mark.parametrize("advantage", some(ADVANTAGES))
def test_each_objective_takes_each_advantage(objective: str, advantage: str) -> None:
    subject = learner(objective=objective, advantage=advantage)
    _, metrics, counts = run(subject, [[rollout for group in groups(1) for rollout in group]])
    assert metrics["skipped"] == 0 and metrics["trained_tokens"] > 0 and metrics["grad_norm"] > 0
    assert all(math.isfinite(value) for value in metrics.values())
    trained = sum(count.trained + sum(count.discarded.values()) for count in counts.values())
    assert trained == sum(len(r.response) for group in groups(1) for r in group)


def of_rollout(
    objective: str, current: torch.Tensor, behaviour: torch.Tensor, advantage: float
) -> torch.Tensor:
    """Sum of a rollout's losses, with clip_lo 0.1, clip_hi 0.15 and dual_clip 1.3; of GSPO as the
    paper has it, one loss for the whole rollout."""
    log = current - behaviour
    ratio = log.exp()
    match objective:
        case "clip" | "dual_clip":
            losses = -torch.minimum(ratio * advantage, ratio.clamp(0.9, 1.15) * advantage)
            return (
                losses.clamp(max=-1.3 * advantage)
                if objective == "dual_clip" and advantage < 0
                else losses
            ).sum()
        case "gspo":
            whole = log.mean().exp()
            return -torch.minimum(whole * advantage, whole.clamp(0.9, 1.15) * advantage)
        case "cispo":
            return (-ratio.detach().clamp(max=1.15) * advantage * current).sum()
        case "topr":
            weight = min(1.0, math.exp(float(log.sum().detach()))) if advantage < 0 else 1.0
            return (-weight * advantage * current).sum()
        case "reinforce":
            return (-advantage * current).sum()
        case _:
            return (-ratio * advantage).sum()


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_the_gradient_of_each_objective_is_its_formula(objective: str) -> None:
    subject = learner(
        (), objective=objective, advantage="dr_grpo", clip_lo=0.1, clip_hi=0.15, dual_clip=1.3
    )
    every = [rollout for group in groups(11) for rollout in group]
    exact = copy.deepcopy(subject.model).double().eval()
    losses, divisor = [], 0
    for rollout in every:
        rewards = [r.reward for r in every if r.group == rollout.group]
        kept = [t for t, keep in enumerate(rollout.mask) if keep]
        if kept:
            current, behaviour = (
                alone(exact, rollout, TEMPERATURE)[kept],
                torch.tensor(rollout.behaviour, dtype=torch.float64)[kept],
            )
            losses.append(
                of_rollout(
                    objective, current, behaviour, rollout.reward - sum(rewards) / len(rewards)
                )
            )
            divisor += 1 if objective == "gspo" else len(kept)
    mean = torch.stack(losses).sum() / divisor
    mean.backward()
    gradients, metrics, _ = run(subject, [every[:4], every[4:]])
    assert metrics["loss"] == pytest.approx(float(mean.detach()), abs=1e-5)
    assert_close(
        gradients,
        {name: p.grad for name, p in exact.named_parameters() if p.grad is not None},
        1e-4,
    )


def same(of_whole: dict[str, float], of_split: dict[str, float]) -> None:
    assert of_split == pytest.approx(of_whole, rel=1e-4, abs=1e-6)


@pytest.mark.explore
@settings(max_examples=25)
@given(
    objective=st.sampled_from(OBJECTIVES),
    correction=st.lists(st.sampled_from(list(CORRECTIONS.all().values())), max_size=3, unique=True),
    proximal=st.sampled_from(("behaviour", "loglinear", "recompute")),
    places=st.lists(st.integers(0, 3), min_size=sum(GROUPS), max_size=sum(GROUPS)),
    seed=st.integers(0, 9),
)
def test_any_split_gives_the_same_step(
    objective: str, correction: list[Any], proximal: str, places: list[int], seed: int
) -> None:
    """Those of whole rollouts too: a rollout is in one packed batch, and nothing is compared across
    rollouts."""
    if proximal == "behaviour" and objective != "reinforce":
        correction = [kind for kind in correction if not kind().only_weighs]
    entries = tuple(kind() for kind in correction)
    every = [rollout for group in groups(seed) for rollout in group]
    for rollout in every:
        rollout.spans = [Span(0, 0, len(rollout.response))]
    whole, of_whole, counts = run(learner(entries, proximal, objective=objective), [every])
    parts = [[r for r, at in zip(every, places, strict=True) if at == place] for place in range(4)]
    split, of_split, counts_split = run(learner(entries, proximal, objective=objective), parts)
    assert counts == counts_split
    same(of_whole, of_split)
    if of_whole["trained_tokens"]:
        assert_close(split, whole, 1e-4)


@pytest.mark.parametrize("advantage", some(ADVANTAGES))
def test_any_order_of_groups_gives_the_same_step(advantage: str) -> None:
    first, second, third = groups(3)
    whole, of_whole, _ = run(learner(advantage=advantage), [first + second + third])
    split, of_split, _ = run(learner(advantage=advantage), [third, second, first])
    same(of_whole, of_split)
    assert_close(split, whole, 1e-4)


def test_the_median_is_not_trained_and_is_counted() -> None:
    _, _, counts = run(learner((), advantage="mc_grpo"), groups(2))
    of_median = {number for number, count in counts.items() if "median" in count.discarded}
    [odd] = [group for group in groups(2) if len(group) == 3]
    assert of_median <= {r.number for r in odd} and len(of_median) == 1
    [rollout] = [r for r in odd if r.number in of_median]
    count = counts[rollout.number]
    assert count.trained == 0 and count.discarded["median"] == sum(rollout.mask)
    assert count.discarded.get("stale", 0) == len(rollout.response) - sum(rollout.mask)


@pytest.mark.parametrize("kind", list(CORRECTIONS.all().values()))
def test_what_a_correction_leaves_out_has_its_name(kind: Any) -> None:
    every = [rollout for group in groups(4) for rollout in group]
    for rollout in every:
        rollout.behaviour = [b - (2.5 if t % 2 else -2.5) for t, b in enumerate(rollout.behaviour)]
    _, metrics, counts = run(learner((kind(),), "recompute"), [every])
    reasons = {reason for count in counts.values() for reason in count.discarded} - {"stale"}
    assert reasons <= {kind().kind} if kind.rejects else reasons == set()
    if kind().kind in ("icepop", "kpop", "k3", "mis"):
        assert reasons == {kind().kind}
    assert metrics["weight_mean"] >= 0


def test_a_token_is_left_out_by_the_first_that_rejects_it() -> None:
    every = [rollout for group in groups(5) for rollout in group]
    wide, narrow = IcePop(lo=0.5, hi=2.0), IcePop(lo=0.9, hi=1.1)
    (_, _, alone_), (_, _, both) = run(learner((narrow,)), [every]), run(learner((wide,)), [every])
    assert sum(c.trained for c in alone_.values()) < sum(c.trained for c in both.values())


def test_the_learning_rate_shrinks_with_the_effective_sample_size() -> None:
    every = [rollout for group in groups(6) for rollout in group]
    for rollout in every:
        rollout.behaviour = [b - 0.3 * (rollout.number % 3) for b in rollout.behaviour]
    steps = {base: run(learner(ess_base=base), [every])[1] for base in (0.0, 0.5, 1.0)}
    ess = steps[0.0]["ess"]
    assert 0 < ess < 0.5
    for base, metrics in steps.items():
        expected = math.sqrt(ess / base) if base else 1.0
        assert metrics["lr_scale"] == pytest.approx(expected) and metrics["lr"] == pytest.approx(
            1e-3 * expected
        )


def test_the_minimum_variance_baseline_is_its_formula() -> None:
    """b = sum(w^2 |g|^2 R) / sum(w^2 |g|^2), with each rollout's gradient from a float64 pass of
    its own."""
    every = [rollout for group in groups(7) for rollout in group]
    expected = minimum_variance(every)
    plain = learner((), advantage="min_variance", objective="reinforce")
    gradients, _, _ = run(plain, [every])
    reference = copy.deepcopy(build("qwen3")).double().eval()
    losses, trained = [], 0
    for rollout in every:
        current = alone(reference, rollout, TEMPERATURE)
        kept = torch.tensor([bool(k) for k in rollout.mask], dtype=torch.bool)
        losses.append(-(rollout.reward - expected[rollout.group]) * current[kept].sum())
        trained += int(kept.sum())
    (torch.stack(losses).sum() / trained).backward()
    silent = [r for r in every if r.group == 2]
    assert len({r.reward for r in silent}) == 1
    assert_close(
        gradients,
        {name: p.grad for name, p in reference.named_parameters() if p.grad is not None},
        1e-4,
    )


def minimum_variance(every: list[Rollout]) -> dict[int, float]:
    """The baseline of each group."""
    above, below = dict[int, float](), dict[int, float]()
    for rollout in every:
        model = copy.deepcopy(build("qwen3")).double().eval()
        kept = [t for t, keep in enumerate(rollout.mask) if keep]
        if kept:
            current = alone(model, rollout, TEMPERATURE)[kept]
            current.sum().backward()
            norm = sum(
                float(p.grad.square().sum()) for p in model.parameters() if p.grad is not None
            )
            weight = math.exp(
                float(current.sum().detach()) - sum(rollout.behaviour[t] for t in kept)
            )
            above[rollout.group] = above.get(rollout.group, 0.0) + weight**2 * norm * rollout.reward
            below[rollout.group] = below.get(rollout.group, 0.0) + weight**2 * norm
    return {group: above[group] / below[group] for group in below}


@pytest.mark.parametrize("advantage", ["min_variance", "min_variance_logits"])
def test_a_part_of_a_group_has_no_minimum_variance_baseline(advantage: str) -> None:
    first, *_ = groups(7)
    with pytest.raises(ValueError, match="group 0 came with 2 of its 4 members"):
        learner(advantage=advantage).accumulate(*micro_batch(first[:2], first))


@pytest.mark.parametrize("advantage", ["min_variance", "min_variance_logits"])
def test_a_baseline_leaves_the_gradient_alone_and_survives_what_is_no_number(
    advantage: str,
) -> None:
    first, second, _ = groups(8)
    subject = learner(advantage=advantage)
    subject.accumulate(*micro_batch(first, first))
    for rollout in second:
        rollout.mask = [0] * len(rollout.mask)
    before = [p.grad.clone() for p in subject.model.parameters() if p.grad is not None]
    subject.accumulate(*micro_batch(second, second))
    assert all(
        map(torch.equal, before, [p.grad for p in subject.model.parameters() if p.grad is not None])
    )
    for rollout in first:
        rollout.behaviour = [math.nan] * len(rollout.behaviour)
    counts = subject.accumulate(*micro_batch(first, first, index=2))
    assert sum(count.discarded.get("nonfinite", 0) for count in counts) == sum(
        sum(r.mask) for r in first
    )
    assert subject.step()["skipped"] == 0


def test_lag_is_told_token_by_token() -> None:
    subject = learner(())
    subject.version = 5
    every = [rollout for group in groups(9) for rollout in group]
    for rollout in every:
        middle, end = len(rollout.response) // 2, len(rollout.response)
        rollout.spans = [Span(2, 0, middle), Span(5, middle, end)]
    _, metrics, _ = run(subject, [every])
    old = sum(sum(r.mask[: len(r.mask) // 2]) for r in every)
    assert metrics["tokens_at_lag_3"] == old
    assert metrics["tokens_at_lag_0"] == metrics["trained_tokens"] - old
    assert {key for key in metrics if key.startswith("tokens_at_lag")} == {
        "tokens_at_lag_0",
        "tokens_at_lag_3",
    }


@pytest.mark.parametrize(
    ("spans", "said"),
    [
        ([], "the spans of rollout 0 do not lie in order from the first to the last"),
        ([Span(0, 0, 2)], "do not lie in order"),
        ([Span(0, 0, 4)], "do not lie in order"),
        (
            [Span(0, 0, 2), Span(0, 1, 2)],
            "rollout 0 do not lie in order from the first to the last",
        ),
        ([Span(0, 1, 4)], "do not lie in order from the first to the last of its response tokens"),
        ([Span(0, 0, 1), Span(0, 2, 4)], r"response tokens \[1, 4\)"),
        (
            [Span(0, 0, 1), Span(0, 2, 3)],
            "samples of 2 sampled tokens came with 3 log-probabilities",
        ),
        ([Span(0, -1, 2)], "do not lie in order"),
        ([Span(0, 0, 4), Span(0, 4, 3)], "do not lie in order"),
        ([Span(1, 0, 3)], "a token of version 1 is newer than the policy that step 0 starts from"),
    ],
)
def test_spans_that_cannot_be_are_refused(spans: list[Span], said: str) -> None:
    rollout = Rollout(0, 0, 1.0, [1], [2, 3, 4])
    rollout.spans = spans
    with pytest.raises(ValueError, match=said):
        learner().accumulate(*micro_batch([rollout], [rollout]))


def test_where_clipping_does_nothing_the_log_says_so(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        learner(proximal="recompute", objective="reinforce")
        learner()
        assert not caplog.records
        subject = learner(proximal="recompute")
    assert "clipping does nothing" in caplog.text
    _, metrics, _ = run(subject, groups(1))
    assert metrics["clip_fraction"] == 0
