"""Numbers of a device against those of a processor: gradients, the bits of a step, and
log-probabilities in bfloat16."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from asyncrl.config.schema import StalenessConfig
from asyncrl.engines import canary as canary_text
from asyncrl.training import chunked_logits, forward
from asyncrl.training.forward import attend_in_blocks, log_probabilities, shares, use_passes
from asyncrl.training.learner import Learner
from asyncrl.training.packing import pack
from asyncrl.training.recomputation import recompute

from .check import Number, Place
from .shapes import MIDDLE, TINY, build, settings, work

FLOAT32, BFLOAT16 = 1e-4, 0.05
"""Largest distances of a gradient, over its length, that rounding makes: some hundred sums of
numbers with 24 bits, and what 8 bits leave."""
PROMPT, RESPONSES = 7, (40, 1, 23, 40, 12, 31)
"""Tokens of a prompt that all samples share, and of each response."""


def gradients(place: Place) -> list[Number]:
    """Distances of gradients on the device, in each way that a pass is computed, from those that
    the model's own plain pass gives in float64 on a processor, one sample at a time."""
    exact = build(TINY, torch.float32, "cpu", initializer_range=0.3).double()
    rng = np.random.default_rng(0)
    prompt = rng.integers(0, TINY.vocabulary, PROMPT)
    rows = [
        np.concatenate([prompt, rng.integers(0, TINY.vocabulary, count)]) for count in RESPONSES
    ]
    weights = [torch.from_numpy(rng.normal(size=count)) for count in RESPONSES]
    total = torch.zeros((), dtype=torch.float64)
    for row, weight in zip(rows, weights, strict=True):
        ids = torch.from_numpy(row)
        every = exact(ids[None]).logits[0, :-1].log_softmax(-1).gather(1, ids[1:, None])[:, 0]
        total = total + (every[PROMPT - 1 :] * weight).sum()
    total.backward()
    expected = _gradient(exact)
    found = []
    for way in ("tables", "recomputed", "chunked", "padded", "alone", "blocks", "bfloat16"):
        if way == "blocks" and place.device == "cpu":
            continue  # torch has no backward pass of it there
        dtype = torch.bfloat16 if way == "bfloat16" else torch.float32
        model = copy.deepcopy(exact).to(place.device, dtype)
        model.zero_grad(set_to_none=True)
        with _way(model, way):
            packed = pack(
                np.concatenate(rows).astype(np.int32),
                [PROMPT] * len(rows),
                list(RESPONSES),
                shared=shares(model),
                device=place.device,
            )
            joined = torch.cat(weights).float()
            for batch in packed:
                of_batch = log_probabilities(model, batch, 1.0)
                (of_batch * joined[batch.tokens].to(place.device)).sum().backward()
        distance = float((_gradient(model) - expected).norm() / expected.norm())
        bound = BFLOAT16 if dtype == torch.bfloat16 else FLOAT32
        found.append(Number(way, distance, most=bound))
    return found


def _gradient(model: PreTrainedModel) -> Tensor:
    """Gradients of all parameters, float64 on the host, in one."""
    parts = [each.grad for each in model.parameters() if each.grad is not None]
    return torch.cat([part.detach().cpu().double().flatten() for part in parts])


@contextmanager
def _way(model: PreTrainedModel, way: str) -> Iterator[None]:
    """Have the model's passes computed in this way meanwhile."""
    most = chunked_logits.LOGIT_BYTES
    match way:
        case "recomputed":
            recompute(model)
        case "chunked":
            forward.make_logits_in_chunks(model)
            most = 16 * 4 * TINY.vocabulary
        case "padded" | "alone":
            use_passes(model, way)
        case "blocks":
            attend_in_blocks(model)
    with patch.object(chunked_logits, "LOGIT_BYTES", most):
        yield


def drift(place: Place) -> list[Number]:
    """Bits in which two steps from one state differ: the weights afterwards."""
    shape, response = (TINY, 24) if place.small else (MIDDLE, 2000)
    model = build(shape, torch.float32, place.device)
    given = work(model, 8, response)
    ends = []
    for _ in range(2):
        learner = Learner(
            copy.deepcopy(model), settings(place.device), StalenessConfig(), temperature=1.0
        )
        learner.accumulate(given.batch, given.buffers)
        learner.step()
        ends.append(
            torch.cat([each.detach().cpu().flatten() for each in learner.model.parameters()])
        )
    first, second = ends
    start = torch.cat([each.detach().cpu().flatten() for each in model.parameters()])
    bits = (first.view(torch.int32).long() - second.view(torch.int32).long()).abs()
    most = 0.0 if place.device == "cpu" else None
    return [
        Number("weights that differ", float((bits > 0).double().mean()), most=most),
        Number("largest difference", float(bits.max()), "units in the last place", most=most),
        Number("weights that the step changed", float((first != start).double().mean()), least=0.5),
    ]


def canary(place: Place) -> list[Number]:
    """Largest and mean distance of a text's log-probabilities in bfloat16: texts by themselves on a
    processor, as the trainer makes the reference of a canary, and all at once on the device."""
    shape, texts = (TINY, 20) if place.small else (MIDDLE, 1000)
    model = build(shape, torch.bfloat16, "cpu", initializer_range=0.06)
    ids = np.random.default_rng(0).integers(
        0, shape.vocabulary, (texts, canary_text.TOKENS), dtype=np.int32
    )
    own = dict(model.named_parameters())
    expected = np.array([canary_text.reference(model, own, row) for row in ids])
    model = model.to(place.device)
    gaps = []
    for start in range(0, texts, 100):
        rows = torch.from_numpy(ids[start : start + 100].astype(np.int64)).to(place.device)
        with torch.no_grad():
            logits = model(rows, use_cache=False).logits[:, :-1].float()
        scores = logits.log_softmax(-1).gather(2, rows[:, 1:, None])[..., 0].cpu().numpy()
        gaps.append(np.abs(scores - expected[start : start + 100]).max(1))
    of_texts = np.concatenate(gaps)
    return [
        Number(
            "largest gap",
            float(of_texts.max()),
            "nats",
            most=canary_text.TOLERANCE["bfloat16"],
        ),
        Number("mean of texts' largest", float(of_texts.mean()), "nats"),
        Number("texts", float(texts)),
    ]
