"""Every kind of fault that a run may meet. Each is a small async function of the `Injector`.

A fault whose victim is not there waits for one. One that lies in wait (for the next checkpoint, the
next verdict) is counted when it strikes.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial

import trio

from asyncrl.messages import Role
from asyncrl.simulation.fakes import Failing, FakeReceiver, Garbage
from asyncrl.simulation.injector import Injector
from asyncrl.simulation.network import Wire
from asyncrl.simulation.sim_process import SimProcess

ACTORS: tuple[Role, ...] = ("rollout", "reward", "trainer")

Kind = Callable[[Injector, random.Random], Awaitable[None]]
KINDS: dict[str, Kind] = {}


def kind(function: Kind) -> Kind:
    """Register a kind of fault."""
    KINDS[function.__name__] = function
    return function


def _seconds(draw: random.Random) -> float:
    return draw.choice((0.3, 2.0, 6.0, 15.0, 50.0)) * draw.uniform(0.5, 1.5)


# --------------------------------------------------------------------------------------- processes


async def kill(role: Role, injector: Injector, draw: random.Random) -> None:
    """SIGKILL of an actor."""
    if (process := await injector.one(draw, [role], connected=draw.random() < 0.9)) is not None:
        injector.happened(f"kill_{role}", process)
        process.kill()


async def stop(role: Role, injector: Injector, draw: random.Random) -> None:
    """SIGSTOP of an actor, and SIGCONT."""
    if (process := await injector.one(draw, [role])) is not None:
        process.freeze(True)
        await injector.during(f"stop_{role}", _seconds(draw), process)
        process.freeze(False)


for _role in ("rollout", "reward", "trainer", "coordinator"):
    KINDS[f"kill_{_role}"] = partial(kill, _role)
    KINDS[f"stop_{_role}"] = partial(stop, _role)


@kind
async def kill_everything(injector: Injector, draw: random.Random) -> None:
    """SIGKILL of all processes at once."""
    if await injector.one(draw, ["coordinator"]) is not None:
        injector.happened("kill_everything")
        injector.world.kill_everything()


@kind
async def restart_everything(injector: Injector, draw: random.Random) -> None:
    """A user's Ctrl-C, and `--resume`."""
    if await injector.one(draw, ["trainer"]) is not None:
        injector.for_good("restart_everything")
        injector.world.supervisor.interrupt()


async def restart_beside(
    what: str, roles: Sequence[Role], injector: Injector, draw: random.Random
) -> None:
    """A successor that comes before its predecessor is gone."""
    if (process := await injector.one(draw, roles)) is not None:
        injector.happened(what, process)
        injector.world.double(process)


# None of KINDS: of those each seed's faults are drawn, and one more would change all of them.
async def told_to_end(injector: Injector, draw: random.Random) -> None:
    """SIGTERM of a rollout actor, by whoever has its machine."""
    if (process := await injector.one(draw, ["rollout"])) is not None:
        injector.happened("told_to_end", process)
        process.noticed.set()


KINDS["restart_beside"] = partial(restart_beside, "restart_beside", ["rollout", "reward"])


# ------------------------------------------------------------------------------------------- links


async def delay_link(
    what: str, roles: Sequence[Role], injector: Injector, draw: random.Random
) -> None:
    """Have what is sent arrive late, in order."""
    if (process := await injector.one(draw, roles)) is not None:
        wires = process.pipes[0].out, process.pipes[0].into
        for wire in wires:
            wire.delay_s = draw.uniform(0.05, 3.0)
        await injector.during(what, _seconds(draw), process)
        for wire in wires:
            wire.delay_s = 0.0


async def cut_link(
    what: str, roles: Sequence[Role], injector: Injector, draw: random.Random
) -> None:
    """A connection is reset."""
    if (process := await injector.one(draw, roles)) is not None:
        injector.happened(what, process)
        process.pipes[0].cut()


