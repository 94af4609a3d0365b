"""Model directories that a run names, before anything starts. Invariant: policies that are compared
token by token have one vocabulary.

No torch here: tokenizers and configurations are read, weights are not.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from safetensors import SafetensorError, safe_open

from asyncrl.bundled import bundled_model
from asyncrl.config import Config, ConfigError
from asyncrl.config.errors import installs
from asyncrl.config.lora import is_of
from asyncrl.config.schema.model_section import ALL_LINEAR
from asyncrl.config.setting import nearest
from asyncrl.escape import escaped
from asyncrl.launch.prompt_checks import own_tokenizer
from asyncrl.tasks import Task, TaskError
from asyncrl.tasks.supervised_examples import read_examples, tokenized
from asyncrl.tasks.text import Tokenizer


def check_directory(key: str, path: Path, *, weights: bool = True) -> None:
    """Check that the setting `key` names a model directory, with `weights` or without. Raises
    ConfigError."""

    def wrong(what: str) -> ConfigError:
        return ConfigError(
            f"{key} is {str(path)!r}, and {what}; give a local Hugging Face model directory."
        )

    if not path.is_dir():
        raise wrong("there is no such directory")
    if weights and not any(path.glob("*.safetensors")):
        pickled = any(path.glob("*.bin"))
        raise wrong(
            "there are no weights (*.safetensors) in "
            f"it{', only pickles (*.bin), which are not read' if pickled else ''}"
        )
    for name in ("config.json", "tokenizer.json"):
        try:
            json.loads((path / name).read_bytes())
        except OSError:
            raise wrong(f"there is no {name} in it") from None
        except (ValueError, RecursionError):
            raise wrong(f"{name} in it is not JSON") from None


def check_adapters(config: Config) -> None:
    """Check that adapters can be made: peft is installed, and each target is the last part of the
    name of a weight. Raises ConfigError."""
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
    for target in lora.named_targets:
        if not any(is_of(target, layer) for layer in layers):
            near = nearest(target, {layer.rpartition(".")[2] for layer in layers} or {ALL_LINEAR})
            raise ConfigError(
                f"model.lora.targets has {target!r}, and no layer of {config.model.path} has a "
                f"name that ends so; the nearest is {near}."
            )


def _weights(path: Path) -> set[str]:
    """The names of the weights of a model directory. Raises ConfigError."""
    names = set[str]()
    for file in path.glob("*.safetensors"):
        try:
            with safe_open(file, framework="numpy") as stored:
                names.update(stored.keys())
        except (OSError, SafetensorError) as error:
            raise ConfigError(
                f"model.path is {str(path)!r}, and {file.name} in it cannot be read "
                f"({escaped(str(error), 100)}); give a local Hugging Face model directory."
            ) from None
    return names


def check_policies(config: Config, task: Task) -> None:
    """Check the directories of reference and teacher: each exists, and has every token of the
    model that learns under the same id. Raises ConfigError."""
    for section, policy in (("reference", config.reference), ("teacher", config.teacher)):
        if policy.coefficient and policy.path:
            key, path = f"{section}.path", Path(policy.path)
            check_directory(key, path, weights=not policy.server)
            try:
                _same_vocabulary(config, task, key, path)
            except TaskError as error:
                raise ConfigError(f"{error}.") from None
        if policy.api_key_file and not Path(policy.api_key_file).is_file():
            raise ConfigError(
                f"{section}.api_key_file is {policy.api_key_file!r}, and there is no such file; "
                "give the file with the key."
            )


def check_examples(config: Config, task: Task) -> None:
    """Check the examples of the supervised loss, with the tokenizer of the run. Raises
    ConfigError."""
    if not config.supervised.coefficient:
        return
    try:
        examples, most = read_examples(Path(config.supervised.path)), config.engine.context_tokens
        with own_tokenizer(config, task) as tokenizer:
            tokenized(examples, tokenizer, config.task, most)
    except TaskError as error:
        raise ConfigError(f"{error}.") from None


def _same_vocabulary(config: Config, task: Task, key: str, path: Path) -> None:
    its = Tokenizer(path)
    if config.model.path:
        own = Tokenizer(config.model.path)
        tokens, sampled = own.ids_by_token, own.sampled
    else:
        tokens = bundled_model.tokenizer(bundled_model.task_frame(task)).get_vocab(
            with_added_tokens=True
        )
        sampled = bundled_model.VOCABULARY
    if different := _different(tokens, its.ids_by_token):
        raise ConfigError(
            f"{key} is {str(path)!r}, and its vocabulary is another than that of the model that "
            f"learns ({different}), so that their tokens cannot be compared; give a model with the "
            "same tokenizer."
        )
    if its.sampled < sampled:
        raise ConfigError(
            f"{key} is {str(path)!r}, and it gives {its.sampled} ids a probability where the model "
            f"that learns may sample {sampled}; give a model with the same tokenizer and as large "
            "an embedding."
        )


def _different(own: Mapping[str, int], its: Mapping[str, int]) -> str:
    """The first token of `own` that differs, in words; empty if all agree."""
    for token, number in sorted(own.items(), key=lambda item: item[1]):
        if (its_number := its.get(token)) != number:
            difference = "is not there" if its_number is None else f"is {its_number} there"
            return f"{token!r} is {number} here and {difference}"
    return ""
