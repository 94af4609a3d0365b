"""Settings of the machines of a run."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from asyncrl.config.schema.section import EVERY, Section


class ClusterConfig(Section, frozen=True):
    """The machines of a run: this one alone, or others that join it for its actors."""

    resumable = EVERY

    kind: Annotated[
        Literal["local", "agents", "ray"],
        Meta(
            description=(
                "where actors run: local, all here; agents: rollout actors, and what else is set, "
                "on machines that join by `asyncrl agent`; ray: on nodes of Ray, which starts the "
                "agents"
            )
        ),
    ] = "local"
    agents: Annotated[
        int, Meta(ge=1, le=1024, description="machines that must have joined before the run begins")
    ] = 1
    trainer_agents: Annotated[
        int,
        Meta(
            ge=0,
            le=1024,
            description=(
                "machines that must have joined for the trainer, beside these; each has as many "
                "of train.ranks as this machine"
            ),
        ),
    ] = 0
    reward_agents: Annotated[
        int,
        Meta(
            ge=0,
            le=1024,
            description=(
                "machines that must have joined for reward actors, beside these; 0: those are on "
                "this machine"
            ),
        ),
    ] = 0
    ray_address: Annotated[
        str,
        Meta(description="Ray's head, host:port; auto: RAY_ADDRESS, or this machine's"),
    ] = "auto"
    agent_cores: Annotated[
        int,
        Meta(ge=0, description="cores that Ray gives an agent; 0: one for each actor there"),
    ] = 0
    host: Annotated[
        str, Meta(description="address of this machine at which those that join find it")
    ] = "127.0.0.1"
    port: Annotated[
        int, Meta(ge=0, le=65535, description="port for machines that join; 0: any free one")
    ] = 0
    join_s: Annotated[
        float, Meta(gt=0, description="seconds in which they have to have joined")
    ] = 600.0
