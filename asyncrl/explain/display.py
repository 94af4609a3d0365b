"""Display of a run while it lives, and of its summary at the end: on a terminal in place, elsewhere
as plain lines.

It has no thread: it draws when it is told something, and never waits for its reader. While a
terminal is stopped, or a pipe is full, what is news then is left out, and notes are kept. A number
that does not exist yet is shown as `–`.
"""

from __future__ import annotations

import math
import select
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from asyncrl.config.derived import Row, size
from asyncrl.escape import escaped
from asyncrl.explain.evaluation_figures import said
from asyncrl.explain.summary import Summary
from asyncrl.messages import Progress, StatusUpdate
from asyncrl.runtime.progress import amount, clock, progress_line

STEP_LINE_S = 2.0
"""Least seconds between two plain lines while steps are taken."""
WAIT_LINE_S = 10.0
"""Least seconds between two plain lines while no step is taken."""
FIRST_LINE_S = 2.0
"""Seconds after which something takes long enough for a line."""
NOTES = 100
"""Notes that are kept for a reader who takes nothing; the oldest go first."""
NONE = "–"
OF_AVERAGE = {"current": "", "ema": ", of the average of weights"}
"""Words behind an accuracy, by the weights that it is of."""


class Display:
    """Display of one run, a context manager around it: `update` it with every StatusUpdate, `note`
    what happens meanwhile."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = (
            Live(console=console, auto_refresh=False)
            if console.is_terminal and not console.is_dumb_terminal
            else None
        )
        self._printed: StatusUpdate | None = None
        self._notes: deque[str] = deque(maxlen=NOTES)  # to be printed
        self._told = "", FIRST_LINE_S  # what progress is of, and the second of its next line

    def __enter__(self) -> Display:
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live:
            self._live.stop()

    def update(self, status: StatusUpdate) -> None:
        """Show how the run stands: redraw, or print a line if there is news."""
        self._print_notes()
        if not self._taken():
            return
        if self._live:
            self._live.update(panel(status), refresh=True)
        elif _is_news(status, self._printed):
            self._printed = status
            self._print(line(status))

    def progress(self, progress: Progress) -> None:
        """Show how far something is that takes long, before the run says how it stands: redraw, or
        print a line every so often."""
        self._print_notes()
        if not self._taken():
            return
        if self._live:
            self._live.update(Group(*_bars([progress])), refresh=True)
            return
        told, next_s = self._told
        if told != progress.what or progress.seconds < next_s - WAIT_LINE_S:
            next_s = FIRST_LINE_S
        if progress.seconds >= next_s:
            self._print(progress_line(progress))
            next_s = progress.seconds + WAIT_LINE_S
        self._told = progress.what, next_s

    def note(self, text: str) -> None:
        """Print one sentence, above the display."""
        self._notes.append(text)
        self._print_notes()

    def _print_notes(self) -> None:
        while self._notes and self._taken():
            self._print(self._notes.popleft())

    def _taken(self) -> bool:
        """True if something can be written without waiting."""
        try:
            descriptor = self._console.file.fileno()
        except OSError:  # it is in memory
            return True
        poll = select.poll()
        poll.register(descriptor, select.POLLOUT)
        return bool(poll.poll(0))

    def _print(self, text: str) -> None:
        self._console.print(escaped(text), markup=False, highlight=False, soft_wrap=True)


def _is_news(status: StatusUpdate, printed: StatusUpdate | None) -> bool:
    if (
        printed is None
        or status.phase != printed.phase
        or status.accuracy_version != printed.accuracy_version
    ):
        return True
    if status.step == status.steps != printed.step:
        return True
    return status.seconds - printed.seconds >= (
        STEP_LINE_S if status.step != printed.step else WAIT_LINE_S
    )


def line(status: StatusUpdate) -> str:
    """One line of text."""
    s = status
    return (
        f"{clock(s.seconds)}  {s.phase}  step {s.step}/{s.steps}  reward {_number(s.reward)}  "
        f"{_responses(s)}  accuracy {_accuracy(s)}  "
        + (f"{said(s.evaluated)}  " if s.evaluated else "")
        + f"tokens/s {_count(s.generated_per_s)} generated, {_count(s.trained_per_s)} trained  "
        f"lag {_number(s.lag_mean, 1)} mean, {s.lag_max} max  queue {s.queue_items} "
        f"({size(s.queue_bytes)})  "
        f"idle {_share(s.idle_trainer)} trainer, {_share(s.idle_rollout)} rollout  pause "
        f"{_duration(s.pause_seconds)}"
        + (f"  | {s.note}" if s.note else "")
        + "".join(f"  | {progress_line(progress)}" for progress in s.progress)
    )


def panel(status: StatusUpdate) -> RenderableType:
    """A block of a terminal."""
    s = status
    head = Table.grid(padding=(0, 2))
    head.add_row(
        Text(escaped(s.phase), style="bold"),
        ProgressBar(total=max(s.steps, 1), completed=s.step, width=32),
        f"step {s.step}/{s.steps}",
        f"{clock(s.seconds)} elapsed",
        f"{clock(s.seconds * (s.steps - s.step) / s.step)} left" if s.step else "",
    )
    body = Table.grid(padding=(0, 3))
    rows = (
        (("reward", _number(s.reward)), ("held-out accuracy", _accuracy(s))),
        *([(("", ""), ("evaluated", said(s.evaluated)))] if s.evaluated else []),
        (
            ("responses", f"{_share(s.exact)} exact, {_share(s.truncated)} cut"),
            ("length", f"{_number(s.response_tokens, 1)} tokens, {_number(s.entropy)} nats each"),
        ),
        (
            ("generated", f"{_count(s.generated_per_s)} tokens/s"),
            ("trained", f"{_count(s.trained_per_s)} tokens/s"),
        ),
        (
            ("lag", f"{_number(s.lag_mean, 1)} mean, {s.lag_max} max"),
            ("queue", f"{s.queue_items} rollouts, {size(s.queue_bytes)}"),
        ),
        (
            ("idle", f"{_share(s.idle_trainer)} trainer, {_share(s.idle_rollout)} rollout"),
            ("pause", f"{_duration(s.pause_seconds)} a publication"),
        ),
    )
    for cells in rows:
        body.add_row(
            *(part for name, value in cells for part in (Text(name, style="dim"), Text(value)))
        )
    notes = [Text(escaped(s.note), style="italic")] if s.note else []
    return Group(head, body, *_bars(s.progress), *notes)


def _bars(items: Sequence[Progress]) -> list[RenderableType]:
    """A bar for each that is under way; one that is not counted pulses."""
    if not items:
        return []
    table = Table.grid(padding=(0, 2))
    for item in items:
        total = item.of if item.counted else item.seconds + (item.left_s or 0.0)
        known = item.counted or item.left_s is not None
        table.add_row(
            Text(escaped(item.what)),
            ProgressBar(
                total=max(total, 1e-9) if known else None,
                completed=item.done if item.counted else item.seconds,
                width=32,
                pulse=not known,
                animation_time=item.seconds,
            ),
            amount(item),
            f"{clock(item.seconds)} elapsed",
            "" if item.left_s is None else f"{clock(item.left_s)} left",
        )
    notes = [Text(escaped(item.note), style="italic") for item in items if item.note]
    return [table, *notes]


def show_derived(rows: Sequence[Row], console: Console) -> None:
    """Show what follows from the configuration, as a table."""
    show_rows(rows, console)


def show_summary(summary: Summary, run: Path, console: Console) -> None:
    """Show the summary of a run, as a table."""
    show_rows([*summary_rows(summary), ("kept in", str(run))], console)


def summary_rows(summary: Summary) -> list[tuple[str, str]]:
    """The summary of a run as pairs of name and value; what others wrote is in them as it is."""
    s, publication = summary, summary.publication
    pause = publication.pause_seconds / publication.count if publication.count else None
    rows = [
        ("result", s.reason),
        ("steps", f"{s.steps} in {clock(s.seconds)}"),
        (
            "held-out accuracy",
            f"{_number(s.accuracy.start, 3)} → {_number(s.accuracy.end, 3)}"
            + OF_AVERAGE[s.accuracy.weights],
        ),
        *([("evaluated", said(s.evaluated))] if s.evaluated else []),
        (
            "last responses",
            f"reward {_number(s.responses.reward)}; {_share(s.responses.exact)} exact, "
            f"{_share(s.responses.truncated)} cut; {_number(s.responses.tokens, 1)} tokens; "
            f"entropy {_number(s.responses.entropy)}",
        ),
        (
            "tokens",
            f"{s.tokens.generated:,} generated = "
            f"{_balance(s.tokens.trained, s.tokens.discarded, s.tokens.live)}",
        ),
        (
            "rollouts",
            f"{s.rollouts.admitted:,} admitted = "
            f"{_balance(s.rollouts.trained, s.rollouts.discarded, s.rollouts.live)}",
        ),
        ("lag", f"{_number(s.lag.mean)} mean, {s.lag.max} max"),
        ("idle", f"{_share(s.idle.trainer)} trainer, {_share(s.idle.rollout)} rollout"),
        (
            "publications",
            f"{publication.count} in {publication.seconds:.1f} s, "
            f"{publication.sent_bytes / 1e6:,.1f} MB to each engine; decoding stood still "
            f"{_duration(pause)} for each",
        ),
    ]
    if not s.balances():
        rows.append(
            (
                "ledger",
                "DOES NOT BALANCE: this is a bug of asyncrl; please report it with the run's "
                "journal",
            )
        )
    if s.restarts:
        rows.append(
            ("restarts", ", ".join(f"{role} {count}" for role, count in sorted(s.restarts.items())))
        )
    if s.removed:
        rows.append(("removed", ", ".join(f"{name} {why}" for name, why in s.removed.items())))
    if slowest := s.slowest_verifier:
        rows.append(
            (
                "slowest verdict",
                f"{_duration(slowest.seconds)}, prompt "
                f"{slowest.prompt_index}{slowest.reason and f': {slowest.reason}'}",
            )
        )
    return rows


def show_rows(rows: Sequence[tuple[str, ...]], console: Console) -> None:
    """Show rows of (name, value) or (name, value, meaning): folded to a terminal's width, elsewhere
    one line for each row, for `grep`."""
    rows = [tuple(map(escaped, row)) for row in rows]
    if console.is_terminal:
        table = Table.grid(padding=(0, 2))
        for name, *rest in rows:
            table.add_row(Text(name, style="bold"), *(Text(cell, overflow="fold") for cell in rest))
        console.print(table)
        return
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        text = "  ".join(
            cell.ljust(width) for cell, width in zip(row, widths, strict=True)
        ).rstrip()
        console.print(text, markup=False, highlight=False, soft_wrap=True)


def _balance(trained: int, discarded: Mapping[str, int], live: int) -> str:
    parts = [
        f"{trained:,} trained",
        *(f"{count:,} {reason}" for reason, count in sorted(discarded.items())),
        f"{live:,} live",
    ]
    return " + ".join(parts)


def _absent(value: float | None) -> bool:
    return value is None or not math.isfinite(value)


def _number(value: float | None, digits: int = 2) -> str:
    return NONE if value is None or _absent(value) else f"{value:.{digits}f}"


def _count(value: float) -> str:
    return NONE if _absent(value) else f"{value:,.0f}"


def _share(value: float | None) -> str:
    return NONE if value is None or _absent(value) else f"{value:.0%}"


def _responses(status: StatusUpdate) -> str:
    """Shares, length and entropy of the last step's responses, in a line."""
    s = status
    return (
        f"responses {_share(s.exact)} exact, {_share(s.truncated)} cut, "
        f"{_number(s.response_tokens, 1)} tokens, entropy {_number(s.entropy)}"
    )


def _accuracy(status: StatusUpdate) -> str:
    return (
        NONE
        if _absent(status.accuracy)
        else f"{status.accuracy:.3f} (version {status.accuracy_version})"
        + OF_AVERAGE[status.accuracy_weights]
    )


def _duration(seconds: float | None) -> str:
    if seconds is None or _absent(seconds):
        return NONE
    return f"{seconds * 1000:.1f} ms" if seconds < 1 else f"{seconds:.1f} s"
