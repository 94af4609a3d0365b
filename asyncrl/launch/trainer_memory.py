"""The memory of the trainer, before anything starts: predicted in a process of its own, as the
launcher has no torch, and compared with what the machine has. The imports of that process take
seconds, so it is not started for a model whose rough bound is far below what the machine has."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Iterator

import msgspec

from asyncrl import config as configuration
from asyncrl.config import Config, ConfigError
from asyncrl.config.cluster import ranks_here
from asyncrl.config.derived import Row
from asyncrl.config.ranks import ranks_of
from asyncrl.launch.model_bound import model_bound
from asyncrl.launch.torch_process import ending, run_module
from asyncrl.own_folder import own_folder
from asyncrl.runtime.processes.machine import memory_bytes
from asyncrl.training.memory_parts import MemoryParts, PredictedMemory
from asyncrl.training.optimizer_table import optimizer_rule_of
from asyncrl.words import size

DEADLINE_S = 180.0
"""Deadline of a prediction: several times what models of some billions of parameters take."""
DRIVER_BYTES = 2**30
"""Bytes of a GPU that its driver and kernels use."""
NO_QUESTION = 16
"""A trainer fits without a prediction if this many times its bound would fit."""


def memory_rows(config: Config, has: int | None = None) -> list[Row]:
    """Rows of the table printed first, about the memory of a given model's trainer; none for the
    bundled model, which is small. All ranks need the same: on GPUs each has one, and on processors
    they share this machine, unless another one is meant: its GPU, or on processors itself, `has` so
    many bytes. Raises ConfigError if that is too much: more than the GPU has, or on a processor,
    for what is kept all the time, more than this machine has."""
    if not config.model.path:
        return []
    ranks, on_gpu = ranks_of(config.train), config.train.device == "cuda"
    if has is None:
        has = gpu_bytes() if on_gpu else memory_bytes()
    limit = max(0, has - DRIVER_BYTES) if on_gpu else has // ranks_here(config)
    who = "the trainer" if ranks == 1 else f"each of the trainer's {ranks} ranks"
    device = "its GPU" if on_gpu else "this machine"
    bound = model_bound(config)
    if bound is not None and NO_QUESTION * bound < limit:
        text = f"a rough bound, by the sizes in config.json; {device} has {size(limit)}"
        return [Row("trainer memory", f"< {size(bound)}", text)]
    prediction = predicted(config, limit)
    if isinstance(prediction, str):
        return [Row("trainer memory", "not predicted", prediction)]
    parts = prediction.parts
    if limit and (parts.total if on_gpu else parts.state) > limit:
        raise ConfigError(
            f"{who} needs {size(parts.total)} ({_described(parts)}), and {device} has "
            f"{size(limit)} for it: {_remedy(prediction)}."
        )
    text = (
        (f"of {who}: " * (ranks > 1))
        + _described(parts)
        + (f"; {device} has {size(limit)}" * (limit > 0))
    )
    rows = [Row("trainer memory", size(parts.total), text), *_learning(config, parts)]
    if limit and parts.total > limit:
        rows.append(Row("note", "trainer memory", f"more than {device} has: {_remedy(prediction)}"))
    if moments := host_bytes(config, parts):
        text = f"host memory for moments{', of all ranks' * (ranks > 1)}"
        rows.append(Row("offloaded", size(moments), text))
    copied = copied_bytes(config, parts)
    rows.append(
        Row(
            "checkpoint copy",
            size(copied),
            f"host memory besides{', of all ranks' * (ranks > 1)}, from the first checkpoint on",
        )
    )
    needed = parts.total + copied // ranks_here(config)
    if not on_gpu and limit and parts.total <= limit < needed:
        text = (
            f"with it {who} needs {size(needed)}, and {device} has {size(limit)}: train a smaller"
        )
        rows.append(Row("note", "checkpoint copy", f"{text} model, or on a larger machine"))
    return rows


def copied_bytes(config: Config, parts: MemoryParts) -> int:
    """Bytes of the copy from which a checkpoint is written."""
    return kept_bytes(config, ranks_of(config.train) * parts.gradients // 4)  # which are float32


def host_bytes(config: Config, parts: MemoryParts) -> int:
    """Bytes of moments that are in host memory, for a trainer on a GPU."""
    rule = optimizer_rule_of(config.train)
    learn = ranks_of(config.train) * parts.gradients // 4  # which are float32
    return learn * rule.state_bytes if rule.on_host else 0


def kept_bytes(config: Config, learn: int) -> int:
    """Bytes that a checkpoint keeps of `learn` weights: themselves in the model's type, their
    masters if that is smaller than float32, the optimizer's state, and the average. Kept earlier
    versions, and a reference that was reset, come on top."""
    own = 4 if config.model.dtype == "float32" else 2
    if config.model.dtype != "float32" or config.model.rounding != "none":
        own += 4
    moments = optimizer_rule_of(config.train).state_bytes
    return learn * (own + moments + (4 if config.train.ema else 0))


def _learning(config: Config, parts: MemoryParts) -> Iterator[Row]:
    """A row about the weights that learn, if not all do."""
    if rank := config.model.lora.rank:
        learn = parts.gradients // 4  # which are float32
        base = parts.weights // (4 if config.model.dtype == "float32" else 2) - learn
        yield Row(
            "weights that learn",
            f"{learn:,}",
            f"adapters of rank {rank}: {100 * learn / base:.2g} % of the model's own number",
        )


def predicted(config: Config, limit: int) -> PredictedMemory | str:
    """The prediction, with other settings if it exceeds `limit` (0: unknown); or the reason why
    there is none, in words."""
    with own_folder("check") as folder:
        path = folder / "run.toml"
        configuration.write(config, path)
        try:
            ran = run_module("asyncrl.training.fitting", [str(path), str(limit)], DEADLINE_S)
        except subprocess.TimeoutExpired:
            return f"it took more than {DEADLINE_S:g} s"
    try:
        return msgspec.json.decode(ran.stdout, type=PredictedMemory)
    except msgspec.DecodeError:
        return ending(ran.returncode, ran.stderr)


def gpu_bytes() -> int:
    """Memory of the first GPU that this process may use; 0 if there is none."""
    device, total = ctypes.c_int(), ctypes.c_size_t()
    try:
        driver = ctypes.CDLL("libcuda.so.1")
        known = not (
            driver.cuInit(0)
            or driver.cuDeviceGet(ctypes.byref(device), 0)
            or driver.cuDeviceTotalMem_v2(ctypes.byref(total), device)
        )
    except (OSError, AttributeError):
        return 0
    return total.value if known else 0


def _described(parts: MemoryParts) -> str:
    beside = f", other policies {size(parts.policies)}" if parts.policies else ""
    masters = f", in float32 once more {size(parts.masters)}" if parts.masters else ""
    return (
        f"weights {size(parts.weights)}{masters}, gradients {size(parts.gradients)}, optimizer "
        f"{size(parts.optimizer)}{beside}; in a pass activations {size(parts.activations)} and "
        f"logits {size(parts.logits)}, or in a step {size(parts.step)} more"
    )


def _remedy(prediction: PredictedMemory) -> str:
    if prediction.fitting:
        return f"{prediction.fitting} would need {size(prediction.fitting_bytes)}"
    return "shorter responses would not fit either; train a smaller model, or use a larger device"
