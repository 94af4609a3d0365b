"""Every Prometheus instrument of a run, in one place. A scrape reads what the run counts itself;
nothing is counted twice.

The state of experience (ledger, states, queue) is exported from an immutable observation that the
coordinator replaces about once a second, so that a scrape, which runs in a thread of its own, never
meets a state in change, and answers even when the coordinator does not. Names follow Prometheus:
the prefix `asyncrl_`, base units, `_total` on what only grows. Labels are roles, actors, states and
named reasons; a reason's details are cut off and the distinct ones limited, so that no input can
make series without end.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache

import msgspec
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from asyncrl.experience.call import RolloutStatus
from asyncrl.experience.experience import Experience
from asyncrl.experience.ledger import Account
from asyncrl.explain.metrics_server import serving
from asyncrl.messages import Report, Role, Scored, Verdict

LAGS = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
SECONDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300)
REASONS, CAUSES, MEASURED, ACTORS = 32, 64, 512, 1024
"""Most distinct values of a label: reasons; causes of waits and kinds of work; what the trainer
measures; actors of a role. The rest are `other`."""
LIVE = (
    RolloutStatus.WAITING,
    RolloutStatus.LEASED,
    RolloutStatus.SEALED,
    RolloutStatus.JUDGED,
    RolloutStatus.TAKEN,
)


class Observation(msgspec.Struct, frozen=True):
    """Experience at one moment; nothing in it changes. `states` and `groups` count rollouts and
    groups by state. `lags` maps a lag in versions to the tokens trained at it so far; `bias` is
    what the audit reports, `pruned` the rollouts that a rule ended, by reason."""

    tokens: Account
    rollouts: Account
    foreign: Account
    states: Mapping[str, int]
    groups: Mapping[str, int]
    queue_items: int
    queue_bytes: int
    version: int | None
    lags: Mapping[int, int]
    bias: Mapping[str, float]
    pruned: Mapping[str, int] = {}


def observe(experience: Experience, lags: Mapping[int, int]) -> Observation:
    """Copy what is exported. Call it in the thread that changes `experience`."""
    states = experience.statuses()
    taken = experience.groups_live - experience.groups_untaken
    complete = len(experience.ready("train")) + len(experience.ready("evaluation"))
    return Observation(
        tokens=_copy(experience.ledger.tokens),
        rollouts=_copy(experience.ledger.rollouts),
        foreign=_copy(experience.ledger.foreign.tokens),
        states={status.value: states[status] for status in LIVE},
        groups={
            "open": len(experience.groups) - complete - taken,
            "complete": complete,
            "taken": taken,
        },
        queue_items=experience.queue_items,
        queue_bytes=experience.queue_bytes,
        version=experience.version,
        lags=dict(lags),
        bias=experience.audit.report(),
        pruned=dict(experience.ledger.pruned),
    )


def _copy(account: Account) -> Account:
    return msgspec.structs.replace(account, discarded=dict(account.discarded))


class Metrics:
    """The instruments of one run, with a method for each thing that happens. `clock` counts
    seconds, monotonically."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.registry = CollectorRegistry()
        self._observed = _Observed()
        self.registry.register(self._observed)
        self._info = Info("asyncrl_run", "Facts about the run, as labels.", registry=self.registry)
        self._of_steps()
        self._of_publications()
        self._of_actors()
        self._of_lending()
        self._of_the_coordinator()
        self._causes, self._kinds = _Names(CAUSES), _Names(CAUSES)
        self._measured, self._actors = _Names(MEASURED), _Names(ACTORS)
        self._last_step = clock()
        self._clock = clock
        self._gauge(
            "asyncrl_since_last_step_seconds", "Time since the last step, or since the start."
        ).set_function(lambda: self._clock() - self._last_step)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(name, text, labels, registry=self.registry)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(name, text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str, *labels: str) -> Histogram:
        return Histogram(name, text, labels, buckets=SECONDS, registry=self.registry)

    def _of_steps(self) -> None:
        """Steps and evaluations."""
        self._step = self._histogram("asyncrl_step_seconds", "Duration of optimizer steps.")
        self._training = self._gauge(
            "asyncrl_training", "Figures of the last step's trainer and responses, by name.", "name"
        )
        self._alarms = self._gauge(
            "asyncrl_alarm", "1 if the last step or the disk raised the alarm, by cause.", "cause"
        )
        self._checkpoints = self._counter(
            "asyncrl_checkpoints_total",
            "Checkpoints written, and failed.",
            "outcome",
        )
        self._accuracy = self._gauge(
            "asyncrl_accuracy_ratio",
            "Share of held-out prompts answered right, greedily, by the version's weights, or by "
            "their average where the label `evaluated` of asyncrl_run_info is ema; NaN if no "
            "answer has a verdict.",
        )
        self._accuracy_version = self._gauge(
            "asyncrl_accuracy_version", "The version that the accuracy is of."
        )
        self._accuracy_prompts = self._gauge(
            "asyncrl_accuracy_prompts",
            "Held-out prompts that the accuracy is over: those that can be answered.",
        )
        self._evaluated = self._gauge(
            "asyncrl_evaluation_ratio",
            "Figures of held-out prompts, by name (avg@n, pass@k, accuracy) and task.",
            "name",
            "task",
        )

    def _of_publications(self) -> None:
        """Publications."""
        self._publication = self._histogram(
            "asyncrl_publication_seconds", "Publications, from preparation to commit."
        )
        self._pause = self._histogram(
            "asyncrl_pause_seconds", "How long decoding paused for a publication.", "actor"
        )

    def _of_actors(self) -> None:
        """Verdicts, idle time, work and faults of actors."""
        self._verdict = self._histogram(
            "asyncrl_verdict_seconds", "Duration of verdicts.", "outcome"
        )
        self._no_verdict = _Reasons(
            self._counter("asyncrl_no_verdicts_total", "Answers without a verdict.", "reason")
        )
        self._idle = cache(
            self._counter(
                "asyncrl_idle_seconds_total",
                "Time an actor spent waiting, by cause.",
                "role",
                "actor",
                "cause",
            ).labels
        )
        self._work = cache(
            self._counter(
                "asyncrl_work_total",
                "Work of an actor, each kind in its own unit.",
                "role",
                "actor",
                "kind",
            ).labels
        )
        self._waits = cache(
            self._gauge("asyncrl_waits", "Waits open at the last report.", "role", "actor").labels
        )
        self._refused = _Reasons(
            self._counter(
                "asyncrl_refused_connections_total",
                "Connections refused or closed for what they sent.",
                "reason",
            )
        )
        self._garbage = _Reasons(
            self._counter(
                "asyncrl_bad_chunks_total",
                "Chunks that no engine of the run can have sampled, by defect.",
                "reason",
            )
        )
        self._restarts = self._counter("asyncrl_restarts_total", "Restarts of actors.", "role")
        self._removed = self._counter(
            "asyncrl_removed_total",
            "Actors removed because their restarts are spent.",
            "role",
        )

    def _of_lending(self) -> None:
        """Loans of the trainer's devices."""
        self._lent = self._counter(
            "asyncrl_lent_seconds_total",
            "Time for which the trainer's devices were lent, in finished loans "
            "(rollout.lending = switch).",
        )
        self._loans = self._counter(
            "asyncrl_loans_total", "Finished loans of the trainer's devices."
        )
        self._loan = self._gauge(
            "asyncrl_loan_seconds",
            "Means of the last loans: seconds used, and seconds lost by switching.",
            "part",
        )
        self._lending = self._gauge("asyncrl_lending", "1 while loans are worth their switch.")

    def _of_the_coordinator(self) -> None:
        """Leases, episodes, the journal and the coordinator's loop."""
        self._lease_p95 = self._gauge(
            "asyncrl_lease_tail_seconds", "95th percentile of recent leases, from lease to seal."
        )
        self._lease_p95.set(math.nan)
        self._lease_deadline = self._gauge(
            "asyncrl_lease_deadline_seconds", "Duration of the next lease."
        )
        self._episodes = self._gauge(
            "asyncrl_episodes",
            "Agents' episodes: live, of these with their agents (thinking), and the most "
            "that engines can use (most).",
            "state",
        )
        self._journal_bytes = self._gauge("asyncrl_journal_bytes", "Size of the journal on disk.")
        self._images_bytes = self._gauge(
            "asyncrl_images_bytes", "Size of the images of prompts on disk."
        )
        self._journal_pending = self._gauge(
            "asyncrl_journal_pending_bytes", "Size of the events that wait for the disk."
        )
        self._pump = self._gauge(
            "asyncrl_pump_seconds", "Longest pass of the coordinator's loop in the last second."
        )

    def describe(self, **what: str) -> None:
        """Name what runs (task, engine …), as labels of `asyncrl_run_info`; nothing that is not for
        everybody."""
        self._info.info(what)

    def observed(self, observation: Observation) -> None:
        """Export this observation from now on, in place of the one before."""
        self._observed.latest = observation

    def stepped(self, seconds: float, metrics: Mapping[str, float]) -> None:
        """Count an optimizer step."""
        self._last_step = self._clock()
        self._step.observe(seconds)
        for name, value in metrics.items():
            self._training.labels(self._measured(name)).set(value)

    def alarmed(self, causes: Iterable[str]) -> None:
        """Set the alarms of the disk and of the last step; causes are a closed set."""
        self._alarms.clear()
        for cause in causes:
            self._alarms.labels(cause).set(1)

    def saved(self, written: bool) -> None:
        """Count a checkpoint that was written, or could not be."""
        self._checkpoints.labels("written" if written else "failed").inc()

    def evaluated(
        self, version: int, accuracy: float | None, figures: Mapping[str, float], asked: int
    ) -> None:
        """Set the held-out accuracy of `version`, 0 to 1 (None if no answer has a verdict), of the
        prompts that were `asked`, and the figures of sampled answers."""
        self._accuracy.set(math.nan if accuracy is None else accuracy)
        self._accuracy_version.set(version)
        self._accuracy_prompts.set(asked)
        for name, value in figures.items():
            figure, _, task = name.partition("/")
            self._evaluated.labels(figure, task).set(value)

    def published(self, seconds: float, pauses: Mapping[int, float]) -> None:
        """Count a committed publication; `pauses` has the seconds that each rollout actor's
        decoding stood still, by index."""
        self._publication.observe(seconds)
        for actor, pause in pauses.items():
            self._pause.labels(self._actors(str(actor))).observe(pause)

    def judged(self, verdict: Verdict, seconds: float) -> None:
        """Count a verdict, or its absence."""
        scored = isinstance(verdict, Scored)
        self._verdict.labels("scored" if scored else "no_verdict").observe(seconds)
        if not isinstance(verdict, Scored):
            self._no_verdict.count(verdict.reason)

    def reported(self, role: Role, index: int, report: Report) -> None:
        """Add what an actor waited for and did since its last report."""
        actor = self._actors(str(index))
        for cause, seconds in report.idle.items():
            self._idle(role, actor, self._causes(cause)).inc(seconds)
        for kind, increase in report.counts.items():
            self._work(role, actor, self._kinds(kind)).inc(increase)
        self._waits(role, actor).set(len(report.waits))

    def leasing(self, p95_s: float | None, deadline_s: float) -> None:
        """Set the seconds that leases took (None if too few have ended) and that the next has."""
        self._lease_p95.set(math.nan if p95_s is None else p95_s)
        self._lease_deadline.set(deadline_s)

    def lent(self, seconds: float) -> None:
        """Count a loan of the trainer's devices that is over."""
        self._loans.inc()
        self._lent.inc(seconds)

    def lending(self, worth: bool, used_s: float, cost_s: float) -> None:
        """Set if loans are worth their switch, and the seconds of the last ones, in their mean."""
        self._lending.set(worth)
        self._loan.labels("used").set(used_s)
        self._loan.labels("cost").set(cost_s)

    def playing(self, live: int, thinking: int, most: int) -> None:
        """Set how many episodes are live, how many of these are with their agents, and how many of
        a split may be."""
        for state, count in (("live", live), ("thinking", thinking), ("most", most)):
            self._episodes.labels(state).set(count)

    def journalled(self, disk_bytes: int, pending_bytes: int) -> None:
        """Set the bytes that the journal takes on disk, and those that wait for it."""
        self._journal_bytes.set(disk_bytes)
        self._journal_pending.set(pending_bytes)

    def keeping_images(self, kept_bytes: Callable[[], float]) -> None:
        """Export the bytes that the images of prompts take on disk, as they are at a scrape."""
        self._images_bytes.set_function(kept_bytes)

    def pumped(self, slowest_s: float) -> None:
        """Set the longest pass of the coordinator's loop since the last call."""
        self._pump.set(slowest_s)

    def refused(self, reason: str) -> None:
        """Count a connection that was refused, or closed for what it sent."""
        self._refused.count(reason)

    def garbled(self, defect: str) -> None:
        """Count a chunk with this defect."""
        self._garbage.count(defect)

    def restarted(self, role: Role) -> None:
        """Count an actor that was started again."""
        self._restarts.labels(role).inc()

    def removed(self, role: Role) -> None:
        """Count an actor without which the run goes on."""
        self._removed.labels(role).inc()

    @contextmanager
    def serve(self, port: int, host: str = "127.0.0.1") -> Iterator[None]:
        """Answer scrapes on `host`:`port` inside the block; not at all if `port` is 0. Raises
        OSError if the port is taken."""
        if not port:
            yield
            return
        with serving(self.registry, port, host, lambda reason: self.refused(f"metrics_{reason}")):
            yield


