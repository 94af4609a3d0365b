"""A forecast of a run on a cluster: its own settings in virtual time, with models of its slow
parts. Invariant: admission, placement, order, lag and waste are those of the product's own
coordinator.

Parts that are not modelled are left out and listed (`ASSUMED`): evaluations, checkpoints, faults.

A simulated token stands for `grain` real ones, so that long responses cost no more than short ones:
lengths and budgets are divided by it, and the seconds of a token multiplied.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial

import msgspec
import trio
from trio.testing import MockClock

from asyncrl.config import Config, ConfigError
from asyncrl.config.chunk_tokens import chunk_tokens
from asyncrl.simulation.run import silence
from asyncrl.simulation.task_order import replayable
from asyncrl.sizing.cluster_models import ClusterModel, EngineModel, LengthModel
from asyncrl.sizing.meter import Measured, Meter
from asyncrl.sizing.modelled import ModelledWorld, live, rare_collections

LONGEST = 400
"""Simulated tokens of the longest response, about, if it has more."""
CHUNKS = 16
"""Chunks of the longest response."""
BEGINNING = 0.2
"""Share of the time that is not measured, in which slots and queue fill."""
PROGRESS_S = 1.0
"""Seconds between two progress reports."""

ASSUMED = (
    "evaluations, checkpoints, faults and restarts are left out",
    "trainers share the tokens of a micro-batch evenly, and a step ends alike with any number",
    "lengths do not change as the policy learns, and responses of a group are independent",
    "the waiting of engines for each other in a publication is left out",
    "engines on the trainer's cores pause while it computes, and take nothing from it",
)


class Cluster(msgspec.Struct, frozen=True):
    """Numbers of engines and trainers; `price` is that of a device for an hour, in any currency."""

    engines: int
    trainers: int
    price: float | None = None


class Forecast(msgspec.Struct, frozen=True, kw_only=True):
    """A forecast. `hours` are the measured hours of virtual time after the beginning.

    Idle shares are from 0 to 1: of the trainer's time, of its cores', which other engines may have
    meanwhile, and of that of engines with nothing to decode; `busy_slots` is the share of all slots
    that decode, in the mean. `lag` are shares of the tokens that steps took, by lag; `waste`
    shares of the tokens with an outcome, by the reason for which they were not trained.
    `device_hours` are of a thousand steps, and `cost` is theirs.
    """

    engines: int
    trainers: int
    hours: float
    steps: int
    steps_per_hour: float
    step_s: float
    idle_engines: float
    idle_trainer: float
    idle_trainer_cores: float
    busy_slots: float
    lag_mean: float
    lag_max: int
    lag: dict[int, float]
    waste: dict[str, float]
    generated_per_s: float
    trained_per_s: float
    device_hours: float
    cost: float | None
    grain: int
    events: int

    @property
    def wasted(self) -> float:
        """The share of tokens that no step trains."""
        return sum(self.waste.values())


def refuse_unmodelled(config: Config) -> None:
    """Raise ConfigError for settings that are not modelled."""
    if config.agent.run:
        raise ConfigError(
            "agent.run: episodes of agents are not modelled; forecast the run with agent.run = "
            '"", and the tokens of an episode as the length of a response.'
        )
    if config.staleness.finish_on == "own":
        raise ConfigError(
            'staleness.finish_on: engines are modelled with one version each; set it to "mixed".'
        )
    if config.task.mix:
        raise ConfigError("task.mix: several tasks are not modelled; name one with task.name.")


def grain_of(config: Config) -> int:
    """The number of real tokens for which a simulated one stands, so that the longest response has
    LONGEST simulated tokens."""
    return max(1, config.rollout.max_new_tokens // LONGEST)


def scaled(config: Config, models: ClusterModel, grain: int) -> tuple[Config, ClusterModel]:
    """The same run, in which a token stands for `grain` tokens."""
    rollout, engine, train = config.rollout, config.engine, config.train
    longest = max(1, round(rollout.max_new_tokens / grain))
    prompt = -(-models.length.prompt // grain) + 8  # digits of a number, and some text
    replace = msgspec.structs.replace
    small = replace(
        config,
        task=replace(config.task, eval_size=0, train_size=10**6, epochs=0),
        engine=replace(
            engine,
            chunk_tokens=max(1, round(chunk_tokens(config) / grain), longest // CHUNKS),
            context_tokens=longest + max(prompt, 16),
        ),
        rollout=replace(
            rollout,
            max_new_tokens=longest,
            overlong_band=min(longest, round(rollout.overlong_band / grain)),
            lease_s=max(rollout.lease_s, 1e5),
        ),
        train=replace(
            train,
            steps=10**6,
            eval_every=0,
            checkpoint_every=0,
            ranks=1,
            device="cpu",
            step_tokens=-(-train.step_tokens // grain),
            micro_tokens=max(train.micro_tokens // grain, longest + prompt),
        ),
        publication=replace(config.publication, path="staged", dtype="model"),
        supervision=replace(config.supervision, stall_s=1e6, compute_s=1e6),
        journal=replace(config.journal, commit_ms=1000),
    )
    engine_model, lengths = models.engine, models.length
    return small, replace(
        models,
        engine=EngineModel(
            decode_ms=[(slots, ms * grain) for slots, ms in engine_model.decode_ms],
            prefill_tokens_per_s=engine_model.prefill_tokens_per_s / grain,
            kv_tokens=-(-engine_model.kv_tokens // grain),
            devices=engine_model.devices,
        ),
        length=LengthModel(
            mean=lengths.mean / grain,
            sigma=lengths.sigma,
            quantiles=lengths.quantiles and [tokens / grain for tokens in lengths.quantiles],
            prompt=lengths.prompt // grain,
        ),
        trainer=replace(models.trainer, token_us=models.trainer.token_us * grain),
    )


def forecast(
    config: Config,
    models: ClusterModel,
    cluster: Cluster,
    hours: float,
    *,
    say: Callable[[float], object] = lambda share: None,
    grain: int | None = None,
    part: int = 1,
) -> Forecast:
    """Run these settings on a cluster for `hours` virtual hours, or on a `part` of it, with a part
    of each step. `say` is called about once a second of real time with the share of them that is
    over. Raises ConfigError if nothing can be measured: for settings that are not modelled, a run
    that ends, or fewer than two steps in that time."""
    refuse_unmodelled(config)
    if config.rollout.lent_actors >= cluster.engines:
        raise ConfigError(
            f"rollout.lent_actors is {config.rollout.lent_actors}, and of the cluster's engines "
            f"(--engines: {cluster.engines}) one at least needs devices of its own: lower it."
        )
    grain = grain or grain_of(config)
    replace, train = msgspec.structs.replace, config.train
    engines = max(1, round(cluster.engines / part))
    lent = min(engines - 1, round(config.rollout.lent_actors * engines / cluster.engines))
    own = replace(
        config,
        rollout=replace(config.rollout, actors=engines, lent_actors=lent),
        train=replace(
            train,
            batch_groups=max(1, round(train.batch_groups * engines / cluster.engines)),
            step_tokens=round(train.step_tokens * engines / cluster.engines),
            micro_tokens=max(1, round(train.micro_tokens * engines / cluster.engines)),
        ),
    )
    small, fitted = scaled(own, models, grain)
    trainers = cluster.trainers * engines / cluster.engines
    meter, reason = _lived(small, fitted, trainers, 3600.0 * hours, say)
    if meter.violation is not None:
        raise ConfigError(f"the modelled run broke a rule of the product: {meter.violation}.")
    since = BEGINNING * 3600.0 * hours
    begin = next((mark for mark in meter.marks if mark.at >= since), None)
    if reason or begin is None or meter.marks[-1].version < begin.version + 2:
        made = meter.marks[-1].version if meter.marks else 0
        why = f"the modelled run ended: {reason}" if reason else f"{made} steps were made in it"
        raise ConfigError(
            f"--hours {hours:g}: too little to measure ({why}); give more hours, more engines or "
            "a smaller train.batch_groups."
        )
    measured = meter.measured(begin, meter.marks[-1])
    return summed(measured, own, models, cluster, grain)


def _lived(
    config: Config,
    models: ClusterModel,
    trainers: float,
    seconds: float,
    say: Callable[[float], object],
) -> tuple[Meter, str]:
    """The meter of a run after `seconds` virtual seconds, and the reason if it ended before."""
    meter = Meter(lambda: world.actor_seconds())
    world = ModelledWorld(config, meter, models, trainers)

    async def main() -> str:
        with trio.move_on_after(seconds):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_tell, seconds, say)
                reason = await live(world, meter)
                nursery.cancel_scope.cancel()
            return reason
        return ""

    with replayable(config.run.seed), silence(), rare_collections():
        reason = trio.run(
            partial(main), clock=MockClock(autojump_threshold=0), strict_exception_groups=True
        )
    return meter, reason


async def _tell(seconds: float, say: Callable[[float], object]) -> None:
    """Report the progress of the virtual time."""
    last = time.monotonic()
    while True:
        await trio.sleep(max(1.0, seconds / 1000))
        if time.monotonic() - last > PROGRESS_S:
            last = time.monotonic()
            say(trio.current_time() / seconds)


def summed(
    measured: Measured, config: Config, models: ClusterModel, cluster: Cluster, grain: int
) -> Forecast:
    """The forecast from a measurement with the engines of `config`."""
    engines = config.rollout.actors
    engine_s, whole = engines * measured.seconds, cluster.engines / engines
    became = measured.trained + sum(measured.discarded.values())
    of_engines = cluster.engines - config.rollout.lent_actors * whole
    devices = of_engines * models.engine.devices + cluster.trainers
    device_hours = 1000 * measured.step_s * devices / 3600
    return Forecast(
        engines=cluster.engines,
        trainers=cluster.trainers,
        hours=measured.seconds / 3600,
        steps=measured.steps,
        steps_per_hour=3600 / measured.step_s,
        step_s=measured.step_s,
        idle_engines=min(1.0, measured.engines_idle_s / engine_s),
        idle_trainer=min(1.0, measured.idle),
        idle_trainer_cores=min(1.0, measured.idle_cores),
        busy_slots=measured.busy_s / engine_s / config.engine.slots,
        lag_mean=measured.lag,
        lag_max=measured.largest_lag,
        lag=_shares(measured.arrived, sum(measured.arrived.values())),
        waste={why: count / became for why, count in sorted(measured.discarded.items()) if count},
        generated_per_s=grain * whole * measured.generated / measured.seconds,
        trained_per_s=grain * whole * measured.trained / measured.seconds,
        device_hours=device_hours,
        cost=None if cluster.price is None else device_hours * cluster.price,
        grain=grain,
        events=measured.events,
    )


def _shares(counts: Mapping[int, int], whole: int) -> dict[int, float]:
    return {lag: counts[lag] / whole for lag in sorted(counts) if counts[lag]}
