"""What a run has come to, for people: status and summary. Invariant: it only reads, and counts nothing that another counts."""

from __future__ import annotations

from collections import Counter, deque
from typing import TYPE_CHECKING

import trio

from actors.coordinator.peers import Peer
from asyncrl import summary
from asyncrl.messages import Report, Role, Status

if TYPE_CHECKING:
    from actors.coordinator.coordinator import Coordinator

WINDOW_S = 5.0
"""Rates are over this many seconds."""

IDLE: dict[Role, tuple[str, ...]] = {"trainer": ("command",), "rollout": ("requests", "weights")}
"""The waits that count as idle time of a role."""

NAN = float("nan")


class Progress:
    """Seconds, rates and idle shares of a run that began now."""

    def __init__(self, start_accuracy: float | None = None) -> None:
        self._start_accuracy = start_accuracy  # of the run's first version, where this resumes it
        self.began = trio.current_time()
        self._marks: deque[tuple[float, int, int]] = deque()
        self._idle: Counter[Role] = Counter()
        self._seconds: Counter[Role] = Counter()
        self.restarts: Counter[str] = Counter()

    @property
    def seconds(self) -> float:
        return trio.current_time() - self.began

    def on_report(self, peer: Peer, report: Report, working: bool) -> None:
        """An actor's own account of its last second. Before the run is `working` nobody can be idle."""
        peer.report = report
        if not working:
            return
        self._seconds[peer.role] += report.seconds  # type: ignore[assignment]
        self._idle[peer.role] += sum(report.idle.get(cause, 0.0) for cause in IDLE.get(peer.role, ()))  # type: ignore[assignment]

    def idle(self, role: Role) -> float | None:
        """Share of a role's seconds that it was idle; None before its first report."""
        return self._idle[role] / self._seconds[role] if self._seconds[role] else None

    def status(self, run: Coordinator, phase: str, note: str) -> Status:
        """The run now."""
        now, tokens = trio.current_time(), run.book.experience.ledger.tokens
        self._marks.append((now, tokens.total, tokens.trained))
        while now - self._marks[0][0] > WINDOW_S and len(self._marks) > 2:
            self._marks.popleft()
        then, generated, trained = self._marks[0]
        span = max(now - then, 1e-9)
        training, evaluation = run.training, run.evaluation
        lags = training.lags if training else Counter[int]()
        accuracy_version = max(evaluation.accuracy, default=-1)
        return Status(
            seconds=self.seconds,
            phase=phase,
            step=training.version if training else 0,
            steps=run.config.train.steps,
            reward=training.metrics.get("reward", NAN) if training else NAN,
            accuracy=evaluation.accuracy.get(accuracy_version, NAN),
            accuracy_version=accuracy_version,
            generated_per_s=(tokens.total - generated) / span,
            trained_per_s=(tokens.trained - trained) / span,
            lag_mean=_mean(lags) or 0.0,
            lag_max=max(lags, default=0),
            queue_items=run.book.experience.queue_items,
            queue_bytes=run.book.experience.queue_bytes,
            idle_trainer=self.idle("trainer") or 0.0,
            idle_rollout=self.idle("rollout") or 0.0,
            pause_seconds=max(run.publishing.pauses[-1].values(), default=0.0) if run.publishing.pauses else 0.0,
            note=note,
        )

    def summary(self, run: Coordinator, ok: bool, reason: str) -> summary.Summary:
        """What `summary.json` says."""
        training, ledger = run.training, run.book.experience.ledger
        accuracies = [accuracy for _, accuracy in sorted(run.evaluation.accuracy.items())]
        start = accuracies[0] if self._start_accuracy is None and accuracies else self._start_accuracy
        lags = training.lags if training else Counter[int]()
        slowest, item = run.judgement.slowest
        return summary.Summary(
            ok=ok,
            reason=reason,
            steps=training.version if training else 0,
            seconds=self.seconds,
            training_seconds=training.stepped - run.generation.admitted if training and training.step_seconds else None,
            accuracy=summary.Accuracy(start, accuracies[-1] if accuracies else None),
            tokens=summary.Tokens(
                ledger.tokens.total, ledger.tokens.trained, dict(sorted(ledger.tokens.discarded.items())), ledger.tokens.live
            ),
            rollouts=summary.Rollouts(
                ledger.rollouts.total, ledger.rollouts.trained, dict(sorted(ledger.rollouts.discarded.items())), ledger.rollouts.live
            ),
            lag=summary.Lag(_mean(lags), max(lags, default=0)),
            idle=summary.Idle(self.idle("trainer"), self.idle("rollout")),
            publication=summary.Publications(
                count=len(run.publishing.seconds),
                seconds=sum(run.publishing.seconds),
                pause_seconds=sum(max(pauses.values(), default=0.0) for pauses in run.publishing.pauses),
            ),
            restarts=dict(self.restarts),
            slowest_verifier=summary.SlowestVerifier(item, slowest) if item >= 0 else None,
        )


def _mean(lags: Counter[int]) -> float | None:
    total = sum(lags.values())
    return sum(lag * tokens for lag, tokens in lags.items()) / total if total else None
