"""The watchdog's own promises, beside those that runs and the simulation show."""

from __future__ import annotations

from types import SimpleNamespace

from actors.coordinator.components import Components
from actors.coordinator.watchdog import _put_off


def test_whatever_keeps_a_deadline_is_told_of_time_in_which_nobody_could_be_heard() -> None:
    told: list[str] = []

    def part(name: str) -> SimpleNamespace:
        return SimpleNamespace(shift=lambda stood, now: told.append(f"{name} {stood:g} {now:g}"))

    peer = SimpleNamespace(heard=90.0)
    names = [*Components.__dataclass_fields__]
    parts = SimpleNamespace(**{name: part(name) for name in names} | {"roster": [peer]})
    _put_off(parts, 5.0, 100.0)
    keepers = {"chunks", "evaluation", "leases", "lent", "lifecycle", "playing", "publishing"}
    assert sorted(told) == sorted(f"{n} 5 100" for n in keepers | {"scoring", "stepping"})
    assert peer.heard == 95.0
