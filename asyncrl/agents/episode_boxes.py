"""Sandboxes as an episode gives them to a sync agent."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import Any

from asyncrl.sandbox.boxes.box import Box
from asyncrl.sandbox.programs.program import Ran


class BlockingBox:
    """A sandbox with the methods of `Box`, which block: `wait` has them done by the event loop."""

    def __init__(self, box: Box, wait: Callable[[Any], Any]) -> None:
        self._box, self._wait = box, wait
        self.name = box.name

    def run(self, argv: Sequence[str], **settings: Any) -> Ran:
        """As `Box.run`."""
        ran: Ran = self._wait(self._box.run(argv, **settings))
        return ran

    def put(self, path: str, data: bytes | str) -> None:
        """As `Box.put`."""
        self._wait(self._box.put(path, data))

    def get(self, path: str, **settings: Any) -> bytes:
        """As `Box.get`."""
        content: bytes = self._wait(self._box.get(path, **settings))
        return content


@contextmanager
def blocking(
    opening: AbstractAsyncContextManager[Box], wait: Callable[[Any], Any]
) -> Iterator[BlockingBox]:
    """A sandbox for the block, opened and ended by the event loop."""
    box = wait(opening.__aenter__())
    try:
        yield BlockingBox(box, wait)
    except BaseException as error:
        if not wait(opening.__aexit__(type(error), error, error.__traceback__)):
            raise
    else:
        wait(opening.__aexit__(None, None, None))
