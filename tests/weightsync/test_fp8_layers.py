"""Linear layers of the installed servers load fp8 blocks byte for byte: fused, merged, plain."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from asyncrl.runtime.processes.machine import free_port
from asyncrl.training import fp8_blocks

ROOT = Path(__file__).parents[2]


@pytest.mark.soak  # half a minute of imports; what is sent is compared in test_fp8_checkpoint
@pytest.mark.processes
@pytest.mark.parametrize("server", ["sglang", "vllm"])
def test_what_is_sent_is_what_a_layer_holds(server: str) -> None:
    python = ROOT / f".venv-{server}" / "bin" / "python"
    if not python.exists():
        pytest.skip(f"there is no environment here; `make {server}-cpu` builds .venv-{server}")
    script = ROOT / "tests" / "support" / "fp8_layers.py"
    address = f"tcp://127.0.0.1:{free_port()}"
    ran = subprocess.run(
        [python, script, server, fp8_blocks.__file__, address],
        capture_output=True,
        text=True,
        timeout=600,
    )
    lines = [line for line in ran.stdout.splitlines() if "ParallelLinear" in line]
    assert len(lines) == 6 and all(line.endswith(" True") for line in lines), ran.stderr
