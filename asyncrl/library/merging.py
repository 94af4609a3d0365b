"""`asyncrl merge`: one model from several of one architecture. Invariant: the directory that is
written appears whole or not at all, and nothing else is written."""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from asyncrl.config import ConfigError
from asyncrl.config.paths import is_file, is_folder, refuse_as_output, refuse_small_disk, shown
from asyncrl.escape import escaped
from asyncrl.explain.model_card import CARD, merged_card
from asyncrl.explain.run_files import RunFiles
from asyncrl.files import JSON_BYTES, PARTIAL_FOLDER, read_regular, write_whole
from asyncrl.launch.hub.hub_models import model_directory
from asyncrl.launch.model_directories import check_directory, refuse_other_vocabulary
from asyncrl.os_errors import remedy
from asyncrl.runtime.output import complain
from asyncrl.runtime.run_dir import RUN_TOML
from asyncrl.tasks import TaskError
from asyncrl.tasks.text import Tokenizer
from asyncrl.training.merged_weights import MergeError, Parent, layout, write_merged
from asyncrl.training.model_writing import TOKENIZER
from asyncrl.words import size

COPIED = ("config.json", "generation_config.json", *TOKENIZER)
"""Files of the first model that the merged one has, too."""
UNIMPORTANT = frozenset({"_name_or_path", "dtype", "torch_dtype", "transformers_version"})
"""Keys of config.json in which merged models may differ."""
OF_MERGE = "merge: a model"
"""Name of a model that was given, in errors."""
UNRELATED = 0.7
"""Distance of two models over the length of one, from which they are not trained from one model."""


def merge(
    models: Sequence[str | Path],
    output: str | Path,
    *,
    weights: Sequence[float] | None = None,
    base: str | Path | None = None,
    say: Callable[[str], object] = lambda words: None,
) -> Path:
    """Merge models into the new directory `output`, and return its path. Each is a model directory,
    a run that has ended, or a name on a hub.

    Without a `base` it is the mean of their weights, by the shares in `weights` (at least 0; they
    are divided by their sum). With a `base` it is task arithmetic (Ilharco et al. 2023, arXiv
    2212.04089): the base, plus each model's difference from it times its weight (1 each without
    `weights`; a negative one takes a skill away). Configuration and tokenizer are those of the
    first model, or of the base. Tensors are read piece by piece, so the models need not fit into
    memory. `say` is called with words on the progress. Raises ConfigError.

    >>> factors(2, None, False), factors(2, [3, 1], False)
    ([0.5, 0.5], [0.75, 0.25])
    >>> factors(2, [0.5, 1], True)  # the base's factor comes first
    [-0.5, 0.5, 1.0]
    """
    shares = factors(len(models), weights, base is not None)
    named = [*([] if base is None else [base]), *models]
    if len(named) < 2:
        raise ConfigError("merge: give at least two models, or one and a base.")
    directories = [model_of(each) for each in named]
    for directory in directories:
        check_directory(OF_MERGE, directory)
    first = directories[0]
    for directory in directories[1:]:
        _refuse_other_config(first, directory)
    _refuse_other_tokenizers(first, directories[1:])
    output = Path(output)
    refuse_as_output(output)
    output = output.absolute()
    parts = [Parent(*each) for each in zip(directories, shares, strict=True)]
    labels = [(str(name), share) for name, share in zip(named, shares, strict=True)]
    partial = output.with_name(f"{PARTIAL_FOLDER}{output.name}-{os.getpid()}")
    try:
        whole = layout(parts)
        refuse_small_disk(output, "the merged weights", whole.size)
        partial.mkdir()
        for name in COPIED:
            if is_file(first / name):
                write_whole(partial / name, read_regular(first / name, JSON_BYTES))
        apart = write_merged(
            whole, partial, lambda done: say(f"merging, {size(done)} of {size(whole.size)}")
        )
        write_whole(partial / CARD, merged_card(labels, base is not None, version("asyncrl")))
        partial.rename(output)
    except MergeError as error:
        raise ConfigError(f"{error}.") from None
    except OSError as error:
        what = error.strerror or str(error)
        raise ConfigError(f"{shown(output)} cannot be written: {what}; {remedy(error)}.") from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    _complain_of_unrelated(named, apart)
    return output


def _complain_of_unrelated(named: Sequence[str | Path], apart: Sequence[float]) -> None:
    """Name the models that are as far from the first as if they had been begun apart."""
    for label, distance in zip(named, apart, strict=True):
        if distance > UNRELATED:
            complain(
                f"{escaped(str(label))} is as far from {escaped(str(named[0]))} as a model that "
                "was begun apart: what they merge to has the skills of neither. Merge models that "
                "were trained from one model."
            )


def factors(models: int, weights: Sequence[float] | None, based: bool) -> list[float]:
    """The factor of each model's weights in the sum, that of the base first. They add up to 1.
    Raises ConfigError for weights that are too many, too few or no shares."""
    given = [1.0] * models if weights is None else [float(weight) for weight in weights]
    if len(given) != models:
        raise ConfigError(
            f"merge: there are {len(given)} weights for {models} models; give one for each."
        )
    if not sum(map(abs, given)) < math.inf:
        raise ConfigError(
            "merge: a weight is NaN, infinite or too large; give numbers such as 0.7 and 0.3."
        )
    if based:
        return [1.0 - math.fsum(given), *given]
    if min(given, default=0.0) < 0 or not (total := math.fsum(given)):
        raise ConfigError(
            "merge: the weights of a mean are at least 0, and not all 0; with --base they may be "
            "negative."
        )
    return [weight / total for weight in given]


def model_of(named: str | Path) -> Path:
    """The directory of a model: of an ended run, of a path, or of a name on a hub. Raises
    ConfigError."""
    path = Path(named)
    if not is_folder(path) or not is_file(path / RUN_TOML):
        return model_directory(named)
    run = RunFiles(path)
    if run.lives:
        raise ConfigError(
            f"{shown(path)}: this run is still training, so its model is to come; wait for its "
            "end, or give one of its checkpoints."
        )
    return run.model


def _refuse_other_tokenizers(first: Path, others: Sequence[Path]) -> None:
    try:
        own = Tokenizer(first)
        for path in others:
            refuse_other_vocabulary(own.ids_by_token, own.sampled, str(first), OF_MERGE, path)
    except TaskError as error:
        raise ConfigError(f"{error}.") from None


def _refuse_other_config(first: Path, other: Path) -> None:
    """Raise ConfigError if two models are not of one architecture by their config.json."""
    one, two = _config(first), _config(other)
    for key in sorted({*one, *two} - UNIMPORTANT):
        if one.get(key) != two.get(key):
            told = [escaped(json.dumps(each.get(key)), 60) for each in (one, two)]
            raise ConfigError(
                f"merge: {escaped(key, 60)} in config.json is {told[0]} in {shown(first)} and "
                f"{told[1]} in {shown(other)}; give models of one architecture and size."
            )


def _config(directory: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(read_regular(directory / "config.json", JSON_BYTES))
    return found
