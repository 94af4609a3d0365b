"""The page of a long run: what its first paint takes, what it weighs, and the memory of its server.

    python bench/long_page.py [--steps 100000] [--rollouts 200000]

It writes the directory of a run that is over, with a curve of so many steps and a journal of so
many rollouts since its last checkpoint (a run compacts what is older away, so that one of ten
million keeps about as many), serves it as `asyncrl page` does, and asks for the page and for each
part, the first time and again. It prints seconds, bytes, and the server's largest memory.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import trio

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests/support"))

from look_support import ids_of, make_run, rows, status, step

from asyncrl.experience import events as e
from asyncrl.explain.curve import StepPoint
from asyncrl.explain.views.run_parts import FIRST_SCREEN, PARTS
from asyncrl.journal import SqliteDisk
from asyncrl.messages import Scored
from asyncrl.runtime.run_dir import JOURNAL

GROUP, TOKENS = 8, 64


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--rollouts", type=int, default=200_000)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        run = make_run(Path(home) / "run", points(args.steps), status=status(ok=True))
        trio.run(journal, run / JOURNAL, args.rollouts)
        size = sum(path.stat().st_size for path in run.iterdir())
        print(f"{args.steps:,} steps, {args.rollouts:,} rollouts: {size / 2**20:,.0f} MiB")
        command = [sys.executable, "-m", "asyncrl.cli", "page", str(run), "--port", "0"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None
            found = re.search(r"http://\S+/", server.stdout.readline())
            assert found
            try:
                measure(found[0], server.pid)
            finally:
                server.terminate()


def points(steps: int) -> Iterator[StepPoint]:
    """A step's point as long as a real one."""
    names = [f"figure_{n}" for n in range(25)] + ["loss", "grad_norm", "k3", "entropy", "lr"]
    for version in range(1, steps + 1):
        yield step(version, metrics={name: 1.0 / (version + n) for n, name in enumerate(names)})


async def journal(path: Path, rollouts: int) -> None:
    """A journal of groups that ended, one row for each thousand."""
    ids, prompt = ids_of("a" * TOKENS), ids_of("6 * 7")
    disk = await SqliteDisk.open(path, "run")
    first, group = 1, 0
    while group * GROUP < rollouts:
        events: list[e.AnyEvent] = []
        for _ in range(125):
            begin = group * GROUP
            events.append(e.Admitted(group, begin, GROUP, "train", group, prompt, 9999))
            for number in range(begin, begin + GROUP):
                events.append(e.Leased(number, "rollout-0", 1))
                events.append(e.Extended(number, 1, 3, 0, ids, ids))
                events.append(e.Sealed(number, 1, "stop"))
                events.append(e.Judged(number, Scored(float(number % 2))))
            events += [
                e.Discarded(number, "zero_variance") for number in range(begin, begin + GROUP)
            ]
            group += 1
        await disk.commit([rows(events, first)])
        first += len(events)
    await disk.aclose()


def measure(page: str, server: int) -> None:
    """Print what each part takes and weighs."""
    began, weight = time.monotonic(), 0
    ask(page)
    print(f"frame: {time.monotonic() - began:.2f} s")
    paths = ["", *re.findall(r'src="([^"]+)"', ask(page).decode()), *map(part, FIRST_SCREEN)]
    for path in paths:
        weight += len(ask(page + path))
    print(f"first screen: {time.monotonic() - began:.2f} s, {weight / 1024:,.0f} KiB")
    for name in PARTS:
        began = time.monotonic()
        size = len(ask(page + part(name)))
        print(f"  {name:13} {time.monotonic() - began:6.2f} s {size / 1024:8,.1f} KiB")
    memory = re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{server}/status").read_text())
    assert memory
    ticks = Path(f"/proc/{server}/stat").read_text().rpartition(") ")[2].split()[11:13]
    seconds = sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")
    print(
        f"server's processor time, with its start: {seconds:.1f} s; load {os.getloadavg()[0]:.0f}"
    )
    print(f"server's memory: {int(memory[1]) / 1024:,.0f} MiB at most")


def part(name: str) -> str:
    return f"part/{name}"


def ask(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=300.0) as answer:
        return bytes(answer.read())


if __name__ == "__main__":
    main()
