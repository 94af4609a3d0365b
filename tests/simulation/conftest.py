"""Settings of simulated runs: a world may have some that a real run is refused."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from without_rules import without_rules


@pytest.fixture(autouse=True)
def any_settings() -> Iterator[None]:
    """A bound is tested beyond what `asyncrl check` lets pass, for example a depth over it."""
    with without_rules():
        yield
