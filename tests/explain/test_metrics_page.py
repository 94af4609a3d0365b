"""docs/metrics.md lists every instrument of a run, with what it says of itself."""

from __future__ import annotations

import re
from pathlib import Path

from asyncrl.experience.experience import Experience
from asyncrl.explain.metrics import Metrics, observe

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"


def families() -> dict[str, tuple[str, str]]:
    """Name → type and help, of a run that has begun."""
    metrics = Metrics()
    metrics.observed(observe(Experience(), {}))
    metrics.describe(task="any")
    return {
        family.name: (family.type, family.documentation) for family in metrics.registry.collect()
    }


def test_the_page_lists_each_instrument_and_no_other() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| (.*) \|$", PAGE.read_text(), re.MULTILINE)
    shown = {name: (kind, text) for name, kind, text in rows}
    assert len(rows) == len(shown) and shown == families()
