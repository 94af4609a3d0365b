"""Seconds that processes take to start, by a fork and without one, and the memory that they take.

In turn, with a fork server and with a launcher that spawns every actor, a run of a tiny model with
random weights is started, each role is killed once (`kill_matrix.py`, which also checks that
nothing is lost), and a run with eight actors is weighed.

    first token   seconds from `asyncrl train` to the first sampled token in the journal
    ROLE          seconds from its SIGKILL to work that can only be newer (a token, or a verdict)
    PSS           MiB of all processes of a run with a coordinator, a trainer, four rollout and two
                  reward actors, once they train; a page that n processes share counts 1/n for each

With `--programs`, runs whose agent is a Python program that imports the official client, with the
default settings, on the cores that this process may use (`taskset -c 0,1 python …`). Each is
interrupted at another moment, as by Ctrl-C.

    answered      seconds from the start of the first program to the first answered call
    load          the most threads of the run that ran or wanted a core at one time, for each core,
                  and the mean of that
    CPU           seconds of a core that a program had used when its call was answered, median
    exit          exit status after the Ctrl-C, the seconds until then, and the processes left

    python bench/start_times.py [--rounds 3] [--memory-only] [--programs]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from kill_matrix import ROLES, Matrix, tiny

from asyncrl import cli
from asyncrl.experience import events as e
from asyncrl.launch import launcher
from asyncrl.runtime.processes.process import Process, spawn

WAYS = ("spawned", "forked")
EIGHT = {"rollout.actors": 4, "reward.actors": 2}
STEPS = 5
"""Steps after which a run's memory is weighed."""


# ------------------------------------------------------------------------ a launcher that spawns


class _NoForkServer:
    """Starts every actor as `asyncrl.runtime.processes.process.spawn` does."""

    async def settled(self) -> None:
        pass

    def start(self, name: str, module: str, arguments: list[str], **options: Any) -> Process:
        return spawn(name, [sys.executable, "-m", module, *arguments], **options)


@asynccontextmanager
async def _no_fork_server(*_: object, **__: object) -> AsyncIterator[_NoForkServer]:
    yield _NoForkServer()


def spawning(argv: list[str]) -> int:
    """Run `asyncrl ARGV` without a fork server."""
    launcher.open_fork_server = _no_fork_server  # type: ignore[assignment]
    return cli.main(argv)


# ---------------------------------------------------------------------------------------- seconds


def round_of_kills(way: str, model: Path, folder: Path, seed: int) -> Iterator[tuple[str, float]]:
    """Start a run, kill each role of it once, and end it: (what, seconds)."""
    matrix = Matrix(folder / "run", model, seed)
    matrix.command = command(way)
    try:
        began = time.monotonic()
        matrix.start()
        found = matrix.wait("token", lambda: any(map(_token, matrix.follower.events)))
        yield "first token", found - began
        for role in ROLES:
            matrix.kill(role)
            yield role, matrix.went_on[-1][1]
    finally:
        matrix.close()
        matrix.wait("end of the actors", lambda: not matrix.actors())


def command(way: str) -> list[str]:
    """`asyncrl`, in this way."""
    return [sys.executable, "-m", "asyncrl.cli"] if way == "forked" else [sys.executable, __file__]


def _token(event: e.AnyEvent) -> bool:
    return isinstance(event, e.Extended)


# ----------------------------------------------------------------------------------------- memory


def memory(way: str, model: Path, folder: Path) -> dict[str, float]:
    """MiB by process, of a run with eight actors."""
    matrix = Matrix(folder / "run", model, 0, EIGHT)
    matrix.command = command(way)
    try:
        matrix.start()
        matrix.wait("step", lambda: matrix.follower.version >= STEPS)
        assert matrix.process is not None
        found: dict[str, float] = defaultdict(float)
        for pid in (matrix.process.pid, *_descendants(matrix.process.pid)):
            name, pss = _weight(pid)
            found[name] += pss
        return found
    finally:
        matrix.close()
        matrix.wait("end of the actors", lambda: not matrix.actors())


def _descendants(pid: int) -> Iterator[int]:
    text = subprocess.run(
        ["ps", "--no-headers", "-o", "pid", "--ppid", str(pid)], capture_output=True, text=True
    ).stdout
    for child in map(int, text.split()):
        yield child
        yield from _descendants(child)


def _weight(pid: int) -> tuple[str, float]:
    """Its name, and its proportional share of memory in MiB; 0 of who has ended."""
    try:
        argv = Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0")
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return "ended", 0.0
    kib = int(next(line for line in text.splitlines() if line.startswith("Pss:")).split()[1])
    module = argv[argv.index("-m") + 1] if "-m" in argv else "launcher"
    who = argv[argv.index("-m") + 2] if module == "asyncrl.actors" else module
    return who, kib / 1024


# --------------------------------------------------------------------------------------- programs

PROGRAM = """
import json, os, time
from pathlib import Path
told = Path(__file__).with_name("told")
def tell(what):
    with told.open("a") as file:
        file.write(json.dumps([what, time.time(), time.process_time()]) + chr(10))
tell("started")
import openai
client = openai.OpenAI(max_retries=0)
client.completions.create(model="policy", prompt=os.environ["ASYNCRL_PROMPT"], max_tokens=16)
tell("answered")
print(json.dumps({"reward": float(int(os.environ["ASYNCRL_SEED"]) % 2)}))
"""
MOMENTS = (1.0, 5.0, 20.0, 60.0)
"""Seconds after the start of the first program at which a run is interrupted."""
START_S, LOOK_S, END_S = 120.0, 0.1, 60.0


