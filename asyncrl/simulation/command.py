"""`asyncrl simulate`: many seeds, counted. A seed that fails is printed with the command that shows
the failure again."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator

import msgspec

from asyncrl.simulation.faults import ALL_KINDS
from asyncrl.simulation.run import SeedReport, simulate, simulate_agents

FAILED = 1
SHARE = 25
"""Seeds that a process of several takes at a time."""
PLAYED = 5
"""Of so many seeds one has a second run, whose rollouts are episodes."""


class SeedFailure(msgspec.Struct, frozen=True):
    """A seed whose run violated an invariant; `agents` if the run's rollouts are episodes."""

    seed: int
    violation: str
    agents: bool = False


class Tally(msgspec.Struct):
    """Sums over some seeds. `played` counts the runs whose rollouts are episodes. By kind of fault,
    `faults` counts how often it was injected, and `seeds_with` in how many seeds. `lost_tail`
    counts events that were not durable when a coordinator died."""

    seeds: int = 0
    played: int = 0
    virtual_s: float = 0.0
    events: int = 0
    lives: int = 0
    lost_tail: int = 0
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
        self.faults = Counter(self.faults) + Counter(other.faults)
        self.seeds_with = Counter(self.seeds_with) + Counter(other.seeds_with)
        self.checks = Counter(self.checks) + Counter(other.checks)
        self.failures += other.failures


def tally(seeds: Iterable[int], *, agents: bool = False) -> Tally:
    """Run these seeds, here. Each has a run of single turns, and one of `PLAYED` a second one whose
    rollouts are episodes; with `agents`, each has that one alone."""
    found = Tally()
    for seed in seeds:
        found.seeds += 1
        if not agents:
            found.add(_tallied(simulate(seed), agents=False))
        if agents or seed % PLAYED == PLAYED // 2:
            found.add(_tallied(simulate_agents(seed), agents=True))
    return found


def _tallied(report: SeedReport, *, agents: bool) -> Tally:
    """The sums of one run."""
    failures = []
    if report.violation is not None:
        failures = [SeedFailure(report.seed, str(report.violation), agents)]
    return Tally(
        played=int(agents),
        virtual_s=report.virtual_s,
        events=report.events,
        lives=len(report.lives),
        lost_tail=report.lost_tail,
        faults=report.faults,
        seeds_with=dict.fromkeys(report.faults, 1),
        checks=report.checks,
        failures=failures,
    )


def shared(seeds: range, jobs: int, *, agents: bool = False) -> Tally:
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
                    *(["--agents"] if agents else []),
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
    yield (
        f"runs      {found.played:,} of agents; {found.virtual_s:,.0f} virtual s, "
        f"{found.lives:,} lives, {found.events:,} events"
    )
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
    for failure in found.failures:
        yield f"seed {failure.seed} violates {failure.violation}"
        yield f"  again: asyncrl simulate{' --agents' * failure.agents} --seed {failure.seed}"
    yield (
        f"{len(found.failures)} of {found.seeds:,} seeds failed"
        if found.failures
        else "every invariant held"
    )


def command(seeds: range, *, agents: bool, jobs: int, as_json: bool) -> int:
    """Run seeds and print their sums. Returns the exit status."""
    began = time.perf_counter()
    found = shared(seeds, jobs, agents=agents) if jobs > 1 else tally(seeds, agents=agents)
    if as_json:
        sys.stdout.write(msgspec.json.encode(found).decode())
        return 0
    print("\n".join(sentences(found, time.perf_counter() - began)))
    return FAILED if found.failures else 0
