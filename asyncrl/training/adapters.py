"""Adapters (LoRA, arXiv 2106.09685), which learn in place of a model's weights. Invariant: the
base, all of the model except its adapters, never changes.

Beside the weight W of a layer stand two small matrices of its type, A [rank, in] and B [out, rank];
the layer computes W x + alpha / rank · B A x. B begins as zero, so the model begins as its base.
A tensor of all experts has such a pair for each of them, kept together as peft keeps them: A
[experts · rank, in] and B [out, rank · experts].
The layers are peft's, and so are the names that adapters are published and saved under. A receiver
with the same base computes from it and the adapters the weights that a model without adapters would
have (`merged`). A digest identifies the base.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from asyncrl.config.lora import is_of
from asyncrl.config.schema import LoraConfig
from asyncrl.training.models import ModelError, parameters_for_publication

ADAPTERS = "adapter_model.safetensors"
_NAME = "default"
"""peft's name for a model's only adapters."""
_PREFIX = "base_model.model."
"""The beginning of each name in peft's files."""
_CONFIG = "asyncrl_lora"
"""Attribute of a model with adapters: peft's configuration of them."""
_FROZEN = "asyncrl_frozen"
"""Attribute of a model of which a part does not learn: the beginning of that part's names."""
_BASE = "asyncrl_base"
"""Attribute of a model that has adapters: the digest of its base, once it was computed."""


def has_tower(model: PreTrainedModel) -> bool:
    """True if a model has a tower for images."""
    return hasattr(model.base_model, "visual")


def tower_of(model: PreTrainedModel) -> str:
    """The name of a model's tower for images, if it has one."""
    return f"{model.base_model_prefix}.visual"


def add_adapters(model: PreTrainedModel, lora: LoraConfig) -> None:
    """Add an adapter to each layer and tensor of experts that the settings name, and freeze all
    else. Raises ModelError where a target is neither."""
    import peft  # takes seconds, and few runs need it

    targets, experts = adapted_layers(model, lora)
    config: Any = peft.LoraConfig  # typed as an integer, but any number works
    made = config(
        task_type="CAUSAL_LM",
        base_model_name_or_path=str(Path(model.name_or_path or "").resolve()),
        r=lora.rank,
        lora_alpha=int(lora.alpha) if lora.alpha.is_integer() else lora.alpha,
        target_modules=targets,
        target_parameters=experts or None,
        fan_in_fan_out=any(
            isinstance(layer, Conv1D)
            for name, layer in model.named_modules()
            if any(is_of(target, name) for target in targets)
        ),
    )
    # created without memory, then allocated here like the base: fake for a fake base
    peft.inject_adapter_in_model(made, model, _NAME, low_cpu_mem_usage=True)
    for _, layer in _layers(model):
        like = _adapted(layer)
        # real where the base has no memory: they are in no file, and begin as of any trainer
        device = "cpu" if like.device.type == "meta" else like.device
        for matrix in (layer.lora_A[_NAME], layer.lora_B[_NAME]):
            matrix.weight = nn.Parameter(like.new_empty(matrix.weight.shape, device=device))
        layer.reset_lora_parameters(_NAME, True)
    nn.Module.train(model, False)
    setattr(model, _CONFIG, made)