def told(folder: Path, what: str) -> list[list[float]]:
    """The times at which programs told this, each with the processor seconds used by then."""
    file = folder / "told"
    lines = file.read_text().splitlines() if file.exists() else []
    return [rest for name, *rest in map(json.loads, lines) if name == what]


def wanting(pids: Iterable[int]) -> int:
    """Threads that run or want a core."""
    found = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            for task in Path(f"/proc/{pid}/task").iterdir():
                found += (task / "stat").read_text().rpartition(")")[2].split()[0] == "R"
    return found


def left(folder: Path, pids: Iterable[int]) -> list[int]:
    """Those of the processes that live, and any other that names the folder. One that has ended
    lives no more, though the system's first process has not looked at it yet."""
    living = set[int]()
    for pid in pids:
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2][1] != "Z":
                living.add(pid)
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if str(folder) in entry.read_text(errors="replace"):
                living.add(int(entry.parent.name))
    return sorted(living - {os.getpid()})


def tree(root: int) -> set[int]:
    """The process and its descendants, by one look at all processes."""
    parents = dict[int, int]()
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parents[int(entry.parent.name)] = int(
                entry.read_text(errors="replace").rpartition(")")[2].split()[1]
            )
    found = {root}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def programs(folder: Path, model: Path, moment: float) -> str:
    """One run, interrupted `moment` seconds after its first program began: its line."""
    program, run = folder / "program.py", folder / "run"
    program.write_text(PROGRAM)
    argv = [sys.executable, "-m", "asyncrl.cli", "train", f"--set=run.dir={run}"]
    settings = {
        "model.path": f'"{model}"',
        "agent.run": json.dumps([sys.executable, str(program)]),
        "train.steps": 1000,
        "rollout.max_new_tokens": 16,
        "engine.context_tokens": 128,
    }
    argv += [f"--set={name}={value}" for name, value in settings.items()]
    cores, loads, seen = len(os.sched_getaffinity(0)), list[int](), set[int]()
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(argv, stdout=log, stderr=log, start_new_session=True)
        until = time.time() + START_S
        while process.poll() is None and time.time() < until:
            time.sleep(LOOK_S)
            pids = tree(process.pid)
            seen |= pids
            if begun := told(folder, "started"):
                loads.append(wanting(pids))
                until = begun[0][0] + moment
        if not begun or process.poll() is not None:
            raise SystemExit(f"no program began: {(folder / 'log').read_text()[-2000:]}")
        answered = told(folder, "answered")
        interrupted = time.monotonic()
        os.killpg(process.pid, signal.SIGINT)
        code = process.wait(END_S)
        took = time.monotonic() - interrupted
    first = f"{answered[0][0] - begun[0][0]:5.1f} s" if answered else "  none"
    cpu = f"{statistics.median(used for _, used in answered):.2f} s" if answered else "–"
    mean = statistics.mean(loads) / cores
    return (
        f"Ctrl-C after {moment:4.0f} s: answered {first}; {len(begun)} programs began, "
        f"{len(answered)} calls were answered; load {max(loads) / cores:.1f} a core, mean "
        f"{mean:.1f}; CPU {cpu}; exit {code} in {took:.1f} s, left {left(folder, seen)}"
    )


# ------------------------------------------------------------------------------------------- both


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--memory-only", action="store_true")
    parser.add_argument("--programs", action="store_true")
    args = parser.parse_args()
    if args.programs:
        with tempfile.TemporaryDirectory(prefix="start-times-") as place:
            model = tiny(Path(place) / "model")
            for moment in MOMENTS:
                (folder := Path(place) / f"programs-{moment:g}").mkdir()
                load = os.getloadavg()[0]
                print(f"{programs(folder, model, moment)} (machine: load {load:.1f})", flush=True)
        return
    seconds: dict[str, dict[str, list[float]]] = {way: defaultdict(list) for way in WAYS}
    with tempfile.TemporaryDirectory(prefix="start-times-") as place:
        model = tiny(Path(place) / "model")
        for number in range(0 if args.memory_only else args.rounds):
            for way in WAYS if number % 2 else WAYS[::-1]:  # what else runs here meets both
                folder = Path(place) / f"{way}-{number}"
                folder.mkdir()
                for what, took in round_of_kills(way, model, folder, number):
                    seconds[way][what].append(took)
                    print(f"{way:<8} {what:<12} {took:6.1f} s", flush=True)
        print(f"\n{'seconds':<12}" + "".join(f"{way:>10} median, worst" for way in WAYS))
        for what in ("first token", *ROLES) if seconds[WAYS[0]] else ():
            cells = [seconds[way][what] for way in WAYS]
            shown = "".join(f"{statistics.median(c):16.1f} {max(c):7.1f}" for c in cells)
            print(f"{what:<12}{shown}")
        weights = {}
        for way in WAYS:
            (Path(place) / f"{way}-memory").mkdir()
            weights[way] = memory(way, model, Path(place) / f"{way}-memory")
    print(f"\n{'PSS, MiB':<28}" + "".join(f"{way:>10}" for way in WAYS))
    for who in sorted({who for way in WAYS for who in weights[way]}):
        print(f"{who:<28}" + "".join(f"{weights[way].get(who, 0):10.0f}" for way in WAYS))
    print(f"{'all':<28}" + "".join(f"{sum(weights[way].values()):10.0f}" for way in WAYS))


if __name__ == "__main__":
    if sys.argv[1:2] == ["train"]:
        sys.exit(spawning(sys.argv[1:]))
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
