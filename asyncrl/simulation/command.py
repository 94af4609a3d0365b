"""`asyncrl simulate`: many seeds, counted. A seed that fails is printed with the command that shows
the failure again."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Literal

import msgspec

from asyncrl.simulation.faults import ALL_KINDS
from asyncrl.simulation.game_worlds import GameReport
from asyncrl.simulation.run import SeedReport, simulate, simulate_agents, simulate_games

FAILED = 1
SHARE = 25
"""Seeds that a process of several takes at a time."""
PLAYED = 5
"""Of so many seeds one has a second run, whose rollouts are episodes."""

SeedRuns = Literal["", "agents", "games"]
"""The runs of each seed: one of single turns, and of some a second one (""); only the one whose
rollouts are episodes; or only those that play games with each other."""


class SeedFailure(msgspec.Struct, frozen=True):
    """A seed of which one of its `runs` violated an invariant."""

    seed: int
    violation: str
    runs: SeedRuns = ""


class Tally(msgspec.Struct):
    """Sums over some seeds. `played` counts the runs whose rollouts are episodes. By kind of fault,
    `faults` counts how often it was injected, and `seeds_with` in how many seeds. `lost_tail`
    counts events that were not durable when a coordinator died. `games` counts those that ended, of
    them `given_up` in all runs; the slowest one took `slowest_s`."""

    seeds: int = 0
    played: int = 0
    virtual_s: float = 0.0
    events: int = 0
    lives: int = 0
    lost_tail: int = 0
    games: int = 0
    given_up: int = 0
    slowest_s: float = 0.0
    faults: dict[str, int] = {}
    seeds_with: dict[str, int] = {}
    checks: dict[str, int] = {}
    failures: list[SeedFailure] = msgspec.field(default_factory=list)

    def add(self, other: Tally) -> None:
        """Add the sums of other seeds."""
        self.seeds += other.seeds
        self.played += other.played
        self.virtual_s += other.virtual_s
        self.events += other.events
        self.lives += other.lives
        self.lost_tail += other.lost_tail
        self.games += other.games
        self.given_up += other.given_up
        self.slowest_s = max(self.slowest_s, other.slowest_s)
        self.faults = Counter(self.faults) + Counter(other.faults)
        self.seeds_with = Counter(self.seeds_with) + Counter(other.seeds_with)
        self.checks = Counter(self.checks) + Counter(other.checks)
        self.failures += other.failures


def tally(seeds: Iterable[int], runs: SeedRuns = "") -> Tally:
    """Run these seeds, here. Each has a run of single turns, and one of `PLAYED` a second one whose
    rollouts are episodes, unless only some `runs` are wanted."""
    found = Tally()
    for seed in seeds:
        found.seeds += 1
        if runs == "games":
            found.add(_of_games(simulate_games(seed)))
            continue
        if not runs:
            found.add(_tallied(simulate(seed)))
        if runs or seed % PLAYED == PLAYED // 2:
            found.add(_tallied(simulate_agents(seed), "agents"))
    return found


def _tallied(report: SeedReport, runs: SeedRuns = "") -> Tally:
    """The sums of one run."""
    failures = []
    if report.violation is not None:
        failures = [SeedFailure(report.seed, str(report.violation), runs)]
    return Tally(
        played=int(bool(runs)),
        virtual_s=report.virtual_s,
        events=report.events,
        lives=len(report.lives),
        lost_tail=report.lost_tail,
        faults=report.faults,
        seeds_with=dict.fromkeys(report.faults, 1),
        checks=report.checks,
        failures=failures,
    )


def _of_games(report: GameReport) -> Tally:
    """The sums of runs that played games."""
    failures = []
    if report.violation is not None:
        failures = [SeedFailure(report.seed, str(report.violation), "games")]
    return Tally(
        virtual_s=report.virtual_s,
        events=report.events,
        lives=sum(report.lives.values()),
        games=report.ended + report.given_up,
        given_up=report.given_up,
        slowest_s=report.slowest_s,
        failures=failures,
    )


def shared(seeds: range, jobs: int, runs: SeedRuns = "") -> Tally:
    """Run these seeds as `tally` does, in `jobs` processes at a time."""
    found, running = Tally(), list[subprocess.Popen[bytes]]()
    shares = iter([seeds[at : at + SHARE] for at in range(0, len(seeds), SHARE)])
    try:
        while True:
            while len(running) < jobs and (share := next(shares, None)) is not None:
                argv = [
                    sys.executable,
                    "-P",  # nothing is imported from the current directory
                    "-m",
                    "asyncrl.cli",
                    "simulate",
                    "--seeds",
                    f"{share.start}:{share.stop}",
                    "--json",
                    *([f"--{runs}"] if runs else []),
                ]
                running.append(subprocess.Popen(argv, stdout=subprocess.PIPE))
            if not running:
                return found
            process = running.pop(0)
            said, _ = process.communicate()
            found.add(msgspec.json.decode(said, type=Tally))
            print(f"\r{found.seeds:,} of {len(seeds):,} seeds", end="", file=sys.stderr)
    finally:
        for process in running:
            process.kill()
            process.wait()


def sentences(found: Tally, seconds: float) -> Iterator[str]:
    """The lines that are printed."""
    yield f"seeds     {found.seeds:,}, in {seconds:,.1f} s"
    of_agents = "" if found.games else f"{found.played:,} of agents; "
    yield (
        f"runs      {of_agents}{found.virtual_s:,.0f} virtual s, "
        f"{found.lives:,} lives, {found.events:,} events"
    )
    if found.games:
        yield (
            f"games     {found.games:,}, of which {found.given_up:,} were given up in all runs; "
            f"the slowest took {found.slowest_s:,.1f} virtual s"
        )
    else:
        yield from _faults(found)
    for failure in found.failures:
        runs = f" --{failure.runs}" * bool(failure.runs)
        yield f"seed {failure.seed} violates {failure.violation}"
        yield f"  again: asyncrl simulate{runs} --seed {failure.seed}"
    yield (
        f"{len(found.failures)} of {found.seeds:,} seeds failed"
        if found.failures
        else "every invariant held"
    )


def _faults(found: Tally) -> Iterator[str]:
    """The lines of checks and faults."""
    yield f"checks    {sum(found.checks.values()):,}: " + ", ".join(
        f"{name} {count:,}" for name, count in sorted(found.checks.items())
    )
    yield (
        f"faults    {sum(found.faults.values()):,} of {len(ALL_KINDS)} kinds, each with the "
        "seeds that had it:"
    )
    yield "          " + ", ".join(
        f"{kind} {found.faults.get(kind, 0)} ({found.seeds_with.get(kind, 0)})"
        for kind in sorted(ALL_KINDS)
    )
    yield f"lost      {found.lost_tail:,} events that were not durable when a coordinator died"


def command(seeds: range, runs: SeedRuns, *, jobs: int, as_json: bool) -> int:
    """Run seeds and print their sums. Returns the exit status."""
    began = time.perf_counter()
    found = shared(seeds, jobs, runs) if jobs > 1 else tally(seeds, runs)
    if as_json:
        sys.stdout.write(msgspec.json.encode(found).decode())
        return 0
    print("\n".join(sentences(found, time.perf_counter() - began)))
    return FAILED if found.failures else 0
