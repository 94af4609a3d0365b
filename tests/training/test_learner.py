"""The gradient of a step, its counts and its metrics, against the naive reference; and the steps on
which nothing can be learned."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from some_values import drawn
from training_world import CONFIGS, Rollout, build, micro_batch, reference, rollouts

from asyncrl.config.schema import StalenessConfig, TrainConfig
from asyncrl.messages import TokenCount
from asyncrl.staleness.corrections import IcePop
from asyncrl.training.learner import Learner
from asyncrl.training.sums import Sums

TRAIN = TrainConfig(grad_clip=1e9, lr_warmup_steps=0, lr=1e-3)


def learner(
    name: str = "qwen3",
    staleness: StalenessConfig | None = None,
    temperature: float = 1.0,
    train: TrainConfig = TRAIN,
) -> Learner:
    return Learner(build(name), train, staleness or StalenessConfig(), temperature)


def run(
    subject: Learner, parts: list[list[Rollout]]
) -> tuple[dict[str, torch.Tensor], dict[str, float], dict[int, TokenCount]]:
    """One whole step: the gradient the optimizer saw by parameter, the metrics, the counts by
    rollout."""
    gradients: dict[str, torch.Tensor] = {}

    def see(*_: object) -> None:
        gradients.update(
            {
                name: p.grad.clone()
                for name, p in subject.model.named_parameters()
                if p.grad is not None
            }
        )

    every = [rollout for part in parts for rollout in part]
    counts = {}
    with_hook = subject.optimizer.register_step_pre_hook(see)
    for index, part in enumerate(parts):
        for count in subject.accumulate(*micro_batch(part, every, subject.version, index)):
            counts[count.rollout] = count
    metrics = subject.step()
    counts |= {count.rollout: count for count in subject.counts}
    with_hook.remove()
    return gradients, metrics, counts


def assert_close(
    got: dict[str, torch.Tensor], expected: dict[str, torch.Tensor], tolerance: float
) -> None:
    assert got.keys() == expected.keys()
    scale = max(float(g.abs().max()) for g in expected.values())
    for name, gradient in expected.items():
        assert float((got[name] - gradient).abs().max()) <= tolerance * scale, name


def weights(subject: Learner) -> list[torch.Tensor]:
    return [p.detach().clone() for p in subject.model.parameters()]


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("correction", [(IcePop(lo=0.5, hi=2.5),), ()])
def test_gradient_loss_and_counts_are_the_reference(
    name: str, correction: tuple[IcePop, ...]
) -> None:
    """Uneven groups, empty responses, stale tokens, asymmetric bounds, a sampling temperature;
    GPT-2 has dropout, which must stay off."""
    staleness, temperature = StalenessConfig(correction=correction), 1.3
    subject = learner(name, staleness, temperature)
    every = rollouts(subject.model, seed=1, temperature=temperature)
    every[3].behaviour[0] = math.nan
    every[4].behaviour[0] = -math.inf
    expected, loss, outcome = reference(subject.model, every, TRAIN, staleness, temperature)
    gradients, metrics, counts = run(subject, [every[:4], every[4:]])
    assert_close(gradients, expected, 1e-5)
    assert metrics["loss"] == pytest.approx(loss, abs=1e-5)
    assert {number: (count.trained, count.discarded) for number, count in counts.items()} == outcome
    assert metrics["trained_tokens"] == sum(trained for trained, _ in outcome.values())
    assert sum(count.discarded.get("nonfinite", 0) for count in counts.values()) == 2
    assert sum(count.discarded.get("icepop", 0) for count in counts.values()) > 0 or not correction
    assert all(
        c.trained + sum(c.discarded.values()) == len(every[n].response) for n, c in counts.items()
    )


@settings(max_examples=drawn(12))
@given(st.lists(st.integers(0, 4), min_size=9, max_size=9), st.integers(0, 9))
def test_any_split_into_micro_batches_gives_the_same_gradient(places: list[int], seed: int) -> None:
    model = build("qwen3")
    every = rollouts(model, seed)
    whole, of_whole, _ = run(learner(), [every])
    split, of_split, _ = run(
        learner(),
        [[r for r, at in zip(every, places, strict=True) if at == place] for place in range(5)],
    )
    assert_close(split, whole, 1e-5)
    assert of_split == pytest.approx(of_whole, rel=1e-5, abs=1e-7)


def test_temperature_is_in_the_current_log_probabilities() -> None:
    """Trap 8: rollouts of the policy itself at temperature 0.6 have ratio 1."""
    model = build("llama")
    every = rollouts(model, seed=2, noise=0.0, temperature=0.6)
    _, metrics, _ = run(learner("llama", temperature=0.6), [every])
    assert metrics["log_ratio_abs"] < 1e-5 and metrics["ess"] == pytest.approx(1.0)
    _, other, _ = run(learner("llama", temperature=1.0), [every])
    assert other["log_ratio_abs"] > 0.05


def test_log_softmax_is_float32_for_a_bfloat16_model() -> None:
    """Trap 7: a bfloat16 log-probability near -3 is a multiple of 1/64; means of them would
    show."""
    subject = Learner(build("llama", torch.bfloat16), TRAIN, StalenessConfig(), 1.0)
    every = rollouts(subject.model, seed=2, noise=0.0)
    _, metrics, _ = run(subject, [every])
    assert metrics["log_ratio_abs"] < 0.05
    assert metrics["skipped"] == 0


def test_all_rejected_keeps_the_weights_and_makes_the_version() -> None:
    """Trap 3."""
    subject = learner()
    every = rollouts(subject.model, seed=1, noise=0.0)
    for rollout in every:
        rollout.behaviour = [b - 10 for b in rollout.behaviour]
    before = weights(subject)
    _, metrics, counts = run(subject, [every])
    assert subject.version == 1
    assert metrics["skipped"] == 1 and metrics["trained_tokens"] == 0
    assert all(math.isfinite(value) for value in metrics.values())
    assert (
        sum(c.trained for c in counts.values()) == 0
        and sum(c.discarded.get("icepop", 0) for c in counts.values()) > 0
    )
    assert all(map(torch.equal, before, weights(subject)))


def test_all_stale_is_not_even_computed() -> None:
    subject = learner()
    every = rollouts(subject.model, seed=1)
    for rollout in every:
        rollout.mask = [0] * len(rollout.mask)
    subject.model.forward = None  # type: ignore[method-assign, assignment]
    _, metrics, counts = run(subject, [every])
    assert metrics["skipped"] == 1
    assert all(c.discarded.get("stale", 0) == len(every[n].response) for n, c in counts.items())


def test_what_was_cut_is_out_of_the_loss_by_its_name_and_compared_with() -> None:
    """Rewards of a group are all of its members', whose tokens may be trained or not."""
    found = []
    for why, reason in ((0, "stale"), (2, "truncated"), (3, "error")):
        subject = learner()
        every = rollouts(subject.model, seed=1)
        cut = max(every, key=lambda rollout: len(rollout.response))
        cut.mask = [why] * len(cut.mask)
        gradients, _, counts = run(subject, [every])
        of_cut = counts[cut.number]
        assert (of_cut.trained, of_cut.discarded) == (0, {reason: len(cut.response)})
        found.append(gradients)
    assert found[0].keys() == found[1].keys() and len(cut.response) > 4
    for other in found[1:]:
        assert all(torch.equal(found[0][name], other[name]) for name in found[0])


