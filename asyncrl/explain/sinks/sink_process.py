"""The process that feeds a sink: `python -m asyncrl.explain.sinks.sink_process RUN NAME
DESCRIPTOR`. The launcher starts it for each of `run.sinks`, and closes the pipe DESCRIPTOR when the
run is over.

It is a process of its own, so that a library that blocks, grows or dies takes nothing of the run's.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import trio

from asyncrl.explain.run_files import RunFiles
from asyncrl.explain.sinks.sink import NAMES, opener
from asyncrl.explain.sinks.sink_feed import SinkFeed
from asyncrl.runtime import logs
from asyncrl.runtime.processes.process import become_child

NICE = 10
"""Its priority: a tenth of an actor's on the same core, and what nobody else wants."""
EVERY_S = 10.0
"""Seconds from one sending to the next: people look at minutes, and services count requests."""


def main() -> None:
    """Feed the sink until the run is over."""
    become_child()
    os.nice(NICE)
    parser = argparse.ArgumentParser(prog="python -m asyncrl.explain.sinks.sink_process")
    parser.add_argument("run", type=Path)
    parser.add_argument("name", choices=NAMES)
    parser.add_argument("over", type=int)
    given = parser.parse_args()
    level = RunFiles(given.run).config.run.log
    logs.start(given.run, given.name, 0, level)
    feed = SinkFeed(given.run, given.name, opener(given.name))
    trio.run(keep_fed, feed, given.over)


async def keep_fed(feed: SinkFeed, over: int, every_s: float = EVERY_S) -> None:
    """Send what is new every `every_s` seconds until the other end of the pipe `over` is closed;
    then send what is left, and close the sink. Raises what the sink's library does."""
    async with trio.lowlevel.FdStream(over) as pipe:
        lives = True
        while lives:
            with trio.move_on_after(every_s):
                lives = bool(await pipe.receive_some())
            await trio.to_thread.run_sync(feed.send)
    await trio.to_thread.run_sync(feed.close)


if __name__ == "__main__":
    main()
