"""Ends of what was opened outside (`opened.py`), by kind.

Invariant: an end takes at most twice END_S, SETTLE_S and a kill; one that hangs or fails keeps its
note, and is told by name. Nothing is ended but what a checked note names: names are no options, and
a command is never one that was read from a note.

A container may come into being after its client was killed: the engine has the request by then, and
so may a remote sandbox. So one that is not there is looked for once more, SETTLE_S later.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType
from typing import Literal, NamedTuple

from asyncrl.sandbox.opened import SCRATCH, LeftNote, NoteError, Opened, forget_empty, left

END_S = 30.0
"""Seconds that the end of one thing may take."""
SETTLE_S = 2.0
"""Seconds after which what was not there is looked for again."""
ALL_S = 60.0
"""Seconds after which no end of one more thing is begun, of those that were left."""
AT_A_TIME = 8
"""Things that are ended at a time, by one process."""
SAID_BYTES = 2**12
"""Bytes of a command's output that are read: the last ones."""
WORDS = 200
"""Characters of a command's error that are shown."""
_ABSENT = ("no such container", "no container with name or id")
"""Words of engines for a container that is not there."""

RemoteEnd = Callable[[str], bool]
"""Ends the remote sandbox of an id. Returns False if there is none. Raises EndFailed."""
PROVIDERS: Mapping[str, RemoteEnd] = MappingProxyType({})
"""The ends of remote sandboxes by provider: adapters have theirs here."""


class EndFailed(Exception):
    """A thing could not be ended, and may live; the text says why."""


class EndedNote(NamedTuple):
    """A note that was worked off; `wrong` says why its thing could not be ended, "" if it is
    gone."""

    note: LeftNote
    wrong: str

    def __str__(self) -> str:
        thing = self.note.opened or self.note.path
        return f"{thing}: {self.wrong or 'ended'}"


