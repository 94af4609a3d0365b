"""The trial of a model directory, for a process without torch: the model is made of config.json, on
no device, and the weights must be its own.
`python -m asyncrl.training.architecture_trial DIRECTORY TRAIN CONTEXT` ends with 2, and a sentence
on standard output, where that fails, where the settings TRAIN (JSON) ask for experts that the model
does not have, or where the embedded engine cannot decode CONTEXT tokens with it (0: another engine
decodes).
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import torch
from transformers import PreTrainedModel

from asyncrl.algorithms.routing.routers import watch
from asyncrl.config.decodable import undecodable
from asyncrl.config.errors import BAD_INPUT
from asyncrl.config.schema import TrainConfig
from asyncrl.training.expert_balance import refuse
from asyncrl.training.models import ModelError, empty_model, refuse_other_weights


def main() -> int:
    """Make the model, and compare it with its weights. Returns the exit status."""
    try:
        with torch.device("meta"):
            model = empty_model(sys.argv[1])
        refuse_other_weights(Path(sys.argv[1]), model)
        watch(model)
        refuse(model, msgspec.json.decode(sys.argv[2], type=TrainConfig))
        _refuse_undecodable(model, int(sys.argv[3]))
    except ModelError as error:
        print(error)
        return BAD_INPUT
    return 0


def _refuse_undecodable(model: PreTrainedModel, context_tokens: int) -> None:
    weights = (name for name, _ in model.named_parameters())
    if context_tokens and (reason := undecodable(model.config, weights, context_tokens)):
        raise ModelError(
            f"engine.kind is embedded, and {type(model).__name__} {reason}: let sglang or vllm "
            "decode it where docs/models.md says that they serve it"
        )


if __name__ == "__main__":
    sys.exit(main())
