"""The divergence from a reference policy and from a teacher, against loops of float64: in the loss,
in the reward, in the advantage; and what a checkpoint keeps of it."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from some_values import some
from training_world import (
    VOCABULARY,
    Rollout,
    alone,
    build,
    micro_batch,
    rollouts,
)
from transformers import PreTrainedModel

from asyncrl.algorithms.reference_kl import Estimator, kl_estimate
from asyncrl.config.schema import StalenessConfig, TrainConfig
from asyncrl.messages import PromptFacts, Span
from asyncrl.staleness.corrections import IcePop
from asyncrl.training.checkpoint_index import CheckpointError
from asyncrl.training.checkpoint_io import restore, save
from asyncrl.training.frozen_policy import FrozenPolicy
from asyncrl.training.kl_terms import KlTerm, KlTerms
from asyncrl.training.learner import Learner
from asyncrl.training.models import load_model

TRAIN = TrainConfig(grad_clip=1e9, lr_warmup_steps=0, lr=1e-2)
STALENESS = StalenessConfig(correction=(IcePop(lo=0.2, hi=5.0),))
T = 0.7
ESTIMATES: dict[str, Callable[[Any], Any]] = {
    "k1": lambda log: log,
    "k2": lambda log: log**2 / 2,
    "k3": lambda log: (math.exp(-log) if isinstance(log, float) else torch.exp(-log)) - 1 + log,
}


def other(name: str = "llama", seed: int = 0) -> PreTrainedModel:
    """Another policy than `build`'s, near it where it is of its architecture."""
    model = build(name)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=generator))
    model.train(False)
    return model


def learner(*terms: KlTerm, name: str = "qwen3", train: TrainConfig = TRAIN) -> Learner:
    return Learner(build(name), train, STALENESS, T, kl_terms=KlTerms(terms, T))


def term(kl_in: Any, estimator: Any, policy: PreTrainedModel | None = None, **more: Any) -> KlTerm:
    frozen = FrozenPolicy(copy.deepcopy(policy)) if policy is not None else None
    return KlTerm("reference", 0.3, kl_in, estimator, frozen, **more)


def groups(seed: int) -> list[Rollout]:
    """Rollouts of three groups of three, as `rollouts`, none of which is empty."""
    every = rollouts(build("qwen3"), seed, count=9, temperature=T)
    for place, rollout in enumerate(every):
        rollout.group = place // 3
    return every


def gradients(
    it: Learner, every: list[Rollout]
) -> tuple[dict[str, torch.Tensor], dict[str, float]]:
    """The mean gradient of a step, and its metrics; in two micro-batches of whole groups."""
    found: dict[str, torch.Tensor] = {}

    def look(*_: Any, **__: Any) -> None:
        found.update(
            {n: p.grad.clone() for n, p in it.master_weights.named() if p.grad is not None}
        )

    it.optimizer.register_step_pre_hook(look)
    for index, part in enumerate((every[:3], every[3:])):
        it.accumulate(*micro_batch(part, part, it.version, index))
    return found, it.step()


def looped(
    policy: PreTrainedModel, every: list[Rollout], kl_in: str, estimator: str, coefficient: float
) -> tuple[dict[str, torch.Tensor], float]:
    """The gradient of GRPO's mean loss with the divergence in its place, and the mean log-ratio:
    token by token."""
    model, estimate = copy.deepcopy(build("qwen3")).double(), ESTIMATES[estimator]
    under = {r.number: alone(policy, r, T).detach().tolist() for r in every}
    reward = {r.number: r.reward for r in every}
    if kl_in == "reward":
        for r in every:
            for mine, its in zip(r.behaviour, under[r.number], strict=True):
                reward[r.number] -= coefficient * estimate(mine - its)
    losses, logs = list[torch.Tensor](), list[float]()
    for r in every:
        of_group = [reward[s.number] for s in every if s.group == r.group]
        mean = sum(of_group) / len(of_group)
        deviation = math.sqrt(sum((x - mean) ** 2 for x in of_group) / (len(of_group) - 1))
        advantage = (reward[r.number] - mean) / max(deviation, 1e-4)
        for current, behaviour, fresh, its in zip(
            alone(model, r, T), r.behaviour, r.mask, under[r.number], strict=True
        ):
            ratio = torch.exp(current - behaviour)
            if not fresh or not 0.2 <= ratio.item() <= 5.0:
                continue
            a = advantage
            if kl_in == "advantage":
                a -= coefficient * estimate(current.item() - its)
            loss = -torch.minimum(ratio * a, ratio.clamp(0.8, 1.28) * a)
            if kl_in == "loss":
                loss = loss + coefficient * estimate(current - its)
            losses.append(loss)
            logs.append(current.item() - its)
    torch.stack(losses).mean().backward()  # type: ignore[no-untyped-call]
    return {n: p.grad for n, p in model.named_parameters() if p.grad is not None}, sum(logs) / len(
        logs
    )