async def half_open_link(
    what: str, roles: Sequence[Role], injector: Injector, draw: random.Random
) -> None:
    """One direction is silent for a while, or until the connection is reset."""
    if (process := await injector.one(draw, roles)) is not None:
        pipe = process.pipes[0]
        wire = draw.choice((pipe.out, pipe.into))
        wire.hold(True)
        await injector.during(what, _seconds(draw), process)
        wire.hold(False)
        if draw.random() < 0.5:
            pipe.cut()


async def repeat_link(roles: Sequence[Role], injector: Injector, draw: random.Random) -> None:
    """An actor that comes back says again what it had said last."""
    if (process := await injector.one(draw, roles)) is not None:
        await injector.until(lambda: len(process.pipes[0].sent) > 3 or not process.alive)
        injector.repeat(process)
        injector.struck(injector.repeated(process), process)
        process.kill()


KINDS["link_delayed"] = partial(delay_link, "link_delayed", ACTORS)
KINDS["link_cut"] = partial(cut_link, "link_cut", ACTORS)
KINDS["link_half_open"] = partial(half_open_link, "link_half_open", ACTORS)
KINDS["link_repeats"] = partial(repeat_link, ["rollout", "reward"])


# ----------------------------------------------------------------------------------------- engines


async def _engine(injector: Injector, draw: random.Random) -> SimProcess | None:
    process = await injector.one(draw, ["rollout"])
    if process is None or process.engine is None:
        return None
    engine = process.engine
    return process if await injector.until(lambda: engine.version is not None) else None


@kind
async def engine_slow(injector: Injector, draw: random.Random) -> None:
    """An engine that streams late."""
    if (process := await _engine(injector, draw)) is not None and process.engine is not None:
        process.engine.lag_s = draw.uniform(0.5, 5.0)
        await injector.during("engine_slow", _seconds(draw), process)
        process.engine.lag_s = 0.0


@kind
async def engine_dead(injector: Injector, draw: random.Random) -> None:
    """An engine that streams nothing any more, in a process that lives."""
    if (process := await _engine(injector, draw)) is not None and process.engine is not None:
        process.engine.dead = True
        injector.for_good("engine_dead", process)


@kind
async def engine_crashes(injector: Injector, draw: random.Random) -> None:
    """An engine that raises."""
    if (process := await _engine(injector, draw)) is not None and process.engine is not None:
        process.engine.crash = True
        injector.happened("engine_crashes", process)


def _knows_what_it_serves(injector: Injector, process: SimProcess) -> bool:
    """True if the coordinator has told the engine to serve nothing since, and hears it at once."""
    coordinator = injector.world.coordinator
    handle = coordinator.parts.engines.get(process.name) if coordinator else None
    return handle is not None and not handle.committing and not process.pipes[0].out.delay_s


async def _garbage(what: Garbage, injector: Injector, draw: random.Random) -> None:
    if (process := await _engine(injector, draw)) is not None and process.engine is not None:
        engine = process.engine

        def makes() -> bool:
            if what == "uncommitted" and not _knows_what_it_serves(injector, process):
                return False  # nobody could tell that it does not serve that version yet
            if engine.garbage_left == chunks:
                injector.happened(f"garbage_{what}", process)
            injector.garbled(process, 1)
            return True

        chunks = draw.choice((1, 3))  # three cost the engine its place
        engine.makes_garbage, engine.garbage, engine.garbage_left = makes, what, chunks


for _what in (
    "vocabulary",
    "nan",
    "start",
    "long",
    "misparallel",
    "future",
    "uncommitted",
    "negative",
):
    KINDS[f"garbage_{_what}"] = partial(_garbage, _what)


FORGETS_S = 0.01
"""Virtual seconds for which an engine that was aborted forgets what it had sampled."""


