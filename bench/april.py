"""Rollout throughput with `rollout.overprovision` = 2 against 1, `rollout.mode` = batch, by the
real coordinator, actors and links in virtual time: twice the groups that a step needs are started,
and once it has them the rest is interrupted, kept, and goes on in the next (APRIL).

The paper's setting: 32 groups of 8 rollouts a step, 64 started, responses of at most 16,384 tokens,
4 engines; lengths are lognormal (sigma = 1) of three means, as the paper does not say its own. A
decode step of an engine takes 6 ms and 0.22 ms for each busy slot. Engines stand still while a step
is trained, and throughput is tokens generated per second in which they do not; the trainer takes no
time here, so that none of its own is in that. The paper measures 1.225 on average, 1.44 at most.

    paper, mean N     that setting; the one of 7,000 tokens is the headline
    flat engine       the same where a decode step takes 8 ms up to 80 slots: what batching costs
    10 times the mean 64 groups of 8, mean 2,800, cut at 28,000, flat engine: what a long tail makes
                      of it. No published run is like this.

An engine reads 30,000 tokens a second of what it is given, recycled prefixes included, and decodes
nothing meanwhile. Medians of `--seeds` draws of the lengths.
"""

from __future__ import annotations

import argparse
import statistics
from collections import Counter
from typing import NamedTuple

from asyncrl.sizing.cluster_models import ClusterModel, EngineModel, LengthModel, TrainerModel
from asyncrl.sizing.meter import Measured
from asyncrl.sizing.modelled import MEMBERS, configured, measure

MAX_LAG = 16
FIRST, LAST = 6, 26
ENGINES, PREFILL = 4, 30_000
ADDITIVE = EngineModel.additive(6e-3, 2.2e-4, prefill=PREFILL)
FLAT = EngineModel.roofline(8e-3, 1e-4, prefill=PREFILL)


class Setting(NamedTuple):
    """A batch, its lengths, and the engine that decodes it."""

    name: str
    groups: int
    mean: int
    longest: int
    engine: EngineModel


SETTINGS = (
    Setting("paper, mean 4,800", 32, 4_800, 16_384, ADDITIVE),
    Setting("paper, mean 7,000", 32, 7_000, 16_384, ADDITIVE),
    Setting("paper, mean 8,400", 32, 8_400, 16_384, ADDITIVE),
    Setting("flat engine", 32, 7_000, 16_384, FLAT),
    Setting("10 times the mean", 64, 2_800, 28_000, FLAT),
)


def run(setting: Setting, overprovision: float, seed: int) -> Measured:
    rollout: dict[str, object] = {"mode": "batch", "overprovision": overprovision}
    config = configured(
        ENGINES,
        int(overprovision * setting.groups * MEMBERS) // ENGINES,
        setting.longest,
        staleness={"depth": 0, "max_lag": MAX_LAG},
        rollout=rollout,
        train={"batch_groups": setting.groups},
        run={"seed": seed},
    )
    models = ClusterModel(
        engine=setting.engine,
        length=LengthModel(mean=setting.mean),
        trainer=TrainerModel(token_us=0.0, step_s=1.0),
    )
    return measure(config, models, first=FIRST, last=LAST)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", default="", help="run the settings whose names contain this")
    args = parser.parse_args()
    print(
        f"{'setting':<20}{'2 over 1':>10}{'by seed':>20}{'head lag':>10}{'largest':>9}"
        f"{'off-policy':>12}{'never trained':>15}"
    )
    for setting in SETTINGS:
        if args.only not in setting.name:
            continue
        ratios, twice = list[float](), list[Measured]()
        lost = Counter[str]()
        for seed in range(1, args.seeds + 1):
            once, more = (run(setting, overprovision, seed) for overprovision in (1.0, 2.0))
            rates = [came.generated / came.rollout_s for came in (once, more)]
            ratios.append(rates[1] / rates[0])
            twice.append(more)
            for came in (once, more):
                lost.update(came.discarded)
                lost.update(came.discarded_before)
        old = statistics.median(
            1 - came.arrived.get(0, 0) / sum(came.arrived.values()) for came in twice
        )
        print(
            f"{setting.name:<20}{statistics.median(ratios):>10.2f}"
            f"{', '.join(f'{ratio:.2f}' for ratio in ratios):>20}"
            f"{statistics.median(came.head_lag for came in twice):>10.2f}"
            f"{max(came.largest_lag for came in twice):>9}{old:>12.0%}"
            f"{', '.join(f'{n:,} {why}' for why, n in lost.items()) or '0':>15}",
            flush=True,
        )


if __name__ == "__main__":
    main()
