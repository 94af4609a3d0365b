"""The work of a forecast: how much of a run it simulates. Invariant: what is left out follows
from the arguments alone, so the same arguments give the same numbers.

A modelled run is stationary: lengths, rewards and speeds do not change in it. So a forecast of two
hours needs no two hours, but enough steps. Four things are coarser than in the run:

    steps    the simulation stops when the mean of its steps is known well enough (`PrecisionStop`)
    part     of a large cluster a part is simulated, with as large a part of each step
    tempo    seconds are divided by a number, so that what happens once a second happens a few times
             a step
    chunks   an engine streams at the end of a response and when it gets new weights, which are the
             moments that decide the version of each token
    beats    engines stream what is complete together, some times in a mean response
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean, stdev

import msgspec

from asyncrl.config import Config
from asyncrl.sizing.cluster_models import ClusterModel

BEGINNING = 0.2
"""Share of the steps that is not measured, in which slots and queue fill."""
BLOCKS = 6
"""Equal parts of the measured steps, whose means are compared."""
T_VALUE = 2.571
"""Of Student's distribution: 95 % lie within so many standard errors, with BLOCKS - 1 degrees of
freedom."""
LEAST_STEPS = 4 * BLOCKS
"""Measured steps before a simulation may stop."""
STEPS_AFFORDED, IN_TURNS = 40, 10
"""Steps that a part of a cluster is small enough for; and if generation and training take turns,
since then a step waits for its longest response, which a smaller step has shorter."""
LEAST_ENGINES, LEAST_GROUPS = 6, 12
"""Engines of a part of a cluster, and groups of a part of a step, at least."""
PER_ROLLOUT, PER_ENGINE = 7, 4
"""Units of work of a rollout, and of an engine in a step, about."""


class Effort(msgspec.Struct, frozen=True):
    """The work of a forecast: at most about `units` (events, and messages to the coordinator, each
    about 0.1 ms of a core), and fewer if the mean of its steps is known to `within` (half of the
    interval of 95 %, as a share of the mean). A step has about `step_s` simulated seconds, if it
    has more, a mean response `beats` of them (0: engines do not wait for each other), and the
    longest response `chunks`."""

    units: int
    within: float
    step_s: float = 10.0
    beats: int = 64
    chunks: int = 1


QUICK = Effort(units=100_000, within=0.01)
WHOLE = Effort(units=2**62, within=0.0, step_s=math.inf, beats=0, chunks=16)
"""All steps of all hours, of the whole cluster, and every second of it."""


def spread(moments: Sequence[float]) -> float:
    """Half of the interval of 95 % of the mean step, as a share of it, from the moments at which
    steps ended: the steps are cut into BLOCKS, and the means of these are as good as independent.
    Infinite for fewer than two steps a block.

    >>> spread([float(at) for at in range(13)]), spread([0.0, 1.0])
    (0.0, inf)
    """
    each = (len(moments) - 1) // BLOCKS
    if each < 2:
        return math.inf
    last = moments[len(moments) - 1 - BLOCKS * each :: each]
    steps = [(after - before) / each for before, after in pairwise(last)]
    return T_VALUE * stdev(steps) / math.sqrt(BLOCKS) / fmean(steps)


def beginning(steps: int, ahead: int) -> int:
    """Index of the first publication that is measured, of `steps`; `ahead` is the largest lag."""
    return max(math.ceil(BEGINNING * steps), min(2 + ahead, steps // 2))


class PrecisionStop:
    """Says when a simulation has told enough."""

    def __init__(self, effort: Effort, ahead: int) -> None:
        self._effort, self._ahead = effort, ahead
        self._looked = 0

    def share(self, units: int) -> float:
        """The share of the work that is done, from 0 to 1."""
        return min(1.0, units / self._effort.units)

    def enough(self, moments: Sequence[float], units: int) -> bool:
        """True if no more steps are needed. `moments` are those of all publications so far."""
        measured = len(moments) - 1 - beginning(len(moments), self._ahead)
        if units >= self._effort.units and measured >= 2:
            return True
        if measured < LEAST_STEPS or len(moments) < self._looked + BLOCKS:
            return False
        self._looked = len(moments)
        return spread(moments[beginning(len(moments), self._ahead) :]) <= self._effort.within


def tempo_of(
    config: Config, models: ClusterModel, engines: int, trainers: float, effort: Effort
) -> float:
    """The number by which seconds are divided: 1 for short steps. The seconds of a step are
    estimated as those of its slower side."""
    train, slots = config.train, config.engine.slots
    tokens = _mean_tokens(config, models) * train.batch_groups * config.rollout.group_size
    made = tokens / models.verdict.share(max(2, config.rollout.group_size))
    generation_s = made * models.engine.decode_s(slots) / slots / engines
    training_s = tokens * models.trainer.token_us * 1e-6 / trainers + models.trainer.step_s
    return max(1.0, max(generation_s, training_s) / effort.step_s)


def beat_of(config: Config, models: ClusterModel, effort: Effort) -> float:
    """Seconds of a beat of engines; 0 for none."""
    if not effort.beats:
        return 0.0
    return _mean_tokens(config, models) * models.engine.decode_s(1) / effort.beats


def _mean_tokens(config: Config, models: ClusterModel) -> float:
    """Mean tokens of a response."""
    drawn = models.length.drawn(config.run.seed, config.rollout.max_new_tokens)
    return fmean(drawn(key) for key in range(200))


def part_for(config: Config, engines: int, effort: Effort) -> int:
    """The divisor of a cluster, so that STEPS_AFFORDED steps need no more than the effort's units.
    1 is all of it."""
    rollouts = config.train.batch_groups * config.rollout.group_size
    steps = STEPS_AFFORDED if config.staleness.depth else IN_TURNS
    units = steps * (PER_ROLLOUT * rollouts + PER_ENGINE * engines)
    most = min(engines // LEAST_ENGINES, config.train.batch_groups // LEAST_GROUPS)
    return max(1, min(most, math.ceil(units / effort.units)))
