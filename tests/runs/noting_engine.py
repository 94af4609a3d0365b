"""The embedded engine, which notes the digest of the weights that it decodes with."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asyncrl.actors.engines.embedded import Embedded
from asyncrl.engines.protocol import Engine
from asyncrl.engines.spec import EngineContext

if TYPE_CHECKING:
    from torch import Tensor


class NotingEngine(Embedded):
    """`engine.kind = "noting_engine:NotingEngine"`."""

    @classmethod
    @asynccontextmanager
    async def open(cls, context: EngineContext) -> AsyncIterator[Engine]:
        async with Embedded.open(context) as engine:
            engine.load = partial(_loaded, context, engine.load)  # type: ignore[method-assign]
            yield engine


async def _loaded(context: EngineContext, load: Any, version: int, *args: Any, **kw: Any) -> float:
    seconds: float = await load(version, *args, **kw)
    found = digest(context.model.named_parameters())
    place(context.run, context.index).write_text(f"{version} {found}")
    return seconds


def place(run: Path, index: int) -> Path:
    return run / f"engine-{index}.noted"


def noted(run: Path, index: int) -> tuple[int, str]:
    """The version that an engine loaded last, and the digest of its weights then."""
    version, found = place(run, index).read_text().split()
    return int(version), found


def digest(weights: Iterable[tuple[str, Tensor]]) -> str:
    """A digest of weights by name."""
    found = hashlib.sha256()
    for name, tensor in sorted(weights, key=lambda weight: weight[0]):
        found.update(name.encode())
        found.update(tensor.detach().contiguous().numpy().tobytes())
    return found.hexdigest()
