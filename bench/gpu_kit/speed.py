"""The speed of training steps: tokens a second, the share of the GPU's peak, and peak memory."""

from __future__ import annotations

import time
from itertools import product

import torch

from asyncrl.config.schema import StalenessConfig
from asyncrl.training.forward import falls_back
from asyncrl.training.learner import Learner
from asyncrl.training.trial import try_passes

from .check import Lacks, Number, Place
from .shapes import QWEN3, TINY, Shape, Work, again, build, settings, work

PEAKS = {
    "NVIDIA H100 80GB HBM3": 989e12,
    "NVIDIA H100 PCIe": 756e12,
    "NVIDIA H200": 989e12,
    "NVIDIA A100-SXM4-40GB": 312e12,
    "NVIDIA A100-SXM4-80GB": 312e12,
    "NVIDIA A100-PCIE-40GB": 312e12,
    "NVIDIA A100 80GB PCIe": 312e12,
    "NVIDIA L40S": 362e12,
}
"""Operations a second in bfloat16 without sparsity, by the name that the driver gives (NVIDIA's
data sheets). Of another GPU no share is told."""
AIM = 0.25
BYTES = 18
"""Bytes of a parameter with its master, gradients and moments: of a model in bfloat16."""
PROMPT = 256
ENOUGH_S = 65.0
"""Seconds after which no further case is begun."""


def operations(shape: Shape, tokens: int, responses: int, length: int) -> float:
    """Operations of a step's passes, forwards and backwards, on `tokens` in samples of `length`, of
    which `responses` have logits: 6 for each parameter of a matrix and token, and in attention 6
    for each number of a query or value and each of the length / 2 tokens before (Chowdhery et al.
    2022, PaLM, appendix B, with the causal half). What is computed twice counts once.

    >>> operations(Shape(4, 8, 1, 2, 1, head=2, vocabulary=10), 10, 5, 10)
    11040.0
    """
    matrices = 6.0 * shape.of_layers * tokens
    logits = 6.0 * shape.hidden * shape.vocabulary * responses
    # 12 = 2 products (scores, values) x 2 (multiply, add) x 3 (forwards, backwards twice)
    attention = 12.0 * shape.layers * shape.heads * shape.head * tokens * length / 2
    return matrices + logits + attention


def peak(name: str) -> float | None:
    """The peak of a GPU by its name, operations a second; None where it is not known.

    >>> peak("NVIDIA H200"), peak("NVIDIA H200 NVL")
    (989000000000000.0, None)
    """
    return PEAKS.get(name)


def speed(place: Place) -> list[Number]:
    """Steps of two samples that share a prompt, with activations computed again."""
    began, found = time.monotonic(), []
    cases = (
        [("tiny", TINY, 64)]
        if place.small
        else [
            (name, QWEN3[name], length)
            for name, length in product(("0.6B", "1.7B", "4B"), (4096, 16384, 32768))
        ]
    )
    built: tuple[str, Learner] | None = None
    for name, shape, length in cases:
        title = f"{name} at {length}"
        room = torch.cuda.get_device_properties(0).total_memory if place.device == "cuda" else 1e18
        if BYTES * (shape.of_layers + shape.hidden * shape.vocabulary) > 0.85 * room:
            found.append(Number(f"{title}: left out, no room for its state", 0.0))
            continue
        if time.monotonic() - began > ENOUGH_S:
            found.append(Number(f"{title}: left out, no time", 0.0))
            continue
        if built is None or built[0] != name:
            built = None  # its memory is needed
            built = name, _learner(shape, place.device)
        try:
            found += _case(title, shape, length, built[1], place)
        except torch.OutOfMemoryError:
            found.append(Number(f"{title}: out of memory", 1.0, most=0.0))
            built[1].optimizer.zero_grad(set_to_none=True)
            torch.cuda.empty_cache()
    if built is None:
        raise Lacks("no room on the GPU for the smallest model")
    return found


def _learner(shape: Shape, device: str) -> Learner:
    model = build(shape, torch.bfloat16, device)
    try_passes(model, 2048 if device == "cuda" else 64)
    return Learner(model, settings(device, recompute=True), StalenessConfig(), temperature=1.0)


def _case(title: str, shape: Shape, length: int, learner: Learner, place: Place) -> list[Number]:
    prompt = min(PROMPT, length // 4)
    given = work(learner.model, prompt, length - prompt)
    _step(learner, given)  # kernels are compiled, and moments made
    if place.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    seconds = _step(learner, given)
    tokens = 2 * length - prompt  # the prompt is computed once
    numbers = [
        Number(f"{title}: speed", tokens / seconds, "tokens/s"),
        Number(f"{title}: step", seconds, "s"),
    ]
    if place.device == "cuda":
        by_blocks = 1.0 - falls_back(learner.model)
        numbers.append(Number(f"{title}: attention by blocks", by_blocks, least=1.0))
        rate = operations(shape, tokens, 2 * (length - prompt), length) / seconds
        if known := peak(torch.cuda.get_device_name(0)):
            aim = AIM if length == 4096 else None
            numbers.append(Number(f"{title}: of peak", rate / known, least=aim))
        most = torch.cuda.max_memory_allocated() / 2**30
        numbers.append(Number(f"{title}: memory", most, "GiB"))
    return numbers


def _step(learner: Learner, given: Work) -> float:
    """Seconds of a step. Raises RuntimeError where it trained nothing: that is no speed."""
    cuda = learner.model.device.type == "cuda"
    begun = again(given, learner.version)
    if cuda:
        torch.cuda.synchronize()
    start = time.perf_counter()
    learner.accumulate(begun.batch, begun.buffers)
    metrics = learner.step()
    if cuda:
        torch.cuda.synchronize()
    seconds = time.perf_counter() - start
    if metrics["skipped"]:
        raise RuntimeError("a step trained nothing")
    return seconds
