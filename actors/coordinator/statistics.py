"""What a run has come to, for people: status and summary. Invariant: it only reads, and counts
nothing that another counts."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import trio

from actors.coordinator.peers import Peer
from asyncrl.experience.ledger import Account
from asyncrl.ipc.messages import Report, Role, StatusUpdate
from asyncrl.observe import summary

if TYPE_CHECKING:
    from actors.coordinator.coordinator import Coordinator

WINDOW_S = 10.0
"""Rates and recent shares are over this many seconds."""

IDLE: dict[Role, tuple[str, ...]] = {"trainer": ("command",), "rollout": ("requests", "weights")}
"""The waits that count as idle time of a role."""

NAN = float("nan")


class _Mark(NamedTuple):
    """What was counted until `at`: tokens, seconds reported by role, and idle ones by role and
    cause."""

    at: float
    generated: int
    trained: int
    seconds: Counter[Role]
    idle: Counter[tuple[Role, str]]


class RunStatistics:
    """Seconds, rates and idle shares of a run that began now."""

    def __init__(self, start_accuracy: float | None = None) -> None:
        self._start_accuracy = start_accuracy  # of the run's first version, where this resumes it
        self.began = trio.current_time()
        self._marks: deque[_Mark] = deque()
        self._idle: Counter[tuple[Role, str]] = Counter()
        self._seconds: Counter[Role] = Counter()
        self._pump_s = 0.0
        # the longest pass of the coordinator's loop in the last second, of the machine's time
        self.pump_s = 0.0
        self.restarts: Counter[str] = Counter()

    @property
    def seconds(self) -> float:
        return trio.current_time() - self.began

    def on_report(self, peer: Peer, report: Report, working: bool) -> None:
        """An actor's own account of its last second. Before the run is `working` nobody can be
        idle."""
        peer.report = report
        if not working:
            return
        self._seconds[peer.role] += report.seconds  # type: ignore[assignment]
        for cause in IDLE.get(peer.role, ()):
            self._idle[peer.role, cause] += report.idle.get(cause, 0.0)  # type: ignore[assignment]

    def pumped(self, seconds: float) -> None:
        """A pass of the coordinator's loop took so long."""
        self._pump_s = max(self._pump_s, seconds)

    def tick(self, tokens: Account) -> None:
        """A second is over."""
        self.pump_s, self._pump_s = self._pump_s, 0.0
        now = trio.current_time()
        self._marks.append(
            _Mark(now, tokens.total, tokens.trained, self._seconds.copy(), self._idle.copy())
        )
        while now - self._marks[0].at > WINDOW_S and len(self._marks) > 2:
            self._marks.popleft()

    @property
    def window_s(self) -> float:
        """Seconds that rates and recent shares are over, at most `WINDOW_S`; 0 before the second
        tick."""
        return self._marks[-1].at - self._marks[0].at if self._marks else 0.0

    @property
    def rates(self) -> tuple[float, float]:
        """Tokens generated and trained per second, lately."""
        if not (span := self.window_s):
            return 0.0, 0.0
        first, last = self._marks[0], self._marks[-1]
        return (last.generated - first.generated) / span, (last.trained - first.trained) / span

    def recent(self) -> dict[Role, Mapping[str, float]]:
        """Idle shares lately, 0 to 1, by role and cause; without the roles that have not
        reported."""
        if not self._marks:
            return {}
        first, last = self._marks[0], self._marks[-1]
        spans = {role: seconds - first.seconds[role] for role, seconds in last.seconds.items()}
        return {
            role: {
                cause: min(1.0, (last.idle[role, cause] - first.idle[role, cause]) / span)
                for cause in IDLE.get(role, ())
            }
            for role, span in spans.items()
            if span
        }

    def idle(self, role: Role) -> float | None:
        """Share of a role's seconds that it was idle; None before its first report."""
        idle = sum(self._idle[role, cause] for cause in IDLE.get(role, ()))
        return idle / self._seconds[role] if self._seconds[role] else None

    def status(self, run: Coordinator, phase: str, note: str) -> StatusUpdate:
        """The run now."""
        generated_per_s, trained_per_s = self.rates
        training, evaluation = run.training, run.evaluation
        lags = training.lags if training else Counter[int]()
        accuracy_version = max(evaluation.accuracy, default=-1)
        return StatusUpdate(
            seconds=self.seconds,
            phase=phase,
            step=training.version if training else 0,
            steps=run.config.train.steps,
            reward=training.metrics.get("reward", NAN) if training else NAN,
            accuracy=evaluation.accuracy.get(accuracy_version, NAN),
            accuracy_version=accuracy_version,
            generated_per_s=generated_per_s,
            trained_per_s=trained_per_s,
            lag_mean=_mean(lags) or 0.0,
            lag_max=max(lags, default=0),
            queue_items=run.store.experience.queue_items,
            queue_bytes=run.store.experience.queue_bytes,
            idle_trainer=self.idle("trainer") or 0.0,
            idle_rollout=self.idle("rollout") or 0.0,
            pause_seconds=max(run.publishing.pauses[-1].values(), default=0.0)
            if run.publishing.pauses
            else 0.0,
            note=note,
        )

    def summary(self, run: Coordinator, ok: bool, reason: str) -> summary.Summary:
        """What `summary.json` says."""
        training, ledger = run.training, run.store.experience.ledger
        accuracies = [accuracy for _, accuracy in sorted(run.evaluation.accuracy.items())]
        start = (
            accuracies[0] if self._start_accuracy is None and accuracies else self._start_accuracy
        )
        lags = training.lags if training else Counter[int]()
        slowest, prompt_index = run.scoring.slowest
        training_s = training.stepped - run.generation.admitted if training else -math.inf
        return summary.Summary(
            ok=ok,
            reason=reason,
            steps=training.version if training else 0,
            seconds=self.seconds,
            training_seconds=training_s if training_s > 0 else None,
            accuracy=summary.Accuracy(start, accuracies[-1] if accuracies else None),
            tokens=summary.TokenTotals.of(ledger.tokens),
            rollouts=summary.RolloutTotals.of(ledger.rollouts),
            lag=summary.Lag(_mean(lags), max(lags, default=0)),
            alarms=dict(training.alarmed) if training else {},
            bias=run.store.experience.audit.report(),
            idle=summary.Idle(self.idle("trainer"), self.idle("rollout")),
            publication=run.publishing.total,
            restarts=dict(self.restarts),
            slowest_verifier=summary.SlowestVerifier(prompt_index, slowest)
            if prompt_index >= 0
            else None,
        )


def _mean(lags: Counter[int]) -> float | None:
    total = sum(lags.values())
    return sum(lag * tokens for lag, tokens in lags.items()) / total if total else None
