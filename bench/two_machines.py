"""The main job over a network: its rollout actor is on a machine that is apart, with a bad wire
between (`apart.py`: 20 ms each way, one packet in a hundred lost), beside the same job over a good
wire, and beside that on one machine. Then the bad wire is cut.

    ratio    seconds of training, over those on one machine, of which this is the median and worst
    cut      one of two machines cannot be reached any more, from one packet to the next: seconds
             until its rollouts are taken back, and until its actor streams tokens elsewhere

Run as root, which may make network namespaces:

    python bench/two_machines.py [--rounds 3] [--set train.steps=40]
"""

from __future__ import annotations

import argparse
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from apart import NEAR, Apart, apart, reason_against

from asyncrl.experience import events as e
from asyncrl.explain import summary
from asyncrl.journal import JournalError, read
from asyncrl.runtime.run_dir import JOIN_TOKEN, SUMMARY

RUN_TOML = Path(__file__).parent.parent / "run.toml"
WAIT_S = 600.0
"""Seconds that whatever is waited for may take."""
WAYS = {"one machine": None, "a good wire": (0.0, 0.0), "a bad wire": (0.02, 0.01)}
"""Delay each way in seconds, and share of packets lost."""


def asyncrl(*words: str) -> list[str]:
    return [sys.executable, "-m", "asyncrl.cli", *words]


def training(run: Path, *sets: str) -> list[str]:
    words = [word for each in (f"run.dir={run}", *sets) for word in ("--set", each)]
    return asyncrl("train", str(RUN_TOML), *words)


def joining(run: Path, name: str) -> list[str]:
    folder = run.with_name(f"{run.name}-{name}")
    token = str(run / JOIN_TOKEN)
    return asyncrl("agent", "--join", token, "--name", name, "--dir", str(folder))


def joined(agents: int) -> list[str]:
    """Settings of a run that so many machines join, each for one rollout actor."""
    return [
        "cluster.kind=agents",
        f"cluster.agents={agents}",
        f"rollout.actors={agents}",
        f"cluster.host={NEAR}",
        f"publication.host={NEAR}",
    ]


@contextmanager
def started(argv: list[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Have it run for the length of the block."""
    with log.open("wb") as out:
        process = subprocess.Popen(argv, stdout=out, stderr=out)
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


def until(what: str, true: Callable[[], bool]) -> float:
    """Wait until it is so; returns the seconds that it took."""
    began = time.monotonic()
    while not true():
        if time.monotonic() > began + WAIT_S:
            raise SystemExit(f"{what}: not within {WAIT_S:g} s")
        time.sleep(0.05)
    return time.monotonic() - began


def learned(way: str, run: Path, sets: list[str]) -> tuple[float, float]:
    """Held-out accuracy in the end, and seconds of training."""
    wire = WAYS[way]
    if wire is None:
        subprocess.run(training(run, *sets), stdout=subprocess.DEVNULL, check=True)
    else:
        with apart(*wire) as network, ExitStack() as stack:
            argv = network.near(training(run, *joined(1), *sets))
            launcher = stack.enter_context(started(argv, run.with_suffix(".log")))
            until("a token", (run / JOIN_TOKEN).exists)
            argv = network.far(joining(run, "far"))
            stack.enter_context(started(argv, run.with_suffix(".far")))
            if launcher.wait() != 0:
                raise SystemExit(run.with_suffix(".log").read_text())
    told = summary.read(run / SUMMARY)
    assert told.training_seconds is not None and told.balances(), "the ledger does not balance"
    return told.accuracy.end or 0.0, told.training_seconds


def streams(run: Path, actor: str, since: int) -> tuple[int, int]:
    """Events so far; and of those from number `since` on how many are tokens that this actor
    streamed under a lease given since."""
    held, count, found = set[int](), 0, 0
    try:
        for count, (_, event) in enumerate(read(run / "journal.sqlite"), 1):
            if isinstance(event, e.Leased):
                held.discard(event.rollout)
                if count > since and event.holder == actor:
                    held.add(event.rollout)
            found += isinstance(event, e.Extended) and event.rollout in held
    except JournalError:  # nothing is in it yet
        pass
    return count, found


def cut(network: Apart, run: Path, sets: list[str]) -> tuple[float, float]:
    """Seconds from a cut until the far machine is lost, and until its actor streams elsewhere."""
    log = run.with_suffix(".log")
    with ExitStack() as stack:
        argv = network.near(training(run, *joined(2), "train.steps=10000", *sets))
        launcher = stack.enter_context(started(argv, log))
        until("a token", (run / JOIN_TOKEN).exists)
        for where, name in ((network.near, "near"), (network.far, "far")):
            stack.enter_context(started(where(joining(run, name)), run.with_suffix(f".{name}")))
        until("tokens of both", lambda: all(streams(run, f"rollout-{n}", 0)[1] for n in (0, 1)))
        near = run.with_name(f"{run.name}-near")
        (moved,) = {"rollout-0", "rollout-1"} - {
            p.name[:9] for p in (near / "logs").glob("rollout-*")
        }
        before, _ = streams(run, moved, 0)
        network.wire.cut = True
        lost = until("a loss", lambda: "Machine far is lost" in log.read_text())
        lasted = until("tokens", lambda: streams(run, moved, before)[1] > 0)
        launcher.send_signal(signal.SIGTERM)
        launcher.wait()
    assert summary.read(run / SUMMARY).balances(), "the ledger does not balance"
    return lost, lost + lasted


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--set", action="append", default=[], dest="sets")
    args = parser.parse_args()
    if why := reason_against():
        raise SystemExit(why)
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    for number in range(args.rounds):
        for way in WAYS:
            with tempfile.TemporaryDirectory() as folder:
                sets = [f"run.seed={number}", *args.sets]
                accuracy, took = learned(way, Path(folder) / "run", sets)
            seconds[way].append(took)
            print(f"seed {number}  {way:12} accuracy {accuracy:.3f}  {took:.1f} s", flush=True)
    for way in list(WAYS)[1:]:
        pairs = zip(seconds[way], seconds["one machine"], strict=True)
        ratios = [there / here for there, here in pairs]
        print(f"{way}: {statistics.median(ratios):.2f} of one machine, worst {max(ratios):.2f}")
    for number in range(args.rounds):
        with apart() as network, tempfile.TemporaryDirectory() as folder:
            lost, again = cut(network, Path(folder) / "run", [f"run.seed={number}"])
        print(f"cut: lost after {lost:.1f} s, tokens elsewhere after {again:.1f} s", flush=True)


if __name__ == "__main__":
    main()
