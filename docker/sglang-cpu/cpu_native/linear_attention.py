"""Linear attention by the gated delta rule (Qwen3-Next, Qwen3.5) in pure torch: SGLang's kernel of
a prefill refuses float32, and those of decoding take half a second a token in Triton's interpreter.
Token by token, and so for short texts."""

from itertools import pairwise

import torch
import torch.nn.functional as F
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


def decoded(
    kernel: object,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    a: Tensor,
    b: Tensor,
    *,
    A_log: Tensor,
    dt_bias: Tensor,
    ssm_states: Tensor,
    cache_indices: Tensor,
    query_start_loc: Tensor,
    **_: object,
) -> Tensor:
    """SGLang's `decode` of one token of each text, with a and b `[texts, value heads]`."""
    decay = -A_log.float().exp() * F.softplus(a.float() + dt_bias)
    output, _, _ = gated_delta_rule(
        q,
        k,
        v,
        decay[None],
        b.float().sigmoid()[None],
        initial_state=ssm_states,
        initial_state_indices=cache_indices,
        cu_seqlens=query_start_loc,
        use_qk_l2norm_in_kernel=True,
    )
    return output


def convolved(
    x: Tensor,
    conv_state: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
    *,
    conv_state_indices: Tensor,
) -> Tensor:
    """SGLang's `causal_conv1d_update` of one token of each text, `[texts, channels]`."""
    window = torch.cat([conv_state[conv_state_indices], x[:, :, None]], -1)
    conv_state[conv_state_indices] = window[:, :, 1:]
    output = (window * weight).sum(-1)
    if bias is not None:
        output = output + bias
    return F.silu(output) if activation else output


def use_torch() -> None:
    """Have SGLang's layers take these, and their gated norm ask no GPU for its size."""
    from sglang.kernels.ops.attention.fla import layernorm_gated
    from sglang.srt.layers.attention.linear import gdn_backend
    from sglang.srt.layers.attention.linear.kernels import gdn_triton

    gdn_triton.chunk_gated_delta_rule = gated_delta_rule
    gdn_triton.TritonGDNKernel.supports_packed_decode = False
    gdn_triton.TritonGDNKernel.decode = decoded
    gdn_backend.causal_conv1d_update = convolved
    layernorm_gated._get_sm_count = lambda device: 1
