"""The trial of a model directory, for a process without torch: the model is made of config.json, on
no device, and the weights must be its own.
`python -m asyncrl.training.architecture_trial DIRECTORY` ends with 2, and a sentence on standard
output, where that fails.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from asyncrl.config.errors import BAD_INPUT
from asyncrl.training.models import ModelError, empty_model, refuse_other_weights


def main() -> int:
    """Make the model, and compare it with its weights. Returns the exit status."""
    try:
        with torch.device("meta"):
            model = empty_model(sys.argv[1])
        refuse_other_weights(Path(sys.argv[1]), model)
    except ModelError as error:
        print(error)
        return BAD_INPUT
    return 0


if __name__ == "__main__":
    sys.exit(main())
