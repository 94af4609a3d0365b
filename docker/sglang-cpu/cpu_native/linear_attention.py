"""The gated delta rule of a prefill (Qwen3-Next, Qwen3.5) in pure torch: SGLang's kernel refuses
float32. Token by token, and so for short texts."""

from itertools import pairwise

import torch
from torch import Tensor


def gated_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    *,
    scale: float | None = None,
    initial_state: Tensor,
    initial_state_indices: Tensor,
    cu_seqlens: Tensor,
    head_first: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    inplace_update: bool = True,
) -> tuple[Tensor, None, None]:
    """SGLang's `chunk_gated_delta_rule`: of texts that follow one another, q and k `[1, tokens,
    heads, K]`, v `[1, tokens, value heads, V]`, g and beta `[1, tokens, value heads]`; of each
    text's state `[value heads, V, K]` the index in `initial_state`."""
    groups = v.shape[2] // q.shape[2]
    queries, keys, values = q[0].float(), k[0].float(), v[0].float()
    if use_qk_l2norm_in_kernel:
        queries, keys = (
            each * torch.rsqrt(each.square().sum(-1, keepdim=True) + 1e-6)
            for each in (queries, keys)
        )
    queries = queries.repeat_interleave(groups, 1) * (scale or q.shape[-1] ** -0.5)
    keys = keys.repeat_interleave(groups, 1)
    decay, rate = g[0].float().exp(), beta[0].float()
    output = torch.empty_like(values)
    texts = pairwise(cu_seqlens.tolist())
    for index, (start, end) in zip(initial_state_indices.tolist(), texts, strict=True):
        state = initial_state[index].float()
        for token in range(start, end):
            state = state * decay[token, :, None, None]
            known = torch.einsum("hvk,hk->hv", state, keys[token])
            delta = (values[token] - known) * rate[token, :, None]
            state = state + torch.einsum("hv,hk->hvk", delta, keys[token])
            output[token] = torch.einsum("hvk,hk->hv", state, queries[token])
        if inplace_update:
            initial_state[index] = state
    return output[None].to(q.dtype), None, None


def use_it() -> None:
    """Have SGLang's layers take it, decode by the one kernel that is interpreted, and their gated
    norm ask no GPU for its size."""
    from sglang.kernels.ops.attention.fla import layernorm_gated
    from sglang.srt.layers.attention.linear.kernels import gdn_triton

    gdn_triton.chunk_gated_delta_rule = gated_delta_rule
    gdn_triton.TritonGDNKernel.supports_packed_decode = False
    layernorm_gated._get_sm_count = lambda device: 1
