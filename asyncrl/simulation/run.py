"""One seed, from its plan of faults to its report. A report says of every life why it ended; an end
that no fault explains is a violation."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

import trio

from asyncrl.config import Config
from asyncrl.experience.events import Published
from asyncrl.explain.curve import EvaluationPoint, StepPoint, point_of
from asyncrl.simulation import policy
from asyncrl.simulation.causes import unexplained
from asyncrl.simulation.checker.checker import Checker
from asyncrl.simulation.checker.reference_growth import due_sizes
from asyncrl.simulation.checker.reference_steps import of_steps
from asyncrl.simulation.checker.reference_trees import group_of_trees
from asyncrl.simulation.fake_learner import loss_of
from asyncrl.simulation.fake_world import BETWEEN_LIVES_S, FakeWorld
from asyncrl.simulation.faults import Fault, agents_plan, carry_out, plan
from asyncrl.simulation.game_worlds import GamePlan, GameReport, play_games
from asyncrl.simulation.injector import Injector
from asyncrl.simulation.observer import Violation
from asyncrl.simulation.policy import Rewards
from asyncrl.simulation.shapes import drawn, drawn_agents, speeds
from asyncrl.simulation.task_order import replayable
from asyncrl.simulation.themes import Shape
from asyncrl.simulation.virtual_clock import VirtualClock
from asyncrl.simulation.world import LifeOutcome

LIVES = 40
"""Lives after which a run that never finishes is stuck."""
LIMIT_S = 4 * 3600.0
"""Virtual seconds after which it is, beside those of agents that hang."""
STEPS = 3_000_000
"""Task steps after which it is."""
WAITS_EVERY = 64

NOTHING_TO_LEARN = "all filtered", "had rewards that differ"
"""Parts of the reasons of a run from which nothing can be learned."""


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


class _Steps(trio.abc.Instrument):
    """Instrument of trio that has the checker look after each step of a task."""

    def __init__(self, world: FakeWorld, checker: Checker) -> None:
        self._world, self._checker = world, checker
        self.count = 0

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        self.count += 1
        try:
            self._checker.look(self._world.coordinator)
            if self.count % WAITS_EVERY == 0:
                for process in self._world.processes.values():
                    self._checker.look_at_waits(process.name, process.waits)
                self._look_at_engines()
                self._checker.look_at_disk(self._world.sim_disk.last)
            if self.count > STEPS:
                self._checker.violated(
                    "liveness", f"{STEPS} steps of tasks, and the run is not over"
                )
        except Exception as error:  # noqa: BLE001 (trio would only log it)
            self._checker.violated("the checker", repr(error), error)

    def _look_at_engines(self) -> None:
        coordinator = self._world.processes.get("coordinator-0")
        self._checker.look_at_debts(coordinator is None or coordinator.frozen)
        for process in self._world.processes.values():
            if process.engine is not None and process.alive:
                start = self._world.start_of(process)
                engine = process.engine
                self._checker.look_at_engine(start, engine.kept, engine.held)


def simulate(
    seed: int, *, config: Config | None = None, faults: Sequence[Fault] | None = None
) -> SeedReport:
    """Run a seed to its end. `config` and `faults` are those of the seed's shape unless given."""
    shape = drawn(seed) if config is None else Shape(config, speeds(seed), Rewards())
    return _simulated(seed, shape, plan(seed, shape.kinds) if faults is None else faults)


def simulate_agents(seed: int, *, config: Config | None = None) -> SeedReport:
    """Run a seed's run whose rollouts are episodes to its end, as `simulate` does its other run."""
    shape = drawn_agents(seed)
    faults = agents_plan(seed, shape.kinds)
    return _simulated(seed, shape if config is None else shape._replace(config=config), faults)


def simulate_games(seed: int, plan: GamePlan | None = None) -> GameReport:
    """Run the runs of a seed's games to their end."""
    with silence():
        return play_games(seed, plan or GamePlan())


def _simulated(seed: int, shape: Shape, faults: Sequence[Fault]) -> SeedReport:
    clock = VirtualClock()
    with replayable(seed), silence():
        return trio.run(
            partial(_run, seed, shape, faults, clock), clock=clock, strict_exception_groups=True
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


async def _cancel_after(seconds: Callable[[], float], scope: trio.CancelScope) -> None:
    """Cancel so many virtual seconds after the beginning, which may become more."""
    while trio.current_time() < (end := seconds()):  # noqa: ASYNC110  # it moves
        await trio.sleep_until(end)
    scope.cancel()


async def _run(seed: int, shape: Shape, faults: Sequence[Fault], clock: VirtualClock) -> SeedReport:
    checker = Checker(seed, shape.config, shape.rewards, steady=shape.steady)
    world = FakeWorld(
        seed,
        shape.config,
        checker,
        shape.speeds,
        shape.rewards,
        steady=shape.steady,
        cling=shape.cling,
    )
    checker.prompts = world.prompts()
    checker.clock = trio.current_time
    injector = Injector(world, clock)
    steps = _Steps(world, checker)
    trio.lowlevel.add_instrument(steps)

    def limit_s() -> float:
        """Virtual seconds that it may take: agents may hang one after the other."""
        return LIMIT_S + shape.config.agent.episode_s * injector.injected["agent_hangs"]

    try:
        with trio.CancelScope() as limit:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_cancel_after, limit_s, limit)
                checker.stop = nursery.cancel_scope.cancel
                nursery.start_soon(carry_out, faults, injector)
                await _live(world, injector)
                nursery.cancel_scope.cancel()
    except BaseException as error:
        if checker.violation is None:
            raise
        del error
    if limit.cancelled_caught:
        checker.violated("liveness", f"{limit_s():g} virtual seconds, and the run is not over")
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
    """Life after life, until the run is done, whether it heals or somebody resumes it."""
    for _ in range(LIVES):
        injector.life()
        ending = await world.life()
        if ending.finished and "stopped early" not in ending.reason:
            return
        if any(part in ending.reason for part in NOTHING_TO_LEARN):
            return  # the checker has seen that it is so
        if why := unexplained(ending.reason, world.config, injector):
            world.observer.violated("causes", why)
        await trio.sleep(BETWEEN_LIVES_S)
    world.observer.violated(
        "liveness",
        f"the run did not finish in {LIVES} lives, the last of which ended: "
        f"{world.lives[-1].reason}",
    )


