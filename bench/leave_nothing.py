"""Is anything left of attempts that are killed? A run whose agents play inside of containers, of a
double of `docker` (`docker_double.py`), is killed in parts, as by `kill_agents.py`: an agent's own
process, the agents actor, the rollout actor, the coordinator, everything, in turn, at moments drawn
from the seed, until so many attempts were killed. In the end everything is killed once more, and
`asyncrl sweep` ends what is left.

    killed    attempts that began and did not end by themselves
    left      containers that there are after the sweep, on their way or in being
    at once   most containers on their way at a time, also of attempts that were killed meanwhile
    storm     the same, in the two minutes after everything was killed and the run went on
    cap       attempts that may start at a time, at most

    python bench/leave_nothing.py [--attempts 200] [--seed 0] [--model DIR]

Exit status 1 where anything is left, a storm was larger than the cap, or the run did not go on.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from docker_double import containers, install
from follower import Wrong
from kill_agents import BENCH, AgentMatrix
from kill_matrix import tiny

from asyncrl.actors.start_limit import MOST
from asyncrl.sandbox.opened import left

STORM_S, LOOK_S = 120.0, 0.05
ATTEMPTS = 4, 16
"""Attempts that begin between two kills."""
SETTLED_S = 1.0
"""Seconds after which every container that was asked for is there."""
SETTINGS = {"agent.run": '"opening_agent:solve"', "engine.slots": 24, "train.batch_groups": 4}


class OpeningMatrix(AgentMatrix):
    """The run, whose attempts open containers. What its journal has is not followed."""

    def __init__(self, run: Path, model: Path, seed: int, double: Path) -> None:
        super().__init__(run, model, seed, SETTINGS)
        self.double = double
        path = f"{install(double)}:{os.environ['PATH']}"
        self.environment |= {"DOUBLE": str(double), "PATH": path}
        self.restarts: list[float] = []

    def start(self, *more: str) -> None:
        argv = ["--resume", str(self.run), *more] if self.restarts else self._first
        self.restarts.append(time.time())
        with (self.run.parent / "launcher.log").open("ab") as log:
            self.process = subprocess.Popen(
                [*self.command, "train", *argv],
                stdout=log,
                stderr=log,
                env=os.environ | self.environment,
            )

    def wait(self, what: str, done: Callable[[], bool]) -> float:
        end = time.monotonic() + self.hang_s
        while not done():
            if time.monotonic() > end:
                raise Wrong("hang", f"no {what} within {self.hang_s:g} s")
            time.sleep(LOOK_S)
        return time.monotonic()

    def kill(self, role: str) -> None:
        """Let some attempts begin, and kill. Everything is started again."""
        due = self.begun() + self.draw.randint(*ATTEMPTS)
        self.wait(f"attempt {due}", lambda: self.begun() >= due)
        time.sleep(self.draw.uniform(0, 0.5))
        self.wait(f"process {role}", lambda: role in {"worker", "everything", *self.actors()})
        for pid in self.victims(role):
            os.kill(pid, signal.SIGKILL)
        if role == "everything":
            self.close()
            self.wait("end of the actors", lambda: not self.actors())
            self.start()

    def attempts(self) -> list[str]:
        """A line for each attempt that began, and for each that ended by itself."""
        try:
            return (self.double / "attempts").read_text().splitlines()
        except FileNotFoundError:
            return []

    def begun(self) -> int:
        """Attempts that began."""
        return sum(line.startswith("begin") for line in self.attempts())

    def unended(self) -> int:
        """Attempts that began, and have not ended by themselves."""
        return 2 * self.begun() - len(self.attempts())

    def at_once(self, since: float, until: float) -> int:
        """The most containers on their way at a time, by the clock."""
        lines = [line.split() for line in (self.double / "log").read_text().splitlines()]
        return max((int(one[3]) for one in lines if since <= float(one[0]) <= until), default=0)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--attempts", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--model", type=Path, help="a model directory (default: a tiny one)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="leave-nothing-") as folder:
        place, began = Path(folder), time.monotonic()
        model = args.model or tiny(place / "model")
        matrix = OpeningMatrix(place / "run", model, args.seed, place / "double")
        kills = 0
        try:
            matrix.start()
            while matrix.unended() < args.attempts:
                role = matrix.roles[kills % len(matrix.roles)]
                matrix.kill(role)
                kills += 1
                unended = matrix.unended()
                print(f"{kills:4} {role:<12} {unended:4} attempts have not ended", flush=True)
            for pid in matrix.victims("everything"):
                os.kill(pid, signal.SIGKILL)
            matrix.close()
            matrix.wait("end of the actors", lambda: not matrix.actors())
        except Wrong as wrong:
            print(f"after {kills} kills: {wrong.what}, {wrong}", file=sys.stderr)
            return 1
        finally:
            matrix.close()
        killed, before = matrix.unended(), len(containers(matrix.double))
        swept = subprocess.run(
            [*matrix.command, "sweep", str(matrix.run)],
            env=os.environ | matrix.environment,
            stdout=subprocess.PIPE,
            check=False,
        )
        time.sleep(SETTLED_S)
        found, notes = containers(matrix.double), list(left(matrix.run))
        storm = max(matrix.at_once(at, at + STORM_S) for at in matrix.restarts)
        cap = MOST * len(os.sched_getaffinity(0))
        print(f"\n{kills + 1} kills in {time.monotonic() - began:.0f} s")
        print(f"killed   {killed}")
        print(f"before the sweep {before}, which ended with {swept.returncode}")
        print(f"left     {len(found)} containers, {len(notes)} notes")
        print(f"at once  {matrix.at_once(0.0, time.time())}")
        print(f"storm    {storm}")
        print(f"cap      {cap}")
        return int(bool(found or notes or swept.returncode or storm > cap))


if __name__ == "__main__":
    assert Path(__file__).parent == BENCH
    sys.exit(main())