async def _abort(forget: bool, injector: Injector, draw: random.Random) -> None:
    for _ in range(3):
        if (process := await _engine(injector, draw)) is not None and process.engine is not None:
            engine = process.engine
            engine.forget = forget
            if engine.abort():
                injector.happened(
                    "abort_without_partials" if forget else "abort_with_partials", process
                )
            await trio.sleep(FORGETS_S)
            engine.forget = False
        await trio.sleep(draw.uniform(0.1, 1.0))


KINDS["abort_with_partials"] = partial(_abort, False)
KINDS["abort_without_partials"] = partial(_abort, True)


# ----------------------------------------------------------------------------------------- rewards


async def _verifiers(what: str, fails: Failing, injector: Injector, draw: random.Random) -> None:
    if (
        process := await injector.one(draw, ["reward"])
    ) is not None and process.verifiers is not None:
        verifiers, counted = process.verifiers, False

        def faulted() -> None:
            nonlocal counted
            if not counted:
                injector.for_good(what, process)
            counted = True
            if fails not in ("hang", "crash"):
                injector.world.observer.on_refusal()

        verifiers.faulted = faulted
        verifiers.fails = fails
        if fails not in ("hang", "crash"):
            await trio.sleep(draw.uniform(1.0, 3.0))
            if verifiers.fails == fails:
                verifiers.fails = ""


KINDS["verifier_hangs"] = partial(_verifiers, "verifier_hangs", "hang")
KINDS["verifier_raises"] = partial(_verifiers, "verifier_raises", "raise")
KINDS["verifier_times_out"] = partial(_verifiers, "verifier_times_out", "timeout")
KINDS["verifier_not_finite"] = partial(_verifiers, "verifier_not_finite", "nan")
KINDS["verifier_changed"] = partial(_verifiers, "verifier_changed", "parts")
KINDS["verifier_dies"] = partial(_verifiers, "verifier_dies", "crash")


@kind
async def verifier_slow(injector: Injector, draw: random.Random) -> None:
    """Verifiers that take seconds, and are in time."""
    if (
        process := await injector.one(draw, ["reward"])
    ) is not None and process.verifiers is not None:
        verifiers = process.verifiers
        before, verifiers.seconds = verifiers.seconds, draw.uniform(0.3, 1.9)
        await injector.during("verifier_slow", _seconds(draw), process)
        verifiers.seconds = before


async def _edit(
    what: str, tag: bytes, copies: int, role: Role, injector: Injector, draw: random.Random
) -> None:
    struck = False
    while not struck and (process := await injector.one(draw, [role])) is not None:
        victim, wire = process, process.pipes[0].out

        def edit(frame: bytes, wire: Wire = wire, victim: SimProcess = process) -> Iterable[bytes]:
            nonlocal struck
            if struck or tag not in frame[:64]:
                return [frame]
            struck, wire.edit = True, None
            injector.happened(what, victim)
            return [frame] * copies

        wire.edit = edit
        await injector.until(lambda victim=victim: struck or not victim.alive)  # type: ignore[misc]


KINDS["verdict_twice"] = partial(_edit, "verdict_twice", b"ScoreResult", 2, "reward")
KINDS["lost_prepared"] = partial(_edit, "lost_prepared", b"Prepared", 0, "rollout")
KINDS["lost_committed"] = partial(_edit, "lost_committed", b"Committed", 0, "rollout")


# ------------------------------------------------------------------------------------- publication


def _met(receiver: FakeReceiver, victim: SimProcess) -> bool:
    """True once the receiver has met its fault, or can no longer meet it."""
    return not (receiver.fault and victim.alive)


async def _reception(what: str, fault: str, injector: Injector, draw: random.Random) -> None:
    while (process := await injector.one(draw, ["rollout"])) is not None and (
        receiver := process.receiver
    ) is not None:
        victim = process

        def failed(victim: SimProcess = process) -> None:
            injector.happened(what, victim)
            if fault == "wrong":
                injector.world.observer.on_wrong_weights(injector.world.start_of(victim))

        receiver.failed = failed
        receiver.fault = fault  # type: ignore[assignment]
        await injector.until(partial(_met, receiver, victim))
        if not receiver.fault:
            return


