"""Commands of a container engine's client (`docker`, `podman`), run as every program is: with a
deadline, a bound of output, and killed with their group."""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from asyncrl.sandbox.programs.program import Program, ProgramError, Ran
from asyncrl.sandbox.programs.runner import Started, run
from asyncrl.sandbox.programs.unconfined import ProcessGroup

ASK_S = 60.0
"""Seconds that the engine may take to answer a question."""
SAID_BYTES = 2**16
"""Bytes of what a client says that are kept."""


class ClientCommand:
    """A kind of sandbox that confines nothing: the program is the engine's client, with this
    process's environment. `variables` go into a container by a file, since every user of the
    machine may read a command line: `before` is what comes ahead of the file's name."""

    def __init__(
        self, before: Sequence[str] = (), variables: Mapping[str, str] | None = None
    ) -> None:
        self._before, self._variables = tuple(before), variables or {}

    def missing(self) -> str:
        return ""

    @contextmanager
    def start(self, program: Program) -> Iterator[Started]:
        with contextlib.ExitStack() as opened:
            argv = [*self._before, *program.argv]
            if self._variables:
                file = opened.enter_context(tempfile.NamedTemporaryFile("w", encoding="utf-8"))
                file.writelines(f"{name}={value}\n" for name, value in self._variables.items())
                file.flush()
                argv = [*self._before, "--env-file", file.name, *program.argv]
            try:
                process = subprocess.Popen(
                    argv,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    start_new_session=True,
                )
            except OSError as error:
                raise ProgramError(f"{argv[0]} cannot be started: {error.strerror}") from None
            yield ProcessGroup(process)


def asked(argv: Sequence[str], seconds: float = ASK_S, stdin: bytes = b"") -> Program:
    """The program that asks an engine something."""
    return Program(argv=tuple(argv), stdin=stdin, seconds=seconds, output_bytes=SAID_BYTES)


def ask(argv: Sequence[str], seconds: float = ASK_S) -> Ran:
    """Ask an engine something. It blocks. Raises ProgramError."""
    return run(asked(argv, seconds), ClientCommand())


def last_line(ran: Ran) -> str:
    """The last line of what a client said of an error, or how it ended.

    >>> last_line(Ran(stdout=b"", stderr=b"a\\nno such image", code=1, timed_out=False,
    ...     truncated=False, seconds=0.0))
    'no such image'
    """
    if ran.timed_out:
        return f"it did not answer within {ran.seconds:.0f} s"
    text = ran.stderr.decode(errors="replace").strip().rpartition("\n")[2]
    return "".join(character if character.isprintable() else "?" for character in text)[:300] or (
        f"it ended with {ran.code}"
    )
