"""A plan of faults, and its execution. Invariant: a plan is a function of the seed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import trio

from asyncrl.simulation.agent_faults import AGENT_KINDS, OF_CROWDED
from asyncrl.simulation.fault_kinds import KINDS, told_to_end
from asyncrl.simulation.injector import Injector

FROM_S, UNTIL_S = 0.05, 4.0
"""Range of the times at which faults begin, in virtual seconds of a run."""
ALL_KINDS = KINDS | AGENT_KINDS | OF_CROWDED | {"told_to_end": told_to_end}
LIE_IN_WAIT = {
    "agent_crashes",
    "kill_agents_amid",
    "kill_coordinator_amid",
    "kill_everything_amid",
    "lost_committed",
    "lost_prepared",
    "verdict_twice",
    "garbage_future",
    "wrong_weights",
    "reception_fails",
    "transfer_fails",
    "transfer_flaky",
}
"""Kinds that wait for their moment, and therefore begin sooner."""


@dataclass(frozen=True)
class Fault:
    """A kind, when it begins (virtual seconds), and the seed of its own choices."""

    at: float
    kind: str
    seed: int


def plan(seed: int, more: Sequence[str] = ()) -> list[Fault]:
    """The faults of a seed: up to ten different kinds, and those that its theme has `more`; none
    for each 25th seed. In every fifth of the others a rollout actor is told to end besides, by
    draws of its own."""
    told = [Fault(random.Random(f"told/{seed}").uniform(FROM_S, UNTIL_S), "told_to_end", seed)]
    return _drawn(seed, f"plan/{seed}", sorted(KINDS), more) + told * (seed % 5 == 2)


def agents_plan(seed: int, more: Sequence[str] = ()) -> list[Fault]:
    """The faults of a seed's run whose rollouts are episodes: of the kinds that agents meet, of
    those that every run does, and of those that a crowded one has besides, by draws of its own."""
    of_agents = _drawn(seed, f"agents' plan/{seed}", sorted(AGENT_KINDS), ())
    return sorted(of_agents + plan(seed, more)[::2], key=lambda fault: fault.kind) + _crowding(seed)


def crowded(seed: int) -> bool:
    """True if much happens between two turns of the coordinator's loop in the agents' run of a
    seed."""
    return seed % 11 == 9


def _crowding(seed: int) -> list[Fault]:
    draw = random.Random(f"crowded/{seed}")
    return [
        Fault(draw.uniform(FROM_S, UNTIL_S / 4), kind, draw.getrandbits(32)) for kind in OF_CROWDED
    ] * crowded(seed)


def _drawn(seed: int, source: str, names: list[str], more: Sequence[str]) -> list[Fault]:
    draw = random.Random(source)
    turns = {
        names[(step * seed + step) % len(names)] for step in (1, 3, 5, 7)
    }  # so that no kind is left to chance alone
    chosen = turns.union(draw.sample(names, draw.randint(0, 6)), more) if seed % 25 else set()
    return [
        Fault(
            draw.uniform(FROM_S, UNTIL_S) / (1 + 2 * (name in LIE_IN_WAIT)),
            name,
            draw.getrandbits(32),
        )
        for name in sorted(chosen)
    ]


async def carry_out(faults: Sequence[Fault], injector: Injector) -> None:
    """Inject all faults, each at its time."""

    async def one(fault: Fault) -> None:
        await trio.sleep(fault.at)
        await ALL_KINDS[fault.kind](injector, random.Random(fault.seed))

    async with trio.open_nursery() as nursery:
        for fault in faults:
            nursery.start_soon(one, fault)
