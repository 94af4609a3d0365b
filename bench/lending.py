"""Lending on this machine: the run with a second rollout actor on the trainer's core
(`rollout.lent_actors`), by priority and by switching (`rollout.lending`), over the run without it,
in turn.

    as run.toml     the main job: what generation and training take is near to each other
    fewer slots     16 for 64: a decode step has less to share, so the trainer waits for most of
                    its time

The trainer's busy seconds of a step are printed, too, and the share of the run for which its
devices were lent by switching: no run is faster than the first, and what the trainer is idle for
and has not lent is nobody's. Seconds a
step and idle shares leave the first fifth of a run out, as `asyncrl calibrate` does. The learning
rate is next to nothing, so that lengths stay what they are.

    python bench/lending.py [--rounds 3] [--steps 40] [--only NAME]
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from collections import defaultdict
from pathlib import Path

from sizing import run

from asyncrl.explain import run_status
from asyncrl.runtime.run_dir import STATUS
from asyncrl.sizing.calibrate import RunPace, pace

SETTINGS: dict[str, dict[str, object]] = {
    "as run.toml": {},
    "fewer slots": {"engine.slots": 16},
}
TWO_CORES: dict[str, object] = {"machine.cores": 2}
LENT: dict[str, object] = {"rollout.actors": 2, "rollout.lent_actors": 1}
WAYS: dict[str, dict[str, object]] = {
    "without": {},
    "priority": LENT,
    "switch": LENT | {"rollout.lending": "switch"},
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--only", default="", help="run the settings whose names contain this")
    args = parser.parse_args()
    print(
        f"{'':<24}{'s/step':>8}{'trainer idle':>14}{'busy s/step':>13}{'lent':>8}"
        f"{'engines idle':>14}{'mean lag':>10}"
    )
    for name, settings in SETTINGS.items():
        if args.only not in name:
            continue
        found = defaultdict[str, list[RunPace]](list)
        with tempfile.TemporaryDirectory(prefix="lending-") as place:
            for number in range(args.rounds):
                for way, more in WAYS.items():
                    directory = Path(place) / f"{way}-{number}"
                    came = pace(run(directory, TWO_CORES | settings | more, args.steps))
                    found[way].append(came)
                    print(
                        f"{name + ', ' + way:<24}{came.step_s:>8.2f}{came.idle_trainer:>14.1%}"
                        f"{came.step_s * (1 - came.idle_trainer):>13.2f}{lent(directory):>8.1%}"
                        f"{came.idle_engines:>14.1%}{came.lag_mean:>10.2f}"
                        f"   load {os.getloadavg()[0]:.1f}",
                        flush=True,
                    )
        for way in list(WAYS)[1:]:
            ratios = [
                lent.step_s / without.step_s
                for lent, without in zip(found[way], found["without"], strict=True)
            ]
            print(
                f"{name}, {way}: {statistics.median(ratios):.2f} of the seconds a step (median; "
                f"worst {max(ratios):.2f})",
                flush=True,
            )


def lent(run: Path) -> float:
    """The share of a run's seconds for which the trainer's devices were lent, by switching."""
    status = run_status.read(run / STATUS)
    return 0.0 if status.lending is None else status.lending.seconds / status.seconds


if __name__ == "__main__":
    main()
