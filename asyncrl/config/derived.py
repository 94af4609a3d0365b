"""What follows from a configuration and a user needs to see before it runs. Invariant: every number here is computed from the settings
alone, with the rule in its meaning; nothing is measured or guessed.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import NamedTuple

from asyncrl.config.flow import FACTOR
from asyncrl.config.losses import clips_nothing
from asyncrl.config.schema import Config
from asyncrl.process import divide_cores
from staleness.admission import most_live, worst_lag

EVENT_BYTES = 40
"""About what an event takes in the journal beside its tokens."""
ROLLOUT_EVENTS = 4
"""Events of a rollout beside its chunks: leased, sealed, judged, trained."""
LOG_BYTES = 8 * 2**20
"""What the journal's write-ahead log is cut back to."""


class Row(NamedTuple):
    """One line of the table printed first."""

    name: str
    value: str
    meaning: str


def max_lag(config: Config) -> int:
    """The oldest that a token may be to enter a loss, in versions."""
    return sys.maxsize if config.staleness.on_stale == "train" else config.staleness.max_lag


def live_groups(config: Config) -> int:
    """Admission's bound: groups that are generated, judged, ready or taken at one time."""
    return most_live(config.staleness.depth, config.train.batch_groups, config.rollout.overprovision)


def most_groups(config: Config) -> int:
    """Most groups alive at one time, with those that are started for others that the filter will leave out (see
    `asyncrl.strategies.acceptance`): never so many that lag could leave its bound if all of them passed."""
    live, staleness = live_groups(config), config.staleness
    if config.rollout.filter == "none" or config.train.unit == "rollout":
        return live
    in_bound = (max_lag(config) + 1) * config.train.batch_groups - max(0, staleness.window - 1)
    return max(live, min(FACTOR * live, in_bound))


def group_size(config: Config) -> int:
    """Most rollouts of a prompt."""
    return config.rollout.group_size if config.rollout.sizing == "fixed" else config.rollout.group_size_max


def queue_bytes(config: Config) -> int:
    """Most bytes of token arrays alive at one time: `int32` ids of prompt and response, `float32` log-probabilities of the response."""
    return most_groups(config) * group_size(config) * 4 * (config.engine.context_tokens + config.rollout.max_new_tokens)


def steps(config: Config) -> int:
    """Most optimizer steps: as many as asked, or as the data gives."""
    if not config.task.epochs:
        return config.train.steps
    return min(config.train.steps, math.ceil(config.task.epochs * config.task.train_size / config.train.batch_groups))


def journal_steps(config: Config) -> int:
    """Steps that the journal holds at most: a checkpoint forgets what lies before the one before it."""
    return min(2 * config.train.checkpoint_every or config.train.steps, steps(config))


def journal_bytes(config: Config) -> int:
    """Most bytes of journal that the steps it holds, the live rollouts and three states of them take, one of which is in the log as well
    while it is written. What was discarded and what evaluations generated is no step's, and comes on top."""
    rollout, groups = config.rollout, config.train.batch_groups * journal_steps(config)
    events = math.ceil(rollout.max_new_tokens / config.engine.chunk_tokens) + ROLLOUT_EVENTS
    responses = groups * rollout.group_size * (8 * rollout.max_new_tokens + EVENT_BYTES * events)
    return responses + groups * 4 * config.engine.context_tokens + 5 * queue_bytes(config) + LOG_BYTES