@pytest.mark.parametrize("estimator", some(["k1", "k2", "k3"]))
@pytest.mark.parametrize("kl_in", ["loss", "reward", "advantage"])
@pytest.mark.parametrize("name", some(["qwen3", "gpt2"]))
def test_gradient_is_that_of_a_loop_over_tokens(kl_in: Any, estimator: Any, name: str) -> None:
    """The reference is of the model's architecture, or of another with the same vocabulary."""
    every, policy = groups(5), other(name)
    expected, mean = looped(policy, every, kl_in, estimator, 0.3)
    found, metrics = gradients(learner(term(kl_in, estimator, policy)), every)
    assert found.keys() == expected.keys()
    for parameter, gradient in expected.items():
        torch.testing.assert_close(found[parameter].double(), gradient, atol=2e-5, rtol=2e-4)
    assert metrics["reference_kl"] == pytest.approx(mean, abs=1e-5)


def test_without_a_term_nothing_changes_and_a_coefficient_matters() -> None:
    every, policy = groups(5), other()
    plain, metrics = gradients(learner(), every)
    pulled, _ = gradients(learner(term("loss", "k2", policy)), every)
    assert "reference_kl" not in metrics
    assert any(not torch.allclose(plain[n], pulled[n], atol=1e-4) for n in plain)


def test_a_teacher_is_one_term_more() -> None:
    """Both of them: what they add is added."""
    every, policy = groups(6), other()
    teacher = KlTerm("teacher", 0.5, "advantage", "k1", FrozenPolicy(other("gpt2")))
    found, metrics = gradients(learner(term("loss", "k2", policy), teacher), every)
    assert {"reference_kl", "teacher_kl"} <= metrics.keys()
    alone_found, _ = gradients(learner(term("loss", "k2", policy)), every)
    assert any(not torch.allclose(found[n], alone_found[n], atol=1e-4) for n in found)


