"""Ranks that compute packed batches together find what one does alone: figures, and gradients that
add up to its own. They are threads here, in float64; `ranks/test_features_of_ranks.py` has them as
processes."""

from __future__ import annotations

import copy
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch import Tensor
from training_world import build, rollouts
from transformers import AutoModelForCausalLM, MambaConfig, PreTrainedModel

from asyncrl.bundled.small_vision import new_vision_model
from asyncrl.training import chunked_logits
from asyncrl.training.adapters import learning
from asyncrl.training.chunked_logits import LogitFigures
from asyncrl.training.context_ranks import ContextPart, divide_context, refuse_context
from asyncrl.training.forward import figures, make_logits_in_chunks, may_share, measured_by_logits
from asyncrl.training.models import ModelError
from asyncrl.training.packing import PackedBatch, pack
from asyncrl.training.recomputation import recompute


class Together:
    """Tensors that threads, which are ranks, give each other."""

    def __init__(self, size: int) -> None:
        self.barrier = threading.Barrier(size, timeout=20)
        self.given: list[Tensor] = [torch.empty(0)] * size

    def of_all(self, index: int, own: Tensor) -> list[Tensor]:
        self.given[index] = own.detach().clone()
        self.barrier.wait()
        every = [*self.given]
        self.barrier.wait()
        return every


class ThreadRank(ContextPart):
    def __init__(self, index: int, size: int, together: Together) -> None:
        super().__init__(index, size)
        self._together = together

    def gathered(self, own: Tensor) -> Tensor:
        return torch.cat(self._together.of_all(self.index, own))

    def scattered(self, rows: Tensor) -> Tensor:
        every = torch.stack(self._together.of_all(self.index, rows)).sum(0)
        return every.chunk(self.size)[self.index]

    def added(self, tensor: Tensor) -> Tensor:
        return torch.stack(self._together.of_all(self.index, tensor)).sum(0)


def batches(shared: bool) -> list[PackedBatch]:
    """Trees, a text alone, and one of a single place, which leaves ranks with nothing."""
    made = rollouts(build("qwen3"), seed=4)
    prompts = [made[0].prompt, made[0].prompt, made[2].prompt]
    samples = [(prompts[n % 3], rollout.response) for n, rollout in enumerate(made)]
    every = []
    for part in (samples, samples[:1], [([3], [4])]):
        ids = np.array([i for prompt, response in part for i in (*prompt, *response)], np.int32)
        lengths = [len(prompt) for prompt, _ in part], [len(response) for _, response in part]
        every += pack(ids, *lengths, shared=shared)
    return every


def learned(
    model: PreTrainedModel, packed: PackedBatch
) -> tuple[LogitFigures, list[Tensor], list[Tensor]]:
    """Figures, gradients of a loss of all of them, and norms by logits."""
    found = figures(model, packed, 0.7, "learned")
    assert found.entropy is not None
    weights = torch.linspace(-1, 1, len(found.logprob), dtype=torch.float64)
    loss = (found.logprob.exp() * weights).sum() * found.logprob.sum() + found.entropy.sum()
    loss.backward()  # type: ignore[no-untyped-call]
    gradients = [
        torch.zeros_like(p) if p.grad is None else p.grad.clone() for _, p in learning(model)
    ]
    model.zero_grad(set_to_none=True)
    by_logits = measured_by_logits(
        model, packed, 0.7, lambda logits, ids: (logits.logsumexp(-1), ids.double())
    )
    detached = (None if each is None else each.detach() for each in found)
    return LogitFigures(*detached), gradients, by_logits


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize(
    ("name", "shared", "chunks", "again"),
    [("qwen3", True, True, True), ("gpt2", True, False, False), ("llama", False, True, False)],
)
def test_several_find_what_one_does(
    name: str,
    shared: bool,
    chunks: bool,
    again: bool,
    ranks: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(chunked_logits, "LOGIT_BYTES", 3 * 23 * 4)
    one = build(name).double().eval()
    if chunks:
        make_logits_in_chunks(one)
    if again:
        recompute(one)
    together = Together(ranks)
    models = [copy.deepcopy(one) for _ in range(ranks)]
    for index, model in enumerate(models):
        divide_context(model, ThreadRank(index, ranks, together))
    for packed in batches(shared):
        expected, gradients, by_logits = learned(one, packed)
        with ThreadPoolExecutor(ranks) as pool:
            every = [*pool.map(learned, models, [packed] * ranks)]
        for found, _, measured in every:
            assert torch.equal(found.logprob, every[0][0].logprob), "all decide alike"
            close([found.logprob], [expected.logprob])
            close([found.entropy], [expected.entropy])
            close(measured, by_logits)
        close([sum(parts) for parts in zip(*(of for _, of, _ in every), strict=True)], gradients)


def close(found: Sequence[object], expected: Sequence[object]) -> None:
    for mine, theirs in zip(found, expected, strict=True):
        assert isinstance(mine, Tensor) and isinstance(theirs, Tensor)
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-9)


def test_what_mixes_tokens_otherwise_is_refused() -> None:
    recurrent = AutoModelForCausalLM.from_config(
        MambaConfig(hidden_size=16, num_hidden_layers=1, state_size=4, vocab_size=23)
    )
    with pytest.raises(ModelError, match=r"MambaForCausalLM.*full attention.*context_ranks to 1"):
        refuse_context(recurrent, shares=may_share(recurrent))
    seeing = new_vision_model(3)
    with pytest.raises(ModelError, match=r"reads images: set train.context_ranks to 1"):
        refuse_context(seeing, shares=may_share(seeing))
