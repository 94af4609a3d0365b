"""SGLang servers that get adapters alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from adapter_runs import check_adapters

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.soak]
"""Of whole weights that are made of adapters CI has the parts: `test_sglang_publication` serves
them, `tests/actors/test_adapted_base.py` makes them of what was received, and
`tests/runs/test_lora.py` is a run of the embedded engine."""


def test_a_server_decodes_with_adapters_beside_its_base(
    sglang_launch: tuple[str, ...], tmp_path: Path
) -> None:
    check_adapters("sglang", sglang_launch, tmp_path)
