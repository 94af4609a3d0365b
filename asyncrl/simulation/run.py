"""One seed, from its plan of faults to its report. A report says of every life why it ended; an end
that no fault explains is a violation."""

from __future__ import annotations

import logging
import math
import random
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

import msgspec
import trio
from trio.testing import MockClock

from asyncrl.config import Config
from asyncrl.simulation import policy
from asyncrl.simulation.checker.checker import Checker
from asyncrl.simulation.fake_world import BETWEEN_LIVES_S, FakeWorld, Speeds
from asyncrl.simulation.fakes import prompts_of
from asyncrl.simulation.faults import Fault, carry_out, plan
from asyncrl.simulation.injector import Injector
from asyncrl.simulation.observer import Violation
from asyncrl.simulation.task_order import replayable
from asyncrl.simulation.world import LifeOutcome, World

LIVES = 40
"""Lives after which a run that never finishes is stuck."""
LIMIT_S = 4 * 3600.0
"""Virtual seconds after which it is."""
STEPS = 3_000_000
"""Task steps after which it is."""
WAITS_EVERY = 64

_FROZEN = r"stop_.*|link_.*|clock_jumps"
_ENGINES = r"engine_.*|garbage_.*|lost_.*|wrong_weights|reception_fails|transfer_.*|kill_rollout"
EXPLAINED: dict[str, str] = {
    r"stopped early|grace period": r"restart_everything",
    r"everything was killed": r"kill_everything|checkpoint_damaged",
    r"coordinator-0 was killed": r"kill_coordinator",
    r"coordinator-0 ended with exit code 1; .*\nJournalError: the simulated disk is": r"disk_.*",
    r"the last checkpoint was not written": r"checkpoint_fails",
    r"stands still|coordinator-0 ended with exit code 0": r"stop_coordinator|clock_jumps",
    r"trainer": rf"kill_trainer|checkpoint_cut|transfer_.*|{_FROZEN}",
    r"no token and no step": rf"verifier_.*|disk_.*|{_ENGINES}|{_FROZEN}",
    r"publications failed in a row": rf"{_ENGINES}|{_FROZEN}",
    r"(rollout|reward)-\d+ ": rf"kill_.*|restart_beside|verifier_.*|{_ENGINES}|{_FROZEN}",
}
"""Reasons for which a life may end badly (patterns), and the kinds of fault (patterns) of which at
least one must have happened in that life."""


@dataclass
class SeedReport:
    """Report of one seed. `discarded` counts the tokens that no step trained, by reason."""

    seed: int
    lives: list[LifeOutcome] = field(default_factory=list)
    virtual_s: float = 0.0
    events: int = 0
    task_steps: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    checks: Counter[str] = field(default_factory=Counter)
    digest: str = ""
    versions: dict[int, int] = field(default_factory=dict)
    lost_tail: int = 0
    discarded: Counter[str] = field(default_factory=Counter)
    violation: Violation | None = None

    @property
    def ok(self) -> bool:
        return self.violation is None


AHEAD = ((0, 0), (0, 0), (1, 0), (1, 1), (2, 1), (4, 2))
"""Pairs of max_lag and depth."""


