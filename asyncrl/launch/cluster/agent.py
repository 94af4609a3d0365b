"""`asyncrl agent`: a machine's part in a run. It starts actors for the launcher as its own
children, and reports their ends.

    join → a directory with the actors' files → fork server → StartActor … → the run is over
    ↑________________________________ its link is cut ______________________|

Invariant: no actor that it started outlives it, nor its link to the launcher by more than the
seconds of silence that it tolerates (`machine_link.SILENCE_S`) and of a kill. Servers of actors may
wait for the next ones, and end with this machine's part, or after `supervision.keep_servers_s`.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import trio

from asyncrl.config import read
from asyncrl.config.errors import BAD_INPUT, ConfigError
from asyncrl.config.paths import reachable
from asyncrl.engines.servers.kept_servers import servers_ended
from asyncrl.escape import escaped
from asyncrl.launch.claim import claimed
from asyncrl.launch.cluster.equipment import places_for
from asyncrl.launch.cluster.join_token import JoinToken
from asyncrl.launch.cluster.joined_machine import Actor
from asyncrl.launch.cluster.joining import LEAVE, ToldToLeave, join, join_again
from asyncrl.launch.cluster.local_placement import PRELOADED, SMALL, TAKES_OVER, start_actor
from asyncrl.launch.cluster.machine_link import MachineLink
from asyncrl.launch.cluster.model_files import keep_file
from asyncrl.launch.cluster.places import Place, Places
from asyncrl.launch.cluster.versions import own_versions
from asyncrl.messages import (
    ActorExited,
    Equipped,
    Join,
    JoinedRole,
    JoinRefused,
    KillActor,
    MachineAdmitted,
    MachineLeaving,
    ModelFile,
    Role,
    RunOver,
    StartActor,
    Unequipped,
)
from asyncrl.messages.address import tcp_address
from asyncrl.own_folder import own_folder
from asyncrl.runtime import logs
from asyncrl.runtime.ipc.errors import EndOfStream, LinkError
from asyncrl.runtime.ipc.keys import write_key
from asyncrl.runtime.ipc.link import Link
from asyncrl.runtime.logs import FOLDER
from asyncrl.runtime.logs import path as log_path
from asyncrl.runtime.output import complain
from asyncrl.runtime.processes.forkserver import ForkServer, open_fork_server
from asyncrl.runtime.processes.machine import available_cores
from asyncrl.runtime.processes.process import Process
from asyncrl.runtime.run_dir import INITIAL, KEY, RUN_TOML

logger = logging.getLogger(__name__)

NOTICE_S = 25.0
"""Seconds in which actors must return their work, once this machine is told to leave: fewer than
the 30 s that Kubernetes, Slurm and the shortest notice of a spot instance leave."""
MOST_WORDS = 1000
"""Characters of the report of what this machine lacks."""
LEAVES = "its machine leaves"
"""Last words of an actor that was ordered on a machine that leaves."""
TAKEN = "another asyncrl is running in this directory; choose another --dir"
LOST = 1
"""Exit status if the launcher was lost, or an actor could not be started."""


def agent(
    token: JoinToken,
    folder: Path | None,
    name: str,
    cores: int,
    patience_s: float,
    role: JoinedRole = "rollout",
    tags: Sequence[str] = (),
) -> int:
    """Take part in the run of a join token until it is over. `folder` becomes this machine's
    directory of the run (None: one that is removed at the end), `name` the machine's (empty: its
    host name), `cores` the number that it offers (0: all that this process may use), `role`
    that of its actors, and `tags` what rollout actors may need. A link that was cut is made again,
    also to a launcher that was killed and started again, within `patience_s`. Returns the exit
    status: 0 if the run ended, 1 if the launcher was lost, 2 if the machine is refused. Raises
    ConfigError for a `folder` that is not this user's, or that another process uses, and for tags
    of another role."""
    if tags and role != "rollout":
        raise ConfigError(f"--tag is for rollout actors: leave it out, or --for {role}.")
    with ExitStack() as stack:
        if folder is None:
            run = stack.enter_context(own_folder("agent"))
        else:
            run = folder.absolute()
            _own(run)
            stack.enter_context(claimed(run, TAKEN))
        with reachable():
            token.tls.write(run)
            (run / FOLDER).mkdir(exist_ok=True)
        stack.enter_context(logs.kept(run, "launcher", 0))
        mine = sorted(os.sched_getaffinity(0))[: cores or available_cores()]
        taking_part = partial(
            _take_part, token, run, name or socket.gethostname(), mine, patience_s, role, tags
        )
        return trio.run(taking_part, strict_exception_groups=True)


async def _take_part(
    token: JoinToken,
    run: Path,
    name: str,
    cores: list[int],
    patience_s: float,
    role: JoinedRole,
    tags: Sequence[str],
) -> int:
    """Take part, and again if the link was cut; returns the exit status."""
    try:
        link = await join(token, run)
    except (LinkError, ValueError) as error:
        complain(escaped(f"the launcher of {token.address} cannot be joined: {error}."))
        return BAD_INPUT
    agent, versions = secrets.token_hex(16), own_versions()
    offer = Join(name[:255], agent, len(cores), versions, role, tuple(tags))
    # A signal that comes between two parts is heard by the second.
    with trio.open_signal_receiver(*LEAVE) as signals:
        return await _parts(link, token, run, cores, patience_s, offer, signals)


async def _parts(
    link: Link,
    token: JoinToken,
    run: Path,
    cores: list[int],
    patience_s: float,
    offer: Join,
    signals: AsyncIterator[int],
) -> int:
    """Take part over this link, and over others if it was cut; returns the exit status."""
    async with servers_ended(run):
        while True:
            agent = _Agent(link, run, cores, offer, signals)
            async with link:
                status = await agent.serve()
            if not agent.cut:
                return status
            print(f"This machine tries to join again, for {patience_s:g} s.", flush=True)
            try:
                link = await join_again(token, run, patience_s, signals)
            except LinkError as error:
                complain(escaped(f"the launcher is lost: {error}."))
                return LOST
            except ToldToLeave as signalled:
                return 128 + signalled.number


def _own(run: Path) -> None:
    """Make the directory, or check that it is this user's alone. Raises ConfigError."""
    try:
        run.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"{run} cannot be made: {error.strerror}; choose another --dir."
        ) from None
    state = run.lstat()
    if (
        not run.is_dir()
        or run.is_symlink()
        or state.st_uid != os.geteuid()
        or state.st_mode & 0o077
    ):
        raise ConfigError(f"{run} is open to other users: make it `chmod 700`, or choose another.")


