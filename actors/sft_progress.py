"""Progress of a supervised run: its points, status and summary. Pure but for the clock."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence

import trio

from asyncrl.config import Config
from asyncrl.explain.curve import Curve, EvaluationPoint, StepPoint, finite
from asyncrl.explain.run_status import (
    ActorStatus,
    GroupCounts,
    JournalStatus,
    PhaseName,
    RunStatus,
)
from asyncrl.explain.sft_figures import LOSS, SftFigures
from asyncrl.explain.summary import RolloutTotals, Summary, TokenTotals
from asyncrl.messages import Progress, Report, SftUpdate, StatusUpdate, Stepped, Wait

RECENT = 10
"""Steps over which a rate is taken."""
SHOWN = {"loss", "grad_norm", "lr", "skipped", "attention_by_tables"}
"""Figures of a step that mean something where nothing was sampled, beside those of experts."""
DOES: dict[PhaseName, str] = {"init": "starting", "ready": "starting", "run": "training"}


class SftProgress:
    """The numbers of a supervised run."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.phase: PhaseName = "init"
        self.version = 0
        self.curve = Curve()
        self.read: tuple[int, int] | None = None
        """Rows that are read, and all, while the data is read."""
        self.evaluating: int | None = None
        self.report = Report(0.0, {}, {}, [])
        self.trainer: tuple[int, int] | None = None
        """The incarnation and process of the trainer, while it is here."""
        self.last_message = self.last_step = self._began = trio.current_time()
        self.unwritten, self.unwritten_why = 0, ""
        self.ok: bool | None = None
        self.reason = ""
        self._tokens = 0  # of the run
        self._epochs = 0.0
        self._losses: list[tuple[int, float]] = []
        self._recent = deque[tuple[float, int]]([(self._began, 0)], maxlen=RECENT + 1)

    @property
    def seconds(self) -> float:
        return trio.current_time() - self._began

    def opened(self, curve: Curve, points: Sequence[StepPoint | EvaluationPoint]) -> None:
        """Go on with the curve of the run's earlier lives."""
        self.curve = curve
        self._recent.append((trio.current_time(), 0))
        self._recent.popleft()
        for point in points:
            if isinstance(point, StepPoint):
                self._tokens = point.generated
                self._epochs = point.metrics.get("epoch") or 0.0
            else:
                self._losses.append((point.version, point.figures[LOSS]))

    def stepped(self, message: Stepped, rows: int, epoch: float) -> None:
        """Note a step of so many rows, after which the run has passed over all of them `epoch`
        times."""
        now, trained = trio.current_time(), int(message.metrics["trained_tokens"])
        lost = round(trained / max(message.metrics["kept_fraction"], 1e-9)) - trained
        self.version, self.last_step, self._epochs = message.version, now, epoch
        self._tokens += trained
        self._recent.append((now, trained))
        shown = {
            name: value
            for name, value in message.metrics.items()
            if name in SHOWN or name.startswith("expert_")
        }
        self.curve.add(
            StepPoint(
                version=message.version,
                at=time.time(),
                seconds=self.curve.before_s + self.seconds,
                step_seconds=message.seconds,
                reward=None,
                trained=trained,
                discarded={"nonfinite": lost} if lost else {},
                lag_mean=None,
                lag_max=0,
                metrics=finite(shown) | {"rows": float(rows), "epoch": epoch},
                alarms=[],
                generated=self._tokens,
                generated_per_s=0.0,
                trained_per_s=self.rate,
                queue_rollouts=0,
                queue_bytes=0,
                idle_trainer=None,
                idle_rollout=None,
                pause_seconds=None,
            )
        )

    def measured(self, version: int, nats: float, tokens: int, rows: int) -> None:
        """Note the loss of the held-out rows."""
        loss = nats / max(1, tokens)
        self._losses.append((version, loss))
        self.curve.add(
            EvaluationPoint(
                version=version,
                at=time.time(),
                seconds=self.curve.before_s + self.seconds,
                accuracy=None,
                asked=rows,
                prompts=rows,
                figures={LOSS: loss},
            )
        )

    @property
    def rate(self) -> float:
        """Learned tokens a second, over the last steps."""
        first = self._recent[0][0]
        tokens = sum(tokens for _, tokens in list(self._recent)[1:])
        return tokens / max(self._recent[-1][0] - first, 1e-9) if tokens else 0.0

    @property
    def figures(self) -> SftFigures:
        losses = self._losses
        return SftFigures(
            loss=self.curve.step_metrics.get("loss"),
            held_out_first=losses[0][1] if losses else None,
            held_out=losses[-1][1] if losses else None,
            held_out_version=losses[-1][0] if losses else -1,
            epochs=self._epochs,
        )

    def summary(self) -> Summary:
        """The totals of the run so far."""
        return Summary(
            ok=bool(self.ok),
            reason=self.reason,
            steps=self.version,
            seconds=self.curve.before_s + self.seconds,
            training_seconds=self.curve.before_s + self.seconds,
            tokens=TokenTotals(generated=self._tokens, trained=self._tokens),
            sft=self.figures,
        )

    def update(self) -> StatusUpdate:
        """The numbers that the launcher shows."""
        figures, progress = self.figures, list[Progress]()
        if self.read is not None:
            progress = [Progress("reading the data", *self.read, self.seconds)]
        note = ""
        if self.evaluating is not None:
            note = f"measuring the held-out loss of version {self.evaluating}"
        if self.unwritten:
            note = f"no checkpoint since the last {self.unwritten}: {self.unwritten_why}"
        return StatusUpdate(
            seconds=self.seconds,
            phase=DOES.get(self.phase, "draining"),
            step=self.version,
            steps=self.config.train.steps,
            reward=None,
            accuracy=None,
            accuracy_version=figures.held_out_version,
            generated_per_s=0.0,
            trained_per_s=self.rate,
            lag_mean=None,
            lag_max=0,
            queue_items=0,
            queue_bytes=0,
            idle_trainer=None,
            idle_rollout=None,
            pause_seconds=None,
            note=note,
            progress=progress,
            done={"trainer": self.version},
            sft=SftUpdate(*figures.shown),
        )

    def status(self, waits: Sequence[Wait]) -> RunStatus:
        """The state of the run at this moment."""
        now, supervision = trio.current_time(), self.config.supervision
        incarnation, pid = self.trainer or (-1, 0)
        trainer = ActorStatus(
            name="trainer-0",
            role="trainer",
            here=self.trainer is not None,
            incarnation=incarnation,
            pid=pid,
            seconds=now - self.last_message,
            idle=_shares(self.report.idle, self.report.seconds),
            waits=self.report.waits,
            busy=self.report.busy,
            saving_s=self.report.saving_s,
        )
        return RunStatus(
            at=time.time(),
            seconds=self.seconds,
            phase=self.phase,
            step=self.version,
            steps=self.config.train.steps,
            committed=self.version,
            token_s=now - self.last_step,
            verdict_s=now - self.last_step,
            step_s=now - self.last_step,
            stall_s=supervision.stall_s,
            report_s=1.0,
            window_s=self.report.seconds,
            idle={"trainer": _shares(self.report.idle, self.report.seconds)},
            generated_per_s=0.0,
            trained_per_s=self.rate,
            actors=[trainer],
            waits=list(waits),
            publication=None,
            evaluating=self.evaluating,
            rollouts={},
            groups=GroupCounts(),
            awaited=[],
            lease_p95_s=None,
            lease_deadline_s=0.0,
            pump_s=0.0,
            tokens=TokenTotals(generated=self._tokens, trained=self._tokens),
            ledger=RolloutTotals(),
            journal=JournalStatus(),
            restarts={},
            unwritten=self.unwritten,
            unwritten_why=self.unwritten_why,
            ok=self.ok if self.phase == "stop" else None,
            reason=self.reason,
            sft=self.figures,
        )


def _shares(idle: Mapping[str, float], seconds: float) -> dict[str, float]:
    return {cause: min(1.0, each / seconds) for cause, each in idle.items() if each and seconds}
