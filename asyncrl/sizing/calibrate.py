"""Models fitted from runs, alive or over: their curve, their journal, their summary. Invariant:
a part that cannot be fitted from these files is reported, and no number is assumed silently.

    lengths    quantiles of the complete training responses in the journal, and the mean prompt
    verdicts   the share of groups that passed the filter, and an estimate for smaller groups
    trainer    its seconds without waits and without the ends of its steps, for each response
               token that steps took, and of runs with other micro-batches for each of these
    engine     a point for each run: the slots that are busy while engines are not idle, and the
               milliseconds in which each of them gets a token, with the reading of prompts
    network    means of the run's publications

The first fifth of a run is left out: compilers and caches are cold in it. The user's modules are
not imported.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise
from math import comb
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from asyncrl.config import Config, ConfigError
from asyncrl.config.flow import admission_policy
from asyncrl.experience import events as e
from asyncrl.experience.events import AnyEvent
from asyncrl.explain.curve import StepPoint
from asyncrl.explain.run_files import RunFiles
from asyncrl.explain.summary import Summary
from asyncrl.messages import Scored
from asyncrl.sizing.cluster_models import (
    ClusterModel,
    EngineModel,
    LengthModel,
    NetworkModel,
    TrainerModel,
    VerdictModel,
)

BEGINNING = 0.2
"""Share of the steps that is left out."""
LEAST_STEPS = 6
"""Steps of a run that is fitted, at least."""
APART = 1.2
"""Ratio of the sizes of runs' micro-batches from which on their cost is told from tokens'."""
CLOSE = 0.1
"""Share of a run's seconds by which the trainer's model may miss them without a word."""
QUANTILES = 20
"""Number of pieces in which the measured lengths are kept."""


class Calibration(msgspec.Struct, frozen=True):
    """Models, and sentences about their origin and about parts that could not be fitted."""

    models: ClusterModel
    notes: list[str]


class RunPace(msgspec.Struct, frozen=True):
    """The pace of a run without its beginning: its `steps` and `seconds`, tokens a second, idle
    shares of the seconds from 0 to 1, and the mean lag of trained tokens."""

    steps: int
    seconds: float
    generated: int
    trained: int
    idle_trainer: float
    idle_engines: float
    lag_mean: float
    optimizer_s: float
    begin: int
    end: int

    @property
    def step_s(self) -> float:
        return self.seconds / self.steps

    @property
    def computed_s(self) -> float:
        """Seconds in which the trainer computed, without the ends of steps."""
        busy_s = self.seconds * (1 - self.idle_trainer)
        return max(0.0, busy_s - self.steps * self.optimizer_s)


class TrainerSeen(NamedTuple):
    """The seconds in which a trainer computed, the tokens that it took, and in how many batches."""

    computed_s: float
    tokens: int
    batches: int


class WorkSeen(msgspec.Struct, frozen=True):
    """Counts from a journal: the `lengths` of complete training responses and those of prompts, in
    tokens; `taken` response tokens by the steps from one version to another; groups that
    passed the filter, and that it dropped; and for each group that was judged whole meanwhile the
    numbers of its rollouts with equal rewards. `batches` is how often the trainer was given
    some."""

    lengths: list[int]
    prompt: float
    taken: int
    passed: int
    filtered: int
    alike: list[list[int]]
    batches: int = 0


def calibrate(runs: Sequence[Path]) -> Calibration:
    """Fit the models from one run, and from others further points of the engine. Raises ConfigError
    if a directory is not a run, or a run is too short."""
    first = runs[0]
    config, pace, seen, summary = _read(first)
    points, notes = dict[float, float](), [f"Fitted by `asyncrl calibrate` from {first}."]
    ranks, trained = max(1, config.train.ranks), list[TrainerSeen]()
    for run in runs:
        own = (config, pace, seen, summary)
        run_config, run_pace, run_seen, _ = own if run == first else _read(run)
        if max(1, run_config.train.ranks) == ranks:
            trained.append(TrainerSeen(run_pace.computed_s, run_seen.taken, run_seen.batches))
        busy, ms = engine_point(run_config, run_pace)
        points.setdefault(busy, ms)
    rising = sorted(points.items())
    for (_, low), (slots, high) in pairwise(rising):
        if high < low:
            raise ConfigError(
                f"a decode step with {slots:g} busy slots takes {high:.3g} ms, and with fewer "
                f"{low:.3g}: these runs were not made on machines alike; calibrate from one."
            )
    if len(rising) == 1:
        notes.append(
            f"engine: one point, at {rising[0][0]:g} busy slots: a step is assumed to last as "
            "long with any number. Give runs with other engine.slots, too."
        )
    notes.append("engine: prefill is part of decode_ms; its KV room is not known.")
    token_us, batch_s, unknown_batch = trainer_costs(trained)
    notes += unknown_batch
    if pace.idle_trainer < 0.02:
        notes.append("trainer: it was never idle, so its tokens include short waits.")
    network = NetworkModel(publication_s=0.02)
    if summary is not None and summary.publication.count:
        published = summary.publication
        network = NetworkModel(
            publication_s=published.seconds / published.count,
            swap_s=published.pause_seconds / published.count,
        )
    else:
        notes.append("network: the run has no summary; 0.02 s for a publication are assumed.")
    verdict, unknown = verdict_model(seen)
    models = ClusterModel(
        engine=EngineModel(decode_ms=rising),
        length=LengthModel(quantiles=quantiles(seen.lengths), prompt=round(seen.prompt)),
        trainer=TrainerModel(token_us=token_us * ranks, step_s=pace.optimizer_s, batch_s=batch_s),
        network=network,
        verdict=verdict,
    )
    return Calibration(models, notes + unknown)


def _read(run: Path) -> tuple[Config, RunPace, WorkSeen, Summary | None]:
    """The settings of a run, its pace, its work, and its summary if it has one."""
    files = RunFiles(run)
    config, own_pace = files.numbers, pace(files)
    with files.journal() as history:
        seen = work_seen(history.events(history.forgotten), own_pace.begin, own_pace.end)
    if len(seen.lengths) < 2:
        raise ConfigError(
            f"{run}: its journal holds no two complete responses; let the run make more steps."
        )
    return config, own_pace, seen, files.summary


def pace(files: RunFiles) -> RunPace:
    """The pace of a run without its beginning. Raises ConfigError if it has too few steps."""
    steps = [point for point in files.points() if isinstance(point, StepPoint)]
    if len(steps) < LEAST_STEPS:
        raise ConfigError(
            f"{files.path}: it has {len(steps)} steps, and {LEAST_STEPS} are needed to fit "
            "anything; let it make more."
        )
    first, last = steps[int(BEGINNING * len(steps))], steps[-1]
    between = [point for point in steps if first.version < point.version <= last.version]
    seconds = last.seconds - first.seconds
    if seconds <= 0:
        raise ConfigError(f"{files.path}: its steps have no time between them.")
    trained = sum(point.trained for point in between)
    lag = sum((point.lag_mean or 0.0) * point.trained for point in between)
    summary = files.summary
    began = (
        summary.seconds - summary.training_seconds
        if summary is not None and summary.training_seconds is not None
        else 0.0
    )

    def idle(share_first: float | None, share_last: float | None) -> float:
        """The share of the time between, from two shares of the time since the actors began."""
        waited = (share_last or 0.0) * (last.seconds - began)
        waited -= (share_first or 0.0) * (first.seconds - began)
        return min(1.0, max(0.0, waited / seconds))

    return RunPace(
        steps=last.version - first.version,
        seconds=seconds,
        generated=last.generated - first.generated,
        trained=trained,
        idle_trainer=idle(first.idle_trainer, last.idle_trainer),
        idle_engines=idle(first.idle_rollout, last.idle_rollout),
        lag_mean=lag / max(1, trained),
        optimizer_s=sum(point.step_seconds for point in between) / len(between),
        begin=first.version,
        end=last.version,
    )


@dataclass
class _SeenGroup:
    """A group as its events tell of it: `most` is the size to which it may grow, or 0."""

    size: int
    most: int
    rewards: list[float] = field(default_factory=list)

    @property
    def judged(self) -> bool:
        """True if all members have a reward, and it does not grow."""
        return len(self.rewards) == self.size and self.size >= self.most


def work_seen(events: Iterator[tuple[int, AnyEvent]], begin: int, end: int) -> WorkSeen:
    """Count the work in a journal; tokens that steps took and groups that the filter dropped are
    counted between the publications of two versions."""
    tokens: dict[int, int] = {}
    groups: dict[int, _SeenGroup] = {}  # by its number
    group_of: dict[int, _SeenGroup] = {}  # by rollout
    alike: list[list[int]] = []
    lengths: list[int] = []
    prompts: list[int] = []
    taken = filtered = version = batches = 0
    passed, size = Fraction(), 1
    for _, event in events:
        match event:
            case e.Admitted(split="train"):
                prompts.append(len(event.prompt) // 4)
                size = event.size
                group = groups[event.group] = _SeenGroup(event.size, event.most)
                for rollout in range(event.first, event.first + event.size):
                    tokens[rollout], group_of[rollout] = 0, group
            case e.Grown() if (seen := groups.get(event.group)) is not None:
                for rollout in range(event.first, event.first + event.size - seen.size):
                    tokens[rollout], group_of[rollout] = 0, seen
                seen.most = 0 if event.size == seen.size else seen.most
                seen.size = event.size
                if seen.judged and begin <= version < end:
                    alike.append([*Counter(seen.rewards).values()])
            case e.Forked(at=at) if at and event.rollout in group_of:
                tokens[event.first], group_of[event.first] = 0, group_of[event.rollout]
                group_of[event.rollout].size += 1
            case e.Extended() if event.rollout in tokens:
                tokens[event.rollout] += len(event.ids) // 4
            case e.Sealed() if tokens.get(event.rollout):
                lengths.append(tokens[event.rollout])
            case e.Judged(verdict=Scored(reward=reward)) if event.rollout in group_of:
                seen = group_of[event.rollout]
                seen.rewards.append(reward)
                if seen.judged and begin <= version < end:
                    alike.append([*Counter(seen.rewards).values()])
            case e.Taken() if begin <= event.step < end:
                batches += 1
                taken += sum(tokens.get(rollout, 0) for rollout in event.rollouts)
                for rollout in (*event.rollouts, *event.left_out):
                    passed += Fraction(1, group_of[rollout].size if rollout in group_of else size)
            case e.Dropped(reason="zero_variance") if begin <= version < end:
                filtered += 1
            case e.Published():
                version = event.version
    mean = sum(prompts) / len(prompts) if prompts else 0.0
    return WorkSeen(lengths, mean, taken, int(passed), filtered, alike, batches)


class TrainerCosts(NamedTuple):
    """Microseconds of a token, seconds that a micro-batch takes beside its tokens, and sentences on
    what is not known."""

    token_us: float
    batch_s: float
    unknown: list[str]


def trainer_costs(seen: Sequence[TrainerSeen]) -> TrainerCosts:
    """The costs of a trainer: of several runs those of the least squares, if the sizes of their
    micro-batches lie APART; else all is the first one's tokens'.

    >>> trainer_costs([TrainerSeen(3.0, 10_000, 20), TrainerSeen(2.5, 5_000, 20)])[:2]
    (100.0, 0.1)
    >>> trainer_costs([TrainerSeen(3.0, 10_000, 20)])[:2]
    (300.0, 0.0)
    """
    first = 1e6 * seen[0].computed_s / max(1, seen[0].tokens)
    sizes = [one.tokens / one.batches for one in seen if one.batches and one.tokens]
    part = "trainer: what a micro-batch takes beside its tokens is part of token_us."
    if not sizes or max(sizes) < APART * min(sizes):
        return TrainerCosts(first, 0.0, [f"{part} Give runs with another rollout.group_size."])
    work = np.array([[one.tokens, one.batches] for one in seen], float)
    (token_s, batch_s), *_ = np.linalg.lstsq(work, [one.computed_s for one in seen], rcond=None)
    if token_s < 0 or batch_s < 0:
        why = "These runs contradict each other: repeat them on a quiet machine."
        return TrainerCosts(first, 0.0, [f"{part} {why}"])
    took = np.array([one.computed_s for one in seen])
    apart = float(np.max(np.abs(work @ [token_s, batch_s] / took - 1)))
    unknown = (
        [f"trainer: tokens and micro-batches explain a run's seconds only within {apart:.0%}."]
        if apart > CLOSE
        else []
    )
    return TrainerCosts(round(1e6 * float(token_s), 6), round(float(batch_s), 9), unknown)


def verdict_model(seen: WorkSeen) -> tuple[VerdictModel, list[str]]:
    """The model of verdicts, and sentences about parts that could not be fitted."""
    notes = ["verdict: its seconds are in none of these files; 0.01 is assumed."]
    if seen.alike and all(len(counts) == 1 for counts in seen.alike):
        notes.append(
            f"verdict: rewards differ in none of the {len(seen.alike)} groups measured, so the "
            "share that passes a filter is not known; that of this run is assumed."
        )
    groups = seen.passed + seen.filtered
    accepted = max(seen.passed, 1) / max(groups, 1)
    return VerdictModel(0.01, accepted, accepted_of(seen.alike)), notes


def accepted_of(alike: Sequence[Sequence[int]]) -> list[tuple[int, float]] | None:
    """The share of groups whose rewards differ, by the size of groups, from 2 to that of the
    measured: of a group with `alike` rollouts of each reward, rollouts drawn without
    replacement are all alike with the hypergeometric chance, so the share is unbiased. None if
    rewards differ in no measured group, as may be in a run without a filter, or if sizes differ.

    Example: of a group of 3 with the rewards 1, 0, 0 two differ in 2 of 3 draws.

    >>> [(size, round(share, 3)) for size, share in accepted_of([[1, 2], [3]])]
    [(2, 0.333), (3, 0.5)]
    """
    sizes = {sum(counts) for counts in alike}
    if len(sizes) != 1 or all(len(counts) == 1 for counts in alike):
        return None
    (whole,) = sizes
    points = []
    for size in range(2, whole + 1):
        same = sum(sum(comb(count, size) for count in counts) for counts in alike)
        share = 1 - same / (comb(whole, size) * len(alike))
        points.append((size, share))
    return points


def quantiles(lengths: Sequence[int]) -> list[float]:
    """The lengths at each QUANTILES-th of them, from the shortest to the longest.

    >>> quantiles([3, 1, 2])[0], quantiles([3, 1, 2])[-1], len(quantiles([3, 1, 2]))
    (1.0, 3.0, 21)
    """
    ordered = sorted(lengths)
    return [
        float(ordered[round(at / QUANTILES * (len(ordered) - 1))]) for at in range(QUANTILES + 1)
    ]


def engine_point(config: Config, pace: RunPace) -> tuple[float, float]:
    """The busy slots of an engine that is not idle, and the milliseconds in which each of them gets
    a token: all slots, or the most live rollouts, if those are fewer."""
    engines, group = config.rollout.actors, config.rollout.group_size
    live = admission_policy(config).max_live_filtered * group / engines
    busy = min(float(config.engine.slots), live)
    worked = pace.seconds * (1 - pace.idle_engines) * engines
    if not pace.generated or worked <= 0:
        raise ConfigError("the engines of this run generated nothing that could be measured.")
    return busy, 1e3 * busy * worked / pace.generated
