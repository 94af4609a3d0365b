"""The phases of a run: one way, each with a deadline."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.actors.coordinator.lifecycle import GOODBYE_S, Lifecycle, OverduePhase, Phase, Stage
from asyncrl.config.schema import SupervisionConfig

ACTORS = ("trainer-0", "rollout-0", "reward-0")
RUN = SupervisionConfig(start_s=100.0, stall_s=30.0, grace_s=10.0)


def begun(*phases: Phase) -> Lifecycle:
    """A run that has entered these phases after INIT, at seconds 1, 2, …"""
    life = Lifecycle(ACTORS, RUN, 0.0)
    for now, phase in enumerate(phases, 1):
        if phase is Phase.READY:
            for name in ACTORS:
                life.came(name, now)
        {
            Phase.READY: lambda now: None,
            Phase.RUN: life.published,
            Phase.DRAIN: life.over,
            Phase.STOP: life.drained,
        }[phase](now)
        assert (life.phase, life.since) == (phase, now)
    return life


def test_a_run_goes_through_its_phases() -> None:
    life = begun(Phase.READY, Phase.RUN, Phase.DRAIN, Phase.STOP)
    assert life.ending and life.deadline(0.0) == 4 + GOODBYE_S


@given(
    st.lists(st.sampled_from([*ACTORS, "rollout-9", "published", "over", "drained"]), max_size=30)
)
def test_it_never_goes_back_and_never_leaves_out_the_drain(inputs: list[str]) -> None:
    life, order = Lifecycle(ACTORS, RUN, 0.0), list(Phase)
    came: set[str] = set()
    seen = [life.phase]
    for now, what in enumerate(inputs, 1):
        if what == "published":
            life.published(now)
        elif what == "over":
            if life.ending:
                with pytest.raises(ValueError, match="already"):
                    life.over(now)
            else:
                life.over(now)
        elif what == "drained":
            if life.phase is not Phase.DRAIN:
                with pytest.raises(ValueError, match="drain"):
                    life.drained(now)
            else:
                life.drained(now)
        else:
            came.add(what)
            life.came(what, now)
        assert set(life.missing) == set(ACTORS) - came
        if life.phase is not seen[-1]:
            assert order.index(life.phase) > order.index(seen[-1]) and life.since == now
            seen.append(life.phase)
        assert (Phase.READY not in seen and Phase.RUN not in seen) or not life.missing
        assert Phase.STOP not in seen or Phase.DRAIN in seen
        assert life.deadline(0.0) > life.since


def test_who_never_comes_is_named_at_the_deadline_of_init() -> None:
    life = Lifecycle(ACTORS, RUN, 5.0)
    life.came("reward-0", 6.0)
    assert life.late(104.0, 104.9) is None, "what others do does not put it off"
    assert life.late(0.0, 105.0) == OverduePhase(Phase.INIT, ("trainer-0", "rollout-0"))


MANY = ("trainer-0", "rollout-0", "rollout-1", "rollout-2", "reward-0")


@given(st.sets(st.sampled_from(MANY)), st.lists(st.sampled_from(MANY[1:4]), max_size=3))
def test_a_quorum_is_everybody_but_rollout_actors_and_one_of_them(
    came: set[str], removed: list[str]
) -> None:
    life = Lifecycle(MANY, RUN, 0.0)
    for name in sorted(came):
        life.came(name, 1.0)
    for name in removed:
        life.remove(name, "died", 2.0)
    left = set(MANY) - set(removed)
    here = any(name.startswith("rollout") for name in came & left)
    if life.quorum:
        assert {"trainer-0", "reward-0"} <= came and here
        life.begin_without(100.0)
        assert life.phase is Phase.READY and not life.missing
    elif life.phase is Phase.INIT and len(removed) < 3:
        assert not ({"trainer-0", "reward-0"} <= came and here)


def test_who_is_removed_is_not_waited_for_unless_nobody_is_left() -> None:
    life = Lifecycle(MANY, RUN, 0.0)
    for name in ("trainer-0", "reward-0", "rollout-0"):
        life.came(name, 1.0)
    life.remove("rollout-1", "died", 2.0)
    assert life.phase is Phase.INIT and life.missing == ("rollout-2",)
    life.remove("rollout-2", "died", 3.0)
    assert (life.phase, life.since) == (Phase.READY, 3.0) and life.rollout_actors == 1
    alone = Lifecycle(ACTORS, RUN, 0.0)
    for name in ("trainer-0", "reward-0"):
        alone.came(name, 1.0)
    alone.remove("rollout-0", "died", 2.0)
    assert alone.phase is Phase.INIT and not alone.quorum and alone.rollout_actors == 0


@pytest.mark.parametrize("phases", [(Phase.READY,), (Phase.READY, Phase.RUN)])
def test_the_watchdog_counts_from_what_happened_last(phases: tuple[Phase, ...]) -> None:
    life = begun(*phases)
    began = life.since
    assert life.late(0.0, began + 29.9) is None
    assert life.late(0.0, began + 30.0) == OverduePhase(phases[-1], ())
    assert life.late(50.0, 79.9) is None
    assert life.late(50.0, 81.0) == OverduePhase(phases[-1], ())


@pytest.mark.parametrize("phases", [(), (Phase.READY,), (Phase.READY, Phase.RUN)])
def test_every_phase_drains_and_all_its_stages_fit_the_grace(phases: tuple[Phase, ...]) -> None:
    life = begun(*phases)
    life.over(50.0)
    deadlines = [life.stage_deadline(stage) for stage in Stage]
    assert (
        deadlines == sorted(set(deadlines))
        and deadlines[0] > 50.0
        and deadlines[-1] < life.deadline(0.0) == 60.0
    )
    assert life.late(0.0, 1e9) is None