KINDS["wrong_weights"] = partial(_reception, "wrong_weights", "wrong")
KINDS["reception_fails"] = partial(_reception, "reception_fails", "error")


@kind
async def transfer_fails(injector: Injector, draw: random.Random) -> None:
    """The trainer cannot send."""
    if (
        process := await injector.one(draw, ["trainer"])
    ) is not None and process.learner is not None:
        learner, victim = process.learner, process
        learner.failed_send = lambda: injector.happened("transfer_fails", victim)
        learner.fail_send = True


@kind
async def transfer_flaky(injector: Injector, draw: random.Random) -> None:
    """The trainer can send only every other time, as long as this life lasts."""
    if (
        process := await injector.one(draw, ["trainer"])
    ) is not None and process.learner is not None:
        learner, victim = process.learner, process
        learner.failed_send = lambda: injector.happened("transfer_flaky", victim)
        learner.flaky = True


@kind
async def transfer_slow(injector: Injector, draw: random.Random) -> None:
    """Weights travel for longer than a phase may last, or nearly so."""
    process = await injector.one(draw, ["trainer", "rollout"])
    if process is not None and (target := process.learner or process.receiver) is not None:
        attribute = "send_s" if process.learner is not None else "extra_s"
        setattr(
            target, attribute, draw.uniform(0.5, 1.5) * injector.world.config.publication.deadline_s
        )
        await injector.during("transfer_slow", _seconds(draw), process)
        setattr(target, attribute, 0.02)


# ---------------------------------------------------------------------------------- clock and disk


@kind
async def clock_jumps(injector: Injector, draw: random.Random) -> None:
    """Time leaps forward for everybody, as after a suspended machine."""
    strike = injector.happened("clock_jumps")
    injector.clock.jump(draw.choice((1.0, 10.0, 60.0, 240.0)) * draw.uniform(0.5, 1.0))
    strike.until = trio.current_time()
    await trio.lowlevel.checkpoint()


@kind
async def disk_full(injector: Injector, draw: random.Random) -> None:
    """The journal's disk has no room for a while."""
    injector.world.sim_disk.full = True
    await injector.during("disk_full", _seconds(draw))
    injector.world.sim_disk.full = False


@kind
async def disk_broken(injector: Injector, draw: random.Random) -> None:
    """The journal's disk fails, until somebody puts in another."""
    if await injector.one(draw, ["coordinator"]) is not None:
        injector.world.sim_disk.broken = True
        await injector.during("disk_broken", draw.uniform(0.3, 5.0))
        injector.world.sim_disk.broken = False


async def _saving(
    what: str, then: Callable[[SimProcess], str], injector: Injector, draw: random.Random
) -> None:
    async def saving(process: SimProcess) -> str:
        injector.happened(what, process)
        await trio.lowlevel.checkpoint()
        return then(process)

    injector.world.saving = saving
    await trio.lowlevel.checkpoint()


def _die(process: SimProcess) -> str:
    process.kill()
    return ""


KINDS["checkpoint_fails"] = partial(
    _saving, "checkpoint_fails", lambda process: "the plan says that it cannot be written"
)
KINDS["checkpoint_cut"] = partial(_saving, "checkpoint_cut", _die)


@kind
async def checkpoint_damaged(injector: Injector, draw: random.Random) -> None:
    """The newest checkpoint rots, and then everything is killed."""
    world = injector.world
    if (
        await injector.until(lambda: len(world.checkpoints) > 0)
        and await injector.one(draw, ["coordinator"]) is not None
    ):
        newest = max(
            (c for c in world.checkpoints if not c.aside), key=lambda c: c.version, default=None
        )
        if newest is not None:
            newest.damaged = True
            injector.happened("checkpoint_damaged")
            world.kill_everything()
