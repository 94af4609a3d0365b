"""The memory of the trainer, before anything starts: predicted in a process of its own, as the
launcher has no torch, and compared with what the machine has. That process imports for seconds, and
is spared a model of which a rough bound is far less than the machine has."""

from __future__ import annotations

import ctypes
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec

from asyncrl import config as configuration
from asyncrl.config import Config, ConfigError
from asyncrl.config.cluster import ranks_here
from asyncrl.config.derived import Row
from asyncrl.config.ranks import ranks_of
from asyncrl.escape import escaped
from asyncrl.launch.model_bound import model_bound
from asyncrl.runtime.processes.machine import memory_bytes
from asyncrl.training.memory_parts import MemoryParts, PredictedMemory
from asyncrl.words import size

DEADLINE_S = 180.0
"""Longest time of a prediction: several times what models of some billions of parameters take."""
DRIVER_BYTES = 2**30
"""Bytes of a GPU that are for its driver and its kernels."""
NO_QUESTION = 16
"""A trainer fits without a closer look where this many times its bound would."""


def memory_rows(config: Config) -> list[Row]:
    """Rows of the table printed first, about the memory of a given model's trainer; none for the
    bundled model, which is small. Of several ranks all have as much: on GPUs each has one, and on
    processors they share this machine. Raises ConfigError where that is too much: more than the GPU
    has, or on a processor more than this machine has for what is there all the time."""
    if not config.model.path:
        return []
    ranks, on_gpu = ranks_of(config.train), config.train.device == "cuda"
    limit = max(0, gpu_bytes() - DRIVER_BYTES) if on_gpu else memory_bytes() // ranks_here(config)
    who = "the trainer" if ranks == 1 else f"each of the trainer's {ranks} ranks"
    where = "its GPU" if on_gpu else "this machine"
    bound = model_bound(config)
    if bound is not None and NO_QUESTION * bound < limit:
        said = f"a rough bound, by the sizes in config.json; {where} has {size(limit)}"
        return [Row("trainer memory", f"< {size(bound)}", said)]
    found = predicted(config, limit)
    if isinstance(found, str):
        return [Row("trainer memory", "not predicted", found)]
    parts = found.parts
    if limit and (parts.total if on_gpu else parts.state) > limit:
        raise ConfigError(
            f"{who} needs {size(parts.total)} ({_said(parts)}), and {where} has "
            f"{size(limit)} for it: {_remedy(found)}."
        )
    said = (
        (f"of {who}: " * (ranks > 1))
        + _said(parts)
        + (f"; {where} has {size(limit)}" * (limit > 0))
    )
    rows = [Row("trainer memory", size(parts.total), said), *_learning(config, parts)]
    if limit and parts.total > limit:
        rows.append(Row("note", "trainer memory", f"more than {where} has: {_remedy(found)}"))
    copied = copied_bytes(config, parts)
    rows.append(
        Row("checkpoint copy", size(copied), "host memory besides, from the first checkpoint on")
    )
    needed = parts.total + copied // ranks_here(config)
    if not on_gpu and limit and parts.total <= limit < needed:
        said = f"with it {who} needs {size(needed)}, and {where} has {size(limit)}: train a smaller"
        rows.append(Row("note", "checkpoint copy", f"{said} model, or on a larger machine"))
    return rows


def copied_bytes(config: Config, parts: MemoryParts) -> int:
    """Bytes of the copy that a checkpoint is written from: weights that learn in the model's type,
    their masters where that is smaller than float32, two moments, and the average. What is kept of
    earlier versions, or of a reference that was reset, comes on top."""
    learn = ranks_of(config.train) * parts.gradients // 4  # which are float32
    own = 4 if config.model.dtype == "float32" else 2 + 4
    return learn * (own + 2 * 4 + (4 if config.train.ema else 0))


def _learning(config: Config, parts: MemoryParts) -> Iterator[Row]:
    """A row about the weights that learn, where not all do."""
    if rank := config.model.lora.rank:
        learn = parts.gradients // 4  # which are float32
        base = parts.weights // (4 if config.model.dtype == "float32" else 2) - learn
        yield Row(
            "weights that learn",
            f"{learn:,}",
            f"adapters of rank {rank}: {100 * learn / base:.2g} % of the model's own number",
        )


def predicted(config: Config, limit: int) -> PredictedMemory | str:
    """The prediction, with other settings where it is more than `limit` (0: unknown); or words for
    why there is none."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.toml"
        configuration.write(config, path)
        command = [sys.executable, "-m", "asyncrl.training.fitting", str(path), str(limit)]
        try:
            ran = subprocess.run(command, capture_output=True, timeout=DEADLINE_S)
        except subprocess.TimeoutExpired:
            return f"it took more than {DEADLINE_S:g} s"
    try:
        return msgspec.json.decode(ran.stdout, type=PredictedMemory)
    except msgspec.DecodeError:
        lines = ran.stderr.decode(errors="replace").strip().splitlines()
        return escaped(lines[-1] if lines else f"exit status {ran.returncode}", 200)


def gpu_bytes() -> int:
    """Memory of the first GPU that this process may use; 0 where there is none."""
    device, found = ctypes.c_int(), ctypes.c_size_t()
    try:
        driver = ctypes.CDLL("libcuda.so.1")
        known = not (
            driver.cuInit(0)
            or driver.cuDeviceGet(ctypes.byref(device), 0)
            or driver.cuDeviceTotalMem_v2(ctypes.byref(found), device)
        )
    except (OSError, AttributeError):
        return 0
    return found.value if known else 0


def _said(parts: MemoryParts) -> str:
    beside = f", other policies {size(parts.policies)}" if parts.policies else ""
    masters = f", in float32 once more {size(parts.masters)}" if parts.masters else ""
    return (
        f"weights {size(parts.weights)}{masters}, gradients {size(parts.gradients)}, optimizer "
        f"{size(parts.optimizer)}{beside}; in a pass activations {size(parts.activations)} and "
        f"logits {size(parts.logits)}, or in a step {size(parts.step)} more"
    )


def _remedy(found: PredictedMemory) -> str:
    if found.fitting:
        return f"{found.fitting} would need {size(found.fitting_bytes)}"
    return "no shorter responses would fit either; train a smaller model, or on a larger device"
