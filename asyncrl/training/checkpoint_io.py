"""Writing and reading one checkpoint. Invariant: it is visible complete or not at all, and training
resumes from it exactly.

It is written in two parts: `take` copies the learner's state while training waits, and `write`
writes the copy beside training; each rank copies and writes its own part.
`checkpoints/step-000100/` is a Hugging Face model directory (config.json, model.safetensors, or
several files and their index, tokenizer) that also holds the trainer's state: `trainer.safetensors`
(of several ranks a file of each, with rows) with the optimizer's moments, the masters of a model of
a smaller type than float32, the state of torch's generator, scores and weights of earlier versions
for the proximal policy, the weights of a reference policy that was reset and the average of the
weights; and `trainer.json` with the scalars, which is written last. All is written under another
name in the same folder, synced to disk, and only then renamed. A run has one trainer. Nothing is
pickled.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec
import torch
from safetensors import SafetensorError
from torch import Tensor
from transformers import PreTrainedModel

from asyncrl.files import PARTIAL_FOLDER
from asyncrl.os_errors import number_of, remedy
from asyncrl.training.adapters import (
    ADAPTERS,
    adapted,
    adapters,
    base_digest,
    learning,
    published_names,
    set_adapters,
    write_adapters,
)
from asyncrl.training.checkpoint_index import (
    SCALARS,
    CheckpointError,
    Digest,
    Scalars,
    checkpoint_path,
    complete,
    digested,
)
from asyncrl.training.learner import Learner
from asyncrl.training.model_writing import StagedModel, stage_model, write_rest, write_tensors
from asyncrl.training.optimizer import state_device
from asyncrl.training.ranks.rank import ALONE, Rank
from asyncrl.training.small_moments import scales_shape
from asyncrl.training.staging import Staging
from asyncrl.training.stored_state import (
    OF_ADAPTERS,
    TENSORS,
    StoredPart,
    StoredRows,
    StoredState,
    read_state,
    whole_of,
    write_state,
)

_GENERATOR = "generator"
_PROXIMAL = "proximal/"
_MASTER = "master/"
_POLICIES = "policies/"
_AVERAGE = "average/"
_EXPERTS = "experts/"

logger = logging.getLogger(__name__)


class StagedCheckpoint(NamedTuple):
    """A copy of a rank's part of a learner's state: of the model, or its adapters, and `state`, the
    content of its file of TENSORS. `base` is as in `Scalars`."""

    version: int
    cursor: int
    model: StagedModel | None
    adapters: StagedAdapters | None
    base: str
    state: Mapping[str, StoredPart]


class StagedAdapters(NamedTuple):
    """A copy of a model's adapters; `model` is the learner's own, whose settings they have."""

    model: PreTrainedModel
    tensors: Mapping[str, Tensor]


def take(learner: Learner, cursor: int, staging: Staging) -> StagedCheckpoint:
    """Copy this rank's part of the learner's state between two steps, over the last copy in
    `staging`. Every rank takes part."""
    staging.begin()
    model, of_adapters, base = None, None, ""
    if adapted(learner.model):
        of_adapters, base = stage_adapters(learner, staging), base_digest(learner.model)
    else:
        model = stage_model(learner.rank, learner.model, staging)
    state = _state(learner, staging)
    staging.end()
    return StagedCheckpoint(learner.version, cursor, model, of_adapters, base, state)


def stage_adapters(learner: Learner, staging: Staging) -> StagedAdapters:
    """Copy a learner's adapters; rank 0 has them then. Every rank takes part."""
    rank, model, copies = learner.rank, learner.model, dict[str, Tensor]()
    rank.let_go(model)  # else the parameters are what a pass left gathered
    own = dict(learning(model))
    for name, parameter in published_names(model):
        if parameter:
            whole = rank.as_computed(own[parameter])
            if not rank.index:
                copies[name] = staging.copied(whole)
    return StagedAdapters(model, copies)


