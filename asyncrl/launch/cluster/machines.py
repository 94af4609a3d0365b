"""The launcher's side of other machines: who takes part, what runs there, and what is lost with
one.

    machine: Join → (the model is prepared) → MachineAdmitted, ModelFile … → Equipped → actors
                                                    → Unequipped (it is refused)
             → MachineLeaving (it is given no actor more) → its actors' ends → its link's end
    actor:   waits for a machine → StartActor → … → ActorExited, or its machine is lost
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path

import trio
from msgspec.structs import replace

from asyncrl.config import Config
from asyncrl.config.cluster import ranks_here, reward_room_of, room_of
from asyncrl.config.errors import BAD_INPUT
from asyncrl.escape import escaped
from asyncrl.launch.cluster.join_token import JoinToken, certify, left_token
from asyncrl.launch.cluster.joined_machine import KILLED, Machine, OfItself, RemoteActor
from asyncrl.launch.cluster.model_files import model_files
from asyncrl.launch.cluster.versions import differing, own_versions
from asyncrl.messages import (
    ActorExited,
    Equipped,
    Join,
    JoinedRole,
    JoinRefused,
    MachineAdmitted,
    MachineLeaving,
    ModelFile,
    RunOver,
    StartActor,
    Unequipped,
)
from asyncrl.messages.address import TcpAddress
from asyncrl.runtime.ipc.endpoints import first_message, serve
from asyncrl.runtime.ipc.errors import EndOfStream
from asyncrl.runtime.ipc.keys import new_key, read_key
from asyncrl.runtime.ipc.link import Link
from asyncrl.runtime.ipc.tls import Tls
from asyncrl.runtime.logs import path as log_path
from asyncrl.runtime.processes.process import last_words
from asyncrl.runtime.processes.supervisor import ActorFailed
from asyncrl.runtime.run_dir import COORDINATOR_ADDRESS, INITIAL, JOIN_TOKEN, KEY, RUN_TOML, TLS
from asyncrl.tasks.judge_checks import origins

logger = logging.getLogger(__name__)

JOIN_S = 10.0
"""Seconds that who connects has to say who it is."""
GOODBYE_S = 10.0
"""Seconds that agents have to end when the run is over."""
RAY_S = 60.0
"""Seconds that Ray's driver has for its start, and to say why there are no machines."""
AGENTS: dict[JoinedRole, str] = {
    "rollout": "cluster.agents",
    "trainer": "cluster.trainer_agents",
    "reward": "cluster.reward_agents",
}
"""The settings that say how many machines join for a role."""


