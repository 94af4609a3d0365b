"""Writing and reading one checkpoint. Invariant: it is visible complete or not at all, and training
resumes from it exactly.

It is written in two parts: `take` copies the learner's state while training waits, and `write`
writes the copy beside training. `checkpoints/step-000100/` is a Hugging Face model directory
(config.json, model.safetensors, or shards of it and their index, tokenizer) that also holds the
trainer's state: `trainer.safetensors` with the optimizer's moments, the masters of a model of a
smaller type than float32, the state of torch's generator, scores and weights of earlier versions
for the proximal policy, the weights of a reference policy that was reset and the average of the
weights; and `trainer.json` with the scalars. It is written under another name in the same folder,
synced to disk, and only then renamed. A run has one writer. Nothing is pickled.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import msgspec
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel

from asyncrl.files import PARTIAL_FOLDER
from asyncrl.os_errors import number_of, remedy
from asyncrl.training.adapters import (
    ADAPTERS,
    adapted,
    adapters,
    base_digest,
    merged_model,
    set_adapters,
    write_adapters,
)
from asyncrl.training.checkpoint_index import (
    SCALARS,
    CheckpointError,
    Scalars,
    checkpoint_path,
    complete,
    digested,
)
from asyncrl.training.learner import Learner
from asyncrl.training.staging import Staging
from asyncrl.training.stored_state import TENSORS, StoredState, read_state

TOKENIZER = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "preprocessor_config.json",
)
SHARD = "5GB"
"""Largest size of a weights file, unless a single weight is larger."""
_GENERATOR = "generator"
_PROXIMAL = "proximal/"
_MASTER = "master/"
_POLICIES = "policies/"
_AVERAGE = "average/"
_EXPERTS = "experts/"

logger = logging.getLogger(__name__)


class StagedCheckpoint(NamedTuple):
    """A copy of a learner's state. `model` has the copied weights; one with adapters is the
    learner's own, and `adapters` are the copies. `state` is the content of TENSORS."""

    version: int
    cursor: int
    model: PreTrainedModel
    adapters: Mapping[str, Tensor]
    base: str
    state: Mapping[str, Tensor]


def take(learner: Learner, cursor: int, staging: Staging) -> StagedCheckpoint | None:
    """Copy the learner's state between two steps, over the last copy in `staging`. Every rank takes
    part; rank 0 returns the copy, others None."""
    staging.begin()
    rank, model, copied = learner.rank, learner.model, None
    if rank.index:
        rank.gathered(model)
        _state(learner, staging)
    elif adapted(model):
        found = rank.gathered(model)
        assert found is not None, "rank 0 has it"
        copies = {name: staging.copied(tensor) for name, tensor in adapters(found)}
        state = _state(learner, staging)
        copied = StagedCheckpoint(learner.version, cursor, found, copies, base_digest(model), state)
    else:
        whole = staging.model(rank.gathering(model), model, rank.computes(model))
        state = _state(learner, staging)
        copied = StagedCheckpoint(learner.version, cursor, whole, {}, "", state)
    staging.end()
    return copied


def write(
    run_dir: str | Path, staged: StagedCheckpoint, tokenizer: str | Path, *, keep: int = 2
) -> Path:
    """Write a copy as the checkpoint of its version, with the tokenizer files of the model
    directory `tokenizer`; then delete all but the newest `keep` (at least 1), or warn of those that
    cannot be deleted. Any number of ranks can resume from it. Raises CheckpointError where it
    cannot be written; existing checkpoints stay."""
    path = checkpoint_path(run_dir, staged.version)

    def fill(folder: Path) -> None:
        if staged.base:
            write_adapters(folder, staged.model, staged.adapters)
        else:
            _write_model(folder, staged.model, Path(tokenizer))
        save_file(dict(staged.state), folder / TENSORS)
        files = {file.name: digested(file) for file in sorted(folder.iterdir())}
        scalars = Scalars(staged.version, staged.cursor, files, staged.base)
        (folder / SCALARS).write_bytes(msgspec.json.encode(scalars))

    _publish(path, fill, above=False)
    for old in complete(run_dir)[:-keep]:
        try:
            _delete(old.path)
        except OSError as error:
            _left(old.path, error)
    return path


