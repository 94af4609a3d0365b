"""JSON files of a model's directory. Invariant: what is read is bounded, and a file that is not
there has none of what is asked for."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import msgspec

from asyncrl.files import JSON_BYTES, read_regular
from asyncrl.tasks import TaskError

T = TypeVar("T", bound=msgspec.Struct)


def read_model_json(path: Path, kind: type[T]) -> T:
    """The fields of `kind`, each of which has a default, in a file. Raises TaskError.

    >>> class Sizes(msgspec.Struct):
    ...     vocab_size: int | None = None
    >>> read_model_json(Path("no model/config.json"), Sizes)
    Sizes(vocab_size=None)
    """
    try:
        return msgspec.json.decode(read_regular(path, JSON_BYTES), type=kind)
    except FileNotFoundError:
        return kind()
    except OSError as error:
        raise TaskError(f"{path} cannot be read: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise TaskError(f"{path} is not what a model's JSON file is: {error}") from error
