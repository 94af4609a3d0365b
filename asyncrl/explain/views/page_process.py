"""The process that serves a run's page: `python -m asyncrl.explain.views.page_process RUN`. The
launcher starts it where `run.page_port` is set; `asyncrl page` serves in the same way.

It is a process of its own, which has what is left of the machine: what a page costs, the run does
not pay with the coordinator's time, and the page is there also when the coordinator is not.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import msgspec
import trio

from asyncrl.explain.run_files import RunFiles, is_run
from asyncrl.explain.views.page_gate import PageGate
from asyncrl.explain.views.run_page import OWNER, RunPage
from asyncrl.explain.views.runs_page import RunsPage
from asyncrl.messages.address import TcpAddress
from asyncrl.runtime import logs
from asyncrl.runtime.httpd.asgi import HttpRefusal
from asyncrl.runtime.httpd.http_limits import HttpLimits
from asyncrl.runtime.httpd.http_server import HttpServer
from asyncrl.runtime.ipc.keys import read_private
from asyncrl.runtime.ipc.waits import Waits
from asyncrl.runtime.processes.process import become_child
from asyncrl.runtime.run_dir import PAGE_KEY

NICE = 10
"""Its priority: a tenth of an actor's on the same core, and what nobody else wants."""
KEY_BYTES = 1024
LIMITS = HttpLimits(connections=64, strangers=32, head_s=5.0, part_s=30.0)
"""A browser has six connections."""


def main() -> None:
    """Serve until the launcher ends this process."""
    become_child()
    os.nice(NICE)
    parser = argparse.ArgumentParser(prog="python -m asyncrl.explain.views.page_process")
    parser.add_argument("run", type=Path)
    run: Path = parser.parse_args().run
    settings = RunFiles(run).config.run
    logs.start(run, "page", 0, settings.log)
    key = "" if loopback(settings.page_host) else read_private(run / PAGE_KEY, KEY_BYTES).decode()
    trio.run(serve_page, run, settings.page_host, settings.page_port, key)


def loopback(host: str) -> bool:
    """True for an address that this machine alone reaches."""
    return TcpAddress(host, 1).loopback


async def serve_page(
    path: Path,
    host: str,
    port: int,
    key: str,
    task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve the page of a run, or of a folder of runs, until this is cancelled; with a `key`, only
    to holders of it. `started` gives the port. Raises OSError if it is taken."""
    listener = await listen(host, port)
    task_status.started(port_of(listener))
    await serve_at(listener, path, key)


async def listen(host: str, port: int) -> trio.SocketListener:
    """A listener at the first address of a host (localhost has two). Raises OSError."""
    try:
        first, *others = await trio.open_tcp_listeners(port, host=host)
    except UnicodeError as error:  # a part of the name is empty or too long
        raise OSError(f"a host cannot have this name: {error}") from error
    for other in others:
        await other.aclose()
    return first


def port_of(listener: trio.SocketListener) -> int:
    """The port at which a listener is."""
    return int(listener.socket.getsockname()[1])


async def serve_at(listener: trio.SocketListener, path: Path, key: str) -> None:
    """Serve at a listener, which this closes, as `serve_page` does."""
    waits = Waits()
    kind = RunPage if is_run(path) else RunsPage
    app = PageGate(kind(path, waits=waits, now=time.time), key=key, port=port_of(listener))

    def refused(reason: HttpRefusal) -> None:
        """Note nothing: a client was closed, which is no matter of the run's."""

    limits = msgspec.structs.replace(LIMITS, makes_room=not key)
    server = HttpServer(app, limits, known=app.known, refused=refused, waits=waits, owner=OWNER)
    await server.run(listener, trio.sleep_forever)


if __name__ == "__main__":
    main()
