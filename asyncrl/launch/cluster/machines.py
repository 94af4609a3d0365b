"""The launcher's side of other machines: the machines that take part, the actors there, and the
loss of a machine.

    machine: Join → (the model is prepared) → MachineAdmitted, ModelFile … → Equipped → actors
                                                    → Unequipped (it is refused)
             → MachineLeaving (it gets no more actors) → its actors' ends → its link's end
    actor:   waits for a machine → StartActor → … → ActorExited, or its machine is lost
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import trio
from msgspec.structs import replace

from asyncrl.config import Config, read, render
from asyncrl.config.cluster import ranks_here, reward_room_of, room_of
from asyncrl.config.errors import BAD_INPUT
from asyncrl.config.tags import actors_by_tag, need_of
from asyncrl.escape import escaped
from asyncrl.launch.cluster.equipping_turns import EquippingTurns
from asyncrl.launch.cluster.join_token import JoinToken, certify, left_token
from asyncrl.launch.cluster.joined_machine import KILLED, AboutMachine, Machine, RemoteActor
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
from asyncrl.runtime.ipc.errors import EndOfStream, Refusal
from asyncrl.runtime.ipc.keys import new_key, read_key
from asyncrl.runtime.ipc.link import Link
from asyncrl.runtime.ipc.tls import Tls
from asyncrl.runtime.logs import Seldom
from asyncrl.runtime.logs import path as log_path
from asyncrl.runtime.processes.process import last_words
from asyncrl.runtime.processes.supervisor import ActorFailed
from asyncrl.runtime.run_dir import COORDINATOR_ADDRESS, INITIAL, JOIN_TOKEN, KEY, RUN_TOML, TLS
from asyncrl.tasks.judge_checks import origins

logger = logging.getLogger(__name__)

JOIN_S = 10.0
"""Seconds in which a connecting agent must send its Join."""
GOODBYE_S = 10.0
"""Seconds that agents have to end when the run is over."""
TAKEN_S = 30.0
"""Seconds that a machine has to take the model's files, and a second more for each MiB."""
RAY_S = 60.0
"""Seconds that Ray's driver has for its start, and to report why there are no machines."""
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
        self._equipping = EquippingTurns()
        self._files: list[tuple[str, bytes]] | None = None
        self._reading = trio.Lock()
        self._seldom = Seldom()
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
        """Let machines join until cancelled, also those of a killed launcher, by the token that it
        left. Raises OSError if the port is taken."""
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
                        refused=self._refused,
                        tls=Tls.of(self._run / TLS),
                    )
                )
                replace(token, address=str(bound)).write(path)
                task_status.started(bound)
                await trio.sleep_forever()
        finally:
            path.unlink(missing_ok=True)

    def prepared(self) -> None:
        """Note that the model is there, and its files can be sent to machines."""
        self._prepared.set()

    @property
    def count(self) -> int:
        """Number of machines that can have actors."""
        return len(self._members)

    def count_for(self, role: JoinedRole) -> int:
        """Number of machines that can have actors of a role."""
        return sum(machine.role == role for machine in self._members.values())

    async def come(self, role: JoinedRole, least: int) -> None:
        """Wait for so many machines of a role, at most `cluster.join_s`."""
        with trio.move_on_after(self._config.cluster.join_s):
            while self.count_for(role) < least:
                self._changed = trio.Event()
                await self._changed.wait()

    def leave_out(self, actor: RemoteActor) -> None:
        """Refuse the machine of an actor that failed again and again. It may join once more."""
        machine = actor.machine
        if machine is not None and machine.name in self._linked:
            name = f"{actor.order.role}-{actor.order.index}"
            self._refuse_member(machine, f"{name} failed there repeatedly")

    async def complete(self) -> None:
        """Wait for as many machines of each role as are set, or, once they were there, for one of
        each role that the run needs. Raises ActorFailed with the reason given to `fail`, and as bad
        input after `cluster.join_s`; if Ray places them, its driver may report that first."""
        cluster = self._config.cluster
        with trio.move_on_after(cluster.join_s + (RAY_S if cluster.kind == "ray" else 0.0)):
            while self._missing or self._missing_tags:
                if self._failed is not None:
                    raise self._failed
                self._changed = trio.Event()
                await self._changed.wait()
        if missing := self._missing:
            raise self._too_few(*missing[0])
        if tags := self._missing_tags:
            raise self._no_machine_with(tags[0])
        if not self._completed:
            self._refuse_too_few_places()
        self._completed = True

    def _too_few(self, role: JoinedRole, wanted: int) -> ActorFailed:
        """The failure of a run if fewer machines of a role joined than are `wanted`."""
        cluster = self._config.cluster
        if cluster.kind == "ray":
            advice = (
                f"Ray had {RAY_S:g} s more to start; see the log of its driver, "
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

    @property
    def _missing_tags(self) -> list[str]:
        """The tags that rollout actors need and no machine has."""
        if self._completed:
            return []
        has = {tag for one in self._members.values() if one.role == "rollout" for tag in one.tags}
        return [tag for tag in actors_by_tag(self._config) if tag not in has]

    def _no_machine_with(self, tag: str) -> ActorFailed:
        """The failure of a run if no machine joined with a tag that an actor needs."""
        actors = " and ".join(actors_by_tag(self._config)[tag])
        return ActorFailed(
            "the cluster",
            BAD_INPUT,
            f"no machine with the tag {tag!r}, which {actors} needs (rollout.needs), joined within "
            f"{self._config.cluster.join_s:g} s (cluster.join_s): run `asyncrl agent --join "
            f"join.token --tag {tag}` on one while the launcher waits, or remove the need.",
        )

    def _refuse_too_few_places(self) -> None:
        """Raise ActorFailed, as bad input, if the machines have GPUs for fewer rollout actors than
        there are, or those with a tag for fewer than need it."""
        members = [machine for machine in self._members.values() if machine.role == "rollout"]
        for tag, actors in actors_by_tag(self._config).items():
            self._refuse_few([one for one in members if tag in one.tags], len(actors), tag)
        self._refuse_few(members, self._config.rollout.actors)

    def _refuse_few(self, members: Sequence[Machine], wanted: int, tag: str = "") -> None:
        """Raise ActorFailed, as bad input, if these machines, with a tag or all, have GPUs for
        fewer actors than are wanted."""
        if sum(wanted if member.places is None else member.places for member in members) < wanted:
            each = ", ".join(f"{member.name}: {member.places}" for member in members)
            raise ActorFailed(
                "the cluster",
                BAD_INPUT,
                f"the machines that joined{f' with the tag {tag}' if tag else ''} have GPUs for "
                f"fewer than the {wanted} rollout actors{' that need it' if tag else ''} "
                f"({each}): lower rollout.actors, or have more machines join (cluster.agents).",
            )

    def fail(self, why: ActorFailed) -> None:
        """Note why no more machines can join, which ends all waits for one. Those that have joined
        stay."""
        self._failed = why
        if self._completed:
            reason = escaped(last_words(why.traceback), 300).rstrip(".")
            self._note(f"No more machines can join: {reason}.")
        self._changed.set()

    def start(
        self, role: JoinedRole, index: int, incarnation: int, *, resume: bool, rank_0: str = ""
    ) -> RemoteActor:
        """Start an actor on the machine of its role, and with the tag that it needs, that has the
        fewest actors for each core, as soon as there is one. A rank of the trainer finds rank 0 at
        the address `rank_0`."""
        need = need_of(self._config, index) if role == "rollout" else ""
        actor = RemoteActor(StartActor(role, index, incarnation, resume, "", rank_0), need)
        self._waiting.append(actor)
        self._assign()
        return actor

    async def dismiss(self) -> None:
        """End the run: tell agents, also those that are not equipped yet, and wait until they have
        ended, at most GOODBYE_S."""
        self.over = True
        machines = [*self._linked.values()]
        for machine in machines:
            machine.tell(RunOver())
        with trio.move_on_after(GOODBYE_S):
            for machine in machines:
                await machine.gone.wait()

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

    def _refused(self, reason: Refusal) -> None:
        """Log that a connection was refused."""
        if (end := self._seldom.due(reason)) is not None:
            logger.warning("an agent was refused: %s%s", reason, end)

    async def _refuse(self, link: Link, join: Join, why: str) -> None:
        """Tell a machine and the user why it takes no part."""
        sentence = f"machine {escaped(join.machine, 60)} takes no part: {why}"
        if (end := self._seldom.due(f"machine {join.machine}")) is not None:
            self._note(f"{sentence}{end}.")
        await link.send(JoinRefused(sentence))
        with trio.move_on_after(JOIN_S), contextlib.suppress(EndOfStream):
            await link.receive()  # it hangs up when it has read that

    async def _end_earlier_link(self, agent: str) -> None:
        """End the earlier link of an agent that joins again. The agent noticed the cut first and
        ended its actors; without this the machine would be listed twice, for up to SILENCE_S."""
        for machine in [linked for linked in self._linked.values() if linked.agent == agent]:
            machine.give_up("its agent joined again")
            await machine.gone.wait()

    def _free_name(self, wished: str) -> str:
        """The wished name, made unique among the machines."""
        base = name = escaped(wished, 60)
        number = 2
        while name in self._linked:
            name, number = f"{base}-{number}", number + 1
        return name

    async def _equip(self, machine: Machine) -> None:
        """Send settings, key and model files, once the model is there."""
        await self._prepared.wait()
        files = await self._model_files()
        taken_s = TAKEN_S + sum(len(contents) for _, contents in files) / 2**20
        queue = partial(self._queue_files, machine, files)
        if not await self._equipping.turn(queue, machine.sent, taken_s):
            machine.give_up(
                f"it did not receive the model's files within {taken_s:.0f} s, or while others "
                "waited"
            )

    async def _queue_files(self, machine: Machine, files: list[tuple[str, bytes]]) -> None:
        rooms = {"rollout": room_of, "trainer": ranks_here, "reward": reward_room_of}
        room, key = rooms[machine.role](self._config), read_key(self._run / KEY)
        of_task = dict[str, str]()
        if machine.role == "reward":
            of_task = await trio.to_thread.run_sync(origins, self._config.task)
        admitted = MachineAdmitted(machine.name, self._settings(), len(files), room, key, of_task)
        machine.tell(admitted)
        for name, contents in files:
            machine.tell(ModelFile(name), contents)

    async def _model_files(self) -> list[tuple[str, bytes]]:
        """The files of the model, which all machines share."""
        async with self._reading:
            if self._files is None:
                self._files = await trio.to_thread.run_sync(model_files, self._run / INITIAL)
            return self._files

    def _take(self, machine: Machine, message: AboutMachine) -> None:
        match message:
            case Equipped(places):
                self._enter(machine, places)
            case Unequipped(why):
                self._refuse_member(machine, escaped(why, 500).rstrip("."))
            case MachineLeaving():
                self._part(machine)
            case ActorExited(role, index, incarnation, code, words):
                if actor := machine.actors.pop((role, index, incarnation), None):
                    actor.end(code, words, displaced=machine.leaving)
                    self._assign()

    def _enter(self, machine: Machine, places: int | None) -> None:
        """Add a machine that can have `places` actors."""
        if machine.name in self._members or self.over or machine.leaving:
            return
        machine.places = places
        self._members[machine.name] = machine
        what = f", for the role {machine.role}" * (machine.role != "rollout")
        what += f", tags {', '.join(sorted(machine.tags))}" * bool(machine.tags)
        self._note(f"Machine {machine.name} takes part, with {machine.cores} cores{what}.")
        self._assign()
        self._changed.set()

    def _refuse_member(self, machine: Machine, reason: str) -> None:
        """Tell a machine that has joined, and the user, why it takes no part."""
        machine.leaving = True
        self._members.pop(machine.name, None)
        sentence = f"machine {machine.name} takes no part: {reason}"
        self._note(f"{sentence}.")
        machine.tell(JoinRefused(sentence))

    def _part(self, machine: Machine) -> None:
        """Give no more actors to a machine that leaves."""
        machine.leaving = True
        if self._members.pop(machine.name, None) is not None:
            self._note(
                f"Machine {machine.name} leaves: the work of its {len(machine.actors)} actors "
                "continues elsewhere."
            )

    def _leave(self, machine: Machine, why: str) -> None:
        """Remove a machine that is lost or has left, with its actors."""
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
        """Assign waiting actors to machines with a place, those first that need a tag."""
        waiting, self._waiting = self._waiting, []
        needed = actors_by_tag(self._config)
        for actor in sorted(waiting, key=lambda actor: not actor.need):
            candidates = [machine for machine in self._members.values() if machine.takes(actor)]
            if actor.over:
                continue
            if not candidates:
                self._waiting.append(actor)
                continue
            machine = min(candidates, key=lambda machine: machine.order_for(actor, needed))
            actor.machine, machine.actors[actor.actor] = machine, actor
            order = replace(actor.order, coordinator=(self._run / COORDINATOR_ADDRESS).read_text())
            if order.role == "trainer":
                order = replace(order, run_toml=self._settings())
            machine.tell(order)

    def _settings(self) -> str:
        """The settings of this life, with whole paths, for another folder."""
        return render(read(self._run / RUN_TOML))
