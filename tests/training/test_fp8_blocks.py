"""fp8 blocks, against numpy: the grid is made from the bytes of e4m3 by their definition, and each
number is searched in it."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from asyncrl.training.fp8_blocks import dequantized, quantized, rounded

SIZES = st.sampled_from([1, 3, 128, 130])


def value(byte: int) -> float:
    """A number of e4m3 by its definition (OCP OFP8, table 1): four bits of exponent, biased by 7,
    three of mantissa, no infinity."""
    sign, exponent, mantissa = byte >> 7, byte >> 3 & 15, byte & 7
    if exponent == 15 and mantissa == 7:
        return math.nan
    size = mantissa / 8 * 2.0**-6 if exponent == 0 else (1 + mantissa / 8) * 2.0 ** (exponent - 7)
    return -size if sign else size


GRID = np.array([value(byte) for byte in range(127)])
"""All numbers from 0 to the largest; the byte of each is its index."""


def reference(weight: NDArray[np.float64]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Bytes without their sign, and scales, of one matrix."""
    rows, columns = weight.shape
    numbers = np.zeros(weight.shape, np.int64)
    scales = np.ones((-(-rows // 128), -(-columns // 128)))
    for at in np.ndindex(scales.shape):
        here = tuple(slice(128 * i, 128 * i + 128) for i in at)
        block, scale = np.abs(weight[here]), 2.0**-126
        if block.max() > 0:
            while block.max() > GRID[-1] * scale:
                scale *= 2
            scales[at] = scale
        inside = block / scales[at]
        above = np.searchsorted(GRID, inside)
        below = np.maximum(above - 1, 0)
        nearer = (inside - GRID[below]) - (GRID[above] - inside)
        # of two as near, the one with an even mantissa
        up = (nearer > 0) | ((nearer == 0) & (above % 2 == 0))
        numbers[here] = np.where(up, above, below)
    return numbers, scales


@st.composite
def matrices(draw: st.DrawFn) -> torch.Tensor:
    """Of any size, with ties, zeros, blocks of zeros, and numbers of very different sizes."""
    shape = draw(SIZES), draw(SIZES)
    generator = np.random.default_rng(draw(st.integers(0, 2**32)))
    spread = draw(st.sampled_from([0.0, 1.0, 8.0, 30.0]))
    found = generator.standard_normal(shape) * 2.0 ** generator.uniform(-spread, spread, shape)
    if draw(st.booleans()):  # halfway between numbers of the grid
        found = generator.choice((GRID[1:] + GRID[:-1]) / 2, shape) * 2.0 ** draw(
            st.integers(-40, 40)
        )
    if draw(st.booleans()):
        found[: shape[0] // 2] = 0
    return torch.from_numpy(found).to(draw(st.sampled_from([torch.float32, torch.bfloat16])))


@given(matrices())
def test_every_number_is_the_nearest_of_its_blocks_grid(weight: torch.Tensor) -> None:
    blocks = quantized(weight)
    numbers, scales = reference(weight.double().numpy())
    found = blocks.numbers.view(torch.uint8).long().numpy()
    assert np.array_equal(found & 127, numbers)
    assert np.array_equal(blocks.scales.double().numpy(), scales)
    whole = np.kron(scales, np.ones((128, 128)))[: weight.shape[0], : weight.shape[1]]
    exact = np.sign(weight.double().numpy()) * GRID[numbers] * whole
    for dtype in (torch.float32, torch.bfloat16):  # exact in both
        assert np.array_equal(dequantized(blocks, dtype).double().numpy(), exact)


@given(matrices())
def test_what_was_rounded_stays(weight: torch.Tensor) -> None:
    once = rounded(weight)
    assert once.dtype == weight.dtype and torch.equal(rounded(once), once)
    assert torch.equal(rounded(once.bfloat16()).float(), once.float())


@given(matrices(), matrices())
def test_a_stack_is_its_matrices(one: torch.Tensor, other: torch.Tensor) -> None:
    other = torch.zeros_like(one).copy_(other.flatten()[:1])
    found = quantized(torch.stack([one, other]))
    for of_stack, alone in zip(zip(*found, strict=True), map(quantized, (one, other)), strict=True):
        assert torch.equal(of_stack[0].view(torch.uint8), alone.numbers.view(torch.uint8))
        assert torch.equal(of_stack[1], alone.scales)


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_is_not_hidden(wrong: float) -> None:
    weight = torch.ones(200, 200)
    weight[150, 3] = wrong
    found = rounded(weight)
    assert found[128:, :128].isnan().all()
    assert torch.equal(found[:128], weight[:128]) and torch.equal(found[:, 128:], weight[:, 128:])