def test_a_step_of_nothing() -> None:
    subject = learner()
    before = weights(subject)
    assert subject.accumulate(*micro_batch([], [])) == []
    metrics = subject.step()
    assert subject.version == 1 and metrics["skipped"] == 1
    assert all(map(torch.equal, before, weights(subject)))


def test_a_gradient_that_is_not_finite_is_not_taken() -> None:
    """A weight that overflows in one rollout's pass must not reach the others' weights."""
    subject = learner()
    every = rollouts(subject.model, seed=1)
    hook = next(subject.model.parameters()).register_hook(lambda gradient: gradient * math.inf)
    before = weights(subject)
    _, metrics, _ = run(subject, [every])
    assert metrics["skipped"] == 1 and subject.version == 1
    assert all(map(torch.equal, before, weights(subject)))
    hook.remove()
    _, metrics, _ = run(subject, [every])
    assert metrics["skipped"] == 0 and not all(map(torch.equal, before, weights(subject)))


def test_the_loss_does_not_count_masked_tokens() -> None:
    """Trap 4: what is masked may be anything."""
    subject, other = learner(), learner()
    every = rollouts(subject.model, seed=5)
    assert any(0 in rollout.mask for rollout in every)
    _, metrics, _ = run(subject, [every])
    for rollout in every:
        rollout.behaviour = [
            b if m else -50.0 for b, m in zip(rollout.behaviour, rollout.mask, strict=True)
        ]
    _, changed, _ = run(other, [every])
    assert changed == metrics


def test_the_gradient_is_clipped_after_it_is_divided() -> None:
    train = TrainConfig(grad_clip=1e-3, lr_warmup_steps=0)
    subject = learner(train=train)
    every = rollouts(subject.model, seed=1)
    gradients, metrics, _ = run(subject, [every])
    expected, _, _ = reference(build("qwen3"), every, train, StalenessConfig(), 1.0)
    assert metrics["grad_norm"] == pytest.approx(
        math.sqrt(sum(float(g.square().sum()) for g in expected.values())), rel=1e-4
    )
    assert math.sqrt(sum(float(g.square().sum()) for g in gradients.values())) == pytest.approx(
        1e-3, rel=1e-3
    )


def test_learning_raises_the_reward_of_what_was_rewarded() -> None:
    subject = learner(train=TrainConfig(lr=1e-2, lr_warmup_steps=0))
    rollout, sibling = Rollout(0, 0, 1.0, [1, 2], [3, 4, 5]), Rollout(1, 0, 0.0, [1, 2], [6, 7, 8])

    def scored() -> list[float]:
        from training_world import alone

        for r in (rollout, sibling):
            r.behaviour = alone(subject.model, r, 1.0).tolist()
        return [sum(r.behaviour) for r in (rollout, sibling)]

    before = scored()
    for _ in range(5):
        run(subject, [[rollout, sibling]])
        after = scored()
    assert after[0] > before[0] + 0.5 and after[1] < before[1]


def test_what_does_not_fit_is_refused_before_anything_is_added() -> None:
    subject = learner()
    every = rollouts(subject.model, seed=1)
    batch, (ids, behaviour, mask) = micro_batch(every, every)
    with pytest.raises(ValueError, match="a micro-batch of step 3 came while step 0"):
        subject.accumulate(*micro_batch(every, every, step=3))
    with pytest.raises(ValueError, match="3 or 4 buffers, not 2"):
        subject.accumulate(batch, (ids, behaviour))
    with pytest.raises(ValueError, match="log-probabilities and"):
        subject.accumulate(batch, (ids, behaviour[4:], mask))
    with pytest.raises(ValueError, match="token ids came for samples of"):
        subject.accumulate(batch, (ids[4:], behaviour, mask))
    assert subject.step()["skipped"] == 1


def test_shares_of_a_single_token_are_whole() -> None:
    metrics = Sums(trained=1, arrived=1, proximal_unknown=1).metrics()
    assert metrics["proximal_unknown_fraction"] == metrics["kept_fraction"] == 1.0
