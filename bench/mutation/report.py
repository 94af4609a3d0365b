"""Verdicts on mutants, kept as lines of JSON; their scores by file, and survivors as diffs."""

from __future__ import annotations

import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal

import msgspec

from mutation.operators import Mutant
from mutation.trees import ROOT

EQUIVALENT = Path(__file__).with_name("equivalent.toml")
Fate = Literal["killed", "survived", "unreached", "not run"]


class Verdict(msgspec.Struct, frozen=True):
    """The fate of a mutant. `left`: tests that reach it and were not run, because the quicker
    ones took the time that a mutant has."""

    mutant: Mutant
    simulation: Fate
    simulation_by: str
    tests: Fate
    tests_by: str
    left: int
    seconds: float

    @property
    def killed(self) -> bool:
        return "killed" in (self.simulation, self.tests)


class Kept:
    """The verdicts in a file; the last one on a mutant holds."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = path.read_bytes().splitlines() if path.exists() else []
        decoded = [msgspec.json.decode(line, type=Verdict) for line in lines]
        self.of = {verdict.mutant: verdict for verdict in decoded}

    def add(self, verdict: Verdict) -> None:
        """Keep a verdict."""
        self.of[verdict.mutant] = verdict
        with self._path.open("ab") as file:
            file.write(msgspec.json.encode(verdict) + b"\n")


class Equivalents:
    """The mutants that are listed as no change of behaviour, with the reason of each."""

    def __init__(self, path: Path = EQUIVALENT) -> None:
        rows = tomllib.loads(path.read_text()).get("mutant", [])
        self._reasons = {(row["file"], row["before"], row["after"]): row["reason"] for row in rows}
        self.listed = self._reasons.keys()

    def reason(self, mutant: Mutant) -> str | None:
        """None for a mutant that is not listed."""
        before, after = mutant.lines((ROOT / mutant.path).read_text())
        return self._reasons.get((mutant.path, before, after))


def share(some: int, of: int) -> str:
    """A share, and the two numbers that it is made of."""
    return f"{some / of:.2f} ({some} of {of})" if of else "– (0 of 0)"


def table(verdicts: Iterable[Verdict]) -> Iterator[str]:
    """The scores by file, as rows of markdown, then all of them."""
    files: dict[str, list[Verdict]] = defaultdict(list)
    for verdict in verdicts:
        files[verdict.mutant.path].append(verdict)
    every = [verdict for found in files.values() for verdict in found]
    yield "| file | mutants | killed by the simulation | of those it reaches | killed |"
    yield "|---|---|---|---|---|"
    for path, found in [*sorted(files.items()), ("**all**", every)]:
        simulated = [one for one in found if one.simulation in ("killed", "survived")]
        by_seeds = sum(one.simulation == "killed" for one in found)
        yield (
            f"| {path} | {len(found)} | {share(by_seeds, len(found))} | "
            f"{share(by_seeds, len(simulated))} | "
            f"{share(sum(one.killed for one in found), len(found))} |"
        )


def survivors(verdicts: Iterable[Verdict], equivalents: Equivalents) -> Iterator[str]:
    """Each survivor as a diff, with what was run."""
    for verdict in verdicts:
        mutant = verdict.mutant
        if not verdict.killed:
            yield ""
            yield (
                f"{mutant.path}:{mutant.line} ({mutant.operator}): simulation "
                f"{verdict.simulation}, tests {verdict.tests}"
                + (f", {verdict.left} tests not run" if verdict.left else "")
            )
            if (reason := equivalents.reason(mutant)) is not None:
                yield f"equivalent: {reason}"
            yield mutant.diff((ROOT / mutant.path).read_text())
