"""Display of a run while it lives, and of its summary at the end: on a terminal and in a notebook
in place, elsewhere as plain lines.

It has no thread: it draws when it gets an update, and never waits for its reader. While a terminal
is stopped, or a pipe is full, updates are dropped, and notes are kept."""

from __future__ import annotations

import select
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from asyncrl.escape import escaped
from asyncrl.explain.cell import CellOutput, in_notebook
from asyncrl.explain.diagnosis import WELL
from asyncrl.explain.rows import summary_rows, update_rows
from asyncrl.explain.step_pace import StepPace
from asyncrl.explain.summary import Summary
from asyncrl.messages import Progress, StatusUpdate
from asyncrl.runtime.progress import amount, progress_line
from asyncrl.words import clock

STEP_LINE_S = 2.0
"""Least seconds between two plain lines while steps are taken."""
WAIT_LINE_S = 10.0
"""Least seconds between two plain lines while no step is taken."""
FIRST_LINE_S = 2.0
"""Seconds after which something takes long enough for a line."""
BAR = 48
"""Columns of the bar of steps."""
NOTES = 100
"""Notes that are kept for a reader who takes nothing; the oldest go first."""


class Display:
    """Display of one run, a context manager around it: `update` it with every StatusUpdate, `note`
    what happens meanwhile."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live: Live | CellOutput | None = None
        if console.is_terminal and not console.is_dumb_terminal:
            self._live = Live(console=console, auto_refresh=False)
        elif in_notebook():
            self._live = CellOutput()
        self._printed: StatusUpdate | None = None
        self._notes: deque[str] = deque(maxlen=NOTES)  # to be printed
        self._told = "", FIRST_LINE_S  # what progress is of, and the second of its next line
        self._alarms: list[str] = []  # those of the last update
        self._pace = StepPace()

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
        """Show how the run stands: redraw, or print a line if there is news. An alarm is a note
        when it begins and each time that it says something else."""
        self._notes += [alarm for alarm in status.alarms if alarm not in self._alarms]
        begins = status.phase == "starting"  # another life knows nothing of the disk yet
        if self._alarms and not status.alarms and not begins:
            self._notes.append("What raised the last alarm is over.")
        self._alarms = status.alarms
        self._pace.saw(status.seconds, status.step)
        self._print_notes()
        if not self._taken():
            return
        if self._live:
            self._live.update(
                panel(status, self._pace.left_s(status.step, status.steps)), refresh=True
            )
        elif _is_news(status, self._printed):
            self._printed = status
            self._print(line(status))

    def progress(self, progress: Progress) -> None:
        """Show the progress of something slow before the first status: redraw, or print a line now
        and then."""
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
    """One line of text. It says what limits the run before the first step, and in trouble."""
    figures = "  ".join(f"{name} {value}" for name, value in update_rows(status))
    limit = status.limit if status.alarms or not status.step else ""
    note = "" if status.note in limit else status.note
    notes = [note, limit, *map(progress_line, status.progress)]
    return (
        f"{clock(status.seconds)}  {status.phase}  step {status.step}/{status.steps}  {figures}"
        + "".join(f"  | {note}" for note in notes if note)
    )


def panel(status: StatusUpdate, left_s: float | None = None) -> RenderableType:
    """A block of a terminal: what fails first, then the state with what limits it, then a line for
    each metric. It takes `left_s` seconds more."""
    s, colour = status, _colour(status)
    head = Table.grid(padding=(0, 2))
    head.add_row(
        Text(escaped(s.phase), style=f"bold {colour}"),
        f"step {s.step}/{s.steps}",
        f"{clock(s.seconds)} elapsed",
        "" if left_s is None else f"{clock(left_s)} left",
    )
    bar = Table.grid()
    bar.add_row(
        ProgressBar(total=max(s.steps, 1), completed=s.step, width=BAR, complete_style=colour)
    )
    body = Table.grid(padding=(0, 2))
    for name, said in update_rows(status):
        body.add_row(Text(name, style="dim", no_wrap=True), Text(escaped(said)))
    fails = [Text(escaped(alarm), style="bold red") for alarm in s.alarms if alarm != s.limit]
    limit = [Text(escaped(s.limit), style=colour)] if s.limit else []
    notes = [Text(escaped(s.note), style="italic")] if s.note not in s.limit else []
    return Group(*fails, *notes, head, bar, *limit, body, *_bars(s.progress))


def _colour(status: StatusUpdate) -> str:
    """The colour of a state: red in trouble, green where all works, yellow where a side waits."""
    if status.alarms:
        return "red"
    if status.phase != "training":
        return "cyan"
    return "green" if status.limit in ("", WELL) else "yellow"


def _bars(items: Sequence[Progress]) -> list[RenderableType]:
    """A bar for each job in progress; one without a count pulses."""
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


def show_summary(summary: Summary, run: Path, console: Console) -> None:
    """Show the summary of a run, as a table."""
    show_rows([*summary_rows(summary), ("kept in", str(run))], console)


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