def adapted_layers(model: PreTrainedModel, lora: LoraConfig) -> tuple[list[str], list[str]]:
    """Last parts of the names of the layers, and of the tensors of all experts, that have an
    adapter; none of a tower for images has. Raises ModelError."""
    output, tower = model.get_output_embeddings(), f"{tower_of(model)}."
    names, every, linear = list[str](), list[str](), list[str]()
    for name, module in model.named_modules():
        every.append(name)
        if has_tower(model) and name.startswith(tower):
            continue
        names.append(name)
        if isinstance(module, nn.Linear | Conv1D) and module is not output:
            linear.append(name)
    there = sorted({name.rpartition(".")[2] for name in linear})
    tensors = list(_tensors_of_experts(model))

    def others(target: str) -> list[str]:
        """Names with this ending, of modules that cannot have an adapter."""
        return [
            name
            for name in names
            if is_of(target, name) and name not in linear and f"{name}.weight" not in tensors
        ]

    def layers(target: str) -> list[str]:
        """Names for peft of the layers with this ending: it alone, if no other has it."""
        found = [name for name in linear if is_of(target, name)]
        alone = len(found) == sum(is_of(target, name) for name in every)
        return [target] if found and alone else found

    if not lora.named_targets:
        return [found for target in there for found in layers(target)], []
    experts = dict[str, list[str]]()
    for target in lora.named_targets:
        endings = {
            ending
            for ending in (target, f"{target}.weight")
            if any(is_of(ending, name) for name in tensors)
        }
        experts[target] = sorted(endings)
        if endings and lora.alone:
            raise ModelError(
                f"model.lora.targets has {target!r}, tensors of all experts, and no server was "
                'tried with adapters of these: set model.lora.served to "merged", or name other '
                "layers"
            )
        if (other := others(target)) or not (endings or layers(target)):
            what = f"{other[0]} is none" if other else "there is no such layer"
            may = {*there, *(name.removesuffix(".weight").rpartition(".")[2] for name in tensors)}
            raise ModelError(
                f"model.lora.targets has {target!r}, but adapters need linear layers before the "
                f"output layer, or tensors of all experts: {what} in {type(model).__name__}; it "
                f"has {', '.join(sorted(may))}"
            )
    return (
        [found for target in lora.named_targets for found in layers(target)],
        [ending for target in lora.named_targets for ending in experts[target]],
    )


def adapted(model: nn.Module) -> bool:
    """True if a model has adapters."""
    return hasattr(model, _CONFIG)


def adapted_names(model: nn.Module) -> tuple[str, ...]:
    """The last parts of the names of the layers with an adapter."""
    return tuple(sorted({name.rpartition(".")[2] for name, _ in _layers(model)}))


