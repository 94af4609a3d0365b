"""Tools that are slow: how busy are the engines of a run whose agents wait for them?

The real coordinator, actors and links in virtual time, as in flow.py; engines decode a token a
second in each of their slots, and the trainer is quick, so that generation alone decides.

    single turn   a response takes 200 s in the mean (lognormal, sigma = 1, cut at 10 times that)
    no tools      an episode of four calls of 50 s each
    slow tools    the same, and behind each call a tool of 500 s: ten times as slow as decoding

A slot is held only while a call is decoded, so an engine of so many slots is kept busy by eleven
times as many episodes. The coordinator finds that out, as far as `agent.concurrency` allows (as
much as can be, or `--concurrency`) and `staleness.depth` too. Busy are an engine's slots for each
token that it generates; the ratio is that of slow tools to the single turn.

    python bench/slow_tools.py [--concurrency 4096] [--slots 16]
"""

from __future__ import annotations

import argparse
import time

from asyncrl.simulation.scripted_agents import ScriptedAgents
from asyncrl.sizing.cluster_models import ClusterModel, EngineModel, LengthModel, TrainerModel
from asyncrl.sizing.meter import Measured
from asyncrl.sizing.modelled import configured, measure

ENGINES, TURNS, MEAN = 2, 4, 200
TOOL = 10.0
"""Seconds of a tool for each that a call takes to decode, in the mean."""
DEPTH = 8
FIRST, LAST = 6, 14
AIM = 0.9
MOST = 4096
"""The largest `agent.concurrency`."""


def run(slots: int, groups: int, agents: ScriptedAgents | None, concurrency: int) -> Measured:
    """A run of so many slots an engine and groups a step."""
    longest = 10 * MEAN
    config = configured(
        ENGINES,
        slots,
        longest,
        staleness={"max_lag": DEPTH, "depth": DEPTH},
        train={"batch_groups": groups},
        agent={"run": "", "concurrency": concurrency}
        if agents is None
        else {
            "run": "scripted:agent",
            "concurrency": concurrency,
            "max_calls": TURNS,
        },
        run={"seed": 1},
    )
    models = ClusterModel(
        engine=EngineModel(decode_ms=[(1, 1e3)]),
        length=LengthModel(mean=MEAN if agents is None else MEAN // TURNS),
        trainer=TrainerModel(token_us=0.0, step_s=1.0),
    )
    return measure(config, models, first=FIRST, last=LAST, agents=agents)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--concurrency",
        default=str(MOST),
        help="agent.concurrency: the episodes that may be live, also where engines can use more",
    )
    parser.add_argument("--slots", type=int, default=16, help="of each of two engines")
    arguments = parser.parse_args()
    slots, began = arguments.slots, time.process_time()
    groups = max(1, ENGINES * slots // 4)
    print(f"{'':<34}{'busy':>7}{'s/step':>9}{'mean lag':>10}{'masked':>9}")

    def row(what: str, found: Measured) -> float:
        busy = found.generated / found.seconds / (ENGINES * slots)
        print(
            f"{what:<34}{busy:>7.3f}{found.step_s:>9.0f}{found.lag:>10.2f}{found.masked:>9.1%}",
            flush=True,
        )
        return busy

    alone = row("single turn", run(slots, groups, None, MOST))
    budget = 10 * MEAN // TURNS
    row("no tools", run(slots, groups, ScriptedAgents(TURNS, budget, 0.0), MOST))
    think_s = TOOL * MEAN / TURNS
    for concurrency in map(int, arguments.concurrency.split(",")):
        agents = ScriptedAgents(TURNS, budget, think_s)
        what = "slow tools" + (f", at most {concurrency}" if concurrency < MOST else "")
        busy = row(what, run(slots, groups, agents, concurrency))
        print(f"{'':<6}over the single turn {busy / alone:.3f} (aim: {AIM})")
    print(f"{time.process_time() - began:.0f} s of this machine")


if __name__ == "__main__":
    main()
