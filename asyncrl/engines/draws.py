"""Random draws of engines. Invariant: a draw is a function of (seed, key, index) alone.

Counter-based, so a rollout's draws depend neither on its neighbours nor on where or when it runs:
the stream of (seed, key) is SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number
generators", OOPSLA 2014) started at a hash of both.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_MASK = 2**64 - 1
_GOLDEN = 0x9E3779B97F4A7C15
_M1, _M2 = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_SHIFTS = (np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(12))
_UNIT = 2.0**-52


def _mixed(z: int) -> int:
    z = ((z ^ (z >> 30)) * _M1) & _MASK
    z = ((z ^ (z >> 27)) * _M2) & _MASK
    return z ^ (z >> 31)


def stream(seed: int, key: int) -> int:
    """The start of the stream of (seed, key), in [0, 2**64). Both may be any integers; their lowest
    64 bits count."""
    return _mixed((_mixed((seed + _GOLDEN) & _MASK) + (key & _MASK) * _M2) & _MASK)


def uniforms(streams: NDArray[np.uint64], indices: NDArray[np.int64]) -> NDArray[np.float64]:
    """Draw `indices[i]` (from 0) of `streams[i]`: uniform in [0, 1), multiples of 2**-52, so that u
    * x < x for every normal x > 0. The two shapes broadcast."""
    z = streams + (indices + 1).astype(np.uint64) * np.uint64(_GOLDEN)
    z = (z ^ (z >> _SHIFTS[0])) * np.uint64(_M1)
    z = (z ^ (z >> _SHIFTS[1])) * np.uint64(_M2)
    drawn: NDArray[np.float64] = ((z ^ (z >> _SHIFTS[2])) >> _SHIFTS[3]).astype(np.float64) * _UNIT
    return drawn