class Machines:
    """The machines of one launch. `note` gets a sentence about each that comes or is lost."""

    def __init__(self, config: Config, run: Path, note: Callable[[str], None]) -> None:
        self._config, self._run, self._show = config, run, note
        self._members: dict[str, Machine] = {}
        self._linked: dict[str, Machine] = {}  # by name, also those that are not equipped yet
        self._waiting: list[RemoteActor] = []
        self._prepared = trio.Event()
        self._changed = trio.Event()
        self._completed = self.over = False
        self._failed: ActorFailed | None = None

    def _note(self, sentence: str) -> None:
        """Show a sentence to the user, and log it."""
        logger.warning("%s", sentence)
        self._show(sentence)

    async def serve(
        self, *, task_status: trio.TaskStatus[TcpAddress] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Let machines join until cancelled, also those of a launcher that was killed, by the token
        that it left. Raises OSError where the port is taken."""
        cluster, path = self._config.cluster, self._run / JOIN_TOKEN
        left = left_token(self._run, cluster.host, cluster.port)
        if left is None:
            head, agents = certify(cluster.host)
            head.write(self._run)
            token = JoinToken(str(TcpAddress(cluster.host, cluster.port)), new_key(), agents)
        else:
            token, self._completed = left, True
        try:
            async with trio.open_nursery() as nursery:
                bound = await nursery.start(
                    partial(
                        serve,
                        token.launcher,
                        token.key,
                        self._attend,
                        refused=lambda reason: logger.warning("an agent was refused: %s", reason),
                        tls=Tls.of(self._run / TLS),
                    )
                )
                replace(token, address=str(bound)).write(path)
                task_status.started(bound)
                await trio.sleep_forever()
        finally:
            path.unlink(missing_ok=True)

    def prepared(self) -> None:
        """The model is there, and machines can be sent what they need of it."""
        self._prepared.set()

    @property
    def count(self) -> int:
        """Number of machines that can have actors."""
        return len(self._members)

    def count_for(self, role: JoinedRole) -> int:
        """Number of machines that can have actors of a role."""
        return sum(machine.role == role for machine in self._members.values())

    async def complete(self) -> None:
        """Wait for as many machines of each role as are set, or, where they were there once, for
        one of each that a run cannot do without. Raises ActorFailed where `fail` said why none can
        come, and as bad input after `cluster.join_s`, which where Ray places them is its driver's
        to say first."""
        cluster = self._config.cluster
        with trio.move_on_after(cluster.join_s + (RAY_S if cluster.kind == "ray" else 0.0)):
            while self._missing:
                if self._failed is not None:
                    raise self._failed
                self._changed = trio.Event()
                await self._changed.wait()
        if missing := self._missing:
            raise self._too_few(*missing[0])
        if not self._completed:
            self._refuse_too_few_places()
        self._completed = True

    def _too_few(self, role: JoinedRole, wanted: int) -> ActorFailed:
        """The failure of a run that fewer machines of a role joined than are `wanted`."""
        cluster = self._config.cluster
        if cluster.kind == "ray":
            advice = (
                f"Ray had {RAY_S:g} s more for its start; look at what its driver says in "
                f"{log_path(self._run, 'ray', 0)}."
            )
        else:
            option = "" if role == "rollout" else f" --for {role}"
            advice = (
                f"copy {self._run / JOIN_TOKEN} to each, and run `asyncrl agent --join join.token"
                f"{option}` there while the launcher waits."
            )
        return ActorFailed(
            "the cluster",
            BAD_INPUT,
            f"{self.count_for(role)} of {wanted} machines ({AGENTS[role]}) joined within "
            f"{cluster.join_s:g} s (cluster.join_s): {advice}",
        )

    @property
    def _missing(self) -> list[tuple[JoinedRole, int]]:
        """Roles with too few machines to begin, or to go on, and how many each needs."""
        cluster = self._config.cluster
        wanted: dict[JoinedRole, int] = {"rollout": cluster.agents, "reward": cluster.reward_agents}
        if self._completed:
            wanted = {role: min(1, least) for role, least in wanted.items()}
        else:
            wanted["trainer"] = cluster.trainer_agents
        return [(role, least) for role, least in wanted.items() if self.count_for(role) < least]

    def _refuse_too_few_places(self) -> None:
        """Raise ActorFailed, as bad input, where the machines have GPUs for fewer rollout actors
        than there are."""
        wanted = self._config.rollout.actors
        members = [machine for machine in self._members.values() if machine.role == "rollout"]
        if sum(wanted if one.places is None else one.places for one in members) < wanted:
            each = ", ".join(f"{one.name}: {one.places}" for one in members)
            raise ActorFailed(
                "the cluster",
                BAD_INPUT,
                f"the machines that joined have GPUs for fewer than the {wanted} rollout actors "
                f"({each}): lower rollout.actors, or have more machines join (cluster.agents).",
            )

    def fail(self, why: ActorFailed) -> None:
        """Say why no machine comes any more: whoever waits for one waits no longer. Those that are
        there stay."""
        self._failed = why
        if self._completed:
            reason = escaped(last_words(why.traceback), 300).rstrip(".")
            self._note(f"No machine joins any more: {reason}.")
        self._changed.set()

    def start(
        self, role: JoinedRole, index: int, incarnation: int, *, resume: bool, rank_0: str = ""
    ) -> RemoteActor:
        """Start an actor on the machine of its role with the fewest for each core, as soon as there
        is one. A rank of the trainer finds rank 0 at the address `rank_0`."""
        actor = RemoteActor(StartActor(role, index, incarnation, resume, "", rank_0))
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
        join = await first_message(link, Join, JOIN_S)
        if why := differing(join.versions, own_versions()):
            await self._refuse(link, join, f"it has {escaped(why, 200)}; install the same there")
            return
        cluster = self._config.cluster
        if (join.role == "trainer" and not cluster.trainer_agents) or (
            join.role == "reward" and not cluster.reward_agents
        ):
            why = (
                f"it is for the role {join.role}, all of whose actors are on the launcher's "
                f"machine: set {AGENTS[join.role]} there, or leave out --for here"
            )
            await self._refuse(link, join, why)
            return
        await self._end_earlier_link(join.agent)
        machine = Machine(self._free_name(join.machine), join, link)
        self._linked[machine.name] = machine
        why = "the launcher ended"
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._equip, machine)
                why = await machine.converse(partial(self._take, machine))
                nursery.cancel_scope.cancel()
        finally:
            self._leave(machine, why)

    async def _refuse(self, link: Link, join: Join, why: str) -> None:
        """Say why a machine takes no part, to it and to the user."""
        sentence = f"machine {escaped(join.machine, 60)} takes no part: {why}"
        self._note(f"{sentence}.")
        await link.send(JoinRefused(sentence))
        with trio.move_on_after(JOIN_S), contextlib.suppress(EndOfStream):
            await link.receive()  # it hangs up when it has read that

    async def _end_earlier_link(self, agent: str) -> None:
        """End the earlier link of an agent that joins again. The agent noticed the cut first and
        ended its actors; without this the machine is here twice, for up to SILENCE_S."""
        for machine in [one for one in self._linked.values() if one.agent == agent]:
            machine.give_up("its agent joined again")
            await machine.gone.wait()

    def _free_name(self, wished: str) -> str:
        """A name that no other machine has."""
        base = name = escaped(wished, 60)
        number = 2
        while name in self._linked:
            name, number = f"{base}-{number}", number + 1
        return name

    async def _equip(self, machine: Machine) -> None:
        """Send what actors need, once it is there."""
        await self._prepared.wait()
        files = await trio.to_thread.run_sync(model_files, self._run / INITIAL)
        settings = await trio.Path(self._run / RUN_TOML).read_text()
        rooms = {"rollout": room_of, "trainer": ranks_here, "reward": reward_room_of}
        room, key = rooms[machine.role](self._config), read_key(self._run / KEY)
        of_task = dict[str, str]()
        if machine.role == "reward":
            of_task = await trio.to_thread.run_sync(origins, self._config.task)
        machine.tell(MachineAdmitted(machine.name, settings, len(files), room, key, of_task))
        for name, contents in files:
            machine.tell(ModelFile(name), contents)

    def _take(self, machine: Machine, message: OfItself) -> None:
        match message:
            case Equipped(places):
                self._enter(machine, places)
            case Unequipped(why):
                machine.leaving = True
                self._members.pop(machine.name, None)
                reason = escaped(why, 500).rstrip(".")
                sentence = f"machine {machine.name} takes no part: {reason}"
                self._note(f"{sentence}.")
                machine.tell(JoinRefused(sentence))
            case MachineLeaving():
                self._part(machine)
            case ActorExited(role, index, incarnation, code, words):
                if actor := machine.actors.pop((role, index, incarnation), None):
                    actor.end(code, words, displaced=machine.leaving)
                    self._assign()

    def _enter(self, machine: Machine, places: int | None) -> None:
        """The machine can have so many actors."""
        if machine.name in self._members or self.over or machine.leaving:
            return
        machine.places = places
        self._members[machine.name] = machine
        what = f", for the role {machine.role}" * (machine.role != "rollout")
        self._note(f"Machine {machine.name} takes part, with {machine.cores} cores{what}.")
        self._assign()
        self._changed.set()

    def _part(self, machine: Machine) -> None:
        """The machine was told to leave: it gets no actor more."""
        machine.leaving = True
        if self._members.pop(machine.name, None) is not None:
            self._note(
                f"Machine {machine.name} leaves: what its {len(machine.actors)} actors hold goes "
                "on elsewhere."
            )

    def _leave(self, machine: Machine, why: str) -> None:
        """The machine is lost, or has left, and its actors with it."""
        del self._linked[machine.name]
        if self._members.pop(machine.name, None) is not None and not self.over:
            self._note(f"Machine {machine.name} is lost, with {len(machine.actors)} actors: {why}.")
        for actor in machine.actors.values():
            actor.end(KILLED, f"its machine {machine.name} is lost: {why}", displaced=True)
        machine.actors.clear()
        machine.gone.set()
        self._changed.set()

    # ------------------------------------------------------------------------------------- actors

    def _assign(self) -> None:
        """Give actors that wait to machines with a place."""
        waiting, self._waiting = self._waiting, []
        for actor in waiting:
            places = [machine for machine in self._members.values() if machine.takes(actor)]
            if actor.over:
                continue
            if not places:
                self._waiting.append(actor)
                continue
            machine = min(places, key=lambda machine: machine.load)
            actor.machine, machine.actors[actor.actor] = machine, actor
            address = (self._run / COORDINATOR_ADDRESS).read_text()
            machine.tell(replace(actor.order, coordinator=address))