def derived(config: Config, available: int) -> list[Row]:
    """The table, for a machine where this process may use `available` cores."""
    task, rollout, train, staleness = config.task, config.rollout, config.train, config.staleness
    slots = rollout.actors * config.engine.slots
    step_rollouts = train.batch_groups * rollout.group_size
    groups = live_groups(config)
    live = groups * rollout.group_size
    total = config.run.cores or available
    share = divide_cores(range(total), 1, rollout.actors, config.run.trainer_cores)
    prompts = steps(config) * train.batch_groups
    worst = "no bound" if staleness.on_stale == "train" else str(staleness.max_lag)
    params = ", ".join(f"{name}={value}" for name, value in task.params.items())
    return [
        Row("task", task.path or task.name, params or "its own defaults"),
        Row("model", config.model.path or "bundled", f"{config.model.dtype} weights"),
        Row("run directory", config.run.dir, "configuration, logs, journal, checkpoints, summary"),
        Row("steps at most", f"{steps(config):,}", f"{prompts:,} prompts of {task.train_size:,}: {prompts / task.train_size:.2g} epochs"),
        Row("rollouts per step", f"{step_rollouts:,}", f"{train.batch_groups} groups of {rollout.group_size}"),
        Row("response tokens per step", f"≤ {step_rollouts * rollout.max_new_tokens:,}", f"{rollout.max_new_tokens} a rollout"),
        Row("groups live", f"≤ {groups:,}", f"(depth + overprovision) × batch_groups; {live:,} rollouts{_more(config)}"),
        Row("slots", f"{slots:,}", _slots(slots, live)),
        Row("queue", f"≤ {size(queue_bytes(config))}", "token arrays of the live rollouts"),
        Row("journal", f"≤ {size(journal_bytes(config))}", _journal(config)),
        Row("lag, typical", str(staleness.depth), "versions that generation runs ahead"),
        Row("lag, worst", worst, _worst(config)),
        Row("proximal policy", staleness.proximal, _proximal(config, live)),
        Row("cores", f"{total} of {available}", f"trainer {_counts(share.trainers)}; rollout actors {_counts(share.rollouts)}"),
        Row("metrics", f"http://127.0.0.1:{port}/metrics" if (port := config.run.metrics_port) else "off", "Prometheus"),
    ]


def _proximal(config: Config, live: int) -> str:
    """What the ratio is of, and what it costs the trainer to know."""
    if clips_nothing(config.train, config.staleness):
        return "of the step itself: the ratio is 1, and clipping does nothing"
    return {
        "behaviour": "what the engine sampled from",
        "recompute": "of the step itself",
        "loglinear": "guessed between behaviour and current",
        "snapshot": f"of the version that sampled; the trainer's memory holds ≤ {config.staleness.max_lag} more copies of the weights",
        "boundary": "of the version that sampled; the trainer's memory holds one more copy of the weights for each version that engines "
        f"have not left, ≤ {max(1, config.staleness.max_lag)} and mostly 1, and "
        f"≤ {size(4 * live * config.rollout.max_new_tokens)} of scores",
    }[config.staleness.proximal]


def _more(config: Config) -> str:
    more = most_groups(config)
    return f"; ≤ {more:,} groups where the filter leaves many out" if more > live_groups(config) else ""


def _worst(config: Config) -> str:
    staleness = config.staleness
    older = f"older tokens: {staleness.on_stale}"
    if not staleness.window:
        return f"{older}; no window: the oldest finished first"
    lag = worst_lag(staleness.depth, config.train.batch_groups, config.rollout.overprovision, staleness.window)
    return f"{older}; with this window none is older than {lag}"


def _counts(parts: Sequence[tuple[int, ...]]) -> str:
    return ", ".join(str(len(part)) for part in parts)


def _slots(slots: int, live: int) -> str:
    return f"{slots - live:,} more than live rollouts: they stay empty" if slots > live else "rollouts decoded at a time"


def _journal(config: Config) -> str:
    beside = "; what is filtered, stale or evaluated comes on top"
    if not config.train.checkpoint_every:
        return "never compacted, as train.checkpoint_every is 0: all steps" + beside
    return f"compacted at each checkpoint: {journal_steps(config):,} steps and the live rollouts" + beside


def size(count: float) -> str:
    """Bytes, in the unit a person would say."""
    if count < 1024:
        return f"{count:.0f} B"
    unit = min(3, math.floor(math.log2(count) / 10))
    return f"{count / 1024**unit:,.1f} {('B', 'KiB', 'MiB', 'GiB')[unit]}"