def write(
    run_dir: str | Path,
    staged: StagedCheckpoint,
    tokenizer: str | Path,
    rank: Rank = ALONE,
    *,
    keep: int = 2,
) -> Path:
    """Write a copy as the checkpoint of its version, with the tokenizer files of the model
    directory `tokenizer`; then delete all but the newest `keep` (at least 1), or warn of those that
    cannot be deleted. Each rank writes its part, beside training, and rank 0 the rest. Any number
    of ranks can resume from it. Raises CheckpointError where it cannot be written; existing
    checkpoints stay."""
    path = checkpoint_path(run_dir, staged.version)

    def parts(folder: Path) -> list[Path]:
        if rank.index not in rank.writers:
            return []
        files = write_tensors(folder, staged.model) if staged.model else []
        place = rank.writers.index(rank.index)
        return [*files, write_state(folder, staged.state, place, len(rank.writers))]

    def rest(folder: Path, written: Mapping[str, Digest]) -> None:
        if staged.model:
            write_rest(folder, staged.model, Path(tokenizer))
        if staged.adapters:
            write_adapters(folder, *staged.adapters)
        own = [file for file in sorted(folder.iterdir()) if file.name not in written]
        files = {**written, **{file.name: digested(file) for file in own}}
        scalars = Scalars(staged.version, staged.cursor, dict(sorted(files.items())), staged.base)
        (folder / SCALARS).write_bytes(msgspec.json.encode(scalars))

    _publish(path, parts, rest, rank, above=False)
    if rank.index == 0:
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
    be. Every rank takes part."""
    staged = take(learner, cursor, Staging())
    Path(run_dir).mkdir(parents=True, exist_ok=True)
    return write(run_dir, staged, tokenizer, learner.rank, keep=keep)


def export(
    path: str | Path,
    model: PreTrainedModel,
    tokenizer: str | Path,
    dtype: torch.dtype | None = None,
) -> Path:
    """Write the model alone, with its adapters merged into its weights, as a Hugging Face model
    directory at `path`, in place of what is there; rounded to `dtype`, or in its own type. Raises
    CheckpointError."""
    staging = Staging()
    staged = stage_model(ALONE, model, staging, dtype=dtype)
    staging.end()
    return export_staged(path, staged, tokenizer)


def export_staged(
    path: str | Path, staged: StagedModel, tokenizer: str | Path, rank: Rank = ALONE
) -> Path:
    """Write a copy of a model alone, as `export`. Every rank takes part."""
    path = Path(path)
    _publish(
        path,
        lambda folder: write_tensors(folder, staged),
        lambda folder, _: write_rest(folder, staged, Path(tokenizer)),
        rank,
    )
    return path


def export_adapters(path: str | Path, staged: StagedAdapters) -> Path:
    """Write a copy of adapters alone, as peft does, in place of what is at `path`. Raises
    CheckpointError."""
    path = Path(path)
    _publish(path, lambda _: [], lambda folder, _: write_adapters(folder, *staged), ALONE)
    return path


def restore(path: str | Path, learner: Learner) -> Scalars:
    """Restore the version and optimizer of a learner, whose model was loaded from the checkpoint at
    `path`, the adapters of its model if it has any, and torch's generator. Raises CheckpointError
    where the state is broken, or of another model or base; the learner does not change then."""
    state = read_state(Path(path))
    restore_state(state, learner)
    return state.scalars


def restore_state(state: StoredState, learner: Learner) -> None:
    """Restore the rest of the state of a learner whose model has the weights of a checkpoint, or
    the base that its adapters belong to. Raises CheckpointError as `restore`."""
    path, scalars, tensors, rank = state.path, state.scalars, dict(state.tensors), learner.rank
    if scalars.base != (base_digest(learner.model) if adapted(learner.model) else ""):
        raise CheckpointError(
            f"training cannot resume from {path}, because its adapters belong to another model "
            "than the run now starts from: put back the weights that model.path had"
        )
    generator = tensors.pop(_GENERATOR, None)
    if generator is None:
        raise CheckpointError(
            f"training cannot resume from {path}, because its {TENSORS} has no state of the "
            "random generator"
        )
    proximal, stored_masters, policies, average, experts, stored_adapters = (
        {
            name.removeprefix(prefix): tensors.pop(name)
            for name in list(tensors)
            if name.startswith(prefix)
        }
        for prefix in (_PROXIMAL, _MASTER, _POLICIES, _AVERAGE, _EXPERTS, OF_ADAPTERS)
    )
    own = dict(adapters(learner.model))
    if {name: tensor.shape for name, tensor in stored_adapters.items()} != {
        name: tensor.shape for name, tensor in own.items()
    }:
        raise CheckpointError(
            f"training cannot resume from {path}, because its {ADAPTERS} has adapters of other "
            "layers or another rank"
        )
    copies, parameters = learner.master_weights.copies(), dict(learner.master_weights.named())
    if {name: tensor.shape for name, tensor in copies.items()} != {
        name: tensor.shape for name, tensor in stored_masters.items()
    }:
        raise CheckpointError(
            f"training cannot resume from {path}, because its {TENSORS} is of a model of another "
            "type or size"
        )
    moments_of = _moments(path, tensors, parameters, learner)
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
    if own:
        shards = {n: rank.sharded(stored_adapters[n], like=tensor) for n, tensor in own.items()}
        set_adapters(learner.model, shards)
    for name, master in copies.items():  # more precise than adapters of a smaller type
        master.copy_(rank.sharded(stored_masters[name], like=master))
    learner.balance.restore({name: whole_of(tensor) for name, tensor in experts.items()})
    learner.optimizer.state.clear()
    for parameter, moments in moments_of.items():
        learner.optimizer.state[parameters[parameter]] = moments
    learner.version = scalars.version
    torch.set_rng_state(whole_of(generator))


def _moments(
    path: Path,
    tensors: Mapping[str, StoredRows],
    parameters: Mapping[str, Tensor],
    learner: Learner,
) -> dict[str, dict[str, Tensor]]:
    """The optimizer's state of each parameter, of this rank. Raises CheckpointError for tensors of
    other parameters."""
    moments_of: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        key, _, parameter = name.partition("/")
        shape = parameters[parameter].shape if parameter in parameters else None
        if shape is None or (tensor.shape and tensor.shape not in (shape, scales_shape(shape))):
            raise CheckpointError(
                f"training cannot resume from {path}, because its {TENSORS} is of another model "
                f"({parameter})"
            )
        if tensor.shape:
            like = parameters[parameter]
            device = state_device(learner.optimizer, like)
            found = learner.rank.sharded(tensor, like, device)
        else:
            found = whole_of(tensor)
        moments_of.setdefault(parameter, {})[key] = found
    return moments_of


def _state(learner: Learner, staging: Staging) -> dict[str, StoredPart]:
    """Copies of this rank's part of the optimizer's state as `<moment>/<parameter>`, of scores and
    weights of earlier versions, and of the generator's state. Every rank takes part."""
    state = dict[str, StoredPart]()
    for turn, (name, tensor) in enumerate(_tensors(learner)):
        part = learner.rank.part(tensor, turn)
        if part is not None:
            state[name] = part._replace(tensor=staging.copied(part.tensor))
    return state


