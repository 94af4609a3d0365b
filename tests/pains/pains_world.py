"""Runs of the simulation with the faults that a test names."""

from __future__ import annotations

from simulation_support import plain

from asyncrl.simulation.faults import Fault
from asyncrl.simulation.run import SeedReport, simulate


def simulated(seed: int, *faults: Fault, **sections: dict[str, object]) -> SeedReport:
    """A run of the simulation of which nothing but the settings not named here is left to the
    seed."""
    return simulate(seed, config=plain(seed, **sections), faults=faults)
