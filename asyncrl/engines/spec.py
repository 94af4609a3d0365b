"""Kinds of engine: capabilities, checks before a run, and opening.

`engine.kind` names a class that derives from `EngineKind`: one of `asyncrl.config.engines.ENGINES`,
or a user's own by `module:name` (docs/extending.md).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from asyncrl.config import Config
from asyncrl.config.engines import ENGINES, Capabilities
from asyncrl.engines.protocol import Engine
from asyncrl.runtime.ipc.waits import Waits

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from asyncrl.tasks.text import Tokenizer


@dataclass(frozen=True)
class EngineContext:
    """The arguments with which an engine is opened.

    `run` is the run's directory, `initial` the directory of the model that the run began with,
    `index` the rollout actor's number (from 0). One that `takes_over` may take over the server of
    an earlier actor. `model` has the shape of the policy, but arbitrary weights: the first `load`
    sets them. `waits` counts idle seconds (`waits.idle_for`). `follow` has the actor report a total
    that only grows, by its name. `adapted` is the run's base with adapters, for an engine that is
    loaded with these alone (`model.lora.served`).
    """

    config: Config
    run: Path
    initial: Path
    index: int
    model: PreTrainedModel
    tokenizer: Tokenizer
    waits: Waits
    takes_over: bool = False
    follow: Callable[[str, Callable[[], float]], None] = lambda *_: None
    adapted: PreTrainedModel | None = None


class EngineKind(ABC):
    """Base of what `engine.kind` may name. It needs no torch to be imported: every process reads
    its capabilities."""

    capabilities: ClassVar[Capabilities] = Capabilities()

    @classmethod  # noqa: B027 (few need it)
    def check(cls, config: Config) -> Sequence[str] | None:
        """Check for errors that are known before a start. Returns notes for the user, if there are
        any. Raises ConfigError."""

    @classmethod
    @abstractmethod
    def open(cls, context: EngineContext) -> AbstractAsyncContextManager[Engine]:
        """The engine of one rollout actor, for the length of a block; all that it started ends with
        the block."""


def engine_kind(name: str) -> type[EngineKind]:
    """The class that `engine.kind` names. Raises ConfigError."""
    kind: type[EngineKind] = ENGINES.find(name)
    return kind