def _judge(world: FakeWorld, checker: Checker) -> None:
    """Check a finished run: it has done its steps and, if nothing may lag and nothing was lost, its
    weights are those of synchronous training."""
    config, reason = world.config, world.lives[-1].reason
    last = max(checker.lineage)
    given_up = any(part in reason for part in NOTHING_TO_LEARN)
    checker.hold(
        "liveness",
        last == config.train.steps or "used up" in reason or given_up,
        "the run is over after {} of {} steps: {}",
        last,
        config.train.steps,
        reason,
    )
    filtered = config.rollout.filter != "none" and config.train.advantage != "reinforce_pp"
    _judge_curve(world, checker, last, complete=not given_up)
    hopeless = world.rewards.equal and not world.rewards.but
    if hopeless and filtered and not checker.band:  # lengths differ
        checker.hold("liveness", given_up, "nothing could be learned, and the end was: {}", reason)
    lost = {
        reason: count
        for reason, count in checker.reference.discarded.items()
        if reason not in ("evaluation", "truncated")
    }
    # groups of which all was cut take no place in a step
    cut = "discarded as truncated" in checker.reference.ended.values()
    task, rollout, train, staleness = config.task, config.rollout, config.train, config.staleness
    plain = (
        task.curriculum == "in_order"
        and rollout.sizing in ("fixed", "dars", "dars_hard", "xrpo")
        and rollout.overprovision == 1.0
        and not train.replay_groups
        and train.keep == "all"
        and rollout.prune == "none"
        and rollout.fork == "off"
        and config.foreign.source == "none"
        and not config.agent.run
    )
    if staleness.max_lag == staleness.depth == 0 and plain and not lost and not cut:
        prompts, groups = world.prompts(), config.train.batch_groups
        order = [prompts.train_item(place) for place in range(last * groups)]
        data = [(index, prompts.ids("train", index)) for index in order if index is not None]
        due = policy.synchronous(
            world.seed,
            [data[step * groups : (step + 1) * groups] for step in range(last)],
            group_size=config.rollout.group_size,
            longest=config.rollout.max_new_tokens,
            temperature=config.rollout.temperature,
            rewards=world.rewards,
            masked=checker.masks_cut,
            band=checker.band,
            most=0 if rollout.sizing == "fixed" else rollout.group_size_max,
            trees=None if rollout.fork == "off" else partial(group_of_trees, config),
            grown=lambda size, rewards, solved: max(due_sizes(config, size, rewards, solved, 0.5)),
        )
        made = [checker.lineage[version] for version in range(last + 1)]
        checker.hold(
            "synchronous",
            made == due,
            "at lag 0 the weights are not those of synchronous training: {} {}",
            made,
            due,
        )


def _judge_curve(world: FakeWorld, checker: Checker, last: int, *, complete: bool) -> None:
    """Check that each version has one line in the curve, of the step that made it, in order, and
    each evaluation one. Where the run gave up, nobody may have heard of its last step; where the
    disk had no room when the run was over, the journal has lost its last events as well; the lines
    of versions that it knows to be published are there. Each has the tokens of its own step."""
    points = [point_of(line) for line in world.sim_disk.lines]
    steps = [point for point in points if isinstance(point, StepPoint)]
    evaluated = [point.version for point in points if isinstance(point, EvaluationPoint)]
    made = [(point.version, point.metrics["loss"]) for point in steps]
    durable = checker.events[: world.sim_disk.last]
    lost = len(durable) < len(checker.events)
    known = max((event.version for event in durable if isinstance(event, Published)), default=0)
    due = [(version, loss_of(checker.lineage[version])) for version in range(1, last + 1)]
    checker.hold(
        "curve",
        made in (due, due if complete else due[:-1])
        or (lost and len(made) >= known and made == due[: len(made)]),
        "the lines of steps are {}, and the steps were {}",
        made,
        due,
    )
    accounts = of_steps(checker.events)
    for point in steps:
        due_account = accounts.get(point.version - 1, (0, Counter()))
        checker.hold(
            "curve",
            due_account == (point.trained, Counter(point.discarded)),
            "the line of version {} has trained {} and discarded {}; by the events these are {}",
            point.version,
            point.trained,
            point.discarded,
            due_account,
        )
    checker.hold(
        "curve",
        None not in points and len(set(evaluated)) == len(evaluated),
        "a line is damaged, or the evaluations {} have one twice",
        evaluated,
    )
