"""The engine of one episode: the model of a directory in this process, or a script in its place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from asyncrl.config import Config, ConfigError
from asyncrl.config.published import engine_dtype
from asyncrl.engines.embedded.embedded_options import embedded_options
from asyncrl.engines.embedded.engine import EmbeddedEngine
from asyncrl.engines.embedded.engine_images import EngineImages
from asyncrl.engines.options import EngineOptions
from asyncrl.engines.protocol import Request
from asyncrl.engines.scripted import Script, ScriptedEngine
from asyncrl.runtime.run_dir import IMAGES
from asyncrl.tasks.images.vision_model import run_images
from asyncrl.tasks.text import Tokenizer
from asyncrl.training.models import ModelError, load_model, parameters_for_publication
from asyncrl.training.output_layer import float32_output
from asyncrl.words import sentence


def embedded(
    config: Config, initial: Path, tokenizer: Tokenizer, run: Path
) -> tuple[EmbeddedEngine, Mapping[str, torch.Tensor]]:
    """The engine with the model in `initial`, which sees the images in the folder `run`, and the
    weights that it has to load first. Raises ConfigError for a model that cannot be decoded."""
    try:
        model = load_model(initial, getattr(torch, engine_dtype(config)))
        if config.model.output_dtype == "float32":
            float32_output(model)
        options = embedded_options(config, tokenizer.stop_ids)
        images = run_images(run / IMAGES, initial)
        seen = None if images is None else EngineImages(images)
        engine = EmbeddedEngine(model, options, images=seen)
        return engine, dict(parameters_for_publication(model))
    except (ModelError, ValueError) as error:
        raise ConfigError(sentence(error)) from None


def scripted(config: Config, tokenizer: Tokenizer, replies: Sequence[str]) -> ScriptedEngine:
    """An engine that answers call n with `replies[n]`, and every later call with the last one, each
    ended by the model's end of sequence."""
    end = [] if tokenizer.end_id is None else [tokenizer.end_id]

    def script(request: Request) -> Script:
        text = replies[min(request.rollout, len(replies) - 1)]
        ids = np.array([*tokenizer.ids(text), *end], np.int32)
        return Script(ids, np.zeros(len(ids), np.float32), 0.0)

    return ScriptedEngine(script, EngineOptions.of(config), vocab_size=tokenizer.sampled)
