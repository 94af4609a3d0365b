"""The process of one check: it runs its function, and writes an answer of one of three kinds,
`numbers`, `lacks` or `error`."""

from __future__ import annotations

import json
import os
import traceback
from dataclasses import asdict
from importlib import import_module
from pathlib import Path

from .check import Check, Lacks, Place


def run(check: Check, place: Place, answer: Path) -> None:
    """Run a check and write its answer. An error is written too, and its traceback to the log."""
    module, name = check.function.split(":")
    try:
        function = getattr(import_module(f".{module}", __package__), name)
        found: dict[str, object] = {"numbers": [asdict(each) for each in function(place)]}
    except Lacks as lacks:
        found = {"lacks": str(lacks)}
    except Exception as error:  # noqa: BLE001 it is the answer
        traceback.print_exc()
        while isinstance(error, ExceptionGroup):  # of a nursery: what went wrong is inside
            error = error.exceptions[0]
        found = {"error": f"{type(error).__name__}: {' '.join(str(error).split())}"}
    partial = answer.with_suffix(".partial")
    partial.write_text(json.dumps(found))
    partial.replace(answer)


def machine() -> dict[str, object]:
    """Facts of this machine that a report begins with."""
    import platform

    import torch
    import transformers

    cuda = torch.cuda.is_available()
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "cores": os.cpu_count(),
        "gpus": torch.cuda.device_count() if cuda else 0,
        "gpu": torch.cuda.get_device_name(0) if cuda else None,
        "cuda": torch.version.cuda,
        "nccl": ".".join(map(str, torch.cuda.nccl.version())) if cuda else None,
    }
