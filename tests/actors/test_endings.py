"""Whole runs in virtual time that end: by themselves, asked to, stalled, or with somebody missing;
in every phase, and within bounds."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
from numpy import float32, full, int32
from scripted_world import ScriptedWorld, configured

from asyncrl.actors.coordinator.lifecycle import Phase
from asyncrl.engines.protocol import Request
from asyncrl.engines.scripted import Script
from asyncrl.experience import events as e
from asyncrl.explain import run_status
from asyncrl.explain.run_status import RunStatus
from asyncrl.explain.why import answer
from asyncrl.messages import Drain, Draining, Message, Replace, Report, StatusUpdate, Wait
from asyncrl.simulation.sim_process import SimProcess
from asyncrl.training.checkpoint_index import CheckpointError

GRACE_S = 10.0
SETTLED_S = GRACE_S + 0.1


def small(**sections: dict[str, object]) -> ScriptedWorld:
    sections["supervision"] = {
        "stall_s": 100.0,
        "grace_s": GRACE_S,
        "start_s": 60.0,
    } | sections.get("supervision", {})
    return ScriptedWorld(configured(**sections))


def everybody_gone(world: ScriptedWorld) -> None:
    """Check the promises of every end: nobody holds anything, and the accounts balance."""
    world.check()
    assert world.coordinator.parts.lifecycle.phase is Phase.STOP
    assert not any(rollout.holder for rollout in world.store.experience.rollouts.values())


# ------------------------------------------------------------------------ asked to, in every phase

MOMENTS: dict[str, Callable[[ScriptedWorld], bool]] = {
    "before anybody came": lambda world: any(world.coordinator.parts.roster.of("launcher")),
    "while some are missing": lambda world: any(world.coordinator.parts.roster.of("rollout")),
    "during the first publication": lambda world: world.coordinator.parts.publishing.busy,
    "before the first step": lambda world: world.holds("rollout-0"),
    "while a step closes": lambda world: (
        world.coordinator.parts.stepping is not None and world.coordinator.parts.stepping.closing
    ),
    "during a later publication": lambda world: (
        world.learner.version >= 2 and world.coordinator.parts.publishing.busy
    ),
    "while verdicts are awaited": lambda world: (
        world.learner.version >= 1 and world.coordinator.parts.scoring.held("reward-0") > 0
    ),
    "during an evaluation": lambda world: (
        world.learner.version >= 2 and world.coordinator.parts.evaluation.running is not None
    ),
    "while a checkpoint is written": lambda world: (
        world.learner.version >= 2 and len(world.learner.saved) == 0
    ),
}


@pytest.mark.parametrize("moment", MOMENTS)
async def test_a_run_that_is_asked_to_stop_drains_within_its_grace(
    moment: str, autojump_clock: trio.testing.MockClock
) -> None:
    world = small(train={"steps": 1000, "checkpoint_every": 2}, rollout={"actors": 2})
    world.late_s = 1.0
    asked = 0.0

    async def user() -> None:
        nonlocal asked
        await world.until(lambda: MOMENTS[moment](world))
        asked = trio.current_time()
        world.tell(Drain())

    with trio.fail_after(1000):
        outcome = await world.run(user)
    everybody_gone(world)
    assert outcome.ok and "--resume" in outcome.reason
    assert trio.current_time() - asked < 3.0, (
        "nobody was in the way, so no stage has to wait for its deadline"
    )
    if (stepping := world.coordinator.parts.stepping) is not None:
        assert stepping.saved == stepping.version


@pytest.mark.parametrize("who", ["rollout-0", "reward-0", "trainer-0"])
@pytest.mark.parametrize(
    "moment",
    [
        "during the first publication",
        "before the first step",
        "while a step closes",
        "during an evaluation",
    ],
)
async def test_a_run_ends_though_somebody_is_killed_first(
    who: str, moment: str, autojump_clock: trio.testing.MockClock
) -> None:
    """An engine or a reward actor is replaced, and the run goes on to its end; without its trainer
    it ends and says so."""
    world = small(rollout={"actors": 2, "attempts": 50})

    async def murderer() -> None:
        await world.until(lambda: MOMENTS[moment](world))
        world.kill(who)

    with trio.fail_after(2000):
        outcome = await world.run(murderer)
    everybody_gone(world)
    assert outcome.ok is (who != "trainer-0"), outcome.reason
    assert outcome.ok or "trainer" in outcome.reason


@pytest.mark.parametrize("who", ["rollout-0", "reward-0", "trainer-0"])
async def test_who_hangs_in_the_drain_costs_its_share_of_the_grace(
    who: str, autojump_clock: trio.testing.MockClock
) -> None:
    """It neither reads nor sends any more, and its link stays open."""
    world = small(train={"steps": 1000, "checkpoint_every": 0})
    asked = 0.0

    async def user() -> None:
        nonlocal asked
        await world.until(lambda: world.learner.version >= 2 and world.holds("rollout-0"))
        peer = world.coordinator.parts.roster.get(who)
        assert peer is not None
        peer.send = lambda *frame: None  # type: ignore[method-assign]
        asked = trio.current_time()
        world.tell(Drain())

    outcome = await world.run(user)
    world.check()
    assert outcome.ok and 1.0 < trio.current_time() - asked < SETTLED_S
    others = {"rollout-0", "reward-0", "trainer-0"} - {who}
    assert others <= world.coordinator.parts.roster.drained


async def test_a_drain_does_not_ask_again_for_a_checkpoint_that_cannot_be_written(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Though an earlier one could not be written either."""
    world = small(train={"steps": 1000, "checkpoint_every": 2})
    asked: list[int] = []

    async def write(version: int, cursor: int) -> Path:
        asked.append(version)
        raise CheckpointError("there is no room on the disk")

    world.learner.write = write  # type: ignore[method-assign]

    async def user() -> None:
        await world.until(lambda: world.learner.version == 3)
        world.tell(Drain())

    outcome = await world.run(user)
    assert (
        outcome.ok
        and len(asked) == len(set(asked))
        and asked[0] == 2
        and asked[-1] == world.learner.version > 2
    )
    everybody_gone(world)