def save(
    run_dir: str | Path, learner: Learner, cursor: int, tokenizer: str | Path, *, keep: int = 2
) -> Path:
    """Take a copy and write it at once (`take`, `write`), in a run directory that is made if need
    be. Every rank takes part; rank 0 writes."""
    staged = take(learner, cursor, Staging())
    if staged is None:
        return checkpoint_path(run_dir, learner.version)
    Path(run_dir).mkdir(parents=True, exist_ok=True)
    return write(run_dir, staged, tokenizer, keep=keep)


def export(path: str | Path, model: PreTrainedModel, tokenizer: str | Path) -> Path:
    """Write the model alone, with its adapters merged into its weights, as a Hugging Face model
    directory at `path`, in place of what is there. Raises CheckpointError."""
    path, whole = Path(path), merged_model(model)
    _publish(path, lambda folder: _write_model(folder, whole, Path(tokenizer)))
    return path


def export_adapters(path: str | Path, model: PreTrainedModel) -> Path:
    """Write a model's adapters alone, as peft does, in place of what is at `path`. Raises
    CheckpointError."""
    path = Path(path)
    tensors = {name: tensor.cpu().contiguous() for name, tensor in adapters(model)}
    _publish(path, lambda folder: write_adapters(folder, model, tensors))
    return path


def restore(path: str | Path, learner: Learner) -> Scalars:
    """Restore the version and optimizer of a learner, whose model was loaded from the checkpoint at
    `path`, the adapters of its model if it has any, and torch's generator. Raises CheckpointError
    where the state is broken, or of another model or base; the learner does not change then."""
    state = read_state(Path(path))
    stored = _adapters(state.path, state.scalars, learner.model)
    restore_state(state, learner, stored)
    return state.scalars


def restore_state(
    state: StoredState,
    learner: Learner,
    stored_adapters: Mapping[str, Tensor] = MappingProxyType({}),
) -> None:
    """Restore the rest of the state of a learner whose model has the weights of a checkpoint, or
    the base that its adapters belong to. Raises CheckpointError as `restore`."""
    path, scalars, tensors = state.path, state.scalars, dict(state.tensors)
    generator = tensors.pop(_GENERATOR, None)
    if generator is None:
        raise CheckpointError(
            f"training cannot resume from {path}, because its {TENSORS} has no state of the "
            "random generator"
        )
    proximal, stored_masters, policies, average, experts = (
        {
            name.removeprefix(prefix): tensors.pop(name)
            for name in list(tensors)
            if name.startswith(prefix)
        }
        for prefix in (_PROXIMAL, _MASTER, _POLICIES, _AVERAGE, _EXPERTS)
    )
    copies, parameters = learner.master_weights.copies(), dict(learner.master_weights.named())
    if {name: tensor.shape for name, tensor in copies.items()} != {
        name: tensor.shape for name, tensor in stored_masters.items()
    }:
        raise CheckpointError(
            f"training cannot resume from {path}, because its {TENSORS} is of a model of another "
            "type or size"
        )
    moments_of: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        key, _, parameter = name.partition("/")
        if parameter not in parameters or (
            tensor.dim() and tensor.shape != parameters[parameter].shape
        ):
            raise CheckpointError(
                f"training cannot resume from {path}, because its {TENSORS} is of another model "
                f"({parameter})"
            )
        # a copy: mapped from the file it lies at any address, and kernels round differently there
        moments_of.setdefault(parameter, {})[key] = (
            tensor.clone()
            if key == "step"
            else learner.rank.sharded(tensor.clone(), like=parameters[parameter])
        )
    try:
        if learner.proximal_logprobs:
            learner.proximal_logprobs.restore(proximal)
        learner.kl_terms.restore(scalars.version, policies)
        if learner.average:
            learner.average.restore(average)
    except ValueError as error:
        raise CheckpointError(
            f"training cannot resume from {path}, because in its {TENSORS} {error}"
        ) from error
    if stored_adapters:
        own = dict(adapters(learner.model))
        set_adapters(
            learner.model,
            {name: learner.rank.sharded(stored_adapters[name], like=own[name]) for name in own},
        )
    for name, tensor in copies.items():  # more precise than adapters of a smaller type
        tensor.copy_(learner.rank.sharded(stored_masters[name], like=tensor))
    learner.balance.restore(experts)
    learner.optimizer.state.clear()
    for parameter, moments in moments_of.items():
        learner.optimizer.state[parameters[parameter]] = moments
    learner.version = scalars.version
    torch.set_rng_state(generator)


