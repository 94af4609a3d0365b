"""The trial of a model directory, for a process without torch: the model is made of config.json, on
no device, and the weights must be its own.
`python -m asyncrl.training.architecture_trial DIRECTORY TRAIN ENGINE LORA` writes `Architecture` as
JSON in its last line, or ends with 2, and a sentence on standard output, where that fails, where
the settings TRAIN (JSON) ask for experts that the model does not have, or LORA for adapters of such
layers, or where the embedded engine cannot decode it with the settings ENGINE.
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import torch
from transformers import PreTrainedModel

from asyncrl.algorithms.routing.routers import watch
from asyncrl.config.decodable import undecodable
from asyncrl.config.errors import BAD_INPUT, InputError
from asyncrl.config.schema import EngineConfig, LoraConfig, TrainConfig
from asyncrl.tasks.text import Tokenizer
from asyncrl.training.adapters import adapted_layers
from asyncrl.training.architecture import Architecture
from asyncrl.training.expert_balance import refuse
from asyncrl.training.models import ModelError, empty_model, refuse_other_weights


def main() -> int:
    """Make the model, and compare it with its weights. Returns the exit status."""
    try:
        with torch.device("meta"):
            model = empty_model(sys.argv[1])
        refuse_other_weights(Path(sys.argv[1]), model)
        made = _described(model)
        watch(model)
        refuse(model, msgspec.json.decode(sys.argv[2], type=TrainConfig))
        lora = msgspec.json.decode(sys.argv[4], type=LoraConfig)
        if lora.rank:
            adapted_layers(model, lora)
        engine = msgspec.json.decode(sys.argv[3], type=EngineConfig)
        made.undecodable = _undecodable(model, engine)
        if engine.kind == "embedded" and made.undecodable:
            raise ModelError(f"{sys.argv[1]}: {made.undecodable}")
    except InputError as error:
        print(error)
        return BAD_INPUT
    print()  # a library may have written words without an end
    print(msgspec.json.encode(made).decode())
    return 0


def _described(model: PreTrainedModel) -> Architecture:
    count = sum(weight.numel() for weight in model.parameters())
    return Architecture(str(model.config.model_type), type(model).__name__, count)


def _undecodable(model: PreTrainedModel, engine: EngineConfig) -> str:
    """The reason why the embedded engine cannot decode the model; empty if it can."""
    rows = model.get_input_embeddings().weight.shape[0]
    stops, tokens = Tokenizer(sys.argv[1]).stop_ids, engine.context_tokens
    name, weights = type(model).__name__, (weight for weight, _ in model.named_parameters())
    return undecodable(name, model.config.get_text_config(), weights, tokens, stops, rows)


if __name__ == "__main__":
    sys.exit(main())
