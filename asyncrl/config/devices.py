"""Accelerators by name: their memory and their speed, each number with its source. None was
measured by asyncrl."""

from __future__ import annotations

from dataclasses import dataclass

MEMORY = 0.9
"""Share of a device's memory for weights and cache, as vLLM's `--gpu-memory-utilization`."""


@dataclass(frozen=True)
class DevicePreset:
    """A device: TB/s and GB of its memory, its dense bfloat16 TFLOP/s, and those of training a
    dense model."""

    bandwidth: float
    memory: float
    tflops: float
    trains: float


DEVICES = {
    "h100": DevicePreset(3.35, 80, 989, 250),
    "h200": DevicePreset(4.8, 141, 989, 250),
    "b200": DevicePreset(8.0, 180, 2250, 530),
    "mi300x": DevicePreset(5.3, 192, 1307, 184),
}
"""H200, B200: https://github.com/stas00/ml-engineering (insights/when-to-upgrade-gpus). MI300X:
https://github.com/alpharomercoma/MI300X-vs-H200 (METHODOLOGY.md). H100: 3.35 TB/s, 989 TFLOP/s, as
in https://huggingface.co/datasets/devidasmishra/ai-inference-hardware-economics-2026. Training:
H100 fitted to one published row of reinforcement learning (NeMo-RL 0.4, Llama-3.1-8B, one step off:
74.6 s, https://github.com/NVIDIA-NeMo/RL, docs/about/performance-summary.md), a quarter of its
FLOPs; H200 as H100; B200 2.12 times as fast, as Llama 3 8B by Megatron-Bridge (30,624 tokens/s for
14,451, FP8, https://github.com/NVIDIA-NeMo/Megatron-Bridge, docs/performance-summary.md); MI300X
1.36 times slower than H200 (8B, BF16: 1.32 to 1.40, MI300X-vs-H200/REPORT.md)."""
