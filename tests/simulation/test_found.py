"""One fault at a time, where a seed once showed a bug or where one fault has one answer."""

from __future__ import annotations

from functools import cache

import pytest
import trio
from simulation_support import plain
from some_values import some

from asyncrl.config import Config
from asyncrl.simulation import policy
from asyncrl.simulation.fake_learner import FakeLearner
from asyncrl.simulation.fault_kinds import KINDS
from asyncrl.simulation.faults import Fault
from asyncrl.simulation.run import SeedReport, simulate
from asyncrl.simulation.world import World


@pytest.mark.explore
@pytest.mark.parametrize("what", [kind for kind in KINDS if kind.startswith("garbage_")])
def test_garbage_from_an_engine_costs_the_engine_and_never_enters(what: str) -> None:
    report = simulate(1, config=plain(1), faults=[Fault(1.0, what, 1)])
    assert report.ok and report.faults == {what: 1} and [life.ok for life in report.lives] == [True]


@pytest.mark.parametrize("every", [0, 2])
def test_a_last_checkpoint_that_cannot_be_written_ends_the_run_by_that_name(every: int) -> None:
    config = plain(2, train={"steps": 2, "checkpoint_every": every})
    report = simulate(2, config=config, faults=[Fault(0.1, "checkpoint_fails", 1)])
    assert (
        report.ok
        and "the last checkpoint was not written: the plan" in report.lives[0].reason
        and report.virtual_s < 30
    )


def test_a_starved_runs_checkpoint_that_cannot_be_written_ends_the_run_by_that_name() -> None:
    config = plain(
        2, task={"train_size": 3, "epochs": 1}, train={"steps": 50, "checkpoint_every": 0}
    )
    report = simulate(2, config=config, faults=[Fault(0.1, "checkpoint_fails", 1)])
    assert (
        report.ok
        and "the last checkpoint was not written: the plan" in report.lives[0].reason
        and report.virtual_s < 30
    )
    assert "used up" in report.lives[-1].reason


@pytest.mark.explore
@pytest.mark.parametrize("seed", range(6))
def test_a_damaged_first_checkpoint_of_a_resumed_run_costs_its_steps_and_not_the_run(
    seed: int,
) -> None:
    faults = [Fault(0.8, "kill_everything", seed), Fault(0.9, "checkpoint_damaged", seed)]
    report = simulate(seed, config=plain(seed), faults=faults)
    assert report.ok, report.violation


@cache
def uninterrupted(seed: int) -> tuple[Config, SeedReport]:
    """A run at lag 0 to which nothing happens."""
    config = plain(seed, staleness={"max_lag": 0, "depth": 0})
    return config, simulate(seed, config=config, faults=[])


@pytest.mark.explore
@pytest.mark.parametrize(
    "kind",
    ["kill_everything", "kill_coordinator", "kill_trainer", "checkpoint_cut", "restart_everything"],
)
@pytest.mark.parametrize("seed", some(range(3)))
def test_at_lag_0_a_killed_and_resumed_run_equals_an_uninterrupted_one_weight_for_weight(
    kind: str, seed: int
) -> None:
    config, whole = uninterrupted(seed)
    killed = simulate(seed, config=config, faults=[Fault(0.4 + 0.7 * seed, kind, seed)])
    assert whole.ok and killed.ok, killed.violation
    assert len(whole.lives) == 1 < len(killed.lives) and killed.faults[kind] == 1
    assert whole.versions == killed.versions and len(whole.versions) == 7
    assert whole.versions[0] == policy.initial(seed)
    assert killed.checks["synchronous"] == (config.train.keep == "all")


