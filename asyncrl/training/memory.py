"""The peak memory of a trainer. Invariant: it measures the trainer's own code, on tensors that have
shapes and no numbers.

The model is built without memory for its weights (torch's fake tensors), the longest samples that a
micro-batch may have are packed as training packs them, and then one pass forwards and backwards and
one step of the optimizer run, while every storage is counted from its first tensor to its last. So
the prediction includes the packing, the attention, the chunks of logits and recomputed layers
without modelling them. It does not include memory inside kernels, unused memory of an allocator,
and memory of a driver.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import numpy as np
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter
from torch.utils.weak import WeakIdKeyDictionary
from transformers import PreTrainedModel

from asyncrl.config import Config
from asyncrl.config.ranks import ranks_of, sharing
from asyncrl.tasks.images.vision_model import FAMILIES
from asyncrl.training.adapters import adapted, add_adapters, learning
from asyncrl.training.context_ranks import ContextPart, divide_context, refuse_context
from asyncrl.training.forward import log_probabilities, make_logits_in_chunks, may_share
from asyncrl.training.imagined_images import ImaginedImages
from asyncrl.training.logit_changes import logit_changes
from asyncrl.training.master_weights import MasterWeights
from asyncrl.training.memory_parts import MemoryParts, longest_samples
from asyncrl.training.models import empty_model
from asyncrl.training.optimizer import optimizer_of
from asyncrl.training.optimizer_table import optimizer_rule_of
from asyncrl.training.output_layer import float32_output
from asyncrl.training.packing import PackedBatch, pack
from asyncrl.training.ranks.pieces import pieces
from asyncrl.training.recomputation import AS_IT_IS, KeptInputs, recompute
from asyncrl.training.rounding import round_in_training
from asyncrl.training.shapes_of_experts import ShapesOfExperts
from asyncrl.training.shown_images import freeze_tower

_ELSEWHERE = KeptInputs(
    lambda tensor: (tensor.shape, tensor.dtype), lambda of: torch.empty(of[0], dtype=of[1])
)
"""Inputs that are kept in host memory take none of the device's."""
LOGITS, ACTIVATIONS = "logits", "activations"


class LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts storages of tensors returned by torch's operations in the block, until the last tensor
    of each is freed. `vocabulary`: the last dimension of logits."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._peak: dict[str, int] = {}
        self._vocabulary, self._most = vocabulary, 0
        self._live = Counter[str]()
        self._known = WeakIdKeyDictionary()

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        output = function(*args, **(kwargs or {}))
        for one in tree_iter(output):
            if isinstance(one, Tensor):
                logits = one.dim() > 1 and one.shape[-1] == self._vocabulary
                self._count(one, LOGITS if logits else ACTIVATIONS)
        return output

    def peak(self) -> dict[str, int]:
        """The bytes of each part at the peak since the last call."""
        peak, self._peak = self._peak, dict(self._live)
        self._most = self._live.total()
        return peak

    def hold(self, part: str, tensors: Iterable[Tensor]) -> None:
        """Count these tensors as part `part`, too."""
        for tensor in tensors:
            self._count(tensor, part)

    def _count(self, tensor: Tensor, part: str) -> None:
        storage = tensor.untyped_storage()
        if storage in self._known:
            return
        self._known[storage] = part
        size = storage.nbytes()
        self._live[part] += size
        weakref.finalize(storage, self._freed, part, size)
        if (live := self._live.total()) > self._most:
            self._most, self._peak = live, dict(self._live)

    def _freed(self, part: str, size: int) -> None:
        self._live[part] -= size


