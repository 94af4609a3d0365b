"""Output of agents, kept in a run's directory. Invariant: the newest output is there, and an actor
keeps a bounded amount.

An actor's file is `RUN/printed/agents-0.jsonl`: a line for each attempt that ended by itself and
printed anything. Once it is full it takes the place of the older one, `agents-0.old.jsonl`.
"""

from __future__ import annotations

import logging
import re
from contextlib import suppress
from pathlib import Path

import msgspec

from asyncrl.files import open_growing, read_regular
from asyncrl.runtime.run_dir import PRINTED

NEW, OLD = ".jsonl", ".old.jsonl"
BYTES = 2**21
"""Bytes of a file, at most: outputs of a hundred attempts that print as much as is kept."""

logger = logging.getLogger(__name__)


class AttemptOutput(msgspec.Struct, frozen=True, array_like=True):
    """The last of what an attempt printed, as printable text."""

    rollout: int
    attempt: int
    text: str


class PrintedFile:
    """Keeps what the attempts of one agents actor print.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     kept = PrintedFile(Path(folder), 0)
    ...     kept.keep(AttemptOutput(7, 1, "no such tool"))
    ...     kept.keep(AttemptOutput(7, 2, "found it"))
    ...     printed(Path(folder), 7)
    {1: 'no such tool', 2: 'found it'}
    """

    def __init__(self, run: Path, index: int) -> None:
        name = run / PRINTED / f"agents-{index}"
        self._path, self._old = name.with_suffix(NEW), name.with_suffix(OLD)
        self._quiet = False

    def keep(self, output: AttemptOutput) -> None:
        """Keep an output, unless it is empty. A full disk does not end an attempt: nothing more is
        kept then, and the log says why."""
        if self._quiet or not output.text.strip():
            return
        line = msgspec.json.encode(output) + b"\n"
        try:
            self._path.parent.mkdir(exist_ok=True)
            with open_growing(self._path) as file:
                if file.tell() + len(line) <= BYTES:
                    file.write(line)
                    return
            self._path.replace(self._old)
            with open_growing(self._path) as file:
                file.write(line)
        except OSError as error:
            self._quiet = True
            logger.warning("no output of agents is kept any more: %s", error)


def printed(run: Path, rollout: int) -> dict[int, str]:
    """Texts that the attempts at a rollout printed, by their numbers; {} where none is known. What
    is damaged, or no file of ours, is left out."""
    begins = re.compile(rb"^\[%d,.*$" % rollout, re.MULTILINE)
    found = dict[int, str]()
    files = [*(run / PRINTED).glob(f"*{OLD}"), *(run / PRINTED).glob(f"*[0-9]{NEW}")]
    for path in files:
        with suppress(OSError):
            for line in begins.findall(read_regular(path, BYTES)):
                with suppress(msgspec.DecodeError):
                    output = msgspec.json.decode(line, type=AttemptOutput)
                    found[output.attempt] = output.text
    return dict(sorted(found.items()))
