"""The launcher's side of other machines: who takes part, what runs there, and what is lost with
one.

    machine: Join → (the model is prepared) → MachineAdmitted, ModelFile … → Equipped → actors
             → MachineLeaving (it is given no actor more) → its actors' ends → its link's end
    actor:   waits for a machine → StartActor → … → ActorExited, or its machine is lost

Invariant: an actor ends once, by what its agent says or by the loss of its machine; one that is
lost so is, for the run, an actor that was killed. An agent that has heard nothing for SILENCE_S
ends its actors and itself, and so nothing outlives its launcher for longer.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path

import trio

from asyncrl.cluster.join_token import JoinToken, certify
from asyncrl.cluster.model_files import model_files
from asyncrl.cluster.versions import differing, own_versions
from asyncrl.config import Config
from asyncrl.config.cluster import room_of
from asyncrl.config.errors import BAD_INPUT
from asyncrl.escape import escaped
from asyncrl.ipc.address import TcpAddress
from asyncrl.ipc.endpoints import serve
from asyncrl.ipc.errors import EndOfStream, LinkBroken, LinkError
from asyncrl.ipc.keys import read_key
from asyncrl.ipc.link import Link
from asyncrl.ipc.messages import (
    ActorExited,
    Alive,
    Equipped,
    Join,
    JoinRefused,
    KillActor,
    MachineAdmitted,
    MachineLeaving,
    Message,
    ModelFile,
    Role,
    RunOver,
    StartActor,
)
from asyncrl.ipc.tls import Tls
from asyncrl.observe.logs import path as log_path
from asyncrl.observe.run_dir import (
    COORDINATOR_ADDRESS,
    INITIAL,
    JOIN_TOKEN,
    KEY,
    RUN_TOML,
    TLS,
)
from asyncrl.processes.process import last_words
from asyncrl.processes.standstill import Patience
from asyncrl.processes.supervisor import ActorFailed

logger = logging.getLogger(__name__)

BEAT_S = 2.0
"""Seconds between two `Alive`."""
SILENCE_S = 15.0
"""Seconds of silence after which either end takes the other for lost."""
JOIN_S = 10.0
"""Seconds that who connects has to say who it is."""
KILL_S = 20.0
"""Seconds that an agent has to say that an actor is dead, more than it takes itself."""
GOODBYE_S = 10.0
"""Seconds that agents have to end when the run is over."""
RAY_S = 60.0
"""Seconds that Ray's driver has for its start, and to say why there are no machines."""
ORDERS = 4096
"""Messages that may wait for a machine to read them."""
KILLED = -9
"""The exit code of an actor whose end nobody saw: as if by SIGKILL."""

Actor = tuple[Role, int, int]
"""A start of an actor: role, index, incarnation."""


class RemoteActor:
    """A start of an actor on another machine: a `Child` of the launcher's supervision."""

    def __init__(self, actor: Actor, resume: bool) -> None:
        self.actor, self.resume = actor, resume
        self.machine: Machine | None = None
        self.displaced = False
        self._ended = trio.Event()
        self._code, self._words = KILLED, ""

    @property
    def over(self) -> bool:
        """True if it has ended."""
        return self._ended.is_set()

    def end(self, code: int, words: str, *, displaced: bool = False) -> None:
        """It has ended, with these last words, or `displaced`, with its machine; what comes after
        its end is left out."""
        if not self.over:
            self._code, self._words, self.displaced = code, words, displaced
            self._ended.set()

    async def wait(self) -> int:
        await self._ended.wait()
        return self._code

    def kill(self) -> None:
        if self.over:
            return
        if self.machine is None:
            self.end(KILLED, "it waited for a machine, and was ended")
        else:
            self.machine.tell(KillActor(*self.actor))

    async def kill_group(self) -> int:
        self.kill()
        with trio.CancelScope(deadline=trio.current_time() + KILL_S, shield=True):
            await self._ended.wait()
        if not self.over and self.machine is not None:
            self.machine.give_up(f"it did not end an actor within {KILL_S:g} s")
            self.end(KILLED, "its machine did not say that it is dead")
        return self._code

    def tail(self) -> str:
        return self._words


