"""No token over `max_lag` is in any loss: with heavy tails, answers without a verdict, filters,
crashes of actors, resumes, and whatever is done about what is stale. What the learner was given is
looked at itself, mask by mask.
"""

from __future__ import annotations

from collections import Counter

import pytest
from simulation_support import plain
from some_values import some

from asyncrl.messages import MicroBatch
from asyncrl.simulation.checker import checker
from asyncrl.simulation.faults import Fault
from asyncrl.simulation.run import simulate

FILTERS = "none", "zero_variance"
"""Of the runs of a plan, and of those of a way with what is stale, each second one has the other
filter."""
WAYS = [
    ("mask", "group"),
    ("restart", "group"),
    ("drop", "group"),
    ("mask", "rollout"),
    ("drop", "rollout"),
    ("train", "group"),
    ("train", "rollout"),
]
PLANS: dict[str, list[str]] = {
    "nothing": [],
    "rejects": ["verifier_raises", "verdict_twice"],
    "crashes": ["kill_rollout", "engine_crashes", "abort_without_partials", "kill_reward"],
    "slow engines": ["engine_slow", "stop_rollout", "link_delayed"],
    "resumes": ["kill_everything", "kill_coordinator", "restart_everything"],
}


@pytest.fixture
def lags(monkeypatch: pytest.MonkeyPatch) -> Counter[int]:
    """The tokens that learners may train, by lag."""
    found = Counter[int]()
    looked = checker.Checker.on_batch

    def on_batch(
        self: checker.Checker,
        batch: MicroBatch,
        ids: memoryview,
        behaviour: memoryview,
        mask: memoryview,
    ) -> None:
        at = 0
        for sample in batch.samples:
            for span in sample.spans:
                tokens = span.end - span.start
                found[batch.step - span.version] += sum(mask[at : at + tokens])
                at += tokens
        looked(self, batch, ids, behaviour, mask)

    monkeypatch.setattr(checker.Checker, "on_batch", on_batch)
    return found


def run(on_stale: str, unit: str, name: str, found: Counter[int]) -> Counter[str]:
    """A run in which long responses are overtaken many times; tokens that were left out, by
    reason."""
    seed = (WAYS.index((on_stale, unit)) + [*PLANS].index(name)) % len(FILTERS)
    config = plain(
        seed,
        task={"eval_size": 0},
        engine={"slots": 2, "chunk_tokens": 2},
        rollout={"actors": 3, "k_min": 1, "max_new_tokens": 40, "filter": FILTERS[seed]},
        train={
            "steps": 8,
            "batch_groups": 1,
            "unit": unit,
            "advantage": "first_k" if unit == "rollout" else "grpo",
        },
        staleness={"max_lag": 1, "depth": 1, "on_stale": on_stale},
    )
    faults = [
        Fault(0.3 + 0.4 * seed + 0.2 * place, kind, seed) for place, kind in enumerate(PLANS[name])
    ]
    report = simulate(seed, config=config, faults=faults)
    assert report.ok, f"seed {seed}: {report.violation}"
    assert report.checks["lag"] and found[0] and found[1]
    return Counter(report.discarded)


@pytest.mark.parametrize("name", some(PLANS, len(PLANS)))
@pytest.mark.parametrize(
    ("on_stale", "unit"),
    [WAYS[0], *(pytest.param(*way, marks=pytest.mark.explore) for way in WAYS[1:5])],
)
def test_no_token_over_max_lag_is_in_any_loss(
    on_stale: str, unit: str, name: str, lags: Counter[int]
) -> None:
    left_out = run(on_stale, unit, name, lags)
    assert max(+lags) == 1, lags
    assert left_out["stale"] > 0, "nothing was ever too old: these runs show nothing"


@pytest.mark.explore
@pytest.mark.parametrize("unit", ["group", "rollout"])
def test_where_stale_tokens_are_to_be_trained_the_same_runs_do_go_over_max_lag(
    unit: str, lags: Counter[int]
) -> None:
    left_out = run("train", unit, "nothing", lags)
    assert max(+lags) > 1 and not left_out["stale"], lags
