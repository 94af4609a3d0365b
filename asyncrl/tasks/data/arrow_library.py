"""The package pyarrow, without a thread: a process that has one cannot close the sandbox around
itself."""

from __future__ import annotations

import os
from typing import Any

from asyncrl.config.errors import installs
from asyncrl.tasks import TaskError


def arrow(what: str) -> Any:
    """The package, to read `what`. Raises TaskError where it is not installed."""
    os.environ.setdefault("JE_ARROW_MALLOC_CONF", "background_thread:false")
    try:
        import pyarrow
        import pyarrow.parquet
    except ModuleNotFoundError as error:
        raise TaskError(f"{what} is read by pyarrow: {installs('parquet')}") from error
    return pyarrow
