"""The room that a run's checkpoints take, before anything starts: on the disk of its directory, and
on that of its copy. No torch here: the headers of the model's files say how many weights there are.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterator
from pathlib import Path

from safetensors import SafetensorError, safe_open

from asyncrl.config import Config, ConfigError
from asyncrl.config.derived import Row
from asyncrl.config.journal_size import steps
from asyncrl.config.lora import is_of, is_of_experts
from asyncrl.launch.publication_row import stored_weights
from asyncrl.launch.trainer_memory import kept_bytes
from asyncrl.object_store import is_stored
from asyncrl.training.checkpoint_index import complete
from asyncrl.words import size

KEPT = 2
"""Checkpoints that a run keeps. One more is written before the oldest of them is deleted."""


def room_rows(config: Config) -> list[Row]:
    """Rows of the first table about the checkpoints of a given model; none for the bundled model,
    whose are small. Raises ConfigError if a disk has no room for those that the run keeps."""
    each = checkpoint_bytes(config)
    if not each:
        return []
    rows = []
    for where, folders in _by_disk(config):
        free = shutil.disk_usage(_existing(folders[0])).free
        kept, peak = (sum(_missing(config, folder, most) for folder in folders) for most in (0, 1))
        if free < kept * each:
            raise ConfigError(
                f"{folders[0]}: {_number(kept)} of this model {'need' if kept > 1 else 'needs'} "
                f"{size(kept * each)} ({size(each)} each), and the disk has {size(free)} free: "
                f"make room, or choose another {where}."
            )
        text = f"each; {KEPT} are kept; the disk of {where} has {size(free)} free"
        rows.append(Row("checkpoints", size(each), text))
        if free < peak * each:
            text = (
                f"{where} needs {size(peak * each)} while a new one is written before the oldest "
                f"is deleted, and the disk has {size(free)} free: make room"
            )
            rows.append(Row("note", "checkpoints", text))
    return rows


def checkpoint_bytes(config: Config) -> int:
    """Bytes of one checkpoint: the weights that learn, their masters and average, and the
    optimizer's moments. 0 if that is not known."""
    if not config.model.path:
        return 0
    folder = Path(config.model.path)
    learn = _adapters(config, folder) if config.model.lora.rank else stored_weights(folder)
    return kept_bytes(config, learn or 0)


def _adapters(config: Config, folder: Path) -> int | None:
    """Numbers of the adapters of a model's layers, at most; None if a header cannot be read. A
    target that no file names is one tensor of all experts, and files have each expert's."""
    count, targets = 0, config.model.lora.named_targets
    try:
        for path in folder.glob("model*.safetensors"):
            with safe_open(path, "numpy") as file:
                names = file.keys()
                layers = [name.removesuffix(".weight") for name in names]
                fused = any(not any(is_of(t, layer) for layer in layers) for t in targets)
                for name, layer in zip(names, layers, strict=True):
                    adapted = (
                        any(is_of(target, layer) for target in targets)
                        or (fused and is_of_experts(layer))
                        or not (targets or _outer(name))
                    )
                    if adapted and len(shape := file.get_slice(name).get_shape()) >= 2:
                        *stacked, rows, columns = shape
                        count += math.prod(stacked) * config.model.lora.rank * (rows + columns)
    except (OSError, SafetensorError):
        return None
    return count


def _outer(name: str) -> bool:
    """True for embeddings and the output layer, which have no adapter."""
    return "embed" in name or name.startswith("lm_head")


def _by_disk(config: Config) -> Iterator[tuple[str, list[Path]]]:
    """The directories that hold checkpoints, those on one disk together; with the settings that
    name them."""
    run, copy = Path(config.run.dir), config.run.copy
    if not copy or is_stored(copy):
        yield "run.dir", [run]
    elif _existing(run).stat().st_dev == _existing(Path(copy)).stat().st_dev:
        yield "run.dir and run.copy", [run, Path(copy)]
    else:
        yield "run.dir", [run]
        yield "run.copy", [Path(copy)]


def _existing(folder: Path) -> Path:
    return next(path for path in (folder, *folder.parents) if path.exists())


def _missing(config: Config, folder: Path, beside: int) -> int:
    """Checkpoints that are still to be written to a folder, of those that it holds at a time, with
    so many `beside` those that are kept."""
    every = config.train.checkpoint_every
    written = -(-steps(config) // every) if every else 1
    return max(1, min(KEPT + beside, written) - len(complete(folder)))


def _number(checkpoints: int) -> str:
    words = {1: "one checkpoint", 2: "two checkpoints", 3: "three checkpoints"}
    return words.get(checkpoints, f"{checkpoints} checkpoints")
