"""Draws: a function of (seed, key, index) alone, uniform, and without visible correlation between
neighbours."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.engines.draws import stream, uniforms

WORD = 2**64 - 1


def reference(seed: int, key: int, index: int) -> float:
    """SplitMix64 in plain integers."""

    def mix(z: int) -> int:
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & WORD
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & WORD
        return z ^ (z >> 31)

    start = mix(
        (mix((seed + 0x9E3779B97F4A7C15) & WORD) + (key & WORD) * 0x94D049BB133111EB) & WORD
    )
    return (mix((start + (index + 1) * 0x9E3779B97F4A7C15) & WORD) >> 12) / 2**52


@given(st.integers(0, 2**63 - 1), st.integers(-(2**63), 2**64 - 1), st.integers(0, 10**6))
def test_against_plain_integers(seed: int, key: int, index: int) -> None:
    drawn = uniforms(np.array([stream(seed, key)], np.uint64), np.array([index]))
    assert drawn[0] == reference(seed, key, index)
    assert 0 <= drawn[0] <= 1 - 2**-52


def test_alone_or_in_a_batch_a_draw_is_the_same() -> None:
    streams = np.array([stream(3, key) for key in range(50)], np.uint64)
    indices = np.arange(50)[::-1].copy()
    together = uniforms(streams, indices)
    alone = [uniforms(streams[i : i + 1], indices[i : i + 1])[0] for i in range(50)]
    assert together.tolist() == alone


def test_uniform_over_indices_keys_and_seeds() -> None:
    count, bins = 20_000, 50
    zero = np.zeros(count, np.int64)
    rows = {
        "indices": uniforms(np.array([stream(0, 7)], np.uint64), np.arange(count)),
        "keys": uniforms(np.array([stream(0, key) for key in range(count)], np.uint64), zero),
        "seeds": uniforms(np.array([stream(seed, 7) for seed in range(count)], np.uint64), zero),
    }
    for name, drawn in rows.items():
        observed = np.bincount((drawn * bins).astype(int), minlength=bins)
        chi_square = float(((observed - count / bins) ** 2 / (count / bins)).sum())
        assert chi_square < 100, name  # 49 degrees of freedom: above 100 with probability 2e-5
        assert abs(np.corrcoef(drawn[:-1], drawn[1:])[0, 1]) < 0.03, name