class _Agent:
    """One machine's part in one run, over one link. `cut` is True once that was lost, with a
    launcher that may live on."""

    def __init__(
        self,
        link: Link,
        run: Path,
        cores: list[int],
        offer: Join,
        signals: AsyncIterator[int],
    ) -> None:
        """`signals` tell this machine to leave."""
        self.cut = False
        self._link = MachineLink(link, self._lose)
        self._scope = trio.CancelScope()  # around its part
        self._run, self._cores, self._role = run, cores, offer.role
        self._signals = signals
        self._actors: dict[Actor, Process] = {}
        self._ended: set[tuple[Role, int]] = set()  # possibly because of their servers
        self._room = 0  # the number of expected actors; 0 until it takes part
        self._places: Places | None = None  # None until this machine is equipped
        self._missing = 0  # files that are still to come
        self._origins: Mapping[str, str] = {}  # of a task that is judged here
        self._leaving = False
        self._left = trio.Event()  # set when it leaves and has no actor any more
        self._status = LOST
        self._link.send(offer)

    async def serve(self) -> int:
        """Take part until the end; returns the exit status."""
        with self._scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._obey_signals)
                nursery.start_soon(self._link.keep)
                await self._follow(nursery)
                nursery.cancel_scope.cancel()
        return self._status

    # -------------------------------------------------------------------------------------- orders

    async def _follow(self, nursery: trio.Nursery) -> None:
        """Obey the launcher until its link ends."""
        fork_server: ForkServer | None = None
        while True:
            try:
                message, buffers = await self._link.receive()
            except EndOfStream:
                self._lose("is gone")
                return
            except LinkError as error:
                self._lose(f"is lost: {error}")
                return
            match message:
                case JoinRefused(reason):
                    complain(escaped(f"{reason}."))
                    self._status = BAD_INPUT
                    return
                case MachineAdmitted() if fork_server is None:
                    self._admitted(message)
                    fork_server = await nursery.start(self._keep_fork_server)
                    if not self._missing:
                        nursery.start_soon(self._equip, fork_server)
                case ModelFile(name) if self._missing and fork_server and len(buffers) == 1:
                    try:
                        keep_file(self._run / INITIAL, name, buffers[0])
                    except ValueError as error:
                        complain(
                            escaped(
                                "the launcher sent a file that does not belong to a model: "
                                f"{error}."
                            )
                        )
                        return
                    self._missing -= 1
                    if not self._missing:
                        nursery.start_soon(self._equip, fork_server)
                case StartActor(role, index, incarnation) if self._leaving:  # already sent
                    self._link.send(ActorExited(role, index, incarnation, LOST, LEAVES))
                case StartActor() if fork_server is not None and self._places is not None:
                    actor = (message.role, message.index, message.incarnation)
                    if (place := self._places.take(actor)) is None:
                        complain(
                            "the launcher asked for more actors than this machine has GPUs for."
                        )
                        return
                    process = self._started(fork_server, message, place)
                    nursery.start_soon(self._until_it_ends, actor, process, self._places)
                case KillActor(role, index, incarnation):
                    if killed := self._actors.get((role, index, incarnation)):
                        killed.kill()
                case RunOver():
                    print("The run is over.", flush=True)
                    self._status = 0
                    return
                case _:
                    complain(f"the launcher sent {type(message).__name__} out of turn.")
                    return

    def _admitted(self, message: MachineAdmitted) -> None:
        """Keep the run's settings, and this launch's key."""
        write_key(self._run / KEY, message.key)
        (self._run / RUN_TOML).write_text(message.run_toml)
        (self._run / INITIAL).mkdir(exist_ok=True)
        self._missing, self._room = message.files, max(1, message.room)
        self._origins = message.origins
        print(f"This machine takes part as {escaped(message.machine)}.", flush=True)

    async def _equip(self, fork_server: ForkServer) -> None:
        """Report that actors can be started, once they can be forked, or what this machine lacks
        for them."""
        try:
            config = read(self._run / RUN_TOML)
            places = await trio.to_thread.run_sync(
                places_for, self._role, config, self._cores, self._room, self._origins
            )
        except ConfigError as error:
            self._link.send(Unequipped(str(error)[:MOST_WORDS]))
            return
        await fork_server.settled()
        self._places = places
        self._link.send(Equipped(places.count))

    async def _keep_fork_server(self, task_status: trio.TaskStatus[ForkServer]) -> None:
        """Keep a fork server until the end."""
        async with open_fork_server(
            PRELOADED,
            [str(self._run)],
            log=log_path(self._run, "launcher", 0),
            env=SMALL,
            lost=complain,
        ) as fork_server:
            task_status.started(fork_server)
            await trio.sleep_forever()

    # -------------------------------------------------------------------------------------- actors

    def _started(self, fork_server: ForkServer, order: StartActor, place: Place) -> Process:
        """Start an actor at its place."""
        if order.run_toml:
            (self._run / RUN_TOML).write_text(order.run_toml)
        actor = (order.role, order.index, order.incarnation)
        arguments = ["--coordinator", str(tcp_address(order.coordinator))]
        arguments += ["--rank-0", str(tcp_address(order.rank_0))] if order.rank_0 else []
        arguments += ["--resume"] if order.resume else []
        if not order.incarnation or actor[:2] not in self._ended:
            arguments.append(TAKES_OVER)
        process = self._actors[actor] = start_actor(
            fork_server,
            self._run,
            actor,
            None if order.role == "reward" else place.cores,  # it computes nothing itself
            arguments,
            place.environment,
        )
        return process

    async def _until_it_ends(self, actor: Actor, process: Process, places: Places) -> None:
        """Wait for an actor's end, and report it."""
        try:
            code = await process.wait()
        finally:
            await process.kill_group()
            del self._actors[actor]
            self._ended.add(actor[:2])
            places.leave(actor)
            if self._leaving and not self._actors:
                self._left.set()
        self._link.send(ActorExited(*actor, code, process.tail()[-(2**16) :]))

    # ------------------------------------------------------------------------------------ the link

    def _lose(self, why: str) -> None:
        """End this machine's part: the launcher is lost, for this reason. Its link is made again if
        this machine took part, and is not leaving."""
        complain(escaped(f"the launcher {why}; this machine's actors are ended."))
        self.cut = self._room > 0 and not self._leaving
        self._scope.cancel()

    async def _obey_signals(self) -> None:
        """End this machine's part at SIGINT, SIGTERM or SIGHUP, within NOTICE_S; its actors' work
        goes to others. A second signal ends it at once."""
        async with trio.open_nursery() as nursery:
            async for number in self._signals:
                if self._leaving:
                    self._scope.cancel()
                    return
                self._status = 128 + number
                nursery.start_soon(self._leave)

    async def _leave(self) -> None:
        """Let this machine's actors return their work, and end its part."""
        self._leaving = True
        self._link.send(MachineLeaving())
        if self._actors:
            print(
                f"This machine leaves: its {len(self._actors)} actors return their work, within "
                f"{NOTICE_S:g} s. A second signal ends them at once.",
                flush=True,
            )
        for process in self._actors.values():
            process.terminate()
        with trio.move_on_after(NOTICE_S):
            if self._actors:
                await self._left.wait()
        self._scope.cancel()
