"""Models of engines and trainers by name, such as `h100-8b`: for a forecast before any run.
Invariant: each number is published, with its source beside it, or derived from such by the formulas
here; none is measured by asyncrl.

    decode   a step reads the weights and each slot's cache, at BANDWIDTH of the device's, and
             computes at COMPUTE of its dense bfloat16 FLOPs
    train    a dense model's token takes 6 FLOPs a parameter, at the device's `trains`; a mixture's
             token takes what its table says

How far this is off published tables: docs/sizing.md (Presets).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from asyncrl.config import Config
from asyncrl.config.devices import DEVICES, MEMORY, DevicePreset
from asyncrl.sizing.cluster_models import (
    ClusterModel,
    EngineModel,
    LengthModel,
    NetworkModel,
    TrainerModel,
    VerdictModel,
)

BANDWIDTH, COMPUTE, SHARDED = 0.7, 0.6, 0.85
"""Shares of a device's bandwidth and FLOPs that decoding gets, and of those of each further
doubling of an engine's devices. Derived: with them 256 slots of Llama-3.1-8B at 500 tokens make
12,200 tokens/s on an H100, and a published run of vLLM made about 12,500
(https://www.morphllm.com/vllm-benchmarks)."""
PREFILL = 0.4
"""Share of the FLOPs that reading a prompt gets. Derived: as training."""
ROOM = 1.4
"""Memory of an engine over that of its weights, at least."""
SLOTS = (1, 8, 32, 64, 128, 256, 512, 1024)
LINK_GB_PER_S = 50.0
"""Gigabytes a second of a publication: one network card of 400 Gb/s. Derived."""
LENGTH = 1 / 3
"""Mean response over `rollout.max_new_tokens`. Assumed: no preset knows the task."""


@dataclass(frozen=True)
class ModelPreset:
    """A model: billions of parameters, and of those that a token uses; bytes of cache of a token;
    `experts` of a layer and those of a token (0: dense). `trained` are tokens a second of a device,
    by device, where its FLOPs do not say them."""

    parameters: float
    active: float
    cache: int
    experts: int = 0
    used: int = 0
    trained: dict[str, float] | None = None


MODELS = {
    "1.5b": ModelPreset(1.54, 1.54, 28_672),
    "8b": ModelPreset(8.03, 8.03, 131_072),
    "32b": ModelPreset(32.8, 32.8, 262_144),
    "30b-a3b": ModelPreset(
        30.5,
        3.3,
        98_304,
        128,
        8,
        {"h100": 3600.0, "h200": 3600.0, "b200": 6350.0, "mi300x": 2650.0},
    ),
}
"""Sizes as in the models' own config.json: Qwen2.5-1.5B (28 layers, 2 heads of 128), Llama-3.1-8B
(32, 8), Qwen3-32B (64, 8), Qwen3-30B-A3B (48, 4). Training of 30B-A3B: H100
fitted to one published row (NeMo-RL 0.8, one step off: 152 s); H200 as H100; B200 1.76 times as
fast (Megatron-Bridge, 9,299 tokens/s for 5,275, FP8); MI300X derived as for dense models."""

PROMPT = 256
"""Tokens of a prompt."""
PRESETS = tuple(f"{device}-{model}" for device in DEVICES for model in MODELS)


def preset(name: str, config: Config) -> ClusterModel:
    """The models of a preset, for responses of this run. Raises KeyError for a name that is not in
    `PRESETS`."""
    device_name, _, model_name = name.partition("-")
    device, model = DEVICES[device_name], MODELS[model_name]
    mean = max(1.0, LENGTH * config.rollout.max_new_tokens)
    engine = engine_of(device, model, context=PROMPT + mean / 2)
    return ClusterModel(
        engine=engine,
        length=LengthModel(mean=mean, sigma=0.8, prompt=PROMPT),
        trainer=TrainerModel(token_us=token_us(device_name, model), step_s=2.0),
        network=NetworkModel(
            publication_s=1.0,
            gigabytes=2 * model.parameters,
            gigabytes_per_s=LINK_GB_PER_S,
            swap_s=0.5,
        ),
        verdict=VerdictModel(seconds=0.1, accepted=0.7),
    )


def token_us(device_name: str, model: ModelPreset) -> float:
    """Microseconds of a device for a trained token."""
    if model.trained is not None:
        return 1e6 / model.trained[device_name]
    return 1e3 * 6 * model.parameters / DEVICES[device_name].trains


def engine_of(
    device: DevicePreset, model: ModelPreset, *, context: float, devices: int = 0
) -> EngineModel:
    """The engine whose slots hold `context` tokens in the mean, on so many devices (0: as few, a
    power of two, as hold the weights ROOM times)."""
    weights = 2 * model.parameters  # GB, in bfloat16
    devices = devices or 2 ** max(0, math.ceil(math.log2(ROOM * weights / device.memory)))
    wide = devices * SHARDED ** math.log2(devices)
    bytes_per_ms = 1e9 * device.bandwidth * BANDWIDTH * wide
    flops_per_ms = 1e9 * device.tflops * COMPUTE * wide
    points = []
    for slots in SLOTS:
        read = 1e9 * weights * _read_share(model, slots) + slots * context * model.cache
        points.append(
            (float(slots), read / bytes_per_ms + slots * 2e9 * model.active / flops_per_ms)
        )
    kept = MEMORY * device.memory * devices - weights
    return EngineModel(
        decode_ms=points,
        prefill_tokens_per_s=1e3 * device.tflops * PREFILL * wide / (2 * model.active),
        kv_tokens=int(1e9 * kept / model.cache),
        devices=devices,
    )


def _read_share(model: ModelPreset, slots: int) -> float:
    """The share of the weights that a decode step reads: all, but of experts those that any slot
    uses, if slots choose them independently. What is not in experts is read always."""
    if not model.experts:
        return 1.0
    share = model.used / model.experts
    in_experts = (model.parameters - model.active) / (1 - share) / model.parameters
    return 1 - in_experts * (1 - share) ** slots
