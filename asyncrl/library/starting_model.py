"""The models of a loop written by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from asyncrl.bundled.warmup import prepare_model
from asyncrl.config import Config, ConfigError
from asyncrl.launch.hub.hub_models import model_directory
from asyncrl.library.given_config import as_config
from asyncrl.tasks import TaskError
from asyncrl.training.models import ModelError, load_model
from asyncrl.training.output_layer import float32_output
from asyncrl.words import sentence


def starting_model(config: Config) -> Path:
    """The model directory that a run of this configuration starts from: `model.path`, or the
    bundled small model, which learns the task's own answers for `model.warmup_steps` and is kept in
    the user's cache. Raises ConfigError."""
    if as_config("starting_model", config).model.path:
        return model_directory(config.model.path)
    try:
        return prepare_model(config)
    except TaskError as error:
        raise ConfigError(sentence(error)) from None


def opened(path: str | Path, config: Config) -> PreTrainedModel:
    """The model in a directory, or of a name on a hub, of the types in `[model]`. Raises
    ConfigError."""
    try:
        model = load_model(model_directory(path), getattr(torch, config.model.dtype))
    except ModelError as error:
        raise ConfigError(sentence(error)) from None
    if config.model.output_dtype == "float32":
        float32_output(model)
    return model


def as_model(model: Any) -> PreTrainedModel:
    """Check a model. Raises ConfigError if it is not one of transformers."""
    if not isinstance(model, PreTrainedModel):
        raise ConfigError(
            f"a {type(model).__name__} is not a model: give the path of a model directory, or a "
            "causal language model of transformers."
        )
    return model
