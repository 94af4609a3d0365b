"""Model directories that a run names, before anything starts. Invariant: policies that are compared
token by token have one vocabulary.

No torch here: tokenizers and configurations are read, and of weights what
`weight_numbers.py` looks at.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
from safetensors import SafetensorError

from asyncrl.bundled import bundled_model
from asyncrl.config import Config, ConfigError
from asyncrl.config.derived import Row
from asyncrl.config.errors import BAD_INPUT, installs
from asyncrl.config.lora import is_of, is_of_experts
from asyncrl.config.paths import is_file, is_folder
from asyncrl.config.schema.model_section import ALL_LINEAR
from asyncrl.config.setting import nearest
from asyncrl.engines.servers.tried_models import engines_of
from asyncrl.escape import escaped
from asyncrl.files import JSON_BYTES, open_regular, read_regular
from asyncrl.launch.prompt_checks import own_tokenizer
from asyncrl.launch.torch_process import ending, run_module
from asyncrl.launch.weight_numbers import check_numbers
from asyncrl.os_errors import machine_lacks, remedy
from asyncrl.tasks import Task, TaskError
from asyncrl.tasks.supervised_examples import SupervisedExamples
from asyncrl.tasks.text import Tokenizer
from asyncrl.training.architecture import Architecture
from asyncrl.training.stored_weights import StoredWeight, stored_weights
from asyncrl.words import beyond_reading, sentence

DIRECTORY = (
    "a local Hugging Face model directory, or the name of a model on a hub (org/name, or "
    "org/name@revision)"
)
"""The values of a setting that names a model."""
TRIAL = "asyncrl.training.architecture_trial"
"""The module that makes a model."""
TRIAL_S = 120.0
"""Seconds in which a process must have made a model on no device."""
ADAPTER = "adapter_config.json"
"""The file that makes a directory one of an adapter."""
INDEX = "model.safetensors.index.json"
"""The file that maps the weights of a divided model to its files."""


FAMILIAR = frozenset(
    {
        *("gemma", "gemma2", "gemma3_text", "glm4", "gpt2", "gpt_oss", "granite", "llama"),
        *("mistral", "mixtral", "olmo2", "olmo3", "phi3", "qwen2", "qwen2_moe", "qwen3"),
        *("qwen3_moe", "smollm3"),
    }
)
"""Families that engines serve; another is tried before a run, which takes seconds."""


class _Family(msgspec.Struct):
    model_type: str = ""


def familiar(path: Path) -> bool:
    """True if the model in a directory is of a family that needs no trial before a run."""
    try:
        read = msgspec.json.decode(read_regular(path / "config.json", JSON_BYTES), type=_Family)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return read.model_type in FAMILIAR


class _StoredIndex(msgspec.Struct):
    weight_map: dict[str, str]


def check_directory(key: str, path: Path, *, weights: bool = True) -> None:
    """Check that the setting `key` names a model directory, with `weights` or without. Raises
    ConfigError."""

    def wrong(what: str) -> ConfigError:
        return ConfigError(f"{key} is {str(path)!r}, and {what}; give {DIRECTORY}.")

    files = dict[str, dict[str, Any]]()
    if not is_folder(path):
        raise wrong("there is no such directory")
    if is_file(path / ADAPTER):
        raise ConfigError(
            f"{key} is {str(path)!r}, and it has an adapter ({ADAPTER}) of another model: merge "
            "the two into one directory (peft's merge_and_unload), and give that."
        )
    if weights and not any(path.glob("*.safetensors")):
        pickled = any(path.glob("*.bin"))
        raise wrong(
            "there are no weights (*.safetensors) in "
            f"it{', only pickles (*.bin), which are not read' if pickled else ''}"
        )
    for file in sorted(path.glob("*.safetensors")):  # a library that opens a pipe never returns
        if not is_file(file):
            raise wrong(f"{file.name} in it is not a file")
        try:
            open_regular(file).close()
        except OSError as error:  # the library would say that it is not there
            raise wrong(f"{file.name} in it cannot be read ({error.strerror})") from None
    for name in ("config.json", "tokenizer.json"):
        try:
            found = json.loads(read_regular(path / name, JSON_BYTES))
        except FileNotFoundError:
            raise wrong(f"there is no {name} in it") from None
        except OSError as error:
            raise wrong(f"{name} in it cannot be read ({error.strerror})") from None
        except (ValueError, RecursionError) as error:
            large = beyond_reading(error)
            what = "has a number of too many digits" if large else "is not JSON"
            raise wrong(f"{name} in it {what}") from None
        if not isinstance(found, dict):
            raise wrong(f"{name} in it is not a JSON object")
        files[name] = found
    if weights:
        if missing := _missing_shards(path):
            raise wrong(f"{missing} is not in it, which {INDEX} names")
        if files["config.json"].get("quantization_config"):
            raise ConfigError(
                f"{key} is {str(path)!r}, and its config.json has a quantization_config: quantized "
                "weights are not trained; give the model's directory in bfloat16 or float32."
            )
        if files["config.json"].get("tie_word_embeddings") is True and _has_two_outputs(path):
            raise ConfigError(
                f"{key} is {str(path)!r}, and its config.json ties the output layer to the "
                "embedding, while its weights have another lm_head.weight: set "
                "tie_word_embeddings to false there, or drop that weight."
            )


def check_architecture(path: Path, config: Config) -> list[Row]:
    """Make the model that config.json describes, without weights, in a process that imports torch,
    which takes seconds. Returns a row on what it is, or a note if it takes too long. Raises
    ConfigError if that fails, for whatever reason, if the weights are of another one, or if the
    settings ask for experts or adapters of layers that it does not have, or for more than the
    engine can decode."""
    sections = config.train, config.engine, config.model.lora
    settings = [msgspec.json.encode(section).decode() for section in sections]
    try:
        ran = run_module(TRIAL, [str(path), *settings], TRIAL_S)
    except subprocess.TimeoutExpired:  # a very large model may take that long
        text = f"it was not made within {TRIAL_S:g} s, so its config.json was not tried"
        return [Row("note", "model.path", text)]
    if ran.returncode == BAD_INPUT:
        raise ConfigError(f"{escaped(ran.stdout.decode(errors='replace').strip(), 400)}.")
    if ran.returncode:
        words = ending(ran.returncode, ran.stderr)
        todo = (
            remedy(words)
            if machine_lacks(words)
            else (
                "check that its config.json and tokenizer.json are as published, choose "
                "another model, or report this with these files"
            )
        )
        raise ConfigError(
            f"model.path is {str(path)!r}, and the trial that makes this model without weights "
            f"failed: {words}; {todo}."
        )
    made = msgspec.json.decode(ran.stdout.strip().rpartition(b"\n")[2], type=Architecture)
    engines = engines_of(made.name, made.undecodable)
    return [Row("family", made.family, f"{made.name}, {made.parameters:,} parameters; {engines}")]


def _missing_shards(path: Path) -> str:
    """The first missing file of those that the index of a divided model names; empty if all exist.
    Raises ConfigError."""
    if not is_file(path / INDEX):
        return ""
    try:
        index = msgspec.json.decode(read_regular(path / INDEX, JSON_BYTES), type=_StoredIndex)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path / INDEX} cannot be read: {escaped(str(error), 200)}.") from None
    named = sorted({*index.weight_map.values()})
    return next(
        (escaped(name, 100) for name in named if not (path / Path(name).name).is_file()), ""
    )


def _has_two_outputs(path: Path) -> bool:
    """True if the files have an output layer that is not the embedding. Some bytes of both are
    compared. Raises ConfigError."""
    layers = dict[str, StoredWeight]()
    for file in sorted(path.glob("*.safetensors")):
        for stored in _stored(path, file):
            for layer in ("lm_head.weight", "embed_tokens.weight"):
                if f".{stored.name}".endswith(f".{layer}"):
                    layers[layer] = stored
    if len(layers) < 2:
        return False
    head, rows = layers.values()
    if head.form != rows.form:
        return True
    step = max(1, head.size // 64)
    return any(head.bytes_at(at) != rows.bytes_at(at) for at in range(0, head.size, step))


def _stored(directory: Path, path: Path) -> Iterator[StoredWeight]:
    """The weights in the header of a file. Raises ConfigError."""
    try:
        yield from stored_weights(path)
    except (OSError, SafetensorError) as error:
        raise _unreadable(directory, path, error) from None


def _unreadable(directory: Path, file: Path, error: Exception) -> ConfigError:
    return ConfigError(
        f"model.path is {str(directory)!r}, and {file.name} in it cannot be read "
        f"({escaped(str(error), 100)}); give {DIRECTORY}."
    )


def check_adapters(config: Config) -> None:
    """Check that adapters can be made: peft is installed, and each target is the last part of the
    name of a weight, unless the directory has the experts of a mixture. Raises ConfigError."""
    lora = config.model.lora
    if find_spec("peft") is None:
        raise ConfigError(
            f"model.lora.rank is {lora.rank}, and adapters need peft, which is not installed: "
            f"{installs('lora')}, or set rank to 0."
        )
    if not config.model.path:
        return
    layers = {
        name.removesuffix(".weight") for name in _weights(Path(config.model.path)) if "." in name
    }
    if any(is_of_experts(layer) for layer in layers):
        return  # the model has one tensor of all, by another name: its trial says what it has
    for target in lora.named_targets:
        if not any(is_of(target, layer) for layer in layers):
            near = nearest(target, {layer.rpartition(".")[2] for layer in layers} or {ALL_LINEAR})
            raise ConfigError(
                f"model.lora.targets has {target!r}, and no layer of {config.model.path} has a "
                f"name with that ending; the nearest is {near}."
            )


def _weights(path: Path) -> set[str]:
    """The names of the weights of a model directory. Raises ConfigError."""
    return {stored.name for file in path.glob("*.safetensors") for stored in _stored(path, file)}


def check_policies(config: Config, task: Task) -> list[Row]:
    """Check the directories of reference and teacher: each exists, and has every token of the
    model that learns under the same id. Returns notes. Raises ConfigError."""
    notes = list[Row]()
    for section, policy in (("reference", config.reference), ("teacher", config.teacher)):
        if policy.coefficient and policy.path:
            key, path = f"{section}.path", Path(policy.path)
            check_directory(key, path, weights=not policy.server)
            try:
                _same_vocabulary(config, task, key, path)
            except TaskError as error:
                raise ConfigError(sentence(error)) from None
            if not policy.server:
                notes += check_numbers(key, path)
        if policy.api_key_file and not is_file(Path(policy.api_key_file)):
            raise ConfigError(
                f"{section}.api_key_file is {policy.api_key_file!r}, and there is no such file; "
                "give the file with the key."
            )
    return notes


def check_examples(config: Config, task: Task) -> None:
    """Check the examples of the supervised loss, with the tokenizer of the run. Raises
    ConfigError."""
    if not config.supervised.coefficient:
        return
    try:
        with own_tokenizer(config, task) as tokenizer:
            SupervisedExamples(config, tokenizer).check()
    except TaskError as error:
        raise ConfigError(sentence(error)) from None


def _same_vocabulary(config: Config, task: Task, key: str, path: Path) -> None:
    if config.model.path:
        own = Tokenizer(config.model.path)
        tokens, sampled = own.ids_by_token, own.sampled
    else:
        tokens = bundled_model.tokenizer(bundled_model.task_frame(task)).get_vocab(
            with_added_tokens=True
        )
        sampled = bundled_model.VOCABULARY
    refuse_other_vocabulary(tokens, sampled, "the model that learns", key, path)


def refuse_other_vocabulary(
    tokens: Mapping[str, int], sampled: int, owner: str, key: str, path: Path
) -> None:
    """Raise ConfigError unless the model at `path`, which `key` names, has each of these tokens
    under the same id, and gives as many ids a probability as the `owner` of them samples. Raises
    TaskError for a tokenizer that cannot be read."""
    its = Tokenizer(path)
    if different := _different(tokens, its.ids_by_token):
        raise ConfigError(
            f"{key} is {str(path)!r}, and its vocabulary differs from that of {owner} "
            f"({different}), so that their tokens cannot be compared; give a model with the "
            "same tokenizer."
        )
    if its.sampled < sampled:
        raise ConfigError(
            f"{key} is {str(path)!r}, and it gives {its.sampled} ids a probability where {owner} "
            f"may sample {sampled}; give a model with the same tokenizer and as large an embedding."
        )


def _different(own: Mapping[str, int], its: Mapping[str, int]) -> str:
    """The first token of `own` that differs, in words; empty if all agree."""
    for token, number in sorted(own.items(), key=lambda item: item[1]):
        if (its_number := its.get(token)) != number:
            difference = "is not there" if its_number is None else f"is {its_number} there"
            return f"{token!r} is {number} here and {difference}"
    return ""