def _adapters(path: Path, scalars: Scalars, model: PreTrainedModel) -> dict[str, Tensor]:
    """The adapters of a checkpoint, none for a model without. Raises CheckpointError where they do
    not fit the model or its base."""
    if scalars.base != (base_digest(model) if adapted(model) else ""):
        raise CheckpointError(
            f"training cannot resume from {path}, because its adapters belong to another model "
            "than the run now starts from: put back the weights that model.path had"
        )
    if not scalars.base:
        return {}
    try:
        tensors = load_file(path / ADAPTERS)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(
            f"training cannot resume from {path}, because {ADAPTERS} cannot be read: {error}"
        ) from error
    own = {name: tensor.shape for name, tensor in adapters(model)}
    if {name: tensor.shape for name, tensor in tensors.items()} != own:
        raise CheckpointError(
            f"training cannot resume from {path}, because its {ADAPTERS} has adapters of other "
            "layers or another rank"
        )
    return tensors


def _state(learner: Learner, staging: Staging) -> dict[str, Tensor]:
    """Copies of the optimizer's state as `<moment>/<parameter>`, of scores and weights of earlier
    versions, and of the generator's state. Every rank takes part, and rank 0 returns them."""
    rank, state = learner.rank, dict[str, Tensor]()

    def keep(name: str, tensor: Tensor) -> None:
        if rank.index == 0:
            state[name] = staging.copied(tensor)

    for name, parameter in learner.master_weights.named():
        for key, value in learner.optimizer.state.get(parameter, {}).items():
            keep(f"{key}/{name}", rank.whole(value))
    for name, tensor in learner.master_weights.copies().items():
        keep(_MASTER + name, rank.whole(tensor))
    for name, tensor in learner.average.tensors() if learner.average else ():
        keep(_AVERAGE + name, tensor)
    for name, tensor in learner.kl_terms.tensors(learner.version):
        keep(_POLICIES + name, tensor)
    for name, tensor in learner.proximal_logprobs.tensors() if learner.proximal_logprobs else ():
        keep(_PROXIMAL + name, tensor)
    for name, tensor in learner.balance.tensors().items():
        keep(_EXPERTS + name, tensor)
    keep(_GENERATOR, torch.get_rng_state())
    return state


def _write_model(folder: Path, model: PreTrainedModel, tokenizer: Path) -> None:
    model.save_pretrained(folder, max_shard_size=SHARD)
    for name in TOKENIZER:
        if (tokenizer / name).is_file():
            shutil.copyfile(tokenizer / name, folder / name)


def _publish(path: Path, write: Callable[[Path], None], *, above: bool = True) -> None:
    """Write a directory under another name, sync it to disk, and rename it, replacing the previous
    one. Its parent is made if need be, and with `above` all above that: a run directory that was
    removed is not made again, without its journal, as if nothing were lost."""
    partial = path.parent / f"{PARTIAL_FOLDER}{path.name}"
    try:
        for left in path.parent.glob(f"{PARTIAL_FOLDER}*"):
            try:
                shutil.rmtree(left)
            except OSError as error:
                _left(left, error)
        path.parent.mkdir(parents=above, exist_ok=True)
        partial.mkdir()
        write(partial)
        for file in [*partial.iterdir(), partial]:
            _sync(file)
        if path.exists():
            _delete(path)
        partial.rename(path)
        _sync(path.parent)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(partial, ignore_errors=True)
        why = os.strerror(number) if (number := number_of(error)) else error
        raise CheckpointError(f"{path} cannot be written: {why}; {remedy(error)}") from error


def _delete(path: Path) -> None:
    """Renamed first: a deletion cut short must not leave half a checkpoint under a checkpoint's
    name."""
    shutil.rmtree(path.rename(path.parent / f"{PARTIAL_FOLDER}old-{path.name}"))


def _left(path: Path, error: OSError) -> None:
    """Warn of a directory that is not needed: it only takes space."""
    logger.warning("%s could not be deleted: %s; delete it to free its space", path, error)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
