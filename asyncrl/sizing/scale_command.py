"""`asyncrl simulate --engines N`: a run of many engines in virtual time, and its counts."""

from __future__ import annotations

import time

from asyncrl.simulation.command import FAILED


def cluster(engines: int, seconds: float, *, agents: bool) -> int:
    """Run a cluster, of agents or of single turns, and print its counts. Returns the exit
    status."""
    from asyncrl.sizing.scale import scale

    began = time.process_time()
    counts = scale(engines, seconds, agents=agents)
    cpu, what = time.process_time() - began, "calls" if agents else "rollouts"
    print(
        f"engines   {counts.engines:,}; {counts.in_flight:,.0f} {what} in flight on average\n"
        f"time      {counts.virtual_s:,.0f} virtual s in {cpu:,.1f} s of one core\n"
        f"work      {counts.events:,} events, {counts.tokens:,} tokens, {counts.steps} steps; "
        f"{counts.checks:,} checks of the ledger"
    )
    if counts.violation is not None:
        print(f"violates  {counts.violation}")
    return 0 if counts.violation is None else FAILED