def _tensors(learner: Learner) -> Iterator[tuple[str, Tensor]]:
    """The tensors of the state, by name; of several ranks the shards."""
    rank = learner.rank
    rank.let_go(learner.model)
    for name, parameter in learner.master_weights.named():
        for key, value in learner.optimizer.state.get(parameter, {}).items():
            yield f"{key}/{name}", value
    for name, tensor in learner.master_weights.copies().items():
        yield _MASTER + name, tensor
    for name, tensor in learner.average.tensors() if learner.average else ():
        yield _AVERAGE + name, tensor
    for name, tensor in learner.kl_terms.tensors(learner.version):
        yield _POLICIES + name, tensor
    for name, tensor in learner.proximal_logprobs.tensors() if learner.proximal_logprobs else ():
        yield _PROXIMAL + name, tensor
    for name, tensor in learner.balance.tensors().items():
        yield _EXPERTS + name, tensor
    yield _GENERATOR, torch.get_rng_state()


def _publish(
    path: Path,
    parts: Callable[[Path], list[Path]],
    rest: Callable[[Path, Mapping[str, Digest]], object],
    rank: Rank,
    *,
    above: bool = True,
) -> None:
    """Write a directory under another name, sync it to disk, and rename it, replacing the previous
    one: each rank its `parts`, and then rank 0 the `rest`. Its parent is made if need be, and with
    `above` all above that: a run directory that was removed is not made again, without its journal,
    as if nothing were lost."""
    partial = path.parent / f"{PARTIAL_FOLDER}{path.name}"

    def prepare() -> dict[str, Digest]:
        # Others may write beside a directory that a user names; one of checkpoints is the run's.
        lefts = [partial, _old(path)] if above else path.parent.glob(f"{PARTIAL_FOLDER}*")
        for left in filter(Path.exists, lefts) if rank.index == 0 else ():
            try:
                shutil.rmtree(left)
            except OSError as error:
                _left(left, error)
        if rank.index == 0:
            path.parent.mkdir(parents=above, exist_ok=True)
            partial.mkdir()
        return {}

    def write_parts() -> dict[str, Digest]:
        files = parts(partial)
        for file in files:
            _sync(file)
        return {file.name: digested(file) for file in files}

    def finish(written: Mapping[str, Digest]) -> dict[str, Digest]:
        if rank.index == 0:
            rest(partial, written)
            for file in [*partial.iterdir(), partial]:
                _sync(file)
            if path.exists():
                _delete(path)
            partial.rename(path)
            _sync(path.parent)
        return {}

    try:
        _by_all(rank, path, prepare)
        written = _by_all(rank, path, write_parts)
        _by_all(rank, path, lambda: finish(written))
    except CheckpointError:
        if rank.index == 0:
            shutil.rmtree(partial, ignore_errors=True)
        raise


class _Done(msgspec.Struct):
    """The files that a rank has written, or why it could not."""

    files: dict[str, Digest] = {}
    error: str = ""


def _by_all(rank: Rank, path: Path, work: Callable[[], dict[str, Digest]]) -> dict[str, Digest]:
    """Do some work on every rank, and tell all what each has written. Raises CheckpointError where
    one of them could not, on all."""
    cause, done = None, _Done()
    try:
        done = _Done(work())
    except (OSError, SafetensorError) as error:
        cause = error
        why = os.strerror(number) if (number := number_of(error)) else error
        done = _Done(error=f"{path} cannot be written: {why}; {remedy(error)}")
    every = [msgspec.json.decode(said, type=_Done) for said in rank.told(msgspec.json.encode(done))]
    for each in every:
        if each.error:
            raise CheckpointError(each.error) from cause
    return {name: digest for each in every for name, digest in each.files.items()}


def _delete(path: Path) -> None:
    """Renamed first: a deletion cut short must not leave half a checkpoint under a checkpoint's
    name."""
    shutil.rmtree(path.rename(_old(path)))


def _old(path: Path) -> Path:
    return path.parent / f"{PARTIAL_FOLDER}old-{path.name}"


def _left(path: Path, error: OSError) -> None:
    """Warn of a directory that is not needed: it only takes space."""
    logger.warning("%s could not be deleted: %s; delete it to free its space", path, error)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
