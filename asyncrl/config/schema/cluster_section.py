"""Settings of the machines of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from msgspec import Meta

from asyncrl.config.schema.section import EVERY, Contradictions, Section
from asyncrl.messages.address import TcpAddress

if TYPE_CHECKING:
    from asyncrl.config.schema.run_toml import Config


class ClusterConfig(Section, frozen=True):
    """The machines of a run: this one alone, or others that join it and run its actors."""

    resumable = EVERY

    kind: Annotated[
        Literal["local", "agents", "ray"],
        Meta(
            description=(
                "where actors run: local, all on this machine; agents, rollout actors (and "
                "others if set) on machines that join with `asyncrl agent`; ray, on nodes of "
                "Ray, which starts the agents"
            )
        ),
    ] = "local"
    agents: Annotated[
        int, Meta(ge=1, le=1024, description="machines that must join before the run begins")
    ] = 1
    trainer_agents: Annotated[
        int,
        Meta(
            ge=0,
            le=1024,
            description=(
                "further machines that must join for the trainer; each has as many of "
                "train.ranks as this machine"
            ),
        ),
    ] = 0
    reward_agents: Annotated[
        int,
        Meta(
            ge=0,
            le=1024,
            description=(
                "further machines that must join for reward actors; 0: reward actors run on "
                "this machine"
            ),
        ),
    ] = 0
    ray_address: Annotated[
        str,
        Meta(
            description=(
                "address of Ray's head, host:port; auto: RAY_ADDRESS, or the head on this machine"
            )
        ),
    ] = "auto"
    agent_cores: Annotated[
        int,
        Meta(
            ge=0, description=("cores that Ray reserves for an agent; 0: one per actor on its node")
        ),
    ] = 0
    host: Annotated[str, Meta(description="address of this machine that other machines join")] = (
        "127.0.0.1"
    )
    port: Annotated[
        int, Meta(ge=0, le=65535, description="port that other machines join; 0: any free one")
    ] = 0
    join_s: Annotated[
        float, Meta(gt=0, description="seconds within which they must have joined")
    ] = 600.0

    def contradictions(self, whole: Config) -> Contradictions:
        if self.kind == "local":
            for key in ("trainer_agents", "reward_agents"):
                if getattr(self, key):
                    yield (
                        ("cluster.kind", f"cluster.{key}"),
                        f"no machine joins a local run: set kind to agents or ray, or {key} to 0",
                    )
            return
        if whole.reward.actors < self.reward_agents:
            yield (
                ("cluster.reward_agents", "reward.actors"),
                "a machine without a reward actor would be idle: raise actors, or lower "
                "reward_agents",
            )
        machines = 1 + self.trainer_agents
        if whole.train.ranks % machines:
            yield (
                ("train.ranks", "cluster.trainer_agents"),
                "this machine and those that join for the trainer have equally many ranks: "
                f"make ranks a multiple of {machines}",
            )
        if whole.rollout.actors < self.agents:
            yield (
                ("cluster.agents", "rollout.actors"),
                "a machine without a rollout actor would be idle: raise actors, or lower agents",
            )
        if whole.model.lora.rank:
            yield (
                ("cluster.kind", "model.lora.rank"),
                "the base that adapters are merged into is not sent to other machines: set "
                "rank to 0, or kind to local",
            )
        away = not TcpAddress(self.host, 0).loopback
        if away and TcpAddress(whole.publication.host, 0).loopback:
            yield (
                ("cluster.host", "publication.host"),
                "other machines cannot reach this one's loopback to fetch weights: set "
                "publication.host to an address that they can reach",
            )
        if self.host in ("0.0.0.0", "::"):  # refused
            yield (
                ("cluster.host",),
                "other machines connect to this address, and the certificate names it: give "
                "one address of this machine",
            )
