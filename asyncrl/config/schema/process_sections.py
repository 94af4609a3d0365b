"""Settings of what keeps a run going: publication, rewards, journal, metrics, supervision."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from asyncrl.config.schema.section import BASIC, EVERY, Section


class PublicationConfig(Section, frozen=True):
    """Publication of weights to engines."""

    resumable = ("path", "bucket_bytes", "full_every", "deadline_s", "host")

    path: Annotated[
        Literal["staged", "direct"],
        Meta(
            description=(
                "way of weights: staged beside the engine's own while it decodes, or direct into "
                "them while it stands still, without a second copy"
            )
        ),
    ] = "staged"
    bucket_bytes: Annotated[int, Meta(ge=1024, description="bytes broadcast at a time")] = (
        32 * 2**20
    )
    full_every: Annotated[
        int,
        Meta(
            ge=1,
            description=(
                "of so many publications one sends all bytes, and the others those that changed; "
                "worth it in bfloat16, for one more copy of the weights in the trainer"
            ),
        ),
    ] = 1
    dtype: Annotated[
        Literal["model", "bfloat16"],
        Meta(
            description=(
                "type of the weights that engines are sent; bfloat16 for a float32 model: half the "
                "bytes, rounded"
            )
        ),
    ] = "model"
    deadline_s: Annotated[
        float,
        Meta(gt=0, description="seconds for each phase; an engine that misses one is replaced"),
    ] = 60.0
    host: Annotated[
        str,
        Meta(
            description=(
                "address at which the trainer meets engines for weights; loopback: in a file"
            )
        ),
    ] = "127.0.0.1"


class RewardConfig(Section, frozen=True):
    """Reward actors, which judge answers."""

    resumable = EVERY

    actors: Annotated[int, Meta(ge=1, description="reward processes")] = 1
    concurrency: Annotated[
        int, Meta(ge=1, description="answers judged at a time, for each reward actor")
    ] = 16


class MachineConfig(Section, frozen=True):
    """The part of this machine that a run may use."""

    resumable = EVERY

    cores: Annotated[int, Meta(ge=0, description="cores to use; 0: all this process may use")] = 0
    trainer_cores: Annotated[int, Meta(ge=0, description="of those, the trainer's; 0: half")] = 0


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


class JournalConfig(Section, frozen=True):
    """The journal of events on disk."""

    resumable = EVERY

    commit_ms: Annotated[
        int,
        Meta(
            ge=0, description="milliseconds between commits of the journal; 0: each event at once"
        ),
    ] = 100


class MetricsConfig(Section, frozen=True):
    """Metrics for Prometheus."""

    resumable = EVERY

    port: Annotated[
        int, BASIC, Meta(ge=0, le=65535, description="port that Prometheus is answered at; 0: off")
    ] = 0
    host: Annotated[
        str, Meta(description="address of this machine that it is answered at; 0.0.0.0: each")
    ] = "127.0.0.1"


class SupervisionConfig(Section, frozen=True):
    """Supervision of actors: how long the run waits, and how often it starts one again."""

    resumable = EVERY

    restarts: Annotated[
        int, Meta(ge=0, description="restarts of a rollout or reward actor within restart_window_s")
    ] = 5
    restart_window_s: Annotated[
        float, Meta(gt=0, description="seconds over which restarts are counted")
    ] = 300.0
    heals: Annotated[
        int,
        Meta(
            ge=0,
            description=(
                "times in a row, without a new step, that a run whose trainer or coordinator is "
                "lost goes on by itself; 0: it ends"
            ),
        ),
    ] = 3
    start_s: Annotated[
        float,
        Meta(
            gt=0,
            description="seconds in which actors must have come; of rollout actors one is enough",
        ),
    ] = 300.0
    stall_s: Annotated[
        float,
        Meta(
            gt=0,
            description=(
                "seconds without a token or a step that end the run, unless the trainer is at work"
            ),
        ),
    ] = 300.0
    compute_s: Annotated[
        float,
        Meta(
            gt=0,
            description="seconds that the trainer may take for a micro-batch or an optimizer step",
        ),
    ] = 900.0
    checkpoint_s: Annotated[
        float, Meta(gt=0, description="seconds that the trainer may take for a checkpoint")
    ] = 1800.0
    grace_s: Annotated[float, Meta(gt=0, description="seconds to drain when asked to stop")] = 5.0
    keep_servers_s: Annotated[
        float,
        Meta(
            ge=0,
            le=3600,
            description=(
                "seconds that a server which rollout actors started outlives them, for the next "
                "life of the run; 0: it ends with its actor"
            ),
        ),
    ] = 60.0


SinkName = Literal["tensorboard", "wandb", "mlflow"]
"""A place where people look at runs already."""


class RunConfig(Section, frozen=True):
    """One run: its directory, its seed, its logs, its page, its sinks."""

    resumable = ("dir", "copy", "copy_s", "log", "sinks", "page_port", "page_host")

    dir: Annotated[
        str, BASIC, Meta(description="the run's own directory; empty: runs/<task>-<time>")
    ] = ""
    copy: Annotated[
        str,
        Meta(
            description=(
                "a copy of the run is kept there: a directory on another disk, or s3://, gs:// or "
                "az:// and a place in an object store; empty: none"
            )
        ),
    ] = ""
    copy_s: Annotated[float, Meta(gt=0, description="seconds from one copy to the next")] = 30.0
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1, description="of everything random")] = 0
    log: Annotated[
        Literal["debug", "info", "warning", "error"], Meta(description="level of the logs")
    ] = "info"
    sinks: Annotated[
        tuple[SinkName, ...],
        Meta(description="where its figures go besides its own files"),
    ] = ()
    page_port: Annotated[
        int, BASIC, Meta(ge=0, le=65535, description="port of the page that shows the run; 0: off")
    ] = 0
    page_host: Annotated[
        str,
        Meta(
            description="address of this machine that it is at; off loopback it has a key, page.key"
        ),
    ] = "127.0.0.1"
