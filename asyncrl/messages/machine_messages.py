"""Messages between the launcher and the agent of another machine (`asyncrl.launch.cluster`).

agent → launcher    Join
launcher → agent    JoinRefused, and nothing more; or MachineAdmitted, ModelFile …, and then
agent → launcher    Unequipped, and JoinRefused comes; or Equipped, ActorExited …, Alive …,
                    MachineLeaving
launcher → agent    StartActor …, KillActor …, Alive …, RunOver
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from asyncrl.messages.parts import Message, Role

Name = Annotated[str, Meta(min_length=1, max_length=255)]
"""A name of a machine, a file or a package."""
Tag = Annotated[str, Meta(pattern="^[A-Za-z0-9_-]{1,32}$")]
"""A name of what a machine is good at."""
AgentId = Annotated[str, Meta(min_length=32, max_length=32)]
"""The id of one agent's process."""
JoinedRole = Literal["rollout", "trainer", "reward"]
"""A role whose actors may run on a machine that joins."""


class Join(Message, frozen=True):
    """Agent to launcher: this machine offers `cores` for actors of a `role`, has `tags` that actors
    may need, and has these `versions` of what both must have alike, by name. `agent` is 16 random
    bytes in hexadecimal, the same each time that one agent joins: its new link replaces the one
    that was cut."""

    machine: Name
    agent: AgentId
    cores: Annotated[int, Meta(ge=1, le=2**16)]
    versions: Annotated[dict[Name, Name], Meta(max_length=16)]
    role: JoinedRole = "rollout"
    tags: Annotated[tuple[Tag, ...], Meta(max_length=16)] = ()


class JoinRefused(Message, frozen=True):
    """Launcher to agent: the machine is refused, for this reason, a whole sentence."""

    reason: str


class MachineAdmitted(Message, frozen=True):
    """Launcher to agent: the machine takes part, under this name; `run_toml` are the run's
    settings, and `key` is what its actors prove to the coordinator of this launch. So many
    `ModelFile` follow. Of the run's actors of its role it has at most `room` at a time, while no
    other machine is lost. `origins` are what a task that is judged there comes from, by name, with
    a digest or a version."""

    machine: str
    run_toml: str
    files: int
    room: int
    key: Annotated[bytes, Meta(min_length=32, max_length=32)]
    origins: dict[str, str] = {}


class ModelFile(Message, frozen=True):
    """Launcher to agent: a file of the model's directory that is not its weights. One buffer: its
    bytes."""

    name: Name


class Equipped(Message, frozen=True):
    """Agent to launcher: actors can be started, and `places` of them at a time have the GPUs that
    they need; None: any number, which need none."""

    places: Annotated[int, Meta(ge=1, le=2**16)] | None = None


class Unequipped(Message, frozen=True):
    """Agent to launcher: actors cannot be started, for this reason."""

    why: Annotated[str, Meta(max_length=1000)]


class StartActor(Message, frozen=True):
    """Launcher to agent: start this actor, which finds the coordinator at an address; a rank of the
    trainer finds rank 0 at `rank_0`, and has the settings `run_toml` of this life, whose ranks may
    be fewer or more than when the machine joined."""

    role: Role
    index: int
    incarnation: int
    resume: bool
    coordinator: str
    rank_0: str = ""
    run_toml: str = ""


class KillActor(Message, frozen=True):
    """Launcher to agent: kill this start of an actor. One that has ended is ignored."""

    role: Role
    index: int
    incarnation: int


class ActorExited(Message, frozen=True):
    """Agent to launcher: this start of an actor has ended, and nothing of its session is left;
    `words` is the last traceback in its log, or else its last lines."""

    role: Role
    index: int
    incarnation: int
    code: int
    words: Annotated[str, Meta(max_length=2**17)]


class MachineLeaving(Message, frozen=True):
    """Agent to launcher, once: this machine was told to leave. It takes no actor any more, and its
    actors end when they have returned what they hold."""


class Alive(Message, frozen=True):
    """Both ways, every few seconds: a sign of life."""


class RunOver(Message, frozen=True):
    """Launcher to agent: the run is over, and this machine is not needed any more."""
