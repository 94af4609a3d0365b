"""The end of an actor whose disk takes nothing more. Invariant: it is told from every other end by
its exit status, whatever could still be written to a log.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from asyncrl.config.errors import DISK_NOT_READY
from asyncrl.files import no_room


@contextmanager
def exit_by_disk() -> Iterator[None]:
    """Exit with DISK_NOT_READY where a disk that is not ready ends the block."""
    try:
        yield
    except Exception as error:
        if not of_disk(error):
            raise
        logging.getLogger("asyncrl").critical("ended by a disk that is not ready", exc_info=error)
        raise SystemExit(DISK_NOT_READY) from None


def of_disk(error: BaseException) -> bool:
    """True if a disk that is not ready is behind an error, or behind one of a group."""
    from asyncrl.journal.disk import JournalNotReady  # most actors know no journal

    if isinstance(error, BaseExceptionGroup):
        return any(map(of_disk, error.exceptions))
    return isinstance(error, JournalNotReady) or no_room(error) is not None