async def test_streams_end_from_source_to_sink(autojump_clock: trio.testing.MockClock) -> None:
    world = small(rollout={"actors": 2}, reward={"actors": 2})
    ended: list[str] = []

    class Drained(set[str]):
        def add(self, name: str) -> None:
            ended.append(name)
            super().add(name)

    async def watch() -> None:
        world.coordinator.parts.roster.drained = Drained()

    outcome = await world.run(watch)
    assert outcome.ok
    assert [name.partition("-")[0] for name in ended] == [
        "rollout",
        "rollout",
        "reward",
        "reward",
        "trainer",
    ]


async def test_the_launcher_hears_of_the_drain_before_any_actor_can_end_of_it(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """So it starts nobody again (`tests/runtime/processes/test_run_supervisor.py`)."""
    world = small(rollout={"actors": 2})
    said: list[str] = []

    async def watch() -> None:
        for role in ("launcher", "rollout", "reward", "trainer"):
            for peer in world.coordinator.parts.roster.of(role):  # type: ignore[arg-type]

                def send(
                    message: Message, *buffers: object, send=peer.send, name=peer.name
                ) -> None:  # type: ignore[no-untyped-def]
                    if isinstance(message, Draining | Drain):
                        said.append(name)
                    send(message, *buffers)

                peer.send = send  # type: ignore[method-assign]

    async def later() -> None:
        await world.until(lambda: world.learner.version >= 2)
        await watch()

    assert (await world.run(later)).ok
    assert said == ["launcher-0", "rollout-0", "rollout-1", "reward-0", "trainer-0"]
    everybody_gone(world)


@pytest.mark.parametrize("who", ["rollout-0", "reward-0"])
async def test_who_is_killed_in_the_drain_is_not_started_again(
    who: str, autojump_clock: trio.testing.MockClock
) -> None:
    world = small(train={"steps": 1000}, rollout={"actors": 2})
    world.learner._step_s = 3.0

    async def user() -> None:
        await world.until(lambda: world.learner.version >= 1 and world.holds("rollout-0"))
        world.tell(Drain())
        while not world.supervisor._draining:  # it is at once: an actor drains in a moment
            await trio.lowlevel.checkpoint()
        world.kill(who)

    with trio.fail_after(1000):
        outcome = await world.run(user)
    assert outcome.ok and "--resume" in outcome.reason
    assert {process.incarnation for process in world.processes.values()} == {0}
    everybody_gone(world)


async def test_who_comes_in_the_drain_is_sent_home(autojump_clock: trio.testing.MockClock) -> None:
    world = small(train={"steps": 1000}, rollout={"actors": 2})
    world.learner._step_s = 3.0

    async def user() -> None:
        await world.until(
            lambda: world.learner.version >= 1 and world.coordinator.parts.stepping.closing
        )  # type: ignore[union-attr]
        world.tell(Drain())
        await world.until(
            lambda: (
                world.coordinator.parts.lifecycle.ending
                and world.coordinator.parts.roster.get("rollout-0") is None
            )
        )
        await world.successor("rollout-0")

    with trio.fail_after(100):
        outcome = await world.run(user)
    assert outcome.ok and "rollout-0" in world.coordinator.parts.roster.drained
    everybody_gone(world)


# --------------------------------------------------------------------- who never comes, and stalls


@pytest.mark.parametrize("missing", ["reward-0", "trainer-0"])
async def test_an_actor_that_never_comes_ends_the_run_by_name(
    missing: str, autojump_clock: trio.testing.MockClock
) -> None:
    world = small(rollout={"actors": 2})
    stalls: list[RunStatus] = []
    world.absent = {missing}

    async def watch() -> None:
        world.coordinator.parts.stalled = stalls.append

    outcome = await world.run(watch)
    assert not outcome.ok and outcome.reason.startswith(
        f"{missing} did not come within 60 s (supervision.start_s)"
    )
    assert 60.0 <= world.seconds < 60.0 + 2 + SETTLED_S
    assert [actor.name for actor in stalls[0].actors if not actor.here] == [missing]
    assert [actor.incarnation for actor in stalls[0].actors if not actor.here] == [-1]


async def test_no_rollout_actor_at_all_ends_the_run_by_name(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = small(rollout={"actors": 2})
    world.absent = {"rollout-0", "rollout-1"}
    outcome = await world.run()
    assert not outcome.ok and "rollout-0, rollout-1 did not come within 60 s" in outcome.reason


async def test_the_run_begins_without_a_rollout_actor_that_never_comes(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = small(rollout={"actors": 2})
    world.absent = {"rollout-1"}
    outcome = await world.run()
    everybody_gone(world)
    assert outcome.ok, outcome.reason
    assert world.seconds > 60.0


@pytest.mark.parametrize("who", ["rollout-1", "reward-0"])
async def test_an_actor_that_dies_before_it_has_come_is_started_again(
    who: str, autojump_clock: trio.testing.MockClock
) -> None:
    world = small(rollout={"actors": 2}, supervision={"restarts": 1})
    start_s = world.start_s

    def late(process: SimProcess) -> float:
        return 5.0 if process.name == who and not process.incarnation else start_s(process)

    world.start_s = late  # type: ignore[method-assign]

    async def murderer() -> None:
        await trio.sleep(1.0)
        assert who in world.coordinator.parts.lifecycle.missing
        world.kill(who)

    outcome = await world.run(murderer)
    everybody_gone(world)
    assert outcome.ok, outcome.reason
    assert world.processes[who].incarnation == 1
    assert sum(world.coordinator_summary(outcome).restarts.values()) == 1


@pytest.mark.parametrize("moment", ["before it has come", "while it has rollouts"])
async def test_the_run_goes_on_without_a_rollout_actor_whose_restarts_are_spent(
    moment: str, autojump_clock: trio.testing.MockClock
) -> None:
    world = small(rollout={"actors": 2}, supervision={"restarts": 0}, train={"steps": 30})
    world.late_s = 5.0
    seen: list[RunStatus] = []

    async def murderer() -> None:
        if moment == "while it has rollouts":
            await world.until(lambda: world.holds("rollout-1"))
        else:
            await trio.sleep(1.0)
        world.kill("rollout-1")
        await world.until(lambda: world.learner.version >= 20)
        seen.append(world.coordinator.status())

    outcome = await world.run(murderer)
    everybody_gone(world)
    assert outcome.ok, outcome.reason
    why = "was killed by SIGKILL, and its restarts are spent"
    assert world.coordinator_summary(outcome).removed == {"rollout-1": why}
    assert {actor.name: actor.removed for actor in seen[0].actors if actor.removed} == {
        "rollout-1": why
    }
    sentences = answer(seen[0], lives=True, age_s=0.0, stalled=False, run=Path("r"))
    assert f"The run continues without rollout-1, which {why}." in sentences
    notes = {update.note for update in world.heard if isinstance(update, StatusUpdate)}
    assert "without rollout-1" in notes
    scraped = {
        sample.name: sample.value
        for family in world.coordinator.parts.metrics.registry.collect()
        for sample in family.samples
    }
    assert scraped["asyncrl_removed_total"] == 1.0


async def test_the_last_rollout_actor_whose_restarts_are_spent_ends_the_run(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = small(rollout={"actors": 2}, supervision={"restarts": 0}, train={"steps": 1000})

    async def murderer() -> None:
        for name in ("rollout-1", "rollout-0"):
            await world.until(lambda name=name: world.holds(name))  # type: ignore[misc]
            world.kill(name)
            await trio.sleep(1.0)

    outcome = await world.run(murderer)
    world.check()
    assert not outcome.ok and "rollout-0 was killed by SIGKILL" in outcome.reason


def slow(seconds: float) -> Callable[[Request], Script]:
    return lambda request: Script(full(4, 5, int32), full(4, -1.0, float32), seconds, "stop")


async def stalled(world: ScriptedWorld, *others: Callable[[], object]) -> tuple[str, RunStatus]:
    """The reason and the dump of a run that stalls."""
    stalls: list[RunStatus] = []

    async def watch() -> None:
        world.coordinator.parts.stalled = stalls.append

    outcome = await world.run(watch, *others)
    assert (
        not outcome.ok and "no token and no step for 100 s (supervision.stall_s)" in outcome.reason
    )
    [found] = stalls
    return outcome.reason, found


async def test_a_stalled_run_leaves_everything_that_waits(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    world = small(rollout={"lease_s": 1000.0})
    world.script = slow(1e6)
    reason, found = await stalled(world)
    assert "rollout-0 has streamed nothing for" in reason and "rollout 0 with rollout-0" in reason
    run_status.write(found, tmp_path / "stall.json")
    assert run_status.read(tmp_path / "stall.json") == found
    waits = {
        (owner, wait.name)
        for owner, waits in [("", found.waits), *((a.name, a.waits) for a in found.actors)]
        for wait in waits
    }
    assert {("", "progress"), ("trainer-0", "command")} <= waits
    assert {a.name: (a.here, a.incarnation) for a in found.actors} == dict.fromkeys(
        ("trainer-0", "rollout-0", "reward-0"), (True, 0)
    )
    [engine] = [a for a in found.actors if a.role == "rollout"]
    assert (engine.version, engine.holds) == (0, found.rollouts["leased"]) and engine.seconds <= 2.0
    assert found.phase == "run" and found.committed == 0 and found.publication is None
    assert len(found.awaited) == run_status.NAMED and all(
        99.0 < a.seconds < 103.0 for a in found.awaited
    )
    assert (found.ledger.admitted, found.tokens.generated) == (
        world.store.experience.ledger.rollouts.total,
        0,
    )
    sentences = answer(found, lives=False, age_s=3.0, stalled=True, run=Path("r"))
    assert sentences[0].startswith("The run stalled") and "rollout-0" in sentences[-1]


async def test_a_stalled_verifier_is_named(autojump_clock: trio.testing.MockClock) -> None:
    """Each reward actor has its patience; the second one has the time of a stall besides."""
    world = small(reward={"concurrency": 64}, supervision={"stall_s": 100.0})
    world.verifiers._seconds = 1e6
    reason, found = await stalled(world)
    assert "verifiers are the slow side" in reason and "reward-0" in reason
    assert found.rollouts["sealed"] > 0
    patience_s = world.coordinator.parts.scoring.patience_s
    assert 100.0 + patience_s <= world.seconds < 100.0 + patience_s + 10.0
    assert sum(isinstance(message, Replace) for message in world.heard) >= 1


async def test_a_reward_actor_that_hangs_is_replaced_though_that_takes_longer_than_a_stall(
    autojump_clock: trio.testing.MockClock,
) -> None:
    world = small(task={"verdict_s": 60.0, "eval_size": 0}, train={"steps": 10})

    async def hang() -> None:
        await world.until(lambda: world.learner.version >= 3)
        assert world.coordinator.parts.scoring.patience_s > 100.0
        world.processes["reward-0"].freeze(True)

    outcome = await world.run(hang)
    everybody_gone(world)
    assert outcome.ok, outcome.reason
    assert world.processes["reward-0"].incarnation == 1


LONG_S = 350.0
"""Seconds of a command that takes longer than a stall may."""


def slowly(world: ScriptedWorld, command: str, seconds: float = LONG_S) -> None:
    """Have the learner take so long for each such command."""
    inner = getattr(world.learner, command)

    async def slow(*what: object) -> object:
        await trio.sleep(seconds)
        return await inner(*what)

    setattr(world.learner, command, slow)


@pytest.mark.explore
@pytest.mark.parametrize("command", ["accumulate", "step", "copy"])
async def test_a_trainer_that_is_at_work_for_longer_than_a_stall_is_no_stall(
    command: str, autojump_clock: trio.testing.MockClock
) -> None:
    """Generation is as far ahead as it may be, so nothing else happens."""
    world = small(task={"eval_size": 0}, train={"steps": 3, "checkpoint_every": 1})
    slowly(world, command)
    outcome = await world.run()
    everybody_gone(world)
    assert outcome.ok, outcome.reason
    assert world.seconds > 3 * LONG_S


async def test_a_checkpoint_that_is_written_for_longer_than_a_stall_is_none_and_stops_no_step(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """The steps are over before the first checkpoint is written, and the end waits for the last."""
    world = small(task={"eval_size": 0}, train={"steps": 3, "checkpoint_every": 1})
    slowly(world, "write")
    made: list[float] = []

    async def watch() -> None:
        await world.until(lambda: world.learner.version == 3)
        made.append(trio.current_time())

    outcome = await world.run(watch)
    everybody_gone(world)
    assert outcome.ok, outcome.reason
    assert made[0] < LONG_S < 2 * LONG_S < world.seconds
    assert [version for version, _ in world.learner.saved] == [1, 3]


TOO_LONG = {
    "accumulate": "one micro-batch for 200 s (supervision.compute_s)",
    "step": "one optimizer step for 200 s (supervision.compute_s)",
    "copy": "one checkpoint for 400 s (supervision.checkpoint_s)",
    "write": "one checkpoint for 400 s (supervision.checkpoint_s)",
}


@pytest.mark.parametrize("command", TOO_LONG)
async def test_a_command_that_takes_too_long_ends_the_run_by_name(
    command: str, tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    world = small(
        task={"eval_size": 0},
        train={"steps": 3, "checkpoint_every": 1},
        supervision={"compute_s": 200.0, "checkpoint_s": 400.0},
    )
    slowly(world, command, math.inf)
    stalls: list[RunStatus] = []

    async def watch() -> None:
        world.coordinator.parts.stalled = stalls.append

    outcome = await world.run(watch)
    assert not outcome.ok and f"the trainer is at {TOO_LONG[command]}" in outcome.reason
    assert "the trainer is the slow side" in outcome.reason
    [found] = stalls
    sentences = answer(found, lives=False, age_s=3.0, stalled=True, run=Path("r"))
    assert sentences[0].startswith("The run stalled") and TOO_LONG[command] in sentences[0]
    [trainer] = [actor for actor in found.actors if actor.name == "trainer-0"]
    if command == "write":
        assert trainer.busy is None and trainer.saving_s is not None and trainer.saving_s >= 400.0
    else:
        assert trainer.busy is not None and trainer.busy.seconds >= 200.0
        assert found.rollouts["taken"] == trainer.holds > 0


async def test_a_trainer_that_is_stopped_amid_its_work_is_found_by_its_silence(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Long before its work would have taken too long."""
    world = small(task={"eval_size": 0}, train={"steps": 100})
    slowly(world, "step")
    asked = 0.0

    async def stop() -> None:
        nonlocal asked
        await world.until(
            lambda: (
                (stepping := world.coordinator.parts.stepping) is not None
                and stepping.trainer.report.busy is not None
                and stepping.trainer.report.busy.seconds > 50.0
            )
        )
        asked = trio.current_time()
        world.processes["trainer-0"].freeze(True)

    outcome = await world.run(stop)
    assert not outcome.ok and "trainer-0 has not reported" in outcome.reason
    assert trio.current_time() - asked < 100.0 + 2 + SETTLED_S


@pytest.mark.explore
async def test_a_launcher_that_does_not_read_is_not_cut_off(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """One that is stopped, for longer than its outbox would hold what it is told each second."""
    world = small(train={"steps": 8})
    slowly(world, "step", 150.0)

    async def stop() -> None:
        await world.until(lambda: any(world.coordinator.parts.roster.of("launcher")))
        [launcher] = world.coordinator.parts.roster.of("launcher")
        reads, send = trio.Event(), launcher.link.send

        async def late(message: Message, *buffers: Any) -> None:
            await reads.wait()
            await send(message, *buffers)

        launcher.link.send = late  # type: ignore[method-assign]
        await trio.sleep(5.0)  # what was said before is heard
        world.supervisor._silence.deadline = math.inf
        await trio.sleep(700.0)
        reads.set()

    outcome = await world.run(stop)
    everybody_gone(world)
    assert outcome.ok, outcome.reason
    assert world.lives[-1].finished


async def test_a_strange_report_harms_nobody(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """A report of no time at all; one with what is no duration does not even parse."""
    world = small()

    async def stranger() -> None:
        await world.until(lambda: world.learner.version >= 1)
        peer = world.coordinator.parts.roster.get("reward-0")
        assert peer is not None
        peer.report = Report(0.0, {"verdict": 5.0}, {}, [Wait("x" * 1000, "", 1e10, 1e10)])
        run_status.write(world.coordinator.status(), tmp_path / "status.json")
        assert run_status.read(tmp_path / "status.json").actors[-1].idle == {}

    assert (await world.run(stranger)).ok
    for seconds in (math.nan, math.inf, -1.0):
        for report in (
            Report(seconds, {}, {}, []),
            Report(1.0, {"x": seconds}, {}, []),
            Report(1.0, {}, {}, [Wait("", "", seconds, 1.0)]),
        ):
            with pytest.raises(msgspec.ValidationError):
                msgspec.msgpack.decode(msgspec.msgpack.encode(report), type=Report)


async def test_a_live_run_can_be_asked_how_it_stands(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """At any moment, and asking changes nothing."""
    world = small()
    found: list[RunStatus] = []

    async def ask() -> None:
        while True:
            before = len(world.log.events)
            found.append(world.coordinator.status())
            assert len(world.log.events) == before
            await trio.sleep(0.13)

    assert (await world.run(ask)).ok
    world.check()
    assert {s.phase for s in found} >= {"init", "run"} and found[-1].step >= 3
    assert all(s.ok is None for s in found)
    final = world.coordinator.status()
    assert (final.ok, final.phase, final.step) == (True, "stop", 4)
    assert all(answer(s, lives=True, age_s=0.0, stalled=False, run=Path("r")) for s in found)


# ----------------------------------------------------------------------------------- by themselves

SHAPES: dict[str, dict[str, dict[str, object]]] = {
    "one step": {"train": {"steps": 1}},
    "one step, an evaluation on it": {"train": {"steps": 1, "eval_every": 1}},
    "the data ends": {
        "task": {"train_size": 5, "epochs": 1, "eval_size": 4},
        "train": {"steps": 50},
    },
    "the data ends, an evaluation at the end": {
        "task": {"train_size": 4, "epochs": 1, "eval_size": 4},
        "train": {"steps": 50, "eval_every": 0},
    },
}


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("killed", ["", "rollout-0", "reward-0"])
async def test_every_shape_of_run_ends(
    name: str, killed: str, autojump_clock: trio.testing.MockClock
) -> None:
    world = small(**SHAPES[name], rollout={"attempts": 50})

    async def murderer() -> None:
        if killed:
            await world.until(lambda: world.holds("rollout-0"))
            world.kill(killed)

    with trio.fail_after(2000):
        outcome = await world.run(murderer)
    everybody_gone(world)
    assert outcome.ok, outcome.reason
    assert world.coordinator.parts.evaluation.accuracy.keys() >= {0, world.learner.version}
    assert world.learner.saved[-1][0] == world.learner.version
    assert not [event for event in world.log.events if isinstance(event, e.Buried)]
