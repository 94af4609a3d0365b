"""A cluster of a thousand engines in virtual time, and what its coordinator costs. Invariant:
all but the engines, the verifiers and the learner is the product's own code.

Lengths of responses have a heavy tail (log-logistic, median `MEDIAN`), as those of models that
reason. All tokens are alike. The ledger is checked every second.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import partial

import msgspec
import numpy as np
import trio

from asyncrl.config import Config
from asyncrl.engines.draws import stream
from asyncrl.engines.options import EngineOptions
from asyncrl.engines.protocol import Request
from asyncrl.engines.scripted import Script, ScriptedEngine
from asyncrl.experience.call import RolloutStatus
from asyncrl.simulation import policy
from asyncrl.simulation.fake_world import FakeWorld, Speeds
from asyncrl.simulation.observer import Violation
from asyncrl.simulation.run import silence
from asyncrl.simulation.scripted_agents import ScriptedAgents
from asyncrl.simulation.sim_process import SimProcess
from asyncrl.simulation.task_order import replayable
from asyncrl.simulation.virtual_clock import VirtualClock
from asyncrl.sizing.meter import LedgerChecker
from asyncrl.sizing.modelled import PROMPTS, rare_collections

MEDIAN, TAIL = 300.0, 0.45
SHORTEST, LONGEST = 16, 1200
SLOTS = 8
TURNS = 4
"""Calls of an agent's episode."""


@dataclass(frozen=True)
class Scaled:
    """Counts of a run. `in_flight` is the mean number of rollouts, or of agents' calls, that were
    with engines."""

    engines: int
    virtual_s: float
    events: int
    tokens: int
    steps: int
    in_flight: float
    checks: int
    violation: Violation | None


def configured(engines: int, seed: int, *, agents: bool = False) -> Config:
    """A run that keeps every slot of `engines` engines busy; with `agents`, by their episodes."""
    played = {
        "run": "scripted:agent",
        "actors": max(1, engines // 64),
        "concurrency": 2 * SLOTS * min(engines, 64),
    }
    return msgspec.convert(
        {
            "agent": played if agents else {},
            "task": {"eval_size": 0, "train_size": PROMPTS},
            "engine": {
                "kind": "scripted",
                "slots": SLOTS,
                "chunk_tokens": 256,
                "context_tokens": 4096,
            },
            "rollout": {
                "actors": engines,
                "group_size": 8,
                "max_new_tokens": 2048,
                "filter": "none",
                "lease_s": 6000.0,
            },
            "train": {
                "steps": 10**6,
                "batch_groups": max(1, engines // 4),
                "eval_every": 0,
                "checkpoint_every": 0,
                "micro_tokens": 65536,
            },
            "staleness": {"depth": 8, "max_lag": 16},
            "run": {"seed": seed},
            "supervision": {"stall_s": 600.0},
            "reward": {"actors": max(1, engines // 32)},
        },
        Config,
    )


_IDS, _BEHAVIOUR = np.ones(LONGEST, np.int32), np.full(LONGEST, -1.0, np.float32)


def scale(
    engines: int,
    seconds: float,
    *,
    seed: int = 0,
    seconds_per_token: float = 1.0,
    agents: bool = False,
) -> Scaled:
    """Run `engines` engines for `seconds` virtual seconds. With `agents` a response is an episode
    of `TURNS` calls, between which its agent pauses for as long as the median call takes."""
    with replayable(seed), silence(), rare_collections():
        return trio.run(
            partial(_run, engines, seconds, seed, seconds_per_token, agents),
            clock=VirtualClock(),
            strict_exception_groups=True,
        )


async def _run(
    engines: int, seconds: float, seed: int, seconds_per_token: float, agents: bool
) -> Scaled:
    config = configured(engines, seed, agents=agents)
    checker = LedgerChecker()
    draw = random.Random(seed)
    speeds = Speeds(
        verdict_s=1.0,
        start_s=lambda: draw.uniform(0.1, 5.0),
        trained_token_s=2e-2 / engines,
        step_s=1.0,
    )
    world = FakeWorld(seed, config, checker, speeds)
    parts = TURNS if agents else 1
    if agents:
        world.agents = ScriptedAgents(TURNS, LONGEST // TURNS, MEDIAN / TURNS * seconds_per_token)

    def script(request: Request) -> Script:
        share = (stream(seed, request.key) + 1) / (2**64 + 2)
        tokens = int(min(LONGEST, max(SHORTEST, MEDIAN * (share / (1 - share)) ** TAIL))) // parts
        left = max(1, tokens - request.prefix_tokens)
        return Script(_IDS[:left], _BEHAVIOUR[:left], seconds_per_token)

    def engine(process: SimProcess) -> ScriptedEngine:
        return ScriptedEngine(
            script,
            EngineOptions(
                slots=SLOTS,
                context_tokens=config.engine.context_tokens,
                chunk_tokens=config.engine.chunk_tokens,
            ),
            vocab_size=policy.VOCABULARY,
            idle=process.waits.idle_for,
        )

    world.engine = engine
    in_flight: list[int] = []

    async def look() -> None:
        while True:
            await trio.sleep(seconds / 20)
            in_flight.append(
                sum(
                    call.status is RolloutStatus.LEASED
                    for call in checker.store.experience.calls.values()
                )
            )

    with trio.move_on_after(seconds):
        async with trio.open_nursery() as nursery:
            checker.stop = nursery.cancel_scope.cancel
            nursery.start_soon(look)
            ending = await world.life()
            checker.violated("liveness", f"the run ended: {ending.reason}")
    tokens = checker.store.experience.ledger.tokens
    return Scaled(
        engines=engines,
        virtual_s=trio.current_time(),
        events=checker.count,
        tokens=tokens.total,
        steps=max(checker.lineage),
        in_flight=sum(in_flight[1:]) / max(1, len(in_flight) - 1),
        checks=sum(checker.checks.values()),
        violation=checker.violation,
    )
