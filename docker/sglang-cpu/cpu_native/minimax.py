"""MiniMax-M2's norm of queries and keys in pure torch: SGLang's kernels of it refuse a CPU."""

import torch
from torch import Tensor


def sums_of_squares(q: Tensor, k: Tensor) -> Tensor:
    """SGLang's `rms_sumsq_serial`, `[2, tokens]`."""
    return torch.stack([each.float().square().sum(-1) for each in (q, k)])


def normalized(
    q: Tensor,
    k: Tensor,
    q_weight: Tensor,
    k_weight: Tensor,
    sums: Tensor,
    ranks: int = 1,
    eps: float = 1e-5,
) -> tuple[Tensor, Tensor]:
    """SGLang's `rms_apply_serial`, where each of the ranks has a part of all heads."""
    parts = zip((q, k), (q_weight, k_weight), sums, strict=True)
    normed = (
        part.float() * torch.rsqrt(of[:, None] / (part.shape[-1] * ranks) + eps) * weight.float()
        for part, weight, of in parts
    )
    first, second = normed
    return first.to(q.dtype), second.to(k.dtype)


def use_torch() -> None:
    """Have the model take these."""
    from sglang.srt.models import minimax_m2

    minimax_m2.rms_sumsq_serial = sums_of_squares
    minimax_m2.rms_apply_serial = normalized