def learning(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """The parameters that learn, by name: all but those of a frozen part, or those of adapters."""
    names = {id(p) for _, p in _matrices(model)} if adapted(model) else None
    frozen: tuple[str, ...] = getattr(model, _FROZEN, ())
    for name, parameter in model.named_parameters():
        if (names is None or id(parameter) in names) and not name.startswith(frozen):
            yield name, parameter


def freeze(model: nn.Module, part: str) -> None:
    """Keep the weights of a part of the model, whose names begin with `part`."""
    model.get_submodule(part).requires_grad_(False)
    setattr(model, _FROZEN, (f"{part}.",))


def adapters(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """(name in peft's files, detached tensor) of each matrix, in the model's order."""
    for name, parameter in _matrices(model):
        yield name, parameter.detach()


def published(model: PreTrainedModel) -> Iterator[tuple[str, Tensor]]:
    """(name, detached tensor) of all that a publication sends: the weights, or adapters alone.
    Adapters follow an empty tensor whose name is the digest of their base, so that a receiver with
    another base refuses the plan."""
    if not adapted(model):
        yield from parameters_for_publication(model)
        return
    yield f"base {base_digest(model)}", torch.empty(0, dtype=torch.uint8)
    yield from adapters(model)


def published_names(model: nn.Module) -> Iterator[tuple[str, str]]:
    """(name in a publication, name of the parameter) of each tensor that `published` yields; of the
    empty one before adapters, whose name is the digest of their base, the second is empty."""
    if not adapted(model):
        yield from ((name, name) for name, _ in model.named_parameters())
        return
    names = {id(parameter): name for name, parameter in learning(model)}
    yield f"base {base_digest(model)}", ""
    yield from ((name, names[id(parameter)]) for name, parameter in _matrices(model))


def merged(
    model: PreTrainedModel, whole: Callable[[Tensor], Tensor] = Tensor.detach
) -> Iterator[tuple[str, Tensor]]:
    """(name, detached tensor) of each weight of the model with its adapters merged, as in
    `parameters_for_publication` of a model without adapters. The sum is made in float32 and rounded
    once to the weight's own type; weights without an adapter are the base's own. `whole` makes each
    tensor whole of which there is a shard."""
    sums = {id(_adapted(layer)): layer for _, layer in _layers(model)}
    for name, parameter in base_parameters(model):
        layer, weight = sums.get(id(parameter)), whole(parameter)
        if layer is not None:
            with _whole_matrices(layer, whole):
                weight = _sum(weight, layer)
        yield name, weight


def base_digest(model: nn.Module, whole: Callable[[Tensor], Tensor] = Tensor.detach) -> str:
    """Equal for equal bases only, of one type: 128 bits of BLAKE2b over the names and bytes of all
    weights, in hex. It is computed once for each model, at about 1 GB/s; of shards, which `whole`
    makes whole one after another, before anything else asks for it."""
    known: str | None = getattr(model, _BASE, None)
    if known is None:
        digest = hashlib.blake2b(digest_size=16)
        for name, parameter in base_parameters(model):
            digest.update(f"{name} {parameter.dtype} {list(parameter.shape)}\n".encode())
            flat = whole(parameter).cpu().contiguous().view(-1)
            digest.update(flat.view(torch.uint8).numpy().data)
        known = digest.hexdigest()
        setattr(model, _BASE, known)
    return known


@torch.no_grad()
def set_adapters(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Load the result of `adapters`; other tensors are ignored. Raises ValueError, and changes
    nothing, where an adapter is missing or has another shape."""
    own = dict(_matrices(model))
    for name, parameter in own.items():
        if name not in tensors or tensors[name].shape != parameter.shape:
            raise ValueError(f"the adapters are of another model ({name})")
    for name, parameter in own.items():
        parameter.copy_(tensors[name])


def write_adapters(folder: Path, model: PreTrainedModel, tensors: Mapping[str, Tensor]) -> None:
    """Write a result of `adapters`, in host memory, as peft does: `adapter_config.json` and
    `adapter_model.safetensors`."""
    getattr(model, _CONFIG).save_pretrained(folder)
    save_file(dict(tensors), folder / ADAPTERS, metadata={"format": "pt"})


@contextmanager
def _whole_matrices(layer: Any, whole: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Have whole matrices in a layer of which there are shards."""
    matrices = layer.lora_A[_NAME], layer.lora_B[_NAME]
    own = [matrix.weight for matrix in matrices]
    for matrix in matrices:
        matrix.weight = nn.Parameter(whole(matrix.weight), requires_grad=False)
    try:
        yield
    finally:
        for matrix, weight in zip(matrices, own, strict=True):
            matrix.weight = weight


@torch.no_grad()
def _sum(weight: Tensor, layer: Any) -> Tensor:
    """The weight of a layer and the product of its adapter, in the weight's type."""
    scaling = layer.scaling[_NAME]
    if _of_experts(layer):
        left, right, _ = layer.get_delta_factors(_NAME)
        whole = torch.empty_like(weight)
        # one at a time: all of them in float32 are twice as large as the model
        for expert, (a, b) in enumerate(zip(left, right, strict=True)):
            whole[expert] = weight[expert].float() + a.float() @ b.float() * scaling
        return whole
    a, b = (matrix[_NAME].weight.float() for matrix in (layer.lora_A, layer.lora_B))
    product: Tensor = b @ a * scaling
    return (weight.float() + (product.T if layer.fan_in_fan_out else product)).to(weight.dtype)


def _of_experts(layer: Any) -> bool:
    """True for peft's layer of a tensor of all experts."""
    return hasattr(layer, "parameter_name")


def _adapted(layer: Any) -> nn.Parameter:
    """The weight that a layer with an adapter has without it."""
    weight: nn.Parameter = layer.get_param() if _of_experts(layer) else layer.base_layer.weight
    return weight


def _tensors_of_experts(model: nn.Module) -> Iterator[str]:
    """The names of the parameters that have a matrix for each expert of a mixture."""
    for path, module in model.named_modules():
        if not isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d):
            for name, parameter in module.named_parameters(recurse=False):
                if parameter.dim() == 3:
                    yield f"{path}.{name}"


def _layers(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """Name and peft's layer of each layer with an adapter, in the model's order."""
    for name, module in model.named_modules():
        if hasattr(module, "base_layer") and hasattr(module, "lora_A"):
            yield name, module


def _matrices(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Name in peft's files and parameter of each A and B, in the model's order."""
    for name, layer in _layers(model):
        for matrix in ("lora_A", "lora_B"):
            yield f"{_PREFIX}{name}.{matrix}.weight", getattr(layer, matrix)[_NAME].weight


def base_parameters(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Name and parameter of each parameter that a model has without adapters, by its name there."""
    matrices = {id(parameter) for _, parameter in _matrices(model)}
    for name, parameter in model.named_parameters():
        if id(parameter) not in matrices:
            yield name.replace("base_layer.", ""), parameter
