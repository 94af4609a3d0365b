"""The loss of a supervised run, against the model's own loss of labels, row by row in float64."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from training_world import VOCABULARY, build

from asyncrl.config import Config
from asyncrl.config.sft import supervised_run
from asyncrl.messages import MeasureLoss
from asyncrl.tasks.conversations import LearnedIds
from asyncrl.tasks.sft_data import SftData, SftSplit, as_sequence
from asyncrl.training.learner import Learner

IGNORED = -100


def rows(seed: int = 0, count: int = 7) -> list[list[LearnedIds]]:
    """Rows of one to three sequences, some with a beginning in common, with gaps in their masks."""
    draws, found = np.random.default_rng(seed), list[list[LearnedIds]]()
    for _ in range(count):
        start = draws.integers(VOCABULARY, size=draws.integers(2, 5)).tolist()
        row = []
        for _ in range(draws.integers(1, 4)):
            ids = [*start, *draws.integers(VOCABULARY, size=draws.integers(2, 9)).tolist()]
            mask = draws.integers(2, size=len(ids))
            mask[0], mask[len(start)] = 0, 1
            row.append(LearnedIds(ids, bytes(mask.tolist())))
        found.append(row)
    return found


def data(given: list[list[LearnedIds]], **train: int) -> SftData:
    split = SftSplit.of([tuple(map(as_sequence, row)) for row in given])
    lr = {"lr": 1e-2, "lr_warmup_steps": 0, "grad_clip": 1e9}
    engine = {"context_tokens": train.get("micro_tokens", 256)}
    rollout = {"max_new_tokens": 2}
    tables = {"train": lr | train, "engine": engine, "rollout": rollout}
    config = supervised_run(Config(**tables))  # type: ignore[arg-type]
    return SftData(split, split, config)


def learner(config: Config, kind: str = "qwen3") -> Learner:
    return Learner(
        build(kind), config.train, config.staleness, config.rollout.temperature, budget=8
    )


def stepped(of: SftData, kind: str = "qwen3") -> tuple[dict[str, torch.Tensor], dict[str, float]]:
    """The gradient of a step of all rows, and its metrics."""
    it, found = learner(of.config, kind), dict[str, torch.Tensor]()
    for packed in of.messages(0, of.train.rows):
        it.accumulate(packed.message, packed.buffers)
    it.optimizer.register_step_pre_hook(
        lambda *_: found.update(
            {n: p.grad.clone() for n, p in it.master_weights.named() if p.grad is not None}
        )
    )
    metrics = it.step()
    return found, metrics


def labelled(
    given: list[list[LearnedIds]], kind: str = "qwen3"
) -> tuple[dict[str, torch.Tensor], float, int]:
    """The mean over all labelled tokens, as transformers has it of each sequence alone, and its
    gradient."""
    model = copy.deepcopy(build(kind)).double().eval()
    tokens = sum(one.learned for row in given for one in row)
    total = 0.0
    for one in (one for row in given for one in row):
        ids = torch.tensor([one.ids])
        labels = torch.where(torch.tensor([list(one.mask)]) > 0, ids, IGNORED)
        loss = model(input_ids=ids, labels=labels).loss * one.learned / tokens
        loss.backward()
        total += float(loss.detach())
    return {n: p.grad for n, p in model.named_parameters() if p.grad is not None}, total, tokens


@pytest.mark.parametrize("kind", ["qwen3", "gpt2"])
def test_a_step_is_the_mean_over_the_labelled_tokens(kind: str) -> None:
    given = rows()
    expected, loss, tokens = labelled(given, kind)
    found, metrics = stepped(data(given), kind)
    assert metrics["loss"] == pytest.approx(loss, rel=1e-6)
    assert metrics["trained_tokens"] == tokens
    assert found.keys() == expected.keys()
    for name, gradient in found.items():
        torch.testing.assert_close(gradient.double(), expected[name], rtol=2e-4, atol=2e-6)


def test_the_packing_changes_nothing() -> None:
    given = rows(1)
    longest = max(len(one.ids) for row in given for one in row)
    together, alone = data(given), data(given, micro_tokens=longest)
    assert len(list(together.messages(0, together.train.rows))) == 1
    assert len(list(alone.messages(0, alone.train.rows))) > len(given)
    one, other = stepped(together), stepped(alone)
    assert one[1]["loss"] == pytest.approx(other[1]["loss"], rel=1e-6)
    for name, gradient in one[0].items():
        torch.testing.assert_close(gradient, other[0][name], rtol=2e-4, atol=2e-6)


def test_the_held_out_loss_is_that_of_the_labels_and_changes_no_gradient() -> None:
    given, held = rows(2), rows(3)
    of = data(given)
    it = learner(of.config)
    (packed,) = data(held).messages(0, data(held).train.rows)
    nats, tokens = it.measure(MeasureLoss(0, packed.message.samples), packed.buffers)
    _, loss, count = labelled(held)
    assert tokens == count and nats / tokens == pytest.approx(loss, rel=1e-6)
    for each in of.messages(0, of.train.rows):
        it.accumulate(each.message, each.buffers)
    before = [None if p.grad is None else p.grad.clone() for p in it.model.parameters()]
    it.measure(MeasureLoss(0, packed.message.samples), packed.buffers)
    after = [p.grad for p in it.model.parameters()]
    assert all(
        (one is None and other is None)
        or (one is not None and other is not None and torch.equal(one, other))
        for one, other in zip(before, after, strict=True)
    )