def predict(config: Config) -> MemoryParts:
    """Peak bytes of a rank of the trainer of `config`, whose model is at `model.path`. Of several
    ranks each has its part of float32 weights, gradients and moments, and in a pass the weights
    that it gathers; that is an estimate (`bench/sharded_memory.py` compares it). Raises ModelError,
    and any error of the model."""
    ranks, parts = ranks_of(config.train), sharing(config.train)
    dtype = getattr(torch, config.model.dtype)
    with FakeTensorMode(allow_non_fake_inputs=True):
        model = empty_model(config.model.path, dtype)
    if config.model.lora.rank:
        add_adapters(model, config.model.lora)
    elif not config.model.train_vision:
        freeze_tower(model)
    if config.model.output_dtype == "float32":
        float32_output(model)
    if config.model.rounding == "fp8":
        round_in_training(model)
    if config.train.recompute_activations:
        recompute(model, _ELSEWHERE if config.train.offload_activations else AS_IT_IS)
    if (together := config.train.context_ranks) > 1:
        refuse_context(model, shares=may_share(model))
        divide_context(model, ImaginedRanks(together, config.train.device))
    with ShapesOfExperts():  # type: ignore[no-untyped-call]
        if (changes := logit_changes(model)) is not None:
            make_logits_in_chunks(model, changes)
        batches = worst_batches(config, _vocabulary(model), shared=may_share(model), model=model)
        most = peak_of(model, batches, config)
    policies = _policies(config, model)
    if ranks == 1:
        return msgspec.structs.replace(most, policies=policies)
    return of_rank(model, most, policies, parts)