def test_steps_that_are_taken_again_and_are_longer_than_a_stall_end_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nobody generates while they are, so the trainer alone shows that the run goes on."""
    config = plain(3, train={"steps": 5, "checkpoint_every": 0}, task={"eval_size": 0})
    step = FakeLearner.step

    async def slow(self: FakeLearner) -> dict[str, float]:
        await trio.sleep(2 * config.supervision.stall_s)
        return await step(self)

    monkeypatch.setattr(FakeLearner, "step", slow)
    report = simulate(3, config=config, faults=[Fault(450.0, "kill_everything", 1)])
    assert report.ok, report.violation
    assert len(report.lives) == 2 and report.virtual_s > 450 + 5 * 120


@pytest.mark.parametrize("seed", some(range(4), 4))
def test_a_pause_of_the_machine_ends_nothing_and_costs_no_actor(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults = [Fault(0.5 + 0.4 * n, "clock_jumps", seed + n) for n in range(4)]
    blamed: list[str] = []
    monkeypatch.setattr(World, "on_replace", lambda self, message: blamed.append(message.reason))
    report = simulate(seed, config=plain(seed), faults=faults)
    assert report.ok, report.violation
    assert len(report.lives) == 1 and report.faults["clock_jumps"] == 4 and blamed == []


@pytest.mark.parametrize(
    "at",
    [pytest.param(0.3 + 0.13 * n, marks=[pytest.mark.explore] * (n % 8 != 4)) for n in range(20)],
)
def test_a_run_killed_whole_at_any_moment_goes_on(at: float) -> None:
    report = simulate(
        5,
        config=plain(5),
        faults=[Fault(at, "kill_everything", 1), Fault(at + 1.7, "kill_everything", 1)],
    )
    assert report.ok, report.violation
    assert len(report.lives) >= 2 and report.lives[-1].ok


ALONE: dict[str, object] = {"unit": "rollout", "advantage": "first_k"}


@pytest.mark.parametrize("seed", some(range(3)))
def test_rollouts_trained_alone_are_scored_before_their_version_ends_though_siblings_are_not(
    seed: int,
) -> None:
    config = plain(seed, train=ALONE, staleness={"max_lag": 2, "proximal": "boundary"})
    report = simulate(seed, config=config, faults=[])
    assert report.ok, report.violation
    assert report.checks["baseline"] and len(report.lives) == 1


@pytest.mark.parametrize("window", [1, 2])
def test_what_keeps_a_group_out_of_the_window_is_chosen_with_it_where_a_step_is_chosen_whole(
    window: int,
) -> None:
    config = plain(
        1,
        train={"batch_groups": 3, "advantage": "reinforce_pp"},
        staleness={"window": window, "max_lag": 2},
    )
    report = simulate(1, config=config, faults=[])
    assert report.ok, report.violation
    assert report.checks["window"] and len(report.lives) == 1


@pytest.mark.explore
@pytest.mark.parametrize("lag", some([1, 0]))
@pytest.mark.parametrize("tokens", some([1000, 0]))
def test_a_step_of_which_rollouts_were_left_out_is_closed_with_what_there_is_and_made_again_so(
    lag: int, tokens: int
) -> None:
    settings = {
        "train": ALONE | {"step_tokens": tokens},
        "rollout": {"filter": "zero_variance"},
        "staleness": {"max_lag": lag, "depth": 0},
    }
    for seed in (0, 3, 5):
        config = plain(seed, **settings)
        whole = simulate(seed, config=config, faults=[])
        assert whole.ok and len(whole.lives) == 1, f"seed {seed}: {whole.violation}"
        killed = simulate(
            seed, config=config, faults=[Fault(0.5 + 0.3 * seed, "kill_everything", seed)]
        )
        assert killed.ok and killed.lives[-1].ok, f"seed {seed}: {killed.violation}"


@pytest.mark.parametrize(("seed", "at"), [(5, 2.0), (7, 1.4)])
def test_a_published_step_that_was_closed_short_takes_nothing_more_when_a_crash_has_it_made_again(
    seed: int, at: float
) -> None:
    short = {"step_tokens": 1000, "batch_groups": 1}
    config = plain(
        seed,
        train=ALONE | short,
        rollout={"filter": "zero_variance", "max_new_tokens": 8},
        staleness={"max_lag": 1, "depth": 0},
        journal={"commit_ms": 0},
    )
    report = simulate(seed, config=config, faults=[Fault(at, "kill_everything", seed)])
    assert report.ok and len(report.lives) == 2, report.violation
    assert report.checks["redo"]


def test_a_resumed_run_makes_no_second_version_before_engines_have_the_first() -> None:
    report = simulate(361)  # its engines come late, and it has the experience of three steps
    assert report.ok, report.violation
