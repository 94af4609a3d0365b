"""`asyncrl sweep RUN`: ends what the agents of a dead run left outside: containers, remote
sandboxes, directories (`asyncrl.sandbox.opened`).

Invariant: nothing of a live run is ended, and none starts meanwhile, because the run is claimed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from asyncrl.config.errors import ConfigError
from asyncrl.config.schema import SandboxConfig
from asyncrl.escape import escaped
from asyncrl.explain.run_files import RunFiles
from asyncrl.launch.claim import claimed
from asyncrl.launch.private import refuse_foreign
from asyncrl.sandbox.boxes.box_ends import remote_ends
from asyncrl.sandbox.boxes.box_settings import BoxSettings
from asyncrl.sandbox.enders import Enders, RemoteEnd


def sweep(run: Path, say: Callable[[str], None]) -> int:
    """End what is left, and say of each thing whether it is gone. Returns the exit status: 0 if
    nothing is left, else 1. Raises ConfigError for what is no run, for a live run, and for
    another user's."""
    files = RunFiles(run)
    refuse_foreign(run.absolute())  # its run.toml may name a command
    living = "this run is alive and removes what its attempts leave; sweep it when it is over"
    with claimed(run, living):
        done = Enders(run.absolute(), _command(files), _remote(files)).end_left()
    for one in done:
        say(escaped(str(one)))
    left = sum(bool(one.wrong) for one in done)
    if not done:
        say("Nothing is left of this run.")
    elif left:
        say(f"{left} of {len(done)} are left: check them, and sweep again.")
    return int(bool(left))


def _remote(files: RunFiles) -> Mapping[str, RemoteEnd]:
    """The ends of the run's remote sandboxes, unless their provider is a class of the user's, of
    which no module is imported. Raises ConfigError."""
    table = files.tables.get("sandbox", {})
    try:
        settings = BoxSettings.of(msgspec.convert(table, SandboxConfig))
    except msgspec.ValidationError as error:
        text = escaped(str(error), 200)
        raise ConfigError(f"{files.path}: [sandbox] of its run.toml is wrong ({text}).") from None
    return {} if ":" in settings.kind else remote_ends(settings, files.path.absolute())


def _command(files: RunFiles) -> tuple[str, ...]:
    """The run's agent.end, of which no module is imported. Raises ConfigError."""
    words = files.settings.get("agent.end", ())
    if not isinstance(words, list | tuple) or not all(isinstance(word, str) for word in words):
        raise ConfigError(f"{files.path}: agent.end of its run.toml is not a command; correct it.")
    return tuple(words)
