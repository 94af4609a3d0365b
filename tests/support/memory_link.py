"""A link in memory."""

from __future__ import annotations

from trio.testing import memory_stream_pair

from asyncrl.runtime.ipc.link import Link
from asyncrl.runtime.ipc.pipes import StreamPipe


def memory_links() -> tuple[Link, Link]:
    """Two ends of a link, without authentication and without a limit of the bytes in flight."""
    left, right = memory_stream_pair()
    return Link(StreamPipe(left), peer="the right end"), Link(
        StreamPipe(right), peer="the left end"
    )
