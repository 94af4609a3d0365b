"""An agent on a node of Ray: Ray's actor holds `asyncrl agent` as its child, which ends with it.

`python -m asyncrl.launch.cluster.ray_agent NAME CORES ROLE` is that child. It reads the token from
its standard input, so a node of Ray has no file of it, whatever is killed.
"""

from __future__ import annotations

import argparse
import signal
import socket
import subprocess
import sys
import tempfile
from contextlib import suppress
from typing import NamedTuple

from asyncrl.config.errors import BAD_INPUT, ConfigError
from asyncrl.launch.cluster.agent import agent
from asyncrl.launch.cluster.join_token import TOKEN_BYTES, JoinToken
from asyncrl.launch.cluster.joining import PATIENCE_S
from asyncrl.messages import JoinedRole
from asyncrl.runtime.output import complain
from asyncrl.runtime.processes.process import become_child, environment, last_words


class AgentEnd(NamedTuple):
    """The exit status of an agent, and the most telling line of its output."""

    status: int
    words: str


class RayAgent:
    """Ray's actor, one for each node that takes part. Its calls run in the main thread of its
    process, to which the child's life is tied."""

    def __init__(self, token: bytes, cores: int, role: JoinedRole) -> None:
        """Start the agent. `token` is the contents of the run's join token, and `role` that of its
        actors."""
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  # as long as this actor
        self._child = subprocess.Popen(
            [
                *(sys.executable, "-m", "asyncrl.launch.cluster.ray_agent"),
                *(socket.gethostname(), str(cores), role),
            ],
            env=environment(),
            stdin=subprocess.PIPE,
            stdout=self._log,
            stderr=self._log,
        )
        assert self._child.stdin is not None
        with suppress(BrokenPipeError), self._child.stdin as words:  # `wait` says how it ended
            words.write(token)

    def wait(self) -> tuple[int, str]:
        """Wait for the agent's end; returns an `AgentEnd`'s parts."""
        status = self._child.wait()
        self._log.seek(0)
        words = last_words(self._log.read().decode(errors="replace"))
        return AgentEnd(status, words.removeprefix("asyncrl: "))


def main() -> None:
    """Be the agent, and end when Ray's actor does."""
    become_child(signal.SIGTERM)
    parser = argparse.ArgumentParser(prog="python -m asyncrl.launch.cluster.ray_agent")
    parser.add_argument("name")
    parser.add_argument("cores", type=int)
    parser.add_argument("role", choices=("rollout", "trainer", "reward"))
    arguments = parser.parse_args()
    try:
        token = JoinToken.parsed(sys.stdin.buffer.read(TOKEN_BYTES), "what Ray's actor sent")
        raise SystemExit(
            agent(token, None, arguments.name, arguments.cores, PATIENCE_S, arguments.role)
        )
    except ConfigError as error:
        complain(str(error))
        raise SystemExit(BAD_INPUT) from None


if __name__ == "__main__":
    main()
