"""Orders and units of training against each other: seconds a step, the share of tokens that never
reach a loss, and their lag, by the real coordinator, actors and links in virtual time.

64 groups of 8 rollouts a step; a rollout takes a lognormal time (sigma = 1, cut at 10 times its
mean), whatever the load; a step takes the trainer 60 s; rollouts go on across publications; tokens
over `max_lag` are masked. `oldest` is the default order. `completion` trains first what was
finished first, as AReaL does, and stands here alone, for comparison. `strict` waits for the oldest
(`staleness.window` = 1). Where the unit is a rollout it is trained as soon as 4 others of its group
are judged. `--only` names rows to run, by a part of their names.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

from asyncrl.experience.experience import Experience
from asyncrl.experience.group import Group
from asyncrl.messages import Split
from asyncrl.sizing.cluster_models import ClusterModel, EngineModel, LengthModel, TrainerModel
from asyncrl.sizing.meter import Measured
from asyncrl.sizing.modelled import GROUPS, MEMBERS, configured, measure

STEP_S = 60.0
ENGINES = 2
FIRST, LAST = 10, 24
ORDERS = ((20, 4), (60, 4), (60, 8), (180, 8))
UNITS = ((60, 2), (60, 4), (60, 8), (180, 4), (180, 8))


@contextmanager
def completion_order() -> Iterator[None]:
    """Completion order: the first that finished is ready first."""
    ready = Experience.ready

    def by_completion(self: Experience, split: Split = "train") -> list[Group]:
        return sorted(
            ready(self, split), key=lambda group: max(member.sealed for member in group.members)
        )

    with mock.patch.object(Experience, "ready", by_completion):
        yield


def run(mean: int, max_lag: int, *, depth: int, window: int = 0, unit: str = "group") -> Measured:
    """A run whose rollouts take `mean` s, a token a second."""
    longest = 10 * mean
    slots = (depth + 1) * GROUPS * MEMBERS // ENGINES  # nothing waits for one
    alone: dict[str, object] = {"unit": unit, "advantage": "first_k"} if unit == "rollout" else {}
    config = configured(
        ENGINES,
        slots,
        longest,
        staleness={"max_lag": max_lag, "depth": depth, "window": window},
        train=alone,
        rollout={"k_min": 4} if unit == "rollout" else {},
        run={"seed": 1},
    )
    models = ClusterModel(
        engine=EngineModel(decode_ms=[(1, 1e3)]),
        length=LengthModel(mean=mean),
        trainer=TrainerModel(token_us=0.0, step_s=STEP_S),
    )
    return measure(config, models, first=FIRST, last=LAST)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="run the rows whose names contain this")
    only = parser.parse_args().only
    began = time.process_time()
    print(
        f"{'mean s, max_lag':<16}{'what':<28}{'s/step':>8}{'idle':>7}{'masked':>9}"
        f"{'head lag':>10}{'largest':>9}"
    )
    masked: dict[tuple[int, int, str], float] = {}

    def row(mean: int, max_lag: int, what: str, came: Measured) -> None:
        masked[mean, max_lag, what] = came.masked
        print(
            f"{f'{mean}, {max_lag}':<16}{what:<28}{came.step_s:>8.1f}{came.idle:>7.1%}"
            f"{came.masked:>9.1%}{came.head_lag:>10.2f}"
            f"{came.largest_lag:>9}",
            flush=True,
        )

    for mean, max_lag in ORDERS:
        if only in "completion order":
            with completion_order():
                row(mean, max_lag, "completion order", run(mean, max_lag, depth=max_lag))
        if only in "oldest first":
            row(mean, max_lag, "oldest first", run(mean, max_lag, depth=max_lag))
        if only in "strict window":
            row(mean, max_lag, "strict window", run(mean, max_lag, depth=max_lag, window=1))
    for mean, max_lag in UNITS:
        if only in "oldest first" and (mean, max_lag) not in ORDERS:
            row(mean, max_lag, "oldest first", run(mean, max_lag, depth=max_lag))
        if only in "rollout":
            row(mean, max_lag, "rollout", run(mean, max_lag, depth=max_lag, unit="rollout"))
        if only in "rollout, half the depth":
            row(
                mean,
                max_lag,
                "rollout, half the depth",
                run(mean, max_lag, depth=max_lag // 2, unit="rollout"),
            )
    print(f"\n{time.process_time() - began:.0f} s of this machine")
    if (60, 8, "completion order") in masked and (60, 8, "oldest first") in masked:
        ratio = masked[60, 8, "oldest first"] / masked[60, 8, "completion order"]
        print(
            f"masked at 60 s, max_lag 8, oldest first over completion order: {ratio:.2f} (aim: "
            "at most 0.25)"
        )


if __name__ == "__main__":
    main()
