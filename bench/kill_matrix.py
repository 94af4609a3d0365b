"""SIGKILL of each role, and of everything, all over a run of real processes: is anything lost,
trained twice, or stuck, and how long is it until it goes on?

One run of a tiny model with random weights. Each time its journal has grown by so many events
(drawn from the seed), the next role in turn is killed. A rollout or reward actor is started again
by the run; whose trainer or coordinator is killed goes on by itself; after everything was killed
`asyncrl train --resume` does.
After each kill the journal is compared with an account kept from its events alone (`follower.py`),
and so is what the run says that it goes on from. In the end the run is let finish, and must have
taken its prompts in the order of the data, each once.

    lost    a token, verdict or prompt that was journalled before a kill, and is not in the run's
            ledger and state after
    twice   a rollout trained again in the weights that hold it already
    hang    nothing new within HANG_S
    work    seconds from the kill to the first work that can only be newer: a token under a later
            lease; for a reward actor a verdict on an answer that came after
    step    seconds from the kill to a published version that had never been published before

    python bench/kill_matrix.py [--kills 200] [--roles trainer,coordinator] [--seed 0] [--model DIR]
                                [--run DIR] [--server vllm=.venv-vllm/bin/python] [--set KEY=VALUE]

With `--server` the engine is a real server, which such a Python starts.

Exit status 1 where anything was lost, trained twice, or hung.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Generic, TypeVar

from follower import Follower, JournalFollower, Wrong

from asyncrl import config as configuration
from asyncrl.actors.coordinator.prompts import PromptSource
from asyncrl.experience import events as e
from asyncrl.explain import summary
from asyncrl.runtime.run_dir import INITIAL, SUMMARY
from asyncrl.tasks import open_task
from asyncrl.tasks.text import Tokenizer

ROLES = ("rollout", "reward", "trainer", "coordinator", "everything")
HANG_S = 120.0
SERVED_S = 600.0
"""Likewise, where a server must start."""
LOOK_S = 0.02
GAP = 20, 260
"""Events between a run's going on and the next kill: about one to five steps."""
LAST_STEPS = 3
F = TypeVar("F", bound=JournalFollower)
SETTINGS = {
    "task.name": '"spell_backward"',
    "task.eval_size": 4,
    "train.steps": 1_000_000,
    "train.batch_groups": 2,
    "train.checkpoint_every": 8,
    "rollout.group_size": 4,
    "rollout.max_new_tokens": 24,
    "rollout.filter": '"none"',
    "rollout.attempts": 1000,
    "engine.slots": 8,
    "engine.chunk_tokens": 4,
    "engine.compile": "false",
    "journal.commit_ms": 10,
    "supervision.restarts": 100_000,
    "supervision.heals": 100_000,
    "supervision.grace_s": 5.0,
    "machine.cores": 2,
}