class Enders:
    """Ends the things of one run. `command` is `agent.end`, from the settings of the run's user."""

    def __init__(
        self,
        run: Path,
        command: Sequence[str] = (),
        providers: Mapping[str, RemoteEnd] = PROVIDERS,
        *,
        end_s: float = END_S,
        settle_s: float = SETTLE_S,
    ) -> None:
        self.run, self._command, self._providers = run, tuple(command), providers
        self._end_s, self._settle_s = end_s, settle_s

    def refuse(self, opened: Opened) -> None:
        """Raise NoteError if this run could not end such a thing: then it must not be opened."""
        opened.checked()
        if opened.kind == "command" and not self._command:
            raise NoteError("agent.end is empty, so no thing of the kind command can be ended")
        if opened.kind == "container" and shutil.which(opened.end[0]) is None:
            raise NoteError(f"there is no command {opened.end[0]} that could end a container")
        if opened.kind == "remote" and opened.end[0] not in self._providers:
            raise NoteError(f"there is no adapter for the provider {opened.end[0]}")

    def end(self, opened: Opened) -> None:
        """End a thing that nobody is opening now, if it is there. It blocks. Raises EndFailed."""
        self._once(opened)

    def end_known(self, note: LeftNote) -> EndedNote:
        """End the thing of a note, as `end`, and forget the note; what could not be ended keeps it.
        It blocks, and raises nothing."""
        return self._ended(note, settle_s=None)

    def _ended(self, note: LeftNote, *, settle_s: float | None) -> EndedNote:
        """With `settle_s` who opened it was killed, so it may come into being yet, outside of this
        machine's sight: there is nothing to wait for but the time."""
        if note.opened is None:
            return EndedNote(note, f"this is no note of ours ({note.wrong})")
        try:
            if self._once(note.opened) == "absent" and settle_s is not None:
                time.sleep(settle_s)
                self._once(note.opened)
            note.forget()
        except (EndFailed, OSError) as error:
            return EndedNote(note, str(error))
        return EndedNote(note, "")

    def end_left(self, of: str = "") -> list[EndedNote]:
        """End what owners left, chosen by `of` as in `left`, AT_A_TIME things together. What was
        not begun after ALL_S keeps its note. It blocks, and raises nothing."""
        try:
            notes = list(left(self.run, of))
        except (NoteError, OSError) as error:
            return [EndedNote(LeftNote("", self.run, None), str(error))]
        until = time.monotonic() + ALL_S

        def end(note: LeftNote) -> EndedNote:
            if time.monotonic() > until:
                return EndedNote(note, f"there was no time for it within {ALL_S:g} s")
            return self._ended(note, settle_s=self._settle_s)

        with ThreadPoolExecutor(AT_A_TIME, "ender") as pool:
            done = list(pool.map(end, notes))
        for folder in {note.path.parent for note in notes if note.owner}:
            forget_empty(folder)
        return done

    def made(self, opened: Opened) -> str:
        """Make a directory that is noted, and return its path; the name of another thing. Raises
        NoteError and OSError."""
        if opened.kind != "directory":
            return opened.name
        path = self._scratch(opened)
        if _by_link(path):
            raise NoteError(f"{path} is reached by a symbolic link, and is not made")
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        return str(path)

    def _scratch(self, opened: Opened) -> Path:
        return self.run / SCRATCH / opened.name

    def _once(self, opened: Opened) -> Literal["ended", "absent"]:
        """End a thing, if it is there. Raises EndFailed."""
        match opened.kind:
            case "container":
                # `--volumes`: an anonymous volume would outlive it
                code, said = self._ran([opened.end[0], "rm", "--force", "--volumes", opened.name])
                if absent(said):
                    return "absent"
                if code:
                    raise EndFailed(f"{opened.end[0]} rm ended with {code}{_shown(said)}")
            case "directory":
                self._remove(self._scratch(opened))
            case "remote":
                if (end := self._providers.get(opened.end[0])) is None:
                    raise EndFailed(f"there is no adapter for the provider {opened.end[0]}")
                return "ended" if end(opened.name) else "absent"
            case "command":
                if not self._command:
                    raise EndFailed("the run's agent.end is empty")
                code, said = self._ran([*self._command, opened.name])
                if code:
                    raise EndFailed(f"{self._command[0]} ended with {code}{_shown(said)}")
        return "ended"

    def _remove(self, path: Path) -> None:
        if _by_link(path):
            raise EndFailed(f"{path} is reached by a symbolic link, and is left")
        try:
            shutil.rmtree(path)
        except FileNotFoundError:
            return
        except OSError as error:
            raise EndFailed(f"it cannot be removed: {error.strerror}") from error

    def _ran(self, argv: list[str]) -> tuple[int, str]:
        """Run a command, and return its exit code and the end of what it said. Raises EndFailed."""
        with tempfile.TemporaryFile() as said:
            try:
                process = subprocess.Popen(
                    argv,
                    stdin=subprocess.DEVNULL,
                    stdout=said,
                    stderr=said,
                    start_new_session=True,
                )
            except OSError as error:
                raise EndFailed(f"{argv[0]} cannot be started: {error.strerror}") from None
            try:
                code = process.wait(self._end_s)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)  # not reaped yet, so the group is its own
                process.wait()
                raise EndFailed(f"{argv[0]} did not end it within {self._end_s:g} s") from None
            said.seek(max(0, said.seek(0, os.SEEK_END) - SAID_BYTES))
            return code, said.read().decode(errors="replace").strip()


def _by_link(path: Path) -> bool:
    return path.parent.is_symlink() or path.is_symlink()


def absent(said: str) -> bool:
    """True if an engine says that a container is not there.

    >>> absent("Error response from daemon: No such container: a")
    True
    """
    return any(words in said.lower() for words in _ABSENT)


def _shown(said: str) -> str:
    last = said.rpartition("\n")[2]
    return f": {last[:WORDS]}" if last else ""