class Machine:
    """A machine that takes part, and its actors."""

    def __init__(self, name: str, cores: int, link: Link) -> None:
        self.name, self.cores = name, cores
        self.actors: dict[Actor, RemoteActor] = {}
        self.leaving = False
        """It was told to leave, and its actors end with it."""
        self._link = link
        self._scope = trio.CancelScope()
        self._send, self._orders = trio.open_memory_channel[tuple[Message, bytes]](ORDERS)
        self._silence = Patience()
        self._why = ""

    @property
    def load(self) -> tuple[float, str]:
        """Actors for each core, and the name: the least of all gets the next actor."""
        return (len(self.actors) + 1) / self.cores, self.name

    def tell(self, message: Message, contents: bytes = b"") -> None:
        """Queue a message. A machine that does not read is given up."""
        try:
            self._send.send_nowait((message, contents))
        except trio.WouldBlock:
            self.give_up(f"it left {ORDERS} messages unread")

    def give_up(self, why: str) -> None:
        """Take it for lost."""
        self._why = self._why or why
        self._scope.cancel()

    async def converse(self, equipped: Callable[[], None], leaving: Callable[[], None]) -> str:
        """Exchange messages until the machine is lost; returns why it is. Raises LinkError where it
        says what no agent says."""
        with self._scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._write)
                nursery.start_soon(self._beat)
                nursery.start_soon(self._listen)
                self.give_up(await self._read(equipped, leaving))
        return self._why

    async def _read(self, equipped: Callable[[], None], leaving: Callable[[], None]) -> str:
        while True:
            try:
                message, _ = await self._link.receive()
            except EndOfStream:
                return "its agent ended"
            except LinkBroken as error:
                return str(error)
            self._silence.deadline = trio.current_time() + SILENCE_S
            match message:
                case Alive():
                    pass
                case Equipped():
                    equipped()
                case MachineLeaving() if not self.leaving:
                    self.leaving = True
                    leaving()
                case ActorExited(role, index, incarnation, code, words):
                    if actor := self.actors.pop((role, index, incarnation), None):
                        actor.end(code, words, displaced=self.leaving)
                case _:
                    raise LinkError("malformed", f"an agent does not say {type(message).__name__}")

    async def _write(self) -> None:
        async for message, contents in self._orders:
            try:
                await self._link.send(message, *([contents] if contents else []))
            except LinkBroken:
                return  # who reads hears of it, too

    async def _listen(self) -> None:
        self._silence.deadline = trio.current_time() + SILENCE_S
        await self._silence.over()
        self.give_up(f"it said nothing for {SILENCE_S:g} s")

    async def _beat(self) -> None:
        while True:
            self.tell(Alive())
            await trio.sleep(BEAT_S)


