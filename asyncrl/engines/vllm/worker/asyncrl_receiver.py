"""The receiving end of a publication inside a vLLM server. Invariant: vLLM's own loader loads
exactly the bytes that rank 0 broadcast, and what was not sent stays as it was; only tensor bytes
are trusted.

vLLM imports this module into each of its workers (`--worker-extension-cls
asyncrl_receiver.Extension`, with this folder on `PYTHONPATH`); that registers the backend `asyncrl`
of its weight-transfer API (`--weight-transfer-config '{"backend": "asyncrl"}'`). vLLM's own
backends need CUDA; this one meets by gloo or NCCL in a group that is joined once, and takes
buckets. It runs in vLLM's environment, and so imports nothing of asyncrl.

On a CPU vLLM would repack its linear layers, its experts and the convolutions of linear attention,
and free the original weights: they could not be checksummed, and a new version would not reach the
packed ones (vLLM 0.32.0). So packing is disabled there, and all compute with the weights that they
were given, which also frees experts from the sizes that packing needs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from functools import partial
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
from vllm.model_executor.layers.fused_moe.activation import ApplyMoEActivationConfig
from vllm.model_executor.layers.fused_moe.experts.cpu_moe import CPUUnquantizedExperts
from vllm.model_executor.layers.mamba.ops.cpu import gdn_attention
from vllm.model_executor.model_loader.reload import (
    finalize_layerwise_reload,
    initialize_layerwise_reload,
    layerwise,
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
        self._loaded = set[str]()
        _name_loaders(self.model)
        initialize_layerwise_reload(self.model)
        _make_ready_to_be_copied_into(self.model)

    def finish_weight_update(self) -> None:
        _refuse_losses(self.model, self._loaded)
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
        self._loaded |= (
            self.model.load_weights(
                (name, part.view(dtype).view(shape))
                for name, part, dtype, shape in zip(
                    update_info.names, parts, dtypes, shapes, strict=True
                )
            )
            or set()
        )

    def shutdown(self) -> None:
        self._group = None


class Extension:
    """An empty extension: importing this module registers the backend."""


def _name_loaders(model: torch.nn.Module) -> None:
    """Give loaders that are partial functions a name, by which vLLM's update session knows its own
    (MiniMax-M2's norms; vLLM 0.32.0 ends with an AttributeError)."""
    for parameter in model.parameters():
        loader = getattr(parameter, "weight_loader", None)
        if isinstance(loader, partial):
            loader.__name__ = "partial"


_materialize = layerwise.materialize_layer


def _with_old_values(layer: torch.nn.Module, info: layerwise.LayerReloadingInfo) -> None:
    """Make a layer ready for new weights, with its old ones: vLLM would leave those that are not
    sent undefined, such as the correction of a router's scores, which no gradient changes."""
    empty = {name for name, tensor in layerwise.get_layer_tensors(layer).items() if tensor.is_meta}
    _materialize(layer, info)
    for tensors in info.kernel_tensors or ():
        for name, old in tensors.items():
            new = getattr(layer, name, None)
            if name in empty and (new.shape, new.dtype) == (old.shape, old.dtype):
                new.data.copy_(old.data)


_COPIED_INTO = ("GptOssRoutedExperts", "OAIAttention")
"""Layers whose model copies weights into parameters itself, past the loaders that vLLM's update
session wraps. vLLM would lose these without a word."""


def _make_ready_to_be_copied_into(model: torch.nn.Module) -> None:
    for layer in model.modules():
        info = layerwise.get_layerwise_info(layer)
        if type(layer).__name__ in _COPIED_INTO and info.can_load():
            _with_old_values(layer, info)
            info.load_numel = 1  # so that what was copied is taken over at the end


def _refuse_losses(model: torch.nn.Module, loaded: set[str]) -> None:
    """Raise RuntimeError where the model's loader says that it loaded weights of which the session
    knows nothing."""
    for name, layer in model.named_modules():
        info = layerwise.get_layerwise_info(layer)
        if info.can_load() and not info.load_numel:
            for own in layerwise.get_layer_tensors(layer):
                if f"{name}.{own}" in loaded:
                    raise RuntimeError(
                        f"{type(layer).__name__} takes {name}.{own} past vLLM's update session, "
                        "which loses it: this model cannot be given weights"
                    )


def _as_they_are(layer: torch.nn.Module, remove_weight: bool) -> None:
    """Make a linear layer compute with its original weight."""
    layer.cpu_linear = torch.nn.functional.linear


def _gated(values: torch.Tensor, activation: str, config: ApplyMoEActivationConfig) -> torch.Tensor:
    """The activation of one expert's gates and ups, as vLLM's kernels define it."""
    if activation == "swigluoai":  # gpt-oss: a gate, its up, the next gate, and so on
        gate, up = values[..., ::2].clamp(max=7.0), values[..., 1::2].clamp(-7.0, 7.0)
        return gate * torch.sigmoid(1.702 * gate) * (up + 1)
    gate, up = values.chunk(2, dim=-1)
    if activation == "swigluoai_uninterleave" or config.clamp_limit is not None:
        gate = gate.clamp(max=config.clamp_limit)
        up = up.clamp(-config.clamp_limit, config.clamp_limit)
        return gate * torch.sigmoid(config.alpha * gate) * (up + config.beta)
    if activation == "silu":
        return torch.nn.functional.silu(gate) * up
    approximate = "tanh" if activation == "gelu_tanh" else "none"
    return torch.nn.functional.gelu(gate, approximate=approximate) * up


class _Experts:
    """Methods of vLLM's experts on a CPU, with their original weights."""

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        """Pack nothing."""

    def apply(
        self,
        output: torch.Tensor,
        hidden_states: torch.Tensor,
        w1: torch.Tensor,
        w2: torch.Tensor,
        topk_weights: torch.Tensor,
        topk_ids: torch.Tensor,
        activation: Enum,
        *_: object,
        apply_router_weight_on_input: bool = False,
        **__: object,
    ) -> None:
        """Compute expert by expert."""
        config = ApplyMoEActivationConfig.from_configs(self.moe_config, self.quant_config)
        linear, summed = torch.nn.functional.linear, torch.zeros_like(output, dtype=torch.float32)
        for expert in topk_ids.unique().tolist():
            rows, place = (topk_ids == expert).nonzero(as_tuple=True)
            bias1 = None if self.w1_bias is None else self.w1_bias[expert]
            bias2 = None if self.w2_bias is None else self.w2_bias[expert]
            inner = linear(hidden_states[rows], w1[expert], bias1)
            made = linear(_gated(inner, activation.value, config), w2[expert], bias2).float()
            if not apply_router_weight_on_input:
                made = made * topk_weights[rows, place, None]
            summed.index_add_(0, rows, made)
        output.copy_(summed)


def _unpacked(convolve: Callable) -> Callable:
    """The convolution of linear attention that takes its original weight, of three dimensions."""

    def convolved(
        *, weight: torch.Tensor, is_weight_packed: bool, **others: object
    ) -> torch.Tensor:
        return convolve(weight=weight.flatten(1), is_weight_packed=False, **others)

    return convolved


WeightTransferEngineFactory.register_engine("asyncrl", BroadcastReceiver)
layerwise.materialize_layer = _with_old_values
if current_platform.is_cpu():
    layers.dispatch_cpu_unquantized_gemm = _as_they_are
    CPUUnquantizedExperts.process_weights_after_loading = _Experts.process_weights_after_loading
    CPUUnquantizedExperts.apply = _Experts.apply
    CPUUnquantizedExperts._supports_grouped_gemm = staticmethod(lambda moe_config: (True, None))
    for name in ("_causal_conv1d_fwd_cpu", "_causal_conv1d_update_cpu"):
        setattr(gdn_attention, name, _unpacked(getattr(gdn_attention, name)))
