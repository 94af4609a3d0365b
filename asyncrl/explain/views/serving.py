"""`asyncrl page [RUN|FOLDER]`: serve the page of a run that lives or is over, or of all runs in a
folder, until Ctrl-C. The runs go on without it, and it without them.
"""

from __future__ import annotations

import os
import secrets
import signal
from collections.abc import Callable
from pathlib import Path

import trio

from asyncrl.config import ConfigError
from asyncrl.config.paths import exists, is_folder
from asyncrl.explain.views.page_process import NICE, listen, loopback, port_of, serve_at


def serve(path: Path, host: str, port: int, say: Callable[[str], None]) -> None:
    """Serve until SIGINT or SIGTERM; `say` gets a sentence with the address. Raises
    ConfigError."""
    if not is_folder(path):
        what = "this is not a directory" if exists(path) else "there is no such directory"
        raise ConfigError(f"{path}: {what}; give the directory of a run, or of several.")
    key = "" if loopback(host) else secrets.token_urlsafe()
    os.nice(NICE)
    try:
        trio.run(_serve, path, host, port, key, say)
    except OSError as error:
        raise ConfigError(
            f"page: {host}:{port} cannot be served ({error.strerror or error}); give another "
            "--port, or 0 for one that is free."
        ) from None


async def _serve(path: Path, host: str, port: int, key: str, say: Callable[[str], None]) -> None:
    listener = await listen(host, port)
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as ended:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve_at, listener, path, key)
            where = f"[{host}]" if ":" in host else host
            with_key = f"?key={key}" if key else ""
            at = port_of(listener)
            say(f"The page: http://{where}:{at}/{with_key} (Ctrl-C ends it, and no run)")
            await anext(ended)
            nursery.cancel_scope.cancel()
