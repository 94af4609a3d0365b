"""Language models from local directories. Invariant: every weight comes from the directory, or no
model is returned.

Nothing is downloaded, no code of a model directory is run or fetched, and only safetensors of the
directory itself are read.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec
import torch
import transformers
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from transformers import (
    CONFIG_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    PretrainedConfig,
    PreTrainedModel,
)
from transformers.initialization import no_init_weights
from transformers.utils import logging

from asyncrl.algorithms.routing.balance import own_biases
from asyncrl.config.errors import InputError
from asyncrl.escape import escaped, quoted
from asyncrl.tasks.images.vision_model import FAMILIES
from asyncrl.training.stored_weights import PIECE, quantized_in, said_of, stored_weights

_TEXT: Any = AutoModelForCausalLM  # their methods carry no types
_VISION: Any = AutoModelForImageTextToText
logging.disable_progress_bar()  # of weights read and written: a log is not a terminal


class ModelError(InputError):
    """Raised for a model directory that cannot be used; the message is one sentence."""


def load_model(path: str | Path, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """The causal language model at `path`, a Hugging Face model directory, with weights of `dtype`,
    in evaluation mode (no dropout).

    Raises ModelError where the directory, its config.json or any of its weights is missing or
    broken.
    """
    path = Path(path)
    config = _config(path)
    _refuse_other_files(path)
    try:
        model, info = _auto(config).from_pretrained(
            path,
            config=config,
            dtype=dtype,
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            output_loading_info=True,
        )
    except Exception as error:  # transformers raises any exception for files that do not fit
        raise ModelError(
            f"the weights in {path} cannot be read, so they are truncated or belong to another "
            "model: "
            f"{_first_line(error)}"
        ) from error
    if missing := sorted(info["missing_keys"]) or sorted(
        str(key) for key in info["mismatched_keys"]
    ):
        raise ModelError(
            f"the weights in {path} are not complete: {missing[0]} and {len(missing) - 1} more "
            "are missing or have another shape"
        )
    for name, parameter in model.named_parameters():
        parameter.data = (
            parameter.data.clone()
        )  # off the file's pages: kernels round differently where memory is not aligned
        if not all_finite(parameter.data):
            raise not_all_finite(path, name)
    return _evaluating(model)


def model_without_memory(
    path: str | Path, dtype: torch.dtype = torch.float32, *, stored: bool = True
) -> PreTrainedModel:
    """The model at `path`, whose parameters have shapes alone (torch's meta device), with buffers
    as they are made. Raises ModelError, also for files that are no weights if they are `stored`
    there."""
    path = Path(path)
    if stored:
        _config(path)
        _refuse_other_files(path)
    with _parameters_on_meta():
        return empty_model(path, dtype)


def empty_model(path: str | Path, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """The model at `path` with arbitrary weights, which a publication replaces. It needs only
    config.json. Raises ModelError."""
    config = _config(Path(path))
    if type(config) not in _auto(config)._model_mapping:
        raise ModelError(
            f"{Path(path) / 'config.json'} is of the family {quoted(config.model_type, 60)}, "
            f"which no engine serves: transformers {transformers.__version__} has no causal "
            "language model of it; choose another model"
        )
    try:
        with no_init_weights():
            model = _auto(config).from_config(config, dtype=dtype, trust_remote_code=False)
    except Exception as error:
        raise ModelError(
            f"{Path(path) / 'config.json'} describes no model that can be made: "
            f"{_first_line(error)}"
        ) from error
    model.tie_weights()  # left out with the initialisation
    return _evaluating(model)


@contextmanager
def _parameters_on_meta() -> Iterator[None]:
    """Give parameters that are registered in the block no memory. Buffers, such as the frequencies
    of positions, are in no file, and so must be made."""
    register = nn.Module.register_parameter

    def on_meta(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        if parameter is not None and parameter.device.type != "meta":
            parameter = nn.Parameter(parameter.to("meta"), parameter.requires_grad)
        register(module, name, parameter)

    nn.Module.register_parameter = on_meta  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        nn.Module.register_parameter = register  # type: ignore[method-assign]


def refuse_other_weights(path: Path, model: PreTrainedModel) -> None:
    """Compare the names and shapes of the weights at `path` with those of the model that its
    config.json describes. Raises ModelError. Names that loading translates are not compared."""
    stored = dict[str, tuple[int, ...]]()
    try:
        for file in sorted(path.glob("*.safetensors")):
            with safe_open(file, framework="pt") as opened:
                for name in opened.keys():  # noqa: SIM118 it is no mapping
                    stored[name] = tuple(opened.get_slice(name).get_shape())
    except (OSError, SafetensorError) as error:
        raise ModelError(f"the weights in {path} cannot be read: {_first_line(error)}") from error
    names = dict[int, set[str]]()
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), set()).add(name)
        if (shape := stored.get(name, tuple(parameter.shape))) != tuple(parameter.shape):
            raise ModelError(
                f"the weights in {path} are those of another model: {name} has the shape "
                f"{list(shape)}, and by config.json it is {list(parameter.shape)}"
            )
    if stored and stored.keys() <= set[str]().union(*names.values()):
        for tied in names.values():
            if tied.isdisjoint(stored):
                raise ModelError(
                    f"the weights in {path} are not complete: {min(tied)} is not among them, which "
                    "config.json asks for"
                )


def parameters_for_publication(model: PreTrainedModel) -> Iterator[tuple[str, Tensor]]:
    """(name, detached tensor) of each parameter, in the order of the architecture; tied ones once,
    under their first name."""
    for name, parameter in model.named_parameters():
        yield name, parameter.detach()


def model_with(
    weights: Mapping[str, Tensor], config: PretrainedConfig, dtype: torch.dtype
) -> PreTrainedModel:
    """A model with these weights, which are not copied. It has no buffers: it is for writing, not
    for computing."""
    with torch.device("meta"):
        model: PreTrainedModel = _auto(config).from_config(
            copy.deepcopy(config), dtype=dtype, trust_remote_code=False
        )
    model.load_state_dict(weights, strict=False, assign=True)
    model.tie_weights()
    return model


def _auto(config: PretrainedConfig) -> Any:
    """The class that makes a model: of text, or of text and images in a family whose images are
    read."""
    return _VISION if config.model_type in FAMILIES else _TEXT


def _evaluating(model: Any) -> PreTrainedModel:
    assert isinstance(model, PreTrainedModel)
    nn.Module.train(model, False)
    own_biases(model)
    return model


def all_finite(weights: Tensor) -> bool:
    """True if each number is finite. A sum is not if one of them is not, and costs no copy."""
    pieces = torch.split(weights.flatten(), PIECE)
    return all(bool(piece.sum().isfinite() or piece.isfinite().all()) for piece in pieces)


def _not_finite(path: Path, name: str) -> str:
    """The first number that is not finite, and its file; or `name` alone if loading made it so, as
    where float64 is too large for the type of the run."""
    for file in sorted(path.glob("*.safetensors")):
        for weight in stored_weights(file):
            if weight.must_be_finite and (words := weight.not_finite(0, weight.size)):
                return said_of(weight, words)
    return f"a number of {name} is too large for its type"


def not_all_finite(path: Path, name: str) -> ModelError:
    """The error about weights at `path`, of which a number of `name` is not finite."""
    return ModelError(
        f"the weights in {path} are not all finite: {_not_finite(path, name)}; download or "
        "convert the model again, or go back to a checkpoint from before"
    )


def _refuse_other_files(path: Path) -> None:
    if not any(path.glob("*.safetensors")):
        other = (
            ", which are pickles: convert them to safetensors" if any(path.glob("*.bin")) else ""
        )
        problem = "only *.bin weights" + other if other else "no weights (no *.safetensors)"
        raise ModelError(f"the model directory {path} has {problem}")
    _own_shards(path)
    try:
        every = chain.from_iterable(map(stored_weights, sorted(path.glob("*.safetensors"))))
        packed = next((weight for weight in every if weight.quantized), None)
    except (OSError, SafetensorError):
        return  # who reads them says so
    if packed is not None:
        raise ModelError(f"{quantized_in(packed)}: give the model in bfloat16 or float32")


def _config(path: Path) -> PretrainedConfig:
    if not path.is_dir():
        raise ModelError(
            f"there is no model directory {path}; model.path must be a local Hugging Face model "
            "directory"
        )
    if not (path / "config.json").is_file():
        raise ModelError(f"the model directory {path} has no config.json")
    try:
        with warnings.catch_warnings():
            config = AutoConfig.from_pretrained(
                path, local_files_only=True, trust_remote_code=False
            )
        foreign = next(_kernels(config.to_dict() | vars(config)), None)
    except Exception as error:
        raise ModelError(_unsupported(path, error)) from error
    if foreign:
        raise ModelError(
            f"{path / 'config.json'} asks for code from elsewhere ({foreign!r}), which is never "
            "run: remove that line"
        )
    assert isinstance(config, PretrainedConfig)
    return config


def _unsupported(path: Path, error: Exception) -> str:
    """The sentence on a config.json that transformers does not take."""
    file = path / "config.json"
    try:
        found = msgspec.json.decode(file.read_bytes(), type=_FamilyCode)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        found = _FamilyCode()
    if found.model_type not in CONFIG_MAPPING and found.auto_map:
        return (
            f"{file} needs code from its own repository (auto_map), which is never run: choose a "
            "model of a family that transformers has"
        )
    if found.model_type and found.model_type not in CONFIG_MAPPING:
        return (
            f"{file} is of the family {quoted(found.model_type, 60)}, which no engine serves: "
            f"transformers {transformers.__version__} does not have it; choose another model"
        )
    return f"{file} is not a configuration that transformers supports: {_first_line(error)}"


class _FamilyCode(msgspec.Struct):
    """The family of a config.json, and the code that it names."""

    model_type: str = ""
    auto_map: dict[str, Any] = msgspec.field(default_factory=dict)


def _kernels(value: object) -> Iterator[str]:
    """Values of a configuration's implementation settings that name a repository: transformers
    would fetch its code, remote code off or not."""
    for key, inner in value.items() if isinstance(value, dict) else ():
        if isinstance(inner, str) and "implementation" in str(key) and "/" in inner:
            yield inner
        yield from _kernels(vars(inner) if isinstance(inner, PretrainedConfig) else inner)


def _own_shards(path: Path) -> None:
    """Refuse an index that names files elsewhere or pickles, since transformers would open them."""
    if (path / "adapter_config.json").exists():
        raise ModelError(
            f"the model directory {path} has an adapter, which names another model: merge the "
            "two into one directory"
        )
    for index in path.glob("*.index.json"):
        try:
            shards = msgspec.json.decode(index.read_bytes(), type=ShardIndex).weight_map.values()
        except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ModelError(f"{index} cannot be read: {_first_line(error)}") from error
        for shard in shards:
            if Path(shard).name != shard or not shard.endswith(".safetensors"):
                raise ModelError(
                    f"{index} names {shard!r}, but only *.safetensors beside it are read"
                )


class ShardIndex(msgspec.Struct):
    """The index of a sharded model: the file of each weight."""

    weight_map: dict[str, str]


def _first_line(error: BaseException) -> str:
    return escaped(" ".join(str(error).split()), 300) or type(error).__name__