def configured(seed: int) -> Config:
    """A small run, of a shape that the seed draws."""
    draw = random.Random(f"config/{seed}")
    max_lag, depth = draw.choice(AHEAD)
    unit = draw.choice(("group", "group", "rollout"))
    batch_groups, group_size = draw.choice((1, 2, 3)), draw.choice((2, 3)) + (unit == "rollout")
    exact = not max_lag and draw.random() < 0.8  # nothing but the seed has a say in the weights
    overprovision = draw.choice((1.0, 1.0, 1.5, 2.0)) if max_lag else 1.0
    free = (
        max_lag and draw.random() < 0.5
    )  # of the order of admission, for as many groups as max_lag allows
    filtered = draw.choice(("none", "none", "zero_variance"))
    more = random.Random(f"more/{seed}")
    most = depth * batch_groups + math.ceil(overprovision * batch_groups)
    window = max(0, (max_lag + 1) * batch_groups - most + 1) if free else 0
    settings: dict[str, dict[str, object]] = {
        "task": {
            "eval_size": draw.choice((0, 3)),
            "train_size": draw.choice((7, 1000)),
            "epochs": more.choice((0, 0, 1)),
            "verdict_s": 2.0,
            "curriculum": "in_order"
            if exact
            else draw.choice(("in_order", "in_order", "unsolved", "difficulty")),
        },
        "engine": {
            "kind": "scripted",
            "slots": draw.choice((2, 4, 8)),
            "chunk_tokens": draw.choice((2, 4)),
            "context_tokens": 64,
        },
        "rollout": {
            "actors": draw.choice((1, 2, 3)),
            "group_size": group_size,
            "group_size_max": group_size + draw.choice((0, 2)),
            "sizing": "fixed"
            if exact or unit == "rollout"
            else draw.choice(("fixed", "fixed", "difficulty")),
            "k_min": draw.choice((1, 2)) if unit == "rollout" else draw.choice((1, 2, 2)),
            "max_new_tokens": draw.choice((8, 20)),
            "filter": "none" if exact and more.random() < 0.7 else filtered,
            "mode": draw.choice(("in_flight", "in_flight", "batch")),
            "overprovision": overprovision,
            "max_resumes": 0 if exact else draw.choice((0, 0, 0, 1, 3)),
            "attempts": draw.choice((3, 20)),
            "lease_s": 8.0,
        },
        "train": {
            "steps": draw.choice((4, 6)),
            "batch_groups": batch_groups,
            "step_tokens": draw.choice((0, 0, 0, 10, 40)) if max_lag else 0,
            "unit": unit,
            "advantage": "first_k"
            if unit == "rollout"
            else draw.choice(("grpo", "grpo", "reinforce_pp")),
            "replay_groups": draw.choice((0, 0, 0, 1)) if unit == "group" and not exact else 0,
            "eval_every": 2,
            "checkpoint_every": draw.choice((1, 2, 2, 0)),
            "micro_tokens": draw.choice((64, 128)),
        },
        "staleness": {
            "max_lag": max_lag,
            "depth": depth,
            "window": window,
            "proximal": draw.choice(("behaviour", "behaviour", "boundary")),
            "finish_on": "own" if unit == "group" and more.random() < 0.2 else "mixed",
            "on_stale": draw.choice(("mask", "drop", "train") + ("restart",) * (unit == "group")),
        },
        "publication": {"deadline_s": 4.0},
        "reward": {"actors": draw.choice((1, 2)), "concurrency": 4},
        "journal": {"commit_ms": draw.choice((0, 20, 100, 500))},
        "supervision": {"stall_s": 60.0, "restarts": 20},
        "run": {"seed": seed},
    }
    if settings["train"]["step_tokens"] and window and settings["staleness"]["on_stale"] == "drop":
        settings["staleness"]["on_stale"] = (
            "mask"  # such a step may be so small that no window bounds lag
        )
    return msgspec.convert(settings, Config)


class _Steps(trio.abc.Instrument):
    """Instrument of trio that has the checker look after each step of a task."""

    def __init__(self, world: World, checker: Checker) -> None:
        self._world, self._checker = world, checker
        self.count = 0

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        self.count += 1
        try:
            self._checker.look(self._world.coordinator)
            if self.count % WAITS_EVERY == 0:
                for process in self._world.processes.values():
                    self._checker.look_at_waits(process.name, process.waits)
            if self.count > STEPS:
                self._checker.violated(
                    "liveness", f"{STEPS} steps of tasks, and the run is not over"
                )
        except Exception as error:  # noqa: BLE001 (trio would only log it)
            self._checker.violated("the checker", repr(error), error)


def simulate(
    seed: int, *, config: Config | None = None, faults: Sequence[Fault] | None = None
) -> SeedReport:
    """Run a seed to its end. `config` and `faults` are the seed's own unless given."""
    config = configured(seed) if config is None else config
    faults = plan(seed) if faults is None else faults
    clock = MockClock(autojump_threshold=0)
    with replayable(seed), silence():
        return trio.run(
            partial(_run, seed, config, faults, clock), clock=clock, strict_exception_groups=True
        )


