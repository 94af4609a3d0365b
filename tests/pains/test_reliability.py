"""Promises of docs/reliability.md about faults without a test of their own elsewhere: each kind
alone, several times, in the simulation.

Its checker checks every invariant after every event, and that a life which ends badly does so by
the name of a fault that it had.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import pytest
from pains_world import simulated
from some_values import some

from asyncrl.actors.coordinator.resume import resumed
from asyncrl.experience import events as e
from asyncrl.experience.experience import Experience
from asyncrl.journal.disk import EventRows, Keep
from asyncrl.simulation import fault_kinds
from asyncrl.simulation.faults import Fault
from asyncrl.simulation.run import SeedReport
from asyncrl.simulation.sim_disk import SimDisk


def met(kinds: Sequence[str], seeds: int = 2) -> list[SeedReport]:
    """Runs with one of these faults each, which all of them survived."""
    found = []
    for kind in kinds:
        for seed in range(seeds):
            report = simulated(seed, Fault(0.4 + 0.7 * seed, kind, seed), train={"steps": 4})
            assert report.ok, f"{kind}, seed {seed}: {report.violation}"
            assert report.lives[-1].ok and len(report.versions) == 5
            found.append(report)
        assert sum(report.faults[kind] for report in found) > 0, kind
    return found


@pytest.mark.explore
@pytest.mark.parametrize("role", ["rollout", "reward", "trainer", "coordinator"])
def test_a_stopped_process_is_replaced_or_ends_its_life_by_name(role: str) -> None:
    met([f"stop_{role}"])


@pytest.mark.parametrize("role", some(["rollout", "reward"]))
def test_an_actor_that_is_killed_is_started_again_and_the_run_does_not_end(role: str) -> None:
    assert all(len(report.lives) == 1 for report in met([f"kill_{role}"]))


@pytest.mark.parametrize("role", some(["trainer", "coordinator"]))
def test_a_life_that_lost_its_head_ends_and_the_next_goes_on(role: str) -> None:
    assert all(len(report.lives) == 2 for report in met([f"kill_{role}"]))


@pytest.mark.explore
def test_links_that_are_late_cut_half_open_or_repeat_themselves() -> None:
    met(["link_delayed", "link_cut", "link_half_open", "link_repeats"])


@pytest.mark.explore
def test_frames_that_are_lost_or_said_twice() -> None:
    met(["lost_prepared", "lost_committed", "verdict_twice"])


@pytest.mark.explore
def test_engines_that_are_slow_dead_crash_or_abort() -> None:
    met(
        [
            "engine_slow",
            "engine_dead",
            "engine_crashes",
            "abort_with_partials",
            "abort_without_partials",
        ]
    )


@pytest.mark.explore
def test_verifiers_that_hang_raise_or_die() -> None:
    met(["verifier_hangs", "verifier_raises", "verifier_dies"])


@pytest.mark.explore
def test_publications_that_fail_are_slow_or_bring_other_weights() -> None:
    met(["transfer_fails", "transfer_slow", "reception_fails", "wrong_weights"])


def test_clocks_that_jump() -> None:
    met(["clock_jumps"], seeds=4)


def test_disks_that_are_full_or_fail() -> None:
    met(["disk_full", "disk_broken"])


@pytest.mark.parametrize("seed", some(range(2)))
def test_a_disk_that_stays_full_ends_the_run_by_that_name_and_is_not_healed(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would heal into the same disk. Its user makes room, and resumes it."""
    monkeypatch.setattr(fault_kinds, "_seconds", lambda draw: 100.0)
    stall_s = {"stall_s": 60.0}
    fault = Fault(0.4 + 0.7 * seed, "disk_full", seed)
    report = simulated(seed, fault, train={"steps": 4}, supervision=stall_s)
    assert report.ok, report.violation
    first, *others = report.lives
    assert not first.ok and not first.heals and others[-1].ok
    assert first.reason == (
        "the simulated disk is full, for 60 s: make room, and resume the run"
    ) or first.reason.startswith("what is written beside the journal could not be written")


@pytest.mark.explore
def test_checkpoints_that_cannot_be_written_are_cut_off_or_rot() -> None:
    met(["checkpoint_fails", "checkpoint_cut", "checkpoint_damaged"])


@dataclass
class Saved:
    """A checkpoint that is whole."""

    version: int
    aside: bool = False

    def verify(self) -> None:
        pass

    def set_aside(self) -> None:
        self.aside = True


def test_a_checkpoint_newer_than_the_journal_is_put_aside() -> None:
    """The machine lost its power: the weights of version 4 were on disk, and the events and the
    state that belong to them were not."""
    history, experience = SimDisk(), Experience()
    events = [e.Published(0), e.LateTokens(3)]
    for event in events:
        experience.apply(event)
    history.write(EventRows(1, 2, msgspec.msgpack.encode(events)))
    history.write(Keep(2, 2, msgspec.msgpack.encode(experience.snapshot())))
    checkpoints = [Saved(2), Saved(4)]
    state, version = resumed(history, checkpoints)
    assert version == 2 and state == experience
    assert [checkpoint.aside for checkpoint in checkpoints] == [False, True]
