"""The size of a publication and the pause that it costs, before anything starts. No torch here: the
headers of the model's files say how many weights there are."""

from __future__ import annotations

import math
from pathlib import Path

from safetensors import SafetensorError, safe_open

from asyncrl.config import Config
from asyncrl.config.derived import Row
from asyncrl.config.engines import capabilities
from asyncrl.words import size


def publication_row(config: Config, measured: str = "") -> Row:
    """The row of the table printed first about what engines are sent, and for how long decoding
    stands still for it; a pause that was `measured` comes as words."""
    said = f"{config.publication.path}: {_pause(config)}"
    return Row("publication", _sent(config), "; ".join(filter(None, (said, measured))))


def stored_weights(folder: Path) -> int | None:
    """Numbers in the files of a model directory that transformers reads (Mistral's have all of them
    twice); None where a header cannot be read."""
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
    model, dtype = config.model, config.publication.dtype
    if model.lora.rank:
        return "the adapters"
    if not model.path:
        return "the bundled model"
    count = stored_weights(Path(model.path))
    each = 4 if (model.dtype if dtype == "model" else dtype) == "float32" else 2
    return "all weights" if count is None else size(count * each)


def _pause(config: Config) -> str:
    apart = capabilities(config.engine.kind).serves_apart
    if config.publication.path == "direct":
        return "every engine stands still from the first byte to the last, and while they compare"
    if apart:
        return (
            "a server decodes while the weights come to its machine, and stands still while it "
            "reads and compares them"
        )
    return "engines decode while the weights come, and stand still for about one decode step"