@contextmanager
def silence() -> Iterator[None]:
    """Log nothing inside the block: nobody reads the logs of a thousand runs."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


async def _run(seed: int, config: Config, faults: Sequence[Fault], clock: MockClock) -> SeedReport:
    draw = random.Random(f"speeds/{seed}")
    pace = draw.choice((0.01, 0.03, 0.06))
    speeds = Speeds(
        pace=lambda: pace * draw.choice((0.5, 1.0, 1.0, 4.0)),
        start_s=lambda: draw.uniform(0.05, 0.6),
        step_s=draw.choice((0.02, 0.2, 0.5)),
    )
    checker = Checker(seed, config, lambda cursor: None)
    world = FakeWorld(seed, config, checker, speeds)
    prompts = world.prompts()
    checker.train_item = prompts.train_item
    checker.clock = trio.current_time
    injector = Injector(world, clock)
    steps = _Steps(world, checker)
    trio.lowlevel.add_instrument(steps)
    try:
        with trio.move_on_after(LIMIT_S) as limit:
            async with trio.open_nursery() as nursery:
                checker.stop = nursery.cancel_scope.cancel
                nursery.start_soon(carry_out, faults, injector)
                await _live(world, injector)
                nursery.cancel_scope.cancel()
    except BaseException as error:
        if checker.violation is None:
            raise
        del error
    if limit.cancelled_caught:
        checker.violated("liveness", f"{LIMIT_S:g} virtual seconds, and the run is not over")
    if checker.violation is None:
        _judge(world, checker)
    return SeedReport(
        seed=seed,
        lives=world.lives,
        virtual_s=trio.current_time(),
        events=len(checker.events),
        task_steps=steps.count,
        faults=injector.injected,
        checks=checker.checks,
        digest=checker.digest.hexdigest(),
        versions=dict(checker.lineage),
        lost_tail=checker.lost_tail,
        discarded=checker.reference.tokens_discarded,
        violation=checker.violation,
    )


async def _live(world: FakeWorld, injector: Injector) -> None:
    """Life after life, until the run is done."""
    for _ in range(LIVES):
        injector.life()
        ending = await world.life()
        if ending.finished and "stopped early" not in ending.reason:
            return
        if (
            pattern := next(
                (pattern for pattern in EXPLAINED if re.search(pattern, ending.reason)), None
            )
        ) is None:
            world.observer.violated(
                "liveness", f"a life ended for a reason that no fault has: {ending.reason}"
            )
        elif not any(re.fullmatch(EXPLAINED[pattern], kind) for kind in +injector.here):
            world.observer.violated(
                "liveness",
                f"no fault of this life explains its end: {ending.reason}; there were "
                f"{dict(injector.here)}",
            )
        await trio.sleep(BETWEEN_LIVES_S)
    world.observer.violated(
        "liveness",
        f"the run did not finish in {LIVES} lives, the last of which ended: "
        f"{world.lives[-1].reason}",
    )


def _judge(world: FakeWorld, checker: Checker) -> None:
    """Check a finished run: it has done its steps and, if nothing may lag and nothing was lost, its
    weights are those of synchronous training."""
    config = world.config
    last = max(checker.lineage)
    done = last == config.train.steps or "used up" in world.lives[-1].reason
    checker.hold(
        "liveness",
        done,
        "the run is over after {} of {} steps: {}",
        last,
        config.train.steps,
        world.lives[-1].reason,
    )
    lost = {
        reason: count
        for reason, count in checker.reference.discarded.items()
        if reason != "evaluation"
    }
    task, rollout, train, staleness = config.task, config.rollout, config.train, config.staleness
    plain = (
        task.curriculum == "in_order"
        and rollout.sizing == "fixed"
        and rollout.overprovision == 1.0
        and not train.replay_groups
    )
    if staleness.max_lag == staleness.depth == 0 and plain and not lost:
        steps = prompts_of(last, config.train.batch_groups, world.prompts().train_item)
        due = policy.synchronous(
            world.seed, steps, config.rollout.group_size, config.rollout.max_new_tokens
        )
        made = [checker.lineage[version] for version in range(last + 1)]
        checker.hold(
            "synchronous",
            made == due,
            "at lag 0 the weights are not those of synchronous training: {} {}",
            made,
            due,
        )
