"""The size of a publication and the pause that it costs, before anything starts. No torch here: the
headers of the model's files say how many weights there are."""

from __future__ import annotations

import math
from pathlib import Path

from safetensors import SafetensorError, safe_open

from asyncrl.config import Config
from asyncrl.config.cluster import joined
from asyncrl.config.derived import Row
from asyncrl.config.engines import capabilities
from asyncrl.training.stored_dtype import conversion, saved_dtype, stored_dtypes
from asyncrl.words import size

CHANGED = {1e-6: 2, 1e-5: 14}
"""Percent of a model's bytes that change in a step, in bfloat16, up to such a learning rate
(bench/deltas.py); above the last nearly all do."""


def publication_row(config: Config, measured: str = "") -> Row:
    """The row of the first table about what is sent to engines, and for how long decoding pauses
    for it; a pause that was `measured` comes as words."""
    pause = f"{config.publication.path}: {_pause(config)}"
    return Row("publication", _sent(config), "; ".join(filter(None, (pause, measured))))


def delta_row(config: Config) -> list[Row]:
    """A note where sending what changed alone may pay: to engines on other machines, whose network
    nobody knows here. Each side then holds the weights once more, so it is no default."""
    way, model = config.publication, config.model
    share = next((percent for rate, percent in CHANGED.items() if config.train.lr <= rate), 100)
    wide = way.sent_dtype(model) != "bfloat16" or way.path == "direct" or way.dtype == "fp8"
    if share == 100 or wide or way.full_every > 1 or not joined(config):
        return []
    text = f"20 would send about {share} % of these bytes, and hold the weights once more on each "
    text += "side: worth it on a network below 450 MB/s an engine"
    return [Row("note", "publication.full_every", text)]


def weights_row(config: Config) -> list[Row]:
    """The row about the types of the weights of a model that the user gave: as it is trained, sent
    to engines, and saved."""
    model = config.model
    if not model.path:
        return []
    stored = conversion(stored_dtypes(Path(model.path)), model.dtype)
    saved = saved_dtype(model.dtype, Path(model.path))
    sent = config.publication.sent_dtype(model)
    if "fp8" in (model.rounding, config.publication.dtype):
        sent += ", linear layers with values of fp8"
    rounded = ", rounded" if saved != model.dtype else ""
    words = f"{stored}; sent to engines in {sent}; RUN/model is saved in {saved}{rounded}"
    trained = f"trained in {model.dtype}"
    if model.rounding != "none":
        trained += f", rounded to {model.rounding}"
    rows = [Row("weights", trained, f"{words}; checkpoints are exact")]
    if "rounded" in stored:
        text = f"what {model.dtype} cannot hold of the stored weights is lost before the first step"
        rows.append(Row("note", "model.dtype", f"{text}: float32 keeps more of it"))
    return rows


def stored_weights(folder: Path) -> int | None:
    """Numbers in the files of a model directory that transformers reads (Mistral's have all of them
    twice); None if a header cannot be read."""
    count = 0
    try:
        for path in folder.glob("model*.safetensors"):
            with safe_open(path, "numpy") as file:
                names = file.keys()
                count += sum(math.prod(file.get_slice(name).get_shape()) for name in names)
    except (OSError, SafetensorError):
        return None
    return count or None


def _sent(config: Config) -> str:
    """The bytes of a whole publication, to each engine, in words."""
    model = config.model
    if model.lora.rank:
        return "the adapters"
    if not model.path:
        return "the bundled model"
    count = stored_weights(Path(model.path))
    each = 4 if config.publication.sent_dtype(model) == "float32" else 2
    return "all weights" if count is None else size(count * each)


def _pause(config: Config) -> str:
    apart = capabilities(config.engine.kind).serves_apart
    if config.model.lora.alone:
        return "a server loads them beside its base, and no engine pauses"
    if config.publication.path == "direct":
        return "every engine pauses from the first byte to the last, and while they compare"
    if apart:
        return (
            "a server decodes while the weights come to its machine, and pauses while it reads and "
            "compares them"
        )
    return "engines decode while the weights come, and pause for about one decode step"
