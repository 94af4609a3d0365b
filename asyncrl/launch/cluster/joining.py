"""Joining of a machine to its launcher, and joining again after a cut link or a restarted launcher.
Invariant: a machine joins again with the token that it had, and its patience has an end."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator
from pathlib import Path

import trio

from asyncrl.launch.cluster.join_token import JoinToken
from asyncrl.runtime.ipc.endpoints import connect, reach
from asyncrl.runtime.ipc.errors import LinkBroken, LinkError
from asyncrl.runtime.ipc.link import Link
from asyncrl.runtime.ipc.tls import Tls
from asyncrl.runtime.run_dir import TLS

LEAVE = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that tell this machine to leave."""
PATIENCE_S = 120.0
"""Seconds for which a machine whose link was cut tries to join again, unless told otherwise."""


class ToldToLeave(Exception):
    """This machine was told to leave while it had no part, by the signal `number`."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


async def join(token: JoinToken, run: Path) -> Link:
    """Connect to the launcher. Raises LinkError, and ValueError for an invalid address or an
    invalid file for TLS."""
    return await connect(token.launcher, token.key, tls=Tls.of(run / TLS))


async def join_again(
    token: JoinToken, run: Path, patience_s: float, signals: AsyncIterator[int]
) -> Link:
    """Connect to a launcher that was cut off, or to its successor. Raises LinkError if it cannot
    be reached for `patience_s`, or does not know this token, and ToldToLeave at the first of the
    `signals`, which may have come before."""
    result: Link | LinkError = LinkBroken(f"it could not be reached for {patience_s:g} s")
    signalled = 0

    async def obey(scope: trio.CancelScope) -> None:
        nonlocal signalled
        async for number in signals:
            signalled = number
            scope.cancel()

    with trio.move_on_after(patience_s) as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(obey, scope)
            try:
                result = await reach(token.launcher, token.key, tls=Tls.of(run / TLS))
            except LinkError as refusal:
                result = refusal
            nursery.cancel_scope.cancel()
    if signalled:
        raise ToldToLeave(signalled)
    if isinstance(result, LinkError):
        raise result
    return result
