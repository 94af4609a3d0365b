"""The trial of a model's config.json, for a process without torch: the model is made of it, on no
device. `python -m asyncrl.training.architecture_trial DIRECTORY` ends with 2, and a sentence on
standard output, where that fails.
"""

from __future__ import annotations

import sys

import torch

from asyncrl.config.errors import BAD_INPUT
from asyncrl.training.models import ModelError, empty_model


def main() -> int:
    """Make the model. Returns the exit status."""
    try:
        with torch.device("meta"):
            empty_model(sys.argv[1])
    except ModelError as error:
        print(error)
        return BAD_INPUT
    return 0


if __name__ == "__main__":
    sys.exit(main())
