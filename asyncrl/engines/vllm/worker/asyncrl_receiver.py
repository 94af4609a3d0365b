"""The receiving end of a publication inside a vLLM server. Invariant: vLLM's own loader loads
exactly the bytes that rank 0 broadcast, and only tensor bytes are trusted.

vLLM imports this module into each of its workers (`--worker-extension-cls
asyncrl_receiver.Extension`, with this folder on `PYTHONPATH`); that registers the backend `asyncrl`
of its weight-transfer API (`--weight-transfer-config '{"backend": "asyncrl"}'`). vLLM's own
backends need CUDA; this one meets by gloo or NCCL in a group that is joined once, and takes
buckets. It runs in vLLM's environment, and so imports nothing of asyncrl.

On a CPU vLLM would repack its linear layers and free the original weights: they could not be
checksummed, and a new version would not reach the packed ones (vLLM 0.32.0). So packing is disabled
there.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from math import prod

import torch
import torch.distributed as dist
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.model_executor.layers import utils as layers
from vllm.model_executor.model_loader.reload import (
    finalize_layerwise_reload,
    initialize_layerwise_reload,
)
from vllm.platforms import current_platform

PATIENCE = timedelta(minutes=10)
"""The longest that a worker waits for a bucket; the sender's own deadline is the real bound."""


@dataclass
class Meeting(WeightTransferInitInfo):
    """The group to join: of `world` processes, whose rank 0 has a TCPStore at `address`:`port`;
    the workers of this server are its ranks from `first` on."""

    address: str
    port: int
    world: int
    first: int
    name: str
    backend: str


@dataclass
class Bucket(WeightTransferUpdateInfo):
    """The tensors of one broadcast, one after the other without padding."""

    names: list[str]
    dtypes: list[str]
    shapes: list[list[int]]


class BroadcastReceiver(WeightTransferEngine):
    """The backend `asyncrl`."""

    init_info_cls = Meeting
    update_info_cls = Bucket
    supports_draft_weight_update = False
    _group: dist.ProcessGroup | None = None

    def init_transfer_engine(self, init_info: Meeting) -> None:
        self.shutdown()
        store = dist.TCPStore(init_info.address, init_info.port, None, False, PATIENCE)
        name, device = init_info.name, "cpu" if init_info.backend == "gloo" else "cuda"
        meeting = dist.PrefixStore(
            f"{device}/", dist.PrefixStore(f"{name}/", dist.PrefixStore(name, store))
        )
        rank = init_info.first + self.parallel_config.rank
        if device == "cuda":
            options = dist.ProcessGroupNCCL.Options()
            options._timeout = PATIENCE
            self._group = dist.ProcessGroupNCCL(meeting, rank, init_info.world, options)
        else:
            self._group = dist.ProcessGroupGloo(meeting, rank, init_info.world, PATIENCE)
        self._on = torch.device("cpu") if device == "cpu" else self.device

    def start_weight_update(self) -> None:
        initialize_layerwise_reload(self.model)

    def finish_weight_update(self) -> None:
        finalize_layerwise_reload(self.model, self.model_config)

    def update_weights(self, update_info: dict) -> None:
        self.receive_weights(self.parse_update_info(update_info))
        if self.device.type != "cpu":
            torch.accelerator.synchronize()

    def receive_weights(self, update_info: Bucket) -> None:
        if self._group is None:
            raise RuntimeError("weights can come only after a group was joined")
        dtypes = [getattr(torch, name) for name in update_info.dtypes]
        shapes = update_info.shapes
        sizes = [prod(s) * d.itemsize for s, d in zip(shapes, dtypes, strict=True)]
        flat = torch.empty(sum(sizes), dtype=torch.uint8, device=self._on)
        self._group.broadcast(flat, 0).wait()
        whole = flat.to(self.device)
        parts = whole.split(sizes)
        self.model.load_weights(
            (name, part.view(dtype).view(shape))
            for name, part, dtype, shape in zip(
                update_info.names, parts, dtypes, shapes, strict=True
            )
        )

    def shutdown(self) -> None:
        self._group = None


class Extension:
    """An empty extension: importing this module registers the backend."""


def _as_they_are(layer: torch.nn.Module, remove_weight: bool) -> None:
    """Make a linear layer compute with its original weight."""
    layer.cpu_linear = torch.nn.functional.linear


WeightTransferEngineFactory.register_engine("asyncrl", BroadcastReceiver)
if current_platform.is_cpu():
    layers.dispatch_cpu_unquantized_gemm = _as_they_are
