"""Rollout throughput with `rollout.overprovision` = 2 against 1, `rollout.mode` = batch, by the
real coordinator, actors and links in virtual time: twice the groups that a step needs are started,
and once it has them the rest is interrupted, kept, and goes on in the next (APRIL).

64 groups of 8 rollouts a step, of lognormal lengths (sigma = 1, mean 2,800 tokens, cut at 28,000);
a decode step of an engine takes 8 ms, or 0.1 ms for each busy slot where that is more; engines
stand still while a step is trained. Throughput is tokens generated per second in which they do not.
`--engines` engines share the rollouts.
"""

from __future__ import annotations

import argparse
from collections import Counter

from asyncrl.simulation.capacity.modelled import (
    GROUPS,
    MEMBERS,
    Measured,
    configured,
    lognormal,
    measure,
    roofline,
)
from asyncrl.simulation.fake_world import Speeds

MEAN, LONGEST = 2_800, 28_000
TRAINED_TOKEN_S = 3e-5
MAX_LAG = 16
FIRST, LAST = 6, 26


def run(overprovision: float, engines: int) -> Measured:
    slots = int(overprovision * GROUPS * MEMBERS) // engines
    rollout: dict[str, object] = {"mode": "batch", "overprovision": overprovision}
    config = configured(
        engines, slots, LONGEST, staleness={"depth": 0, "max_lag": MAX_LAG}, rollout=rollout
    )
    speeds = Speeds(verdict_s=1.0, trained_token_s=TRAINED_TOKEN_S, step_s=1.0)
    return measure(
        config, lognormal(1, MEAN, LONGEST), roofline(8e-3, 1e-4), speeds, first=FIRST, last=LAST
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engines", type=int, default=4)
    engines = parser.parse_args().engines
    print(
        f"{'overprovision':<15}{'tokens/s':>10}{'rollout s/step':>16}{'s/step':>9}"
        f"{'head lag':>10}{'largest':>9}{'never trained':>15}"
    )
    throughput: list[float] = []
    lost = 0
    for overprovision in (1.0, 2.0):
        came = run(overprovision, engines)
        throughput.append(came.generated / came.rollout_s)
        never = Counter(came.discarded) + Counter(came.discarded_before)
        lost += never.total()
        print(
            f"{overprovision:<15g}{throughput[-1]:>10,.0f}{came.rollout_s / came.steps:>16.1f}"
            f"{came.step_s:>9.1f}{came.head_lag:>10.2f}"
            f"{came.largest_lag:>9}"
            f"{', '.join(f'{n:,} {why}' for why, n in never.items()) or '0':>15}",
            flush=True,
        )
    print(f"\nthroughput, 2 over 1: {throughput[1] / throughput[0]:.2f} (aim: at least 1.4)")
    print(f"tokens generated and never trained: {lost:,} (aim: 0)")


if __name__ == "__main__":
    main()
