"""The end of a run, as it is shown to the user: its summary, and in one sentence why it failed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from pathlib import Path

from rich.console import Console

from asyncrl.config import Config
from asyncrl.config.errors import BAD_INPUT, DISK_NOT_READY
from asyncrl.escape import escaped, escaped_lines
from asyncrl.exit_status import FAILED
from asyncrl.experience.call import ImpossibleEvent
from asyncrl.explain import summary
from asyncrl.explain.curve import Curve, read
from asyncrl.explain.display import show_summary
from asyncrl.explain.model_card import write_cards
from asyncrl.files import takes_nothing
from asyncrl.journal import JournalError, fold
from asyncrl.os_errors import number_of, remedy
from asyncrl.runtime.output import complain
from asyncrl.runtime.processes.process import last_words
from asyncrl.runtime.processes.run_supervisor import SupervisedEnd
from asyncrl.runtime.processes.supervisor import describe_exit
from asyncrl.runtime.run_dir import JOURNAL, METRICS, SUMMARY


@dataclass(frozen=True)
class RunEnd:
    """The `end` of a run of these settings. `full` is the error of a disk without room, for which
    the run was not started again."""

    config: Config
    end: SupervisedEnd
    full: OSError | None = None

    def show(self, console: Console) -> int:
        """Show the summary, and why the run failed. Returns the exit status of a run that failed, 0
        for another one."""
        end, of_disk = self.end, self._of_disk
        ending = self._summary()
        if ending is not None:
            show_summary(ending, self._run, console)
            try:
                write_cards(self._run, self.config, ending, version("asyncrl"))
            except OSError as error:
                complain(escaped(f"the model has no card: {error}"))
        if end.failure is not None and end.failure.code == BAD_INPUT:
            complain(escaped(last_words(end.failure.traceback)))
            return BAD_INPUT
        if of_disk:
            complain(escaped(f"the run failed: {of_disk}."))
            return FAILED
        if end.failure is not None:
            complain(escaped_lines(str(end.failure)))
            return FAILED
        if end.finished is None or end.finished.ok:
            return 0
        return self._unfinished(end.finished.reason)

    def _unfinished(self, why: str) -> int:
        """Say why a run failed that its coordinator ended. The coordinator may have seen a link end
        before its cause was known."""
        if self.end.unrestarted:
            lost = self.end.unrestarted[0]
            if lost.code == BAD_INPUT and lost.words:
                complain(escaped(lost.words))
                return BAD_INPUT
            why += f"; {lost.role}-{lost.index} {describe_exit(lost.code)}"
        full = takes_nothing(self._run)
        if full and remedy(full) not in why:
            why += (
                f". Nothing can be written to the disk ({full.strerror}): {remedy(full)}, "
                "and resume it"
            )
        complain(escaped(f"the run failed: {why}. Its logs are in {self._run / 'logs'}."))
        return FAILED

    @property
    def _run(self) -> Path:
        return Path(self.config.run.dir)

    def _summary(self) -> summary.Summary | None:
        """The summary that the coordinator wrote, or else one from what is on disk, which is
        written if there is room; None if there is neither."""
        end, path = self.end, self._run / SUMMARY
        if path.exists():
            return summary.read(path)
        if not (self._run / JOURNAL).exists():
            return None
        if end.finished is not None:
            reason = end.finished.reason
        elif end.failure is not None:
            reason = self._of_disk or str(end.failure).splitlines()[0]
        else:
            reason = summary.UNREPORTED
        found = None
        try:
            found = self._recounted(reason)
            summary.write(found, path)
        except (JournalError, ImpossibleEvent, OSError) as error:
            complain(escaped(f"there is no {SUMMARY}: {error}"))
        return found

    def _recounted(self, reason: str) -> summary.Summary:
        """The summary, from what is on disk. Raises JournalError, ImpossibleEvent and OSError."""
        metrics = self._run / METRICS
        curve = Curve(read(metrics) if metrics.exists() else ())
        ledger = fold(self._run / JOURNAL).ledger
        steps = curve.last.version if curve.last is not None else 0
        accuracy = summary.Accuracy.of(curve)
        return summary.of_ledger(ledger, reason, steps, curve.before_s, accuracy)

    @cached_property
    def _of_disk(self) -> str:
        """The sentence of a run that a disk ended before it could say so itself; empty for another
        one."""
        failure = self.end.failure
        if self.end.finished is not None and not self.full:
            return ""
        if not self.full and (failure is None or failure.code != DISK_NOT_READY):
            return ""
        name = failure.name if failure is not None else "the trainer"
        words = last_words(failure.traceback if failure is not None else "")
        found = self.full or (None if number_of(words) else takes_nothing(self._run))
        why, said = (found, found.strerror) if found else (words, words)
        return (
            f"{name} was lost, and the disk of {self._run} takes nothing ({said}): {remedy(why)}, "
            "and resume the run"
        )
