"""Staged weights into one server, by files that it reads."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import trio

from asyncrl.weightsync.servers.weight_loader import Load
from asyncrl.weightsync.transport import Sent

if TYPE_CHECKING:
    from torch import Tensor


class FromDisk:
    """Safetensors under `directory`, which the server sees under the same path; removed again when
    they are read."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._written: Path | None = None

    async def join(self, load: Load, /) -> None:
        self._written = self._directory / f"version-{load.version}-{uuid.uuid4().hex}"
        await trio.to_thread.run_sync(_write, self._written, load.weights)

    async def begin(self, load: Load) -> None:
        """A server takes files without a session."""

    async def send(self, load: Load, /) -> Sent:
        await load.client.update_from_disk(str(self._written), load.version, flush=load.flush)
        return Sent([], sum(tensor.nbytes for tensor in load.weights.values()), [])

    async def leave(self, load: Load, *, failed: bool) -> None:
        if self._written is not None:
            await trio.to_thread.run_sync(partial(shutil.rmtree, self._written, ignore_errors=True))


def _write(directory: Path, weights: Mapping[str, Tensor]) -> None:
    """Write all of it, or nothing, to `directory`."""
    from safetensors.torch import save_file

    partial_ = directory.with_name(directory.name + ".partial")
    partial_.mkdir(parents=True)
    try:
        save_file(
            {name: tensor.contiguous() for name, tensor in weights.items()},
            partial_ / "model.safetensors",
            {"format": "pt"},
        )
        partial_.rename(directory)
    except BaseException:
        shutil.rmtree(partial_, ignore_errors=True)
        raise