class KillMatrix(Generic[F]):
    """One run, which `follower` follows, and its kills. `went_on` are (role, seconds to work,
    seconds to a step); `command` is what starts it, with the variables `environment` beside its
    own, and `more` are settings beside SETTINGS.

    Of `roles`, the run starts those anew that are `restarted`, begins another life without those
    that are `healed`, and ends with the others. `work`
    names, by the role killed, what begins newer work and what shows that it was done; the next kill
    is `gap` events later.
    """

    roles: tuple[str, ...] = ROLES
    restarted: tuple[str, ...] = ("rollout", "reward")
    healed: tuple[str, ...] = ("trainer", "coordinator")
    work: Mapping[str, tuple[type[e.Event], type[e.Event]]] = MappingProxyType(
        {"reward": (e.Sealed, e.Judged)}
    )
    gap = GAP
    hang_s = HANG_S

    def __init__(
        self,
        run: Path,
        model: Path,
        seed: int,
        follower: F,
        more: Mapping[str, object] | None = None,
    ) -> None:
        self.run = run
        self._first = [
            f"--set={key}={value}"
            for key, value in (
                SETTINGS | {"model.path": f'"{model}"', "run.dir": f'"{run}"', **(more or {})}
            ).items()
        ]
        self.draw = random.Random(seed)
        self.process: subprocess.Popen[bytes] | None = None
        self.command = [sys.executable, "-m", "asyncrl.cli"]
        self.environment: dict[str, str] = {}
        self.follower = follower
        self.went_on: list[tuple[str, float, float]] = []
        self.boundaries: list[int] = []

    # ----------------------------------------------------------------------------------- processes

    def start(self, *more: str) -> None:
        """Start the run, or go on with it."""
        argv = ["--resume", str(self.run), *more] if self.follower.events else self._first
        with (self.run.parent / "launcher.log").open("ab") as log:
            self.process = subprocess.Popen(
                [*self.command, "train", *argv],
                stdout=log,
                stderr=log,
                env=os.environ | self.environment,
            )

    def processes(self) -> dict[tuple[str, str], int]:
        """The living processes of the run: role and index → process id."""
        found = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    argv = os.fsdecode((entry / "cmdline").read_bytes()).split("\0")
                    state = (
                        (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[0]
                    )
                except (FileNotFoundError, ProcessLookupError):
                    continue
                if str(self.run) in argv and "asyncrl.actors" in argv and state not in "ZX":
                    at = argv.index("asyncrl.actors")
                    found[argv[at + 1], argv[at + 2]] = int(entry.name)
        return found

    def actors(self) -> dict[str, int]:
        """The same, of one process of each role."""
        return {role: pid for (role, _), pid in self.processes().items()}

    def close(self) -> None:
        """End what is left of it."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def wait(self, what: str, done: Callable[[], bool]) -> float:
        """Look until it is so; the moment when it was. Raises Wrong after `hang_s`."""
        end = time.monotonic() + self.hang_s
        while True:
            self.follower.look()
            if done():
                return time.monotonic()
            if time.monotonic() > end:
                raise Wrong("hang", f"no {what} within {self.hang_s:g} s")
            time.sleep(LOOK_S)

    # --------------------------------------------------------------------------------------- kills

    def kill(self, role: str) -> None:
        """Let the run go on for a while, kill, and see that it goes on."""
        follower = self.follower
        due = len(follower.events) + self.draw.randint(*self.gap)
        self.wait(f"event {due}", lambda: len(follower.events) >= due)
        assert self.process is not None
        alive = self.actors()
        killed = self.victims(role)
        began = time.monotonic()
        for pid in killed:
            os.kill(pid, signal.SIGKILL)
        if role in self.restarted:
            follower.look()
            follower.compare(follower.folded())
        elif role in self.healed:
            life = set(alive.values())
            self.wait("end of a life", lambda: not life & set(self.actors().values()))
            follower.dead()
        else:
            self.wait(
                "end of the launcher",
                lambda: self.process is not None and self.process.poll() is not None,
            )
            self.wait("end of the actors", lambda: not self.actors())
            follower.dead()
        before, version = len(follower.events), follower.version
        self.boundaries.append(before)
        if role not in (*self.restarted, *self.healed):
            self.start()
        work = self.wait("work", lambda: self._worked(role, before))
        step = self.wait("step", lambda: follower.version > version)
        self.went_on.append((role, work - began, step - began))

    def victims(self, role: str) -> list[int]:
        """The processes to kill."""
        assert self.process is not None
        alive = self.actors()
        return [self.process.pid, *alive.values()] if role == "everything" else [alive[role]]

    def _worked(self, role: str, before: int) -> bool:
        """True if there is work that was begun and done after event `before`."""
        begins, does = self.work.get(role, (e.Leased, e.Extended))
        begun: set[int] = set()
        for event in itertools.islice(self.follower.events, before, None):
            rollout = getattr(event, "rollout", None)
            if isinstance(event, begins) and rollout is not None:
                begun.add(rollout)
            elif isinstance(event, does) and rollout in begun:
                return True
        return False

    # ----------------------------------------------------------------------------------------- end

    def finish(self) -> None:
        """End the run, and go on with it for a few steps, to its end. Raises Wrong where that is
        not what it should be."""
        self.close()
        self.wait("end of the actors", lambda: not self.actors())
        self.follower.dead()
        self.start(f"--set=train.steps={self.follower.version + LAST_STEPS}")
        self.ended()
        config = configuration.read(self.run / "run.toml")
        prompts = PromptSource(
            open_task(config.task, config.run.seed),
            Tokenizer(self.run / INITIAL),
            seed=config.run.seed,
            epochs=config.task.epochs,
        )
        taken = [
            event.prompt_index
            for event in self.follower.events
            if isinstance(event, e.Admitted) and event.split == "train" and event.restarts is None
        ]
        if taken != [prompts.train_item(cursor) for cursor in range(len(taken))]:
            raise Wrong("lost", "prompts were skipped or repeated")

    def ended(self) -> None:
        """Wait for the end of the run. Raises Wrong where it did not end well."""
        assert self.process is not None
        process = self.process
        self.wait("end of the run", lambda: process.poll() is not None)
        self.follower.dead()
        if process.returncode:
            raise Wrong("lost", f"the run ended with exit status {process.returncode}")
        found = summary.read(self.run / SUMMARY)
        if not found.ok or not found.balances():
            raise Wrong("lost", f"the run did not end well: {found.reason}")


class Matrix(KillMatrix[Follower]):
    """A run of single turns, and its kills."""

    def __init__(
        self, run: Path, model: Path, seed: int, more: Mapping[str, object] | None = None
    ) -> None:
        super().__init__(run, model, seed, Follower(run), more)


def tiny(path: Path) -> Path:
    """A model directory with random weights."""
    from asyncrl.bundled.bundled_model import new_model, write_tokenizer

    new_model(0).save_pretrained(str(path))
    write_tokenizer(path)
    return path


def table(matrix: KillMatrix[F]) -> str:
    """The seconds by role."""
    lines = ["role         kills   work: mean  median     max   step: mean  median     max"]
    for role in matrix.roles:
        if rows := [row for row in matrix.went_on if row[0] == role]:
            figures = [
                f"{f(values):{width}.1f}"
                for values in ([r[1] for r in rows], [r[2] for r in rows])
                for f, width in _FIGURES
            ]
            lines.append(f"{role:<12} {len(rows):5} {' '.join(figures)}")
    return "\n".join(lines)


_FIGURES = (statistics.mean, 12), (statistics.median, 7), (max, 7)


def killed(matrix: KillMatrix[F], kills: int) -> Wrong | None:
    """Kill one role after the other, so many times, and let the run finish. Prints each kill.
    Returns what went wrong."""
    try:
        matrix.start()
        for number in range(kills):
            matrix.kill(matrix.roles[number % len(matrix.roles)])
            role, work, step = matrix.went_on[-1]
            print(
                f"{number + 1:4} {role:<12} at event {matrix.boundaries[-1]:6}: work in "
                f"{work:5.1f} s, step in {step:5.1f} s",
                flush=True,
            )
        matrix.finish()
    except Wrong as found:
        return found
    except KeyboardInterrupt:
        print("interrupted: the run is not let finish")
    finally:
        matrix.close()
    return None


def told(matrix: KillMatrix[F], seconds: float) -> None:
    """Print how often it was killed and resumed."""
    follower, at = matrix.follower, matrix.boundaries
    print(f"\n{len(at)} kills in {seconds:.0f} s, at events {at[:1]} to {at[-1:]}")
    print(
        f"resumed {len(follower.resumed)} times, from versions "
        f"{sorted(set(follower.resumed))}; version {follower.version} at the end"
    )


def judged(matrix: KillMatrix[F], wrong: Wrong | None, whats: Sequence[str]) -> None:
    """Print what went wrong, by name."""
    print(table(matrix))
    for what in whats:
        print(f"{what:<6} {int(wrong is not None and wrong.what == what)}")
    if wrong is not None:
        print(f"after {len(matrix.boundaries)} kills: {wrong}", file=sys.stderr)


def arguments(text: str, kills: int) -> argparse.ArgumentParser:
    """The command line of a matrix of so many kills."""
    parser = argparse.ArgumentParser(
        description=text, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=kills)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--roles", default="", help="those that are killed (default: all), in turn")
    parser.add_argument(
        "--model", type=Path, help="a model directory (default: a tiny one is made)"
    )
    parser.add_argument("--run", type=Path, help="where the run is kept (default: nowhere)")
    return parser


def served(server: str) -> dict[str, object]:
    """The settings of an engine that is a server, as KIND=PYTHON says; none where that is empty."""
    if not server:
        return {}
    kind, python = server.split("=", 1)
    return {
        "engine.kind": f'"{kind}"',
        f"engine.{kind}.launch": f'["{python}"]',
        "engine.context_tokens": 128,
    }


def main() -> int:
    parser = arguments(__doc__ or "", 200)
    parser.add_argument("--server", default="", metavar="KIND=PYTHON")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kill-matrix-") as place:
        run = args.run or Path(place) / "run"
        run.parent.mkdir(parents=True, exist_ok=True)
        model = args.model or tiny(Path(place) / "model")
        more = served(args.server) | dict(one.split("=", 1) for one in args.set)
        matrix = Matrix(run.absolute(), model, args.seed, more)
        matrix.hang_s = SERVED_S if args.server else HANG_S
        matrix.roles = tuple(args.roles.split(",")) if args.roles else ROLES
        began = time.monotonic()
        wrong = killed(matrix, args.kills)
        told(matrix, time.monotonic() - began)
        account = matrix.follower.account
        print(
            f"tokens journalled {account.tokens:,}, trained {account.tokens_trained:,}, live "
            f"{account.tokens_live:,}"
        )
        judged(matrix, wrong, ("lost", "twice", "hang"))
    return int(wrong is not None)


if __name__ == "__main__":
    sys.exit(main())
