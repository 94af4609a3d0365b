"""An agent on a node of Ray: Ray's actor holds `asyncrl agent` as its child, which ends with it.

`python -m asyncrl.launch.cluster.ray_agent TOKEN NAME CORES ROLE` is that child.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from asyncrl.config.errors import BAD_INPUT, ConfigError
from asyncrl.launch.cluster.agent import agent
from asyncrl.launch.cluster.join_token import JoinToken
from asyncrl.launch.cluster.joining import PATIENCE_S
from asyncrl.messages import JoinedRole
from asyncrl.runtime.ipc.keys import write_key
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
        path = Path(tempfile.mkdtemp(prefix="asyncrl-ray-"), "join.token")
        write_key(path, token)
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  # as long as this actor
        self._child = subprocess.Popen(
            [
                *(sys.executable, "-m", "asyncrl.launch.cluster.ray_agent"),
                *(str(path), socket.gethostname(), str(cores), role),
            ],
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
        )

    def wait(self) -> tuple[int, str]:
        """Wait for the agent's end; returns an `AgentEnd`'s parts."""
        status = self._child.wait()
        self._log.seek(0)
        words = last_words(self._log.read().decode(errors="replace"))
        return AgentEnd(status, words.removeprefix("asyncrl: "))


def main() -> None:
    """Be the agent, and end when Ray's actor does. The token's folder is removed at once."""
    become_child(signal.SIGTERM)
    parser = argparse.ArgumentParser(prog="python -m asyncrl.launch.cluster.ray_agent")
    parser.add_argument("token", type=Path)
    parser.add_argument("name")
    parser.add_argument("cores", type=int)
    parser.add_argument("role", choices=("rollout", "trainer", "reward"))
    arguments = parser.parse_args()
    try:
        token = JoinToken.read(arguments.token)
        shutil.rmtree(arguments.token.parent)
        raise SystemExit(
            agent(token, None, arguments.name, arguments.cores, PATIENCE_S, arguments.role)
        )
    except ConfigError as error:
        complain(str(error))
        raise SystemExit(BAD_INPUT) from None


if __name__ == "__main__":
    main()
