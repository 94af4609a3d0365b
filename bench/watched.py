"""The price of being watched: one run that feeds two sinks (TensorBoard, and W&B offline), in turns
with its page open in a browser and its metrics scraped, and without.

    python bench/watched.py [--seconds 30] [--turns 4] [--set section.key=value …]

It asks for the page's parts once, then for those of its first screen as often as the page's own
script does, and for metrics every 5 s. It
prints the tokens that the run generates a second, watched and not, their ratio, and the processor
time of the page's process and of the sinks' processes, as shares of what all processes of the run
take. On a machine that others use, the second is what says something.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path
from typing import NamedTuple

from asyncrl.explain.views.run_parts import FIRST_SCREEN, PARTS
from asyncrl.runtime.processes.machine import free_port

BEGIN_S = 600.0
SCRAPE_S = 5.0
TICKS = os.sysconf("SC_CLK_TCK")


class Spent(NamedTuple):
    """Seconds of processor time: of the page's process, of the sinks', of all of the run."""

    page: float
    sinks: float
    whole: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--set", action="append", default=[], dest="sets")
    args = parser.parse_args()
    port, metrics = free_port(), free_port()
    with tempfile.TemporaryDirectory() as home:
        run = Path(home) / "run"
        own = [f"run.dir={run}", f"run.page_port={port}", "train.steps=100000"]
        own += ["run.sinks=tensorboard,wandb", f"metrics.port={metrics}"]
        sets = [word for one in [*args.sets, *own] for word in ("--set", one)]
        command = [sys.executable, "-m", "asyncrl.cli", "train", "run.toml", *sets]
        env = os.environ | {"WANDB_MODE": "offline"}
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, env=env) as launcher:
            try:
                measure(run, launcher.pid, [port, metrics], args.seconds, args.turns)
            finally:
                launcher.send_signal(signal.SIGINT)


def measure(run: Path, launcher: int, ports: list[int], seconds: float, turns: int) -> None:
    """Print what a run does in turns."""
    end = time.monotonic() + BEGIN_S
    while generated(run) == 0:
        assert time.monotonic() < end, "the run has not begun"
        time.sleep(1.0)
    page, metrics = (f"http://127.0.0.1:{port}" for port in ports)
    urls = {f"{page}/part/{name}": PARTS[name].every_s for name in FIRST_SCREEN}
    for name in PARTS:  # what it imports is paid once
        ask(f"{page}/part/{name}")
    urls[f"{metrics}/metrics"] = SCRAPE_S
    rates: dict[bool, list[float]] = {True: [], False: []}
    shares: dict[bool, list[Spent]] = {True: [], False: []}
    for turn in range(2 * turns):
        watched = turn % 2 == 1
        stop = threading.Event()
        watchers = [
            threading.Thread(target=watch, args=(url, every_s, stop))
            for url, every_s in urls.items()
            if watched
        ]
        tokens, began = generated(run), time.monotonic()
        before = spent(launcher)
        for watcher in watchers:
            watcher.start()
        time.sleep(seconds)
        after = spent(launcher)
        rates[watched].append((generated(run) - tokens) / (time.monotonic() - began))
        shares[watched].append(Spent(*(b - a for a, b in zip(before, after, strict=True))))
        stop.set()
        for watcher in watchers:
            watcher.join()
    off, on = (statistics.median(rates[watched]) for watched in (False, True))
    print(f"tokens/s: {off:,.0f} unwatched, {on:,.0f} watched, ratio {on / off:.3f}")
    for watched, name in ((False, "unwatched"), (True, "watched")):
        page_s, sinks_s, whole_s = (sum(each) for each in zip(*shares[watched], strict=True))
        print(
            f"of the run's processor time, {name}: page {page_s / whole_s:.2%}, "
            f"sinks {sinks_s / whole_s:.2%}"
        )
    print(f"load: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")


def watch(url: str, every_s: float, stop: threading.Event) -> None:
    """Ask again and again, as a browser or Prometheus does."""
    while not stop.is_set():
        ask(url)
        stop.wait(every_s)


def ask(url: str) -> None:
    """Read a part of the page, or metrics."""
    with urllib.request.urlopen(url, timeout=600) as found:
        found.read()


def generated(run: Path) -> int:
    """Tokens that a run has generated so far."""
    try:
        return int(json.loads((run / "status.json").read_bytes())["tokens"]["generated"])
    except FileNotFoundError:
        return 0


def spent(launcher: int) -> Spent:
    """Processor time of the processes that live."""
    page = sinks = whole = 0.0
    for path in Path("/proc").glob("[0-9]*"):
        try:
            fields = (path / "stat").read_text(errors="replace").rpartition(")")[2].split()
            words = (path / "cmdline").read_bytes()
        except OSError:
            continue  # it has ended
        if launcher not in (int(path.name), *ancestors(int(fields[1]))):
            continue
        seconds = (int(fields[11]) + int(fields[12])) / TICKS
        whole += seconds
        page += seconds if b"page_process" in words else 0.0
        sinks += seconds if b"sink_process" in words or b"wandb" in words else 0.0
    return Spent(page, sinks, whole)


def ancestors(pid: int) -> list[int]:
    """A process, its parent, and so on."""
    found = []
    while pid > 1:
        found.append(pid)
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            break
    return found


if __name__ == "__main__":
    main()