class ImaginedRanks(ContextPart):
    """The last of ranks that compute a packed batch together, which has the most response tokens,
    of tensors without numbers. On a GPU attention has no masks, as it is computed by blocks."""

    def __init__(self, size: int, device: str) -> None:
        super().__init__(size - 1, size)
        self._masks = device == "cpu"

    def part(self, packed: PackedBatch) -> tuple[PackedBatch, Tensor]:
        """This rank's part, as in `ContextRanks`."""
        part, tokens = super().part(packed)
        if not self._masks:
            unmasked = tuple(table._replace(ends=None) for table in part.tables)
            part = part._replace(tables=unmasked)
        return part, tokens

    def gathered(self, own: Tensor) -> Tensor:
        """The rows of all ranks: as often its own."""
        return torch.cat([own] * self.size)

    def scattered(self, rows: Tensor) -> Tensor:
        """The sum of the ranks' tensors: its own rows."""
        return rows[: len(rows) // self.size].clone()

    def added(self, tensor: Tensor) -> Tensor:
        """The sum of the ranks' tensors: its own."""
        return tensor


def of_rank(model: PreTrainedModel, most: MemoryParts, policies: int, parts: int) -> MemoryParts:
    """Bytes of a rank that has one of `parts` parts of a model, of which one rank alone would need
    `most`; `policies` are this rank's. Its start takes less than a pass: the parts of its weights
    so far, and one piece of the model in float32."""
    return MemoryParts(
        weights=-(-_sharded(model) // parts),
        masters=0,
        gradients=-(-most.gradients // parts),
        optimizer=-(-most.optimizer // parts),
        policies=policies,
        activations=_pass_of_rank(model, most.activations + most.logits, parts) - most.logits,
        logits=most.logits,
        step=-(-most.step // parts),
    )


def worst_batches(
    config: Config, vocabulary: int, *, shared: bool, model: PreTrainedModel | None = None
) -> list[PackedBatch]:
    """The largest packed batches of a micro-batch of the longest samples: with unrelated prompts,
    and with one prompt. If the `model` reads images, the prompts are images."""
    sees = model is not None and model.config.model_type in FAMILIES
    samples, longest = longest_samples(config)
    response = longest - 1 if config.agent.run else min(config.rollout.max_new_tokens, longest - 1)
    ids = np.random.default_rng(0).integers(0, vocabulary, (samples, longest)).astype(np.int32)
    batches = []
    for one_prompt in (False, True)[:samples]:
        if one_prompt:
            ids[:, : longest - response] = ids[0, : longest - response]
        images = ImaginedImages(model, ids, longest - response) if model and sees else None
        packed = pack(
            (images.marked if images else ids).ravel(),
            [longest - response] * samples,
            [response] * samples,
            shared=shared,
            device=config.train.device,
        )
        largest = max(packed, key=lambda batch: len(batch.ids))
        batches.append(images.shown(largest) if images else largest)
    return batches


def peak_of(model: PreTrainedModel, batches: Sequence[PackedBatch], config: Config) -> MemoryParts:
    """The peak of passes of these `batches` and a step after them, where gradients and moments
    already exist. With a model that has numbers, this runs the step and changes the model."""
    masters = MasterWeights(model)
    changed = [master for _, master in masters.named()]
    optimizer = optimizer_of(changed, config.train)
    live = LiveBytes(_vocabulary(model))
    for master in changed:
        master.grad = torch.zeros_like(master)
    optimizer.step()
    live.hold("weights", [*model.parameters(), *model.buffers()])
    live.hold("masters", changed)  # masters that are the weights were already counted
    live.hold("gradients", [master.grad for master in changed if master.grad is not None])
    on_host = optimizer_rule_of(config.train).on_host
    live.hold(
        "optimizer",
        [
            kept
            for weight, of_one in optimizer.state.items()
            for kept in of_one.values()
            if isinstance(kept, Tensor) and not (on_host and weight.dim() > 1)
        ],
    )
    with live:
        for packed in batches:
            logprobs = log_probabilities(model, packed, config.rollout.temperature)
            logprobs.sum().backward()  # type: ignore[no-untyped-call]
            del logprobs
        of_pass = live.peak()
        nn.utils.clip_grad_norm_(changed, config.train.grad_clip)
        optimizer.step()
        of_step = live.peak()
    parts = Counter(of_pass)
    return MemoryParts(
        **{name: parts[name] for name in MemoryParts.__struct_fields__ if name != "step"},
        step=of_step.get(ACTIVATIONS, 0) + of_step.get(LOGITS, 0),
    )


def _policies(config: Config, model: PreTrainedModel) -> int:
    """Bytes of the policies beside the one that learns, `model`; of several ranks those of each.
    What stands in for the model's own weights there is float32, as these are."""
    learn, ranks = [parameter for _, parameter in learning(model)], ranks_of(config.train)
    in_float32 = 4 * sum(parameter.numel() for parameter in learn)
    weights = in_float32 if ranks > 1 else sum(parameter.nbytes for parameter in learn)
    averaged = in_float32
    if ranks == 1:  # which has a model of its own
        averaged += sum(each.nbytes for each in learn if each.dtype != torch.float32)
    # `boundary` keeps more only where engines lag behind by more
    versions = {"boundary": 1, "snapshot": config.staleness.max_lag}
    needed = versions.get(config.staleness.proximal, 0) * weights
    needed += averaged if config.train.ema else 0
    for policy in (config.reference, config.teacher):
        if not policy.coefficient or policy.server:
            continue
        if not policy.path and adapted(model):
            needed += weights
            continue
        with FakeTensorMode():
            path = policy.path or config.model.path
            other = empty_model(path, getattr(torch, config.model.dtype))
        needed += sum(tensor.nbytes for tensor in other.parameters())
    return -(-needed // sharing(config.train))


def _sharded(model: PreTrainedModel) -> int:
    """Bytes of the weights that several ranks divide: those that learn in float32, and a base of
    adapters as it is."""
    learn = {id(parameter) for _, parameter in learning(model)}
    return sum(4 * p.numel() if id(p) in learn else p.nbytes for p in model.parameters())


def _pass_of_rank(model: PreTrainedModel, alone: int, ranks: int) -> int:
    """Bytes of a pass on one of several ranks, from those of an undivided model, `alone`. The peak
    is in the backward pass of a layer, with all weights outside of layers gathered, and two layers,
    while the gradient of one is converted to float32; or when the gradient of another piece is:
    then all activations are freed, and its gradient exists as computed, in float32, and as this
    rank's shard."""
    embedding, seen, sizes = model.get_input_embeddings(), set[int](), dict[nn.Module, int]()
    learn, changed = {id(p) for _, p in learning(model)}, dict[nn.Module, int]()
    for piece in pieces(model):
        own = [parameter for parameter in piece.parameters() if id(parameter) not in seen]
        seen.update(map(id, own))
        sizes[piece] = sum(parameter.numel() for parameter in own)
        changed[piece] = sum(parameter.numel() for parameter in own if id(parameter) in learn)
    dtype: torch.dtype = model.dtype
    rest, computed = sizes[model], dtype.itemsize
    layers = [each for each in sizes if each not in (model, embedding)]
    layer = max((sizes[each] for each in layers), default=0)
    gradient = max((changed[each] for each in layers), default=0)
    in_a_layer = alone + computed * (rest + 2 * layer) + 4 * gradient
    added_up = max(changed.values()) * (computed + 4 + 4 / ranks)
    return max(in_a_layer, int(added_up))


def _vocabulary(model: PreTrainedModel) -> int:
    layer: Any = model.get_output_embeddings()
    return int(layer.weight.shape[0])