class _Names:
    """Values of a label that a peer may choose: the first `most`, in 60 characters each. The others
    are `other`."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: set[str] = set()

    def __call__(self, name: str) -> str:
        name = name[:60] or "unnamed"
        if name not in self._known and len(self._known) >= self._most:
            return "other"
        self._known.add(name)
        return name


class _Reasons:
    """A counter by reason. The label of a reason ends before its first colon."""

    def __init__(self, counter: Counter) -> None:
        self._counter, self._names = counter, _Names(REASONS)

    def count(self, reason: str) -> None:
        self._counter.labels(self._names(reason.partition(":")[0].strip())).inc()


class _Observed(Collector):
    """The latest observation as metric families."""

    def __init__(self) -> None:
        self.latest: Observation | None = None

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        seen = self.latest
        if seen is None:
            return
        yield from _account("tokens", "generated", "Response tokens", seen.tokens)
        yield GaugeMetricFamily(
            "asyncrl_tokens_live",
            "Response tokens neither trained nor discarded yet.",
            value=seen.tokens.live,
        )
        yield from _account("rollouts", "admitted", "Rollouts", seen.rollouts)
        yield _by_reason(
            "asyncrl_rollouts_pruned", "Rollouts that a rule ended early, by reason.", seen.pruned
        )
        yield from _account("foreign_tokens", "imported", "Foreign tokens", seen.foreign)
        yield _by_state("asyncrl_rollouts", "Live rollouts.", seen.states)
        yield _by_state("asyncrl_groups", "Live groups.", seen.groups)
        yield GaugeMetricFamily(
            "asyncrl_queue_items",
            "Complete responses that no step has taken.",
            value=seen.queue_items,
        )
        yield GaugeMetricFamily(
            "asyncrl_queue_bytes", "Size of the token arrays in the queue.", value=seen.queue_bytes
        )
        if seen.version is not None:
            yield GaugeMetricFamily(
                "asyncrl_version", "The version last published.", value=seen.version
            )
        yield _lags(seen.lags)
        bias = GaugeMetricFamily(
            "asyncrl_bias",
            "Trained against generated rollouts: distance, 0 to 1, and NAME_mean: ratio of means.",
            labels=["name"],
        )
        for name, value in seen.bias.items():
            bias.add_metric([name], value)
        yield bias


def _account(thing: str, entered: str, noun: str, account: Account) -> Iterator[Metric]:
    yield CounterMetricFamily(
        f"asyncrl_{thing}_{entered}", f"{noun} {entered}.", value=account.total
    )
    yield CounterMetricFamily(
        f"asyncrl_{thing}_trained", f"{noun} that entered a loss.", value=account.trained
    )
    yield _by_reason(
        f"asyncrl_{thing}_discarded", f"{noun} not trained, by reason.", account.discarded
    )


def _by_reason(name: str, text: str, counts: Mapping[str, int]) -> Metric:
    family = CounterMetricFamily(name, text, labels=["reason"])
    by_reason = sorted(counts.items())
    for reason, count in by_reason[:REASONS]:
        family.add_metric([reason], count)
    if others := by_reason[REASONS:]:
        family.add_metric(["other"], sum(count for _, count in others))
    return family


def _by_state(name: str, text: str, states: Mapping[str, int]) -> Metric:
    family = GaugeMetricFamily(name, text, labels=["state"])
    for state, count in states.items():
        family.add_metric([state], count)
    return family


def _lags(lags: Mapping[int, int]) -> Metric:
    buckets = [
        (str(float(bound)), float(sum(n for lag, n in lags.items() if lag <= bound)))
        for bound in LAGS
    ]
    buckets.append(("+Inf", float(sum(lags.values()))))
    total = float(sum(lag * n for lag, n in lags.items()))
    return HistogramMetricFamily(
        "asyncrl_lag_versions", "Lag of trained tokens.", buckets=buckets, sum_value=total
    )
