"""The bound that admission promises, against a run of groups with random speeds, filters and
orders."""

import math
import subprocess
import sys
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from staleness.admission import max_live, may_admit


def test_fills_up_to_the_limit_and_never_below_zero() -> None:
    assert (max_live(1, 16), max_live(0, 3), max_live(1, 16, 1.5), max_live(0, 3, 1.1)) == (
        32,
        3,
        40,
        4,
    )
    assert [may_admit(live, 32) for live in (0, 31, 31.125, 31.5, 32, 40)] == [32, 1, 0, 0, 0, 0]


@given(st.integers(0, 3), st.integers(1, 4), st.integers(0, 6), st.integers(0, 2**32))
def test_lag_is_bounded_by_depth_and_by_how_many_may_overtake(
    depth: int, batch: int, window: int, seed: int
) -> None:
    """Groups finish in any order; a step takes its groups among the `window + 1` oldest live ones,
    and some groups are dropped."""
    random, admitted = Random(seed), 0
    live: list[
        tuple[int, int, int]
        # admission number, version at admission, groups admitted later that were trained before it
    ] = []
    for version in range(12):
        step: list[tuple[int, int, int]] = []
        while len(step) < batch:
            for _ in range(may_admit(len(live) + len(step), max_live(depth, batch))):
                live.append((admitted, version, 0))
                admitted += 1
            if random.random() < 0.2:
                live.pop(random.randrange(len(live)))
            elif live:
                # An older group is overtaken at most `window` times in all, as with a look-ahead
                # window.
                allowed = next(
                    (i for i, group in enumerate(live) if group[2] >= window), len(live) - 1
                )
                chosen = random.randrange(allowed + 1)
                live[:chosen] = [
                    (number, admitted_version, overtaken + 1)
                    for number, admitted_version, overtaken in live[:chosen]
                ]
                step.append(live.pop(chosen))
        assert all(
            version - admitted_version <= depth + math.ceil(window / batch)
            for _, admitted_version, _ in step
        )


def test_the_coordinator_gets_no_torch_from_these() -> None:
    code = (
        "import sys, staleness.lag, staleness.admission, asyncrl.training.checkpoint_index; "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
