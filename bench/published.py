"""The simulator against a table of another system: verl's fully asynchronous trainer, seconds a
step by the share of a step that may be generated ahead ("128-card Stale Ablation Experiment" and
"Asynchronous Training on 7B Model", docs/advance/fully_async.md, October 2025).

Its settings: Qwen2.5-Math-7B on H20s, half of them generate and half train; 512 prompts a step, 16
responses each, at most 28,000 tokens; the trainer takes a step in four parts of 128 prompts, in the
order in which they are finished, and its seconds are the column `update_actor`. Between two
versions (1 + staleness) x 512 prompts may be generated, those that are over included, which is
`rollout.overprovision` at `staleness.depth` 0. Interrupted responses go on.

What verl does not say is assumed:

    engine      one H20 each: a decode step reads 15.2 GB of weights at 4.0 TB/s and takes 1.2 ms
                beside, 5 ms; a slot in the mean a cache of 4,000 tokens of 57 KB, 0.06 ms
    lengths     lognormal, sigma 1, cut at 28,000; the mean, 3,800, is FITTED to the ablation's rows
    rest        25 s a step: 4 that a step has besides `gen` and `update_actor`, and 21 that its
                samples take to be fetched, which are all of `gen` where engines have time to spare
                (FITTED to the row 16:16)

So two numbers are fitted, and six rows are said by them, by the model of `asyncrl simulate`: the
real coordinator, actors and links in virtual time. A row in which nothing is generated ahead has
`staleness.max_lag` 8 like the others, because at 0 asyncrl would take groups in the order of their
prompts, and verl takes them as they finish.

    python bench/published.py [--mean TOKENS] [--steps N] [--only NAME]
"""

from __future__ import annotations

import argparse
import time
from typing import NamedTuple

import msgspec

from asyncrl.config import Config
from asyncrl.sizing.cluster_models import ClusterModel, EngineModel, LengthModel, TrainerModel
from asyncrl.sizing.forecast import Cluster, Forecast, forecast

GROUPS, MEMBERS, PARTS, LONGEST = 512, 16, 4, 28_000
FITTED = 3_800.0
"""Tokens of a response in the mean, before the cut."""
ENGINE = EngineModel.additive(5e-3, 6e-5)
REST_S = 25.0


class Row(NamedTuple):
    """A row of verl's tables: devices of each side, and seconds a step, of which the trainer waited
    `wait_s` and trained `update_s`."""

    name: str
    devices: int
    staleness: float
    step_s: float
    wait_s: float
    update_s: float


ROWS = (
    Row("64:64, staleness 0", 64, 0.0, 231.34, 128.47, 98.77),
    Row("64:64, staleness 0.1", 64, 0.1, 171.30, 58.17, 109.12),
    Row("64:64, staleness 0.3", 64, 0.3, 146.11, 38.88, 103.22),
    Row("64:64, staleness 0.5", 64, 0.5, 150.63, 33.14, 113.16),
    Row("32:32, staleness 0.5", 32, 0.5, 189.26, 28.46, 156.98),
    Row("16:16, staleness 0.5", 16, 0.5, 294.77, 21.26, 269.80),
)


def run(row: Row, mean: float, steps: int) -> Forecast:
    """Forecast a row's run for about so many steps."""
    lengths = LengthModel(mean=mean)
    drawn = lengths.drawn(0, LONGEST)
    tokens = GROUPS * MEMBERS * sum(map(drawn, range(20_000))) / 20_000
    live = round(GROUPS * (1 + row.staleness))
    config = msgspec.convert(
        {
            "task": {"eval_size": 0},
            "engine": {
                "kind": "scripted",
                "slots": -(-live * MEMBERS // row.devices),
                "chunk_tokens": LONGEST // 20,
                "context_tokens": LONGEST + 1_000,
            },
            "rollout": {
                "actors": row.devices,
                "group_size": MEMBERS,
                "max_new_tokens": LONGEST,
                "overprovision": 1 + row.staleness,
                "filter": "none",
            },
            "staleness": {"depth": 0, "max_lag": 8, "window": 0},
            "train": {"batch_groups": GROUPS, "micro_tokens": round(tokens / PARTS)},
            "reward": {"concurrency": 10**5},
        },
        Config,
    )
    trainer = TrainerModel(token_us=1e6 * row.update_s * row.devices / tokens, step_s=REST_S)
    models = ClusterModel(engine=ENGINE, length=lengths, trainer=trainer)
    hours = steps * row.step_s / 3600
    return forecast(config, models, Cluster(row.devices, row.devices), hours)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mean", type=float, default=FITTED)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--only", default="", help="the rows whose names contain this")
    args = parser.parse_args()
    print(
        f"{'row':<24}{'verl: s/step':>14}{'forecast':>10}{'ratio':>8}{'waits: verl':>13}{'ours':>8}"
    )
    for row in ROWS:
        if args.only not in row.name:
            continue
        began = time.monotonic()
        came = run(row, args.mean, args.steps)
        print(
            f"{row.name:<24}{row.step_s:>14.1f}{came.step_s:>10.1f}{came.step_s / row.step_s:>8.2f}"
            f"{row.wait_s:>13.1f}{came.step_s - row.update_s - 4:>8.1f}"
            f"   engines idle {came.idle_engines:.0%}, mean lag {came.lag_mean:.2f}, "
            f"{time.monotonic() - began:.0f} s",
            flush=True,
        )


if __name__ == "__main__":
    main()
