"""Checkpoints in Hugging Face format. Invariant: a checkpoint that can be seen is complete, and restores exactly.

`checkpoints/step-000100/` is a model directory (config.json, model.safetensors, tokenizer) that also holds the trainer's state:
`trainer.safetensors` with the optimizer's moments and the state of torch's generator, and `trainer.json` with the scalars. It is written
under another name in the same folder, brought to the disk, and only then renamed. There is one writer a run. Nothing is pickled.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import msgspec
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from transformers import PreTrainedModel

from asyncrl.training.learner import Learner

FOLDER = "checkpoints"
SCALARS, TENSORS = "trainer.json", "trainer.safetensors"
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
)
_NAME = re.compile(r"step-(\d{6,})")
_PARTIAL = ".partial-"
_GENERATOR = "generator"


class CheckpointError(Exception):
    """A checkpoint that cannot be written or used; the message is one sentence for a person."""


class Scalars(msgspec.Struct, frozen=True):
    """`version` of the weights, and `cursor`, the number of the last journalled event they belong to."""

    version: int
    cursor: int


def save(run_dir: str | Path, learner: Learner, cursor: int, tokenizer: str | Path, *, keep: int = 2) -> Path:
    """Write the checkpoint of the learner's version, with the tokenizer files of the model directory `tokenizer`; then delete all but the
    newest `keep`. Call it between two steps. Raises CheckpointError where it cannot be written, and leaves what was there."""
    folder = Path(run_dir) / FOLDER
    path = folder / f"step-{learner.version:06d}"
    partial = folder / f"{_PARTIAL}{path.name}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for left in folder.glob(f"{_PARTIAL}*"):
            shutil.rmtree(left)
        _write_model(learner.model, partial, Path(tokenizer))
        save_file(_state(learner), partial / TENSORS)
        (partial / SCALARS).write_bytes(msgspec.json.encode(Scalars(learner.version, cursor)))
        _install(partial, path)
        for _, old in _complete(folder)[:-keep]:
            # Renamed first: a deletion cut short must not leave half a checkpoint under a checkpoint's name.
            shutil.rmtree(old.rename(folder / f"{_PARTIAL}{old.name}"))
    except (OSError, SafetensorError) as error:
        shutil.rmtree(partial, ignore_errors=True)
        raise CheckpointError(f"the checkpoint {path} cannot be written: {_reason(error)}") from error
    return path


def export(path: str | Path, model: PreTrainedModel, tokenizer: str | Path) -> Path:
    """Write the model alone, as a Hugging Face model directory at `path`, replacing what is there. Raises CheckpointError."""
    path = Path(path)
    partial = path.parent / f"{_PARTIAL}{path.name}"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(partial, ignore_errors=True)
        _write_model(model, partial, Path(tokenizer))
        _install(partial, path)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(partial, ignore_errors=True)
        raise CheckpointError(f"the model {path} cannot be written: {_reason(error)}") from error
    return path


def latest(run_dir: str | Path) -> Path | None:
    """The newest complete checkpoint of a run, None where there is none."""
    complete = _complete(Path(run_dir) / FOLDER)
    return complete[-1][1] if complete else None


def scalars(path: str | Path) -> Scalars:
    """What is known of a checkpoint without reading its tensors. Raises CheckpointError."""
    file = Path(path) / SCALARS
    try:
        return msgspec.json.decode(file.read_bytes(), type=Scalars)
    except (OSError, msgspec.MsgspecError) as error:
        raise CheckpointError(f"{file} cannot be read, so training cannot go on from {path}: {_reason(error)}") from error


def restore(path: str | Path, learner: Learner) -> Scalars:
    """Give a learner, whose model was loaded from the checkpoint at `path`, its version and its optimizer's state, and torch its
    generator's. Raises CheckpointError where the state is broken or of another model; the learner is then as it was."""
    found = scalars(path)
    file = Path(path) / TENSORS
    try:
        with safe_open(file, framework="pt") as stored:
            tensors: dict[str, Tensor] = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118 (not a mapping)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{file} cannot be read, so training cannot go on from {path}: {_reason(error)}") from error
    generator = tensors.pop(_GENERATOR)
    state: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        key, _, parameter = name.partition("/")
        state.setdefault(parameter, {})[key] = tensor
    parameters = dict(learner.model.named_parameters())
    if state.keys() - parameters.keys() or any(
        moment.shape != parameters[name].shape for name, moments in state.items() for moment in moments.values() if moment.dim()
    ):
        raise CheckpointError(f"{file} is of another model than {type(learner.model).__name__} with {len(parameters)} parameters")
    learner.optimizer.state.clear()
    for name, moments in state.items():
        learner.optimizer.state[parameters[name]] = {
            key: value if key == "step" else value.to(parameters[name].device) for key, value in moments.items()
        }
    learner.version = found.version
    torch.set_rng_state(generator)
    return found


def _state(learner: Learner) -> dict[str, Tensor]:
    """The optimizer's state as `<moment>/<parameter>`, and the generator's."""
    state = {
        f"{key}/{name}": value.detach().contiguous()
        for name, parameter in learner.model.named_parameters()
        for key, value in learner.optimizer.state.get(parameter, {}).items()
    }
    return state | {_GENERATOR: torch.get_rng_state()}


def _write_model(model: PreTrainedModel, path: Path, tokenizer: Path) -> None:
    model.save_pretrained(path)
    for name in TOKENIZER_FILES:
        if (tokenizer / name).is_file():
            shutil.copyfile(tokenizer / name, path / name)


def _install(partial: Path, path: Path) -> None:
    """Bring a directory to the disk and give it its name, in place of what has it now."""
    for file in [*partial.iterdir(), partial]:
        _sync(file)
    if path.exists():
        replaced = path.rename(path.parent / f"{_PARTIAL}replaced-{path.name}")
        partial.rename(path)
        shutil.rmtree(replaced)
    else:
        partial.rename(path)
    _sync(path.parent)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _complete(folder: Path) -> list[tuple[int, Path]]:
    """(version, path) of every checkpoint in a folder, oldest first."""
    if not folder.is_dir():
        return []
    return sorted((int(name[1]), path) for path in folder.iterdir() if (name := _NAME.fullmatch(path.name)))


def _reason(error: Exception) -> str:
    return error.strerror if isinstance(error, OSError) and error.strerror else str(error).strip().split("\n", 1)[0]
