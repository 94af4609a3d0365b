"""`python -m asyncrl.actors ROLE INDEX INCARNATION THREADS RUN`: one actor's process. Started by
the launcher, and never by hand.

Invariant: this process ends with its launcher; any other cause of its end is in its log, with a
traceback, or in one sentence where what it was given cannot be used (`InputError`).
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import trio

from asyncrl import config
from asyncrl.config.errors import BAD_INPUT, input_error
from asyncrl.config.lending import shares_by_priority
from asyncrl.messages.address import tcp_address
from asyncrl.runtime import logs
from asyncrl.runtime.processes.priority import lower_priority
from asyncrl.runtime.processes.process import become_child


def main() -> None:
    become_child()
    parser = argparse.ArgumentParser(prog="python -m asyncrl.actors")
    parser.add_argument("role")
    parser.add_argument("index", type=int)
    parser.add_argument("incarnation", type=int)
    parser.add_argument("threads", type=int)
    parser.add_argument("run", type=Path)
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--coordinator", type=tcp_address, help="tcp:host:port, of another machine")
    parser.add_argument("--rank-0", type=tcp_address, help="where ranks elsewhere find rank 0")
    parser.add_argument("--takes-over", action="store_true", help="servers that were left")
    args = parser.parse_args()
    settings = config.read(args.run / "run.toml")
    logs.start(args.run, args.role, args.index, settings.run.log)
    if args.role == "rollout" and shares_by_priority(settings, args.index):
        lower_priority()
    if args.role in ("rollout", "trainer"):
        import torch

        torch.set_num_threads(args.threads)
    from asyncrl.actors.actor_context import ActorContext
    from asyncrl.actors.disk_exit import exit_by_disk
    from asyncrl.actors.roles import ROLES

    context = ActorContext(
        args.role,
        args.index,
        args.incarnation,
        args.threads,
        os.getpid(),
        args.run,
        settings,
        args.resume,
        args.coordinator,
        args.rank_0,
        args.takes_over,
    )
    try:
        with exit_by_disk():
            trio.run(ROLES[args.role], context, strict_exception_groups=True)
    except Exception as error:
        if (refusal := input_error(error)) is None:
            raise
        print(f"{type(refusal).__name__}: {refusal}", file=sys.stderr)
        raise SystemExit(BAD_INPUT) from None


if __name__ == "__main__":
    main()
