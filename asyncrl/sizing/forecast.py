"""A forecast of a run on a cluster: its own settings in virtual time, with models of its slow
parts. Invariant: admission, placement, order, lag and waste are those of the product's own
coordinator.

Parts that are not modelled are left out and listed (`ASSUMED`): evaluations, checkpoints, faults.

A simulated token stands for `grain` real ones, so that long responses cost no more than short ones:
lengths and budgets are divided by it, and the seconds of a token multiplied. What else is coarser
than the run says `effort`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from functools import partial

import msgspec
import trio

from asyncrl.config import Config, ConfigError
from asyncrl.config.flow import max_lag
from asyncrl.config.micro_tokens import micro_tokens
from asyncrl.simulation.run import silence
from asyncrl.simulation.task_order import replayable
from asyncrl.simulation.virtual_clock import VirtualClock
from asyncrl.sizing.cluster_models import ClusterModel, EngineModel, LengthModel, NetworkModel
from asyncrl.sizing.effort import (
    QUICK,
    Effort,
    PrecisionStop,
    beat_of,
    beginning,
    part_for,
    spread,
    tempo_of,
)
from asyncrl.sizing.meter import Measured, Meter
from asyncrl.sizing.modelled import PROMPTS, ModelledWorld, live, rare_collections

LONGEST = 400
"""Simulated tokens of the longest response, about, if it has more."""
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
    `device_hours` are of a thousand steps, and `cost` is theirs. `spread` is half of the interval
    of 95 % of the mean step, as a share of it; None for too few steps. `part` is the divisor of the
    cluster that was simulated, and `whole` is False if the user ended it.
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
    part: int
    spread: float | None
    events: int
    whole: bool

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


def scaled(
    config: Config, models: ClusterModel, grain: int, tempo: float = 1.0, chunks: int = 1
) -> tuple[Config, ClusterModel]:
    """The same run, in which a token stands for `grain` tokens, and a second for `tempo`; the
    longest response is streamed in `chunks`."""
    rollout, engine, train = config.rollout, config.engine, config.train
    longest = max(1, round(rollout.max_new_tokens / grain))
    prompt = -(-models.length.prompt // grain) + 8  # digits of a number, and some text
    replace = msgspec.structs.replace
    small = replace(
        config,
        task=replace(config.task, eval_size=0, train_size=PROMPTS, epochs=0),
        engine=replace(
            engine,
            chunk_tokens=-(-longest // chunks),
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
            micro_tokens=max(micro_tokens(config) // grain, longest + prompt),
        ),
        publication=replace(config.publication, path="staged", dtype="model"),
        supervision=replace(config.supervision, stall_s=1e6, compute_s=1e6),
        journal=replace(config.journal, commit_ms=1000),
    )
    engine_model, lengths = models.engine, models.length
    return small, replace(
        models,
        engine=EngineModel(
            decode_ms=[(slots, ms * grain / tempo) for slots, ms in engine_model.decode_ms],
            prefill_tokens_per_s=engine_model.prefill_tokens_per_s / grain * tempo,
            kv_tokens=-(-engine_model.kv_tokens // grain),
            devices=engine_model.devices,
        ),
        length=LengthModel(
            mean=lengths.mean / grain,
            sigma=lengths.sigma,
            quantiles=lengths.quantiles and [tokens / grain for tokens in lengths.quantiles],
            prompt=lengths.prompt // grain,
        ),
        trainer=replace(
            models.trainer,
            token_us=models.trainer.token_us * grain / tempo,
            step_s=models.trainer.step_s / tempo,
            batch_s=models.trainer.batch_s / tempo,
        ),
        network=NetworkModel(
            publication_s=models.network.send_s / tempo, swap_s=models.network.swap_s / tempo
        ),
        verdict=replace(models.verdict, seconds=models.verdict.seconds / tempo),
    )


def forecast(
    config: Config,
    models: ClusterModel,
    cluster: Cluster,
    hours: float,
    *,
    say: Callable[[float], object] = lambda share: None,
    part: int | None = None,
    effort: Effort = QUICK,
    halted: Callable[[], bool] = lambda: False,
) -> Forecast:
    """Run these settings on a cluster for `hours` virtual hours, or on a `part` of it, with a part
    of each step (default: as small a part as the effort asks for). `say` is called about once a
    second of real time with the share of the work that is done. Once `halted` is True, what was
    simulated until then is the forecast. Raises ConfigError if nothing can be measured: for
    settings that are not modelled, a run that ends, or fewer than two steps in that time."""
    refuse_unmodelled(config)
    if config.rollout.lent_actors >= cluster.engines:
        raise ConfigError(
            f"rollout.lent_actors is {config.rollout.lent_actors}, and of the cluster's engines "
            f"(--engines: {cluster.engines}) one at least needs devices of its own: lower it."
        )
    grain = grain_of(config)
    part = part or part_for(config, cluster.engines, effort)
    own = _part_of(config, cluster.engines, part)
    trainers = cluster.trainers * own.rollout.actors / cluster.engines
    tempo = tempo_of(own, models, own.rollout.actors, trainers, effort)
    small, fitted = scaled(own, models, grain, tempo, effort.chunks)
    fitted = _with_all_batches(fitted, cluster.engines / own.rollout.actors)
    stop = PrecisionStop(effort, max_lag(config))
    meter = Meter(lambda: world.actor_seconds(), stop=stop.enough)
    world = ModelledWorld(small, meter, fitted, trainers, beat_of(small, fitted, effort))
    lived = _Lived(world, meter, stop, 3600.0 * hours / tempo)
    reason = lived.run(say, halted)
    if meter.violation is not None:
        raise ConfigError(f"the modelled run broke a rule of the product: {meter.violation}.")
    first = beginning(len(meter.marks), max_lag(config))
    if reason or len(meter.marks) < first + 3:
        made = meter.marks[-1].version if meter.marks else 0
        why = f"the modelled run ended: {reason}" if reason else f"{made} steps were made in it"
        more = "let it go on" if halted() else "give more hours, more engines or a smaller"
        raise ConfigError(
            f"--hours {hours:g}: too little to measure ({why}); {more}"
            + ("." if halted() else " train.batch_groups.")
        )
    marks = meter.marks[first:]
    measured = meter.measured(marks[0], marks[-1]).slower(tempo)
    apart = spread([mark.at for mark in marks])
    return summed(
        measured,
        own,
        models,
        cluster,
        grain=grain,
        part=part,
        spread=apart if math.isfinite(apart) else None,
        whole=not halted(),
    )


def _with_all_batches(models: ClusterModel, part: float) -> ClusterModel:
    """Models of one of `part` parts of a cluster, which has as few of the micro-batches: what each
    takes beside its tokens is shared by no trainers, so the part has it for all."""
    trainer = msgspec.structs.replace(models.trainer, batch_s=models.trainer.batch_s * part)
    return msgspec.structs.replace(models, trainer=trainer)


def _part_of(config: Config, engines: int, part: int) -> Config:
    """The settings of a part of a cluster of `engines`, with as large a part of each step."""
    replace, train = msgspec.structs.replace, config.train
    own = max(1, round(engines / part))
    share = own / engines
    return replace(
        config,
        rollout=replace(
            config.rollout,
            actors=own,
            lent_actors=min(own - 1, round(config.rollout.lent_actors * share)),
        ),
        reward=replace(config.reward, actors=max(1, round(config.reward.actors * share))),
        staleness=replace(config.staleness, window=math.ceil(config.staleness.window * share)),
        train=replace(
            train,
            batch_groups=max(1, round(train.batch_groups * share)),
            replay_groups=round(train.replay_groups * share),
            step_tokens=round(train.step_tokens * share),
            micro_tokens=max(1, round(micro_tokens(config) * share)),
        ),
    )


class _Lived:
    """A modelled run of at most `seconds` virtual seconds."""

    def __init__(
        self, world: ModelledWorld, meter: Meter, stop: PrecisionStop, seconds: float
    ) -> None:
        self._world, self._meter, self._stop, self._seconds = world, meter, stop, seconds

    def run(self, say: Callable[[float], object], halted: Callable[[], bool]) -> str:
        """Run it. Returns the reason of its end if it ended by itself."""
        with replayable(self._world.seed), silence(), rare_collections():
            return trio.run(
                partial(self._run, say, halted),
                clock=VirtualClock(),
                strict_exception_groups=True,
            )

    async def _run(self, say: Callable[[float], object], halted: Callable[[], bool]) -> str:
        with trio.move_on_after(self._seconds):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._tell, say, halted)
                reason = await live(self._world, self._meter)
                nursery.cancel_scope.cancel()
            return "" if self._meter.enough else reason
        return ""

    async def _tell(self, say: Callable[[float], object], halted: Callable[[], bool]) -> None:
        """Report the progress, and stop when the user asks for it."""
        last = time.monotonic()
        while True:
            await trio.sleep(min(1.0, self._seconds / 1000))
            if halted():
                self._meter.end()
            if time.monotonic() - last > PROGRESS_S:
                last = time.monotonic()
                done = trio.current_time() / self._seconds
                say(max(done, self._stop.share(self._meter.units)))


def summed(
    measured: Measured,
    config: Config,
    models: ClusterModel,
    cluster: Cluster,
    *,
    grain: int,
    part: int,
    spread: float | None,
    whole: bool,
) -> Forecast:
    """The forecast from a measurement with the engines of `config`."""
    engines = config.rollout.actors
    engine_s, larger = engines * measured.seconds, cluster.engines / engines
    became = measured.trained + sum(measured.discarded.values())
    of_engines = cluster.engines - config.rollout.lent_actors * larger
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
        generated_per_s=grain * larger * measured.generated / measured.seconds,
        trained_per_s=grain * larger * measured.trained / measured.seconds,
        device_hours=device_hours,
        cost=None if cluster.price is None else device_hours * cluster.price,
        grain=grain,
        part=part,
        spread=spread,
        events=measured.events,
        whole=whole,
    )


def _shares(counts: Mapping[int, int], whole: int) -> dict[int, float]:
    return {lag: counts[lag] / whole for lag in sorted(counts) if counts[lag]}