class Machines:
    """The machines of one launch. `note` hears in a sentence who came, and who was lost."""

    def __init__(self, config: Config, run: Path, note: Callable[[str], None]) -> None:
        self._config, self._run, self._note = config, run, note
        self._members: dict[str, Machine] = {}
        self._names: set[str] = set()
        self._waiting: list[RemoteActor] = []
        self._prepared = trio.Event()
        self._changed = trio.Event()
        self._completed = self.over = False
        self._failed: ActorFailed | None = None

    async def serve(
        self, *, task_status: trio.TaskStatus[TcpAddress] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Let machines join until cancelled. Raises OSError where the port is taken."""
        cluster, token = self._config.cluster, self._run / JOIN_TOKEN
        head, agents = certify(cluster.host)
        head.write(self._run)
        key = read_key(self._run / KEY)
        try:
            async with trio.open_nursery() as nursery:
                bound = await nursery.start(
                    partial(
                        serve,
                        TcpAddress(cluster.host, cluster.port),
                        key,
                        self._attend,
                        refused=lambda reason: logger.warning("an agent was refused: %s", reason),
                        tls=Tls.of(self._run / TLS),
                    )
                )
                JoinToken(str(bound), key, agents).write(token)
                task_status.started(bound)
                await trio.sleep_forever()
        finally:
            token.unlink(missing_ok=True)

    def prepared(self) -> None:
        """The model is there, and machines can be sent what they need of it."""
        self._prepared.set()

    @property
    def count(self) -> int:
        """Number of machines that can have actors."""
        return len(self._members)

    async def complete(self) -> None:
        """Wait for `cluster.agents` machines, or for one where so many were there once. Raises
        ActorFailed where `fail` said why none can come, and as bad input after `cluster.join_s`,
        which where Ray places them is its driver's to say first."""
        cluster = self._config.cluster
        by_ray = cluster.kind == "ray"
        wanted = 1 if self._completed else cluster.agents
        with trio.move_on_after(cluster.join_s + (RAY_S if by_ray else 0.0)):
            while self.count < wanted:
                if self._failed is not None:
                    raise self._failed
                self._changed = trio.Event()
                await self._changed.wait()
            self._completed = True
            return
        if by_ray:
            advice = (
                f"Ray had {RAY_S:g} s more for its start; look at what its driver says in "
                f"{log_path(self._run, 'ray', 0)}."
            )
        else:
            advice = (
                f"copy {self._run / JOIN_TOKEN} to each, and run `asyncrl agent --join join.token` "
                "there while the launcher waits."
            )
        raise ActorFailed(
            "the cluster",
            BAD_INPUT,
            f"{self.count} of {wanted} machines (cluster.agents) joined within {cluster.join_s:g} "
            f"s (cluster.join_s): {advice}",
        )

    def fail(self, why: ActorFailed) -> None:
        """Say why no machine comes any more: whoever waits for one waits no longer. Those that are
        there stay."""
        self._failed = why
        if self._completed:
            said = escaped(last_words(why.traceback), 300).rstrip(".")
            self._note(f"No machine joins any more: {said}.")
        self._changed.set()

    def start(self, role: Role, index: int, incarnation: int, *, resume: bool) -> RemoteActor:
        """Start an actor on the machine with the fewest for each core, as soon as there is one."""
        actor = RemoteActor((role, index, incarnation), resume)
        self._waiting.append(actor)
        self._assign()
        return actor

    async def dismiss(self) -> None:
        """The run is over: tell agents, and wait until they have ended, at most GOODBYE_S."""
        self.over = True
        for machine in self._members.values():
            machine.tell(RunOver())
        with trio.move_on_after(GOODBYE_S):
            while self._members:
                self._changed = trio.Event()
                await self._changed.wait()

    # ---------------------------------------------------------------------------------- a machine

    async def _attend(self, link: Link) -> None:
        """Serve one agent's link. Raises LinkError."""
        join: Message | None = None
        with trio.move_on_after(JOIN_S):
            join, _ = await link.receive()
        if join is None:
            raise LinkError("silent", f"who connected said nothing within {JOIN_S:g} s")
        if not isinstance(join, Join):
            raise LinkError("malformed", "an agent says first which machine it is")
        if why := differing(join.versions, own_versions()):
            await self._refuse(link, join, why)
            return
        machine = Machine(self._named(join.machine), join.cores, link)
        why = "the launcher ended"
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._equip, machine)
                why = await machine.converse(
                    partial(self._enter, machine), partial(self._part, machine)
                )
                nursery.cancel_scope.cancel()
        finally:
            self._leave(machine, why)

    async def _refuse(self, link: Link, join: Join, why: str) -> None:
        said = (
            f"machine {escaped(join.machine, 60)} takes no part: it has {escaped(why, 200)}; "
            "install the same there"
        )
        self._note(f"{said}.")
        await link.send(JoinRefused(said))
        with trio.move_on_after(JOIN_S), contextlib.suppress(EndOfStream):
            await link.receive()  # it hangs up when it has read that

    def _named(self, wished: str) -> str:
        """A name that no other machine has."""
        base = name = escaped(wished, 60)
        number = 2
        while name in self._names:
            name, number = f"{base}-{number}", number + 1
        self._names.add(name)
        return name

    async def _equip(self, machine: Machine) -> None:
        """Send what actors need, once it is there."""
        await self._prepared.wait()
        files = await trio.to_thread.run_sync(model_files, self._run / INITIAL)
        settings = await trio.Path(self._run / RUN_TOML).read_text()
        room = room_of(self._config)
        machine.tell(MachineAdmitted(machine.name, settings, len(files), room))
        for name, contents in files:
            machine.tell(ModelFile(name), contents)

    def _enter(self, machine: Machine) -> None:
        """The machine can have actors."""
        if machine.name in self._members or self.over or machine.leaving:
            return
        self._members[machine.name] = machine
        self._note(f"Machine {machine.name} takes part, with {machine.cores} cores.")
        self._assign()
        self._changed.set()

    def _part(self, machine: Machine) -> None:
        """The machine was told to leave: it gets no actor more."""
        if self._members.pop(machine.name, None) is not None:
            self._note(
                f"Machine {machine.name} leaves: what its {len(machine.actors)} actors hold goes "
                "on elsewhere."
            )

    def _leave(self, machine: Machine, why: str) -> None:
        """The machine is lost, or has left, and its actors with it."""
        self._names.discard(machine.name)
        if self._members.pop(machine.name, None) is not None and not self.over:
            self._note(f"Machine {machine.name} is lost, with {len(machine.actors)} actors: {why}.")
        for actor in machine.actors.values():
            actor.end(KILLED, f"its machine {machine.name} is lost: {why}", displaced=True)
        machine.actors.clear()
        self._changed.set()

    # ------------------------------------------------------------------------------------- actors

    def _assign(self) -> None:
        """Give actors that wait to machines."""
        while self._waiting and self._members:
            actor = self._waiting.pop(0)
            if actor.over:
                continue
            machine = min(self._members.values(), key=lambda machine: machine.load)
            actor.machine, machine.actors[actor.actor] = machine, actor
            address = (self._run / COORDINATOR_ADDRESS).read_text()
            machine.tell(StartActor(*actor.actor, actor.resume, address))