@pytest.mark.parametrize(
    "made",
    [KlTerm("teacher", 1.0, "advantage", "k1", None), KlTerm("reference", 1.0, "loss", "k2", None)],
)
def test_what_is_sampled_comes_nearer_to_the_other_policy(made: KlTerm) -> None:
    """Responses of one token, sampled from the policy itself, and no rewards: the divergence over
    the whole vocabulary falls."""
    policy = other()
    made = made._replace(policy=FrozenPolicy(copy.deepcopy(policy)))
    plain = msgspec.structs.replace(TRAIN, advantage="none", objective="reinforce", lr=3e-3)
    it, rng = learner(made, train=plain), np.random.default_rng(0)
    prompt = torch.tensor([[1, 2, 3]])

    def logs(model: PreTrainedModel) -> torch.Tensor:
        with torch.no_grad():
            return (model(input_ids=prompt).logits[0, -1] / T).log_softmax(-1)

    before = divergence(logs(it.model), logs(policy)).item()
    for step in range(12):
        chances = logs(it.model)
        exact = chances.double().exp().numpy()
        every = []
        for number, token in enumerate(rng.choice(VOCABULARY, 64, p=exact / exact.sum())):
            rollout = Rollout(number, number // 4, 0.0, prompt[0].tolist(), [int(token)])
            rollout.behaviour, rollout.spans = [float(chances[token])], [Span(step, 0, 1)]
            every.append(rollout)
        it.accumulate(*micro_batch(every, every, step))
        it.step()
    assert divergence(logs(it.model), logs(policy)).item() < 0.5 * before


def test_a_teacher_counts_by_the_weight_of_the_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    """PACED distils with p (1 - p) of each prompt's solve rate (`train.group_weight`), and so does
    each update of a step that has several. A reference holds all prompts alike."""
    every, policy, chances = groups(5), other(), {0: (1.0, 9.0), 1: (1.0, 1.0), 2: (3.0, 1.0)}
    whole, buffers = micro_batch(every, every)
    facts = {group: PromptFacts(group, posterior=chance) for group, chance in chances.items()}
    batch = msgspec.structs.replace(whole, prompts=facts)

    def pulled(weighed: bool, **changes: Any) -> dict[str, torch.Tensor]:
        plain = msgspec.structs.replace(
            TRAIN, advantage="none", objective="reinforce", group_weight="paced", **changes
        )
        frozen = FrozenPolicy(copy.deepcopy(policy))
        teacher = KlTerm("teacher", 0.5, "advantage", "k1", frozen, weighed=weighed)
        it = Learner(
            build("qwen3"), plain, StalenessConfig(correction=()), T, kl_terms=KlTerms([teacher], T)
        )
        found = dict[str, torch.Tensor]()
        it.optimizer.register_step_pre_hook(
            lambda *_, **__: found.update(
                {n: p.grad.clone() for n, p in it.master_weights.named() if p.grad is not None}
            )
        )
        it.accumulate(batch, list(buffers))
        it.step()
        return found

    def by_hand(weighed: bool) -> dict[str, torch.Tensor]:
        model, losses = copy.deepcopy(build("qwen3")).double(), list[torch.Tensor]()
        for rollout in every:
            a, b = chances[rollout.group]
            weight = a * b / (a + b) ** 2 if weighed else 1.0
            its = alone(policy, rollout, T).detach()
            for current, fresh, one in zip(
                alone(model, rollout, T), rollout.mask, its, strict=True
            ):
                if fresh:
                    losses.append(weight * 0.5 * (current.detach() - one) * current)
        torch.stack(losses).mean().backward()  # type: ignore[no-untyped-call]
        return {n: p.grad for n, p in model.named_parameters() if p.grad is not None}

    for weighed in (True, False):
        expected = by_hand(weighed)
        for found in (pulled(weighed), pulled(weighed, passes=2, lr=1e-9)):
            for parameter, gradient in expected.items():
                torch.testing.assert_close(
                    found[parameter].double(), gradient, atol=2e-5, rtol=2e-4
                )


# ------------------------------------------------------------------------- what the estimators mean


def divergence(current: torch.Tensor, its: torch.Tensor) -> torch.Tensor:
    p, q = current.log_softmax(-1), its.log_softmax(-1)
    return (p.exp() * (p - q)).sum()


@pytest.mark.parametrize("seed", range(3))
def test_what_each_estimator_pulls_to_on_average(seed: int) -> None:
    """Over all tokens of a vocabulary, weighed by the policy's own probabilities: the values are
    KL(current, other), k2's nearly; in a loss k1 pulls nowhere, k2 along KL(current, other), k3
    along KL(other, current); in an advantage k1 pulls along KL(current, other)."""
    rng = torch.Generator().manual_seed(seed)
    logits, its = (torch.randn(5, generator=rng, dtype=torch.float64) for _ in range(2))
    logits.requires_grad_()
    (forward,) = torch.autograd.grad(divergence(logits, its), logits)
    (reverse,) = torch.autograd.grad(divergence(its, logits), logits)
    chance = logits.softmax(-1).detach()
    pulls, values = {}, {}
    for kind in ("k1", "k2", "k3"):
        log = logits.log_softmax(-1) - its.log_softmax(-1)
        each = kl_estimate(kind, log)
        values[kind] = float((chance * each).sum().detach())
        (pulls[kind],) = torch.autograd.grad((chance * each).sum(), logits)
    assert (
        values["k1"] == pytest.approx(values["k3"]) == pytest.approx(divergence(logits, its).item())
    )
    torch.testing.assert_close(pulls["k1"], torch.zeros(5, dtype=torch.float64))
    torch.testing.assert_close(pulls["k2"], forward)
    torch.testing.assert_close(pulls["k3"], reverse)
    log_p = logits.log_softmax(-1)
    reward = kl_estimate("k1", (log_p - its.log_softmax(-1)).detach())
    (policy_gradient,) = torch.autograd.grad((chance * reward * log_p).sum(), logits)
    torch.testing.assert_close(policy_gradient, forward)


def test_a_ratio_without_bounds_overflows_nothing() -> None:
    far = torch.tensor([-1e6, 1e6], requires_grad=True)
    every = [kl_estimate(kind, far) for kind in ("k1", "k2", "k3")]
    (gradient,) = torch.autograd.grad(torch.cat(every).sum(), far)
    assert torch.isfinite(torch.cat([*every, gradient])).all()


# ------------------------------------------------------------------------------------------ bounds


def test_a_token_without_a_score_is_left_out_by_name() -> None:
    every = groups(7)
    for r in every:
        r.mask = [1] * len(r.response)
    it = learner(term("loss", "k2"))
    scores = np.full(sum(len(r.response) for r in every), -2.0, np.float32)
    scores[3] = math.nan
    counts = it.accumulate(*micro_batch(every, every), {"reference": scores})
    assert sum(count.discarded.get("nonfinite", 0) for count in counts) == 1
    assert math.isfinite(it.step()["grad_norm"])


@pytest.mark.parametrize("served", [{}, {"reference": np.zeros(2, np.float32)}])
def test_scores_of_a_server_must_come(served: dict[str, Any]) -> None:
    every = groups(7)
    with pytest.raises(ValueError, match="scores of the reference"):
        learner(term("loss", "k2")).accumulate(*micro_batch(every, every), served)


def test_scores_of_a_server_are_those_of_the_model_behind_it() -> None:
    every, policy = groups(8), other()
    of_server = torch.cat([alone(policy, r, T).detach().float() for r in every])
    one, two = learner(term("loss", "k3", policy)), learner(term("loss", "k3"))
    one.accumulate(*micro_batch(every, every))
    two.accumulate(*micro_batch(every, every), {"reference": of_server.numpy()})
    for (_, mine), (_, its) in zip(
        one.master_weights.named(), two.master_weights.named(), strict=True
    ):
        assert mine.grad is not None and its.grad is not None
        torch.testing.assert_close(mine.grad, its.grad, atol=1e-4, rtol=1e-4)


def test_a_reward_needs_the_whole_group() -> None:
    every = groups(8)
    with pytest.raises(ValueError, match="came with 2 of its 3 members"):
        learner(term("reward", "k1", other())).accumulate(*micro_batch(every[:2], every[:3]))


# ------------------------------------------------------------------------------- reset, checkpoint


def weights(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def same(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> bool:
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


def train(it: Learner, steps: int) -> None:
    for _ in range(steps):
        every = groups(it.version)
        it.accumulate(*micro_batch(every, every, it.version))
        it.step()


def test_it_becomes_the_current_policy_every_so_many_steps() -> None:
    start = build("qwen3")
    reference = FrozenPolicy(copy.deepcopy(start))
    it = learner(KlTerm("reference", 0.3, "loss", "k2", reference, reset_every=2))
    train(it, 1)
    assert same(dict(reference.weights()), weights(start))
    train(it, 1)
    second = weights(it.model)
    assert same(dict(reference.weights()), second) and not same(second, weights(start))
    train(it, 1)
    assert same(dict(reference.weights()), second) and not same(second, weights(it.model))


@pytest.mark.explore
@pytest.mark.parametrize("estimator", ["k1", "k3"])
def test_a_reset_begins_the_optimizer_anew(estimator: Estimator) -> None:
    """ProRL (arXiv 2505.24864) reinitializes the optimizer's state with each reset:
    the steps after it are those of a learner that has just these weights."""

    def reset(model: PreTrainedModel) -> KlTerm:
        frozen = FrozenPolicy(copy.deepcopy(model))
        return KlTerm("reference", 0.3, "loss", estimator, frozen, reset_every=2)

    it = learner(reset(build("qwen3")))
    train(it, 1)
    assert it.optimizer.state, "of the first step"
    train(it, 1)
    model = copy.deepcopy(it.model)
    anew = Learner(model, TRAIN, STALENESS, T, 2, kl_terms=KlTerms([reset(model)], T))
    for _ in range(2):
        train(it, 1)
        train(anew, 1)
        assert same(weights(it.model), weights(anew.model))
    unchanged = learner(term("loss", estimator, build("qwen3")))
    train(unchanged, 2)
    assert unchanged.optimizer.state, "where nothing is reset"


@pytest.mark.parametrize("dtype", some([torch.bfloat16, torch.float32]))
@pytest.mark.parametrize("before", some([3, 1, 2]))
def test_a_resumed_run_has_the_reference_that_it_had(
    before: int, dtype: torch.dtype, tmp_path: Path
) -> None:
    """Before its first reset, at it, and after it: the weights are those of a run that was not
    stopped."""

    def fresh(model: PreTrainedModel) -> Learner:
        frozen = FrozenPolicy(build("qwen3", dtype))
        terms = KlTerms([KlTerm("reference", 0.3, "loss", "k3", frozen, 2)], T)
        return Learner(model, TRAIN, STALENESS, T, kl_terms=terms)

    it = fresh(build("qwen3", dtype))
    train(it, before)
    path = save(tmp_path, it, 0, tmp_path)
    train(it, 2)
    resumed = fresh(load_model(path, dtype))
    restore(path, resumed)
    train(resumed, 2)
    assert same(weights(resumed.model), weights(it.model))


def test_a_checkpoint_without_the_reset_reference_is_refused(tmp_path: Path) -> None:
    it = learner()
    train(it, 3)
    path = save(tmp_path, it, 0, tmp_path)
    late = learner(term("loss", "k2", build("qwen3"), reset_every=2))
    with pytest.raises(CheckpointError, match="weights of the policy are of another model"):
        restore(path, late)
    assert late.version == 0 and VOCABULARY == 23
