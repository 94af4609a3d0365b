"""The context of a process in its run, which each role gets."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from asyncrl.config import Config
from asyncrl.config.cluster import joined
from asyncrl.config.engines import capabilities
from asyncrl.config.errors import BAD_INPUT, ConfigError
from asyncrl.config.published import engine_dtype
from asyncrl.messages import Hello, Role
from asyncrl.messages.address import TcpAddress, UnixAddress
from asyncrl.os_errors import machine_lacks
from asyncrl.runtime.ipc.endpoints import connect, reach
from asyncrl.runtime.ipc.keys import read_key
from asyncrl.runtime.ipc.link import Link
from asyncrl.runtime.ipc.tls import Tls
from asyncrl.runtime.run_dir import COORDINATOR, INITIAL, KEY, RANKS, TLS

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

    from asyncrl.weightsync.narrowed import SentWeights


@dataclass(frozen=True)
class ActorContext:
    """The actor of this process, and its context in the run."""

    role: Role
    index: int
    incarnation: int
    threads: int
    pid: int
    run: Path
    config: Config
    resume: bool
    head: TcpAddress | None = None
    """The coordinator's address, for an actor on another machine."""
    rank_0: TcpAddress | None = None
    """The address at which rank 0 of the trainer listens for ranks on other machines; None for
    another actor."""
    takes_over: bool = False
    """True if it may take over the server of an earlier actor: it was not started because of an
    error that the server may have caused."""

    @property
    def initial(self) -> Path:
        """The model that the run started from."""
        return self.run / INITIAL

    @property
    def hello(self) -> Hello:
        """The first message of this actor."""
        return Hello(self.role, self.index, self.incarnation, self.pid)

    @property
    def dtype(self) -> torch.dtype:
        """The type of the run's model."""
        return _dtype(self.config.model.dtype)

    @property
    def sent(self) -> SentWeights:
        """The numbers that engines are sent."""
        from asyncrl.weightsync.narrowed import SentWeights

        publication, model = self.config.publication, self.config.model
        return SentWeights(_dtype(publication.sent_dtype(model)), publication.dtype == "fp8")

    def stays(self, model: PreTrainedModel) -> str:
        """The beginning of the names of published weights that never change: those of a tower for
        images that does not learn; empty if there are none, or servers receive them."""
        from asyncrl.training.adapters import has_tower, tower_of

        learns = self.config.model.train_vision or self.config.model.lora.rank
        if learns or capabilities(self.config.engine.kind).direct_transport == "into_servers":
            return ""
        return f"{tower_of(model)}." if has_tower(model) else ""

    @property
    def engine_dtype(self) -> torch.dtype:
        """The type of the weights that engines hold."""
        return _dtype(engine_dtype(self.config))

    def engine_model(self) -> PreTrainedModel:
        """The run's model as engines have it, without numbers. Raises ModelError."""
        from asyncrl.training.models import empty_model
        from asyncrl.training.output_layer import float32_output

        model = empty_model(self.initial, self.engine_dtype)
        if self.config.model.output_dtype == "float32":
            float32_output(model)
        return model

    @property
    def key(self) -> bytes:
        """The run's key, which both ends of a link prove."""
        return read_key(self.run / KEY)

    @property
    def tls(self) -> Tls | None:
        """Files for links to other machines; None without such links."""
        return Tls.of(self.run / TLS) if joined(self.config) else None

    async def link(self) -> Link:
        """A link to the coordinator, which has identified this actor."""
        address = self.head or UnixAddress(self.run / COORDINATOR)
        return await self._introduced(await connect(address, self.key, tls=self.tls))

    async def link_to_rank_0(self) -> Link:
        """A link to rank 0 of the trainer as soon as it listens; it knows who is at this end."""
        address = self.rank_0 or UnixAddress(self.run / RANKS)
        return await self._introduced(await reach(address, self.key, tls=self.tls))

    async def _introduced(self, link: Link) -> Link:
        await link.send(self.hello)
        return link


def _dtype(name: str) -> torch.dtype:
    import torch

    return {"float32": torch.float32, "bfloat16": torch.bfloat16}[name]


@contextmanager
def refused_as_input() -> Iterator[None]:
    """End this process like bad input does, by one sentence, where a model, a checkpoint or a
    server cannot be used."""
    from asyncrl.training.checkpoint_index import CheckpointError
    from asyncrl.training.models import ModelError

    try:
        yield
    except (CheckpointError, ConfigError, ModelError) as error:
        if machine_lacks(error):
            raise
        print(error, file=sys.stderr)
        raise SystemExit(BAD_INPUT) from error
