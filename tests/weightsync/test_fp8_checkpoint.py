"""Publications to servers with fp8 weights: the bytes and scales that they load, and what they
hold, compared byte by byte; a server of another kind is refused by name. The server is a fake that
fuses as real ones do: their CPU builds compute fp8 only with AMX."""

from __future__ import annotations

import hashlib
import re

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel, Qwen3MoeConfig

from asyncrl.training.checkpoint_names import CheckpointNames
from asyncrl.training.fp8_blocks import FP8, Fp8Blocks, dequantized, rounded
from asyncrl.training.models import ModelError
from asyncrl.training.rounding import linear_weights, round_for_good
from asyncrl.weightsync.servers.fp8_checkpoint import Fp8Checkpoint, checkpoint_of
from asyncrl.weightsync.servers.server_checksums import Checks, WrongWeights
from asyncrl.weightsync.servers.server_group import cut
from asyncrl.weightsync.servers.server_hashes import of_host
from asyncrl.weightsync.servers.server_names import UnknownName, sources

LAYER = "model.layers.0."
Weights = dict[str, Tensor]


def mixture(seed: int, width: int = 128) -> PreTrainedModel:
    """A layer of attention, experts and a router, in bfloat16."""
    torch.manual_seed(seed)
    config = Qwen3MoeConfig(
        vocab_size=32,
        hidden_size=256,
        moe_intermediate_size=width,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=128,
        num_experts=2,
        num_experts_per_tok=1,
    )
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    return model


def sent(model: PreTrainedModel, kind: str = "fp8") -> Weights:
    return dict(checkpoint_of(model, kind).tensors(dict(model.named_parameters())))


def held(tensors: Weights) -> Weights:
    """The tensors of a server: attention and experts fused, scales as their weights are."""
    made = dict(tensors)
    for leaf in ("weight", "weight_scale_inv"):
        attention = [f"{LAYER}self_attn.{each}_proj.{leaf}" for each in "qkv"]
        if attention[0] in made:
            fused = torch.cat([made.pop(name) for name in attention])
            made[f"{LAYER}self_attn.qkv_proj.{leaf}"] = fused
        for stack, parts in (("w13", ("gate_proj", "up_proj")), ("w2", ("down_proj",))):
            names = [f"{LAYER}mlp.experts.{i}.{part}.{leaf}" for i in range(2) for part in parts]
            if names[0] in made:
                each = torch.cat([made.pop(name) for name in names])
                made[f"{LAYER}mlp.experts.{stack}_{leaf}"] = each.unflatten(0, (2, -1))
    return made


def report(server: Weights) -> list[dict[str, str]]:
    def hashed(tensor: Tensor) -> str:
        data = tensor.detach().contiguous().view(torch.uint8).numpy().tobytes()
        return hashlib.sha256(data).hexdigest()[:16]

    return [{name: hashed(tensor) for name, tensor in server.items()}]


def test_each_weight_is_followed_by_its_scales_and_loses_what_rounding_does() -> None:
    model = mixture(0)
    plain, tensors = sent(model, "model"), sent(model)
    linear = [name for name in plain if f"{name}_scale_inv" in tensors]
    assert len(linear) == 4 + 2 * 3 and len(tensors) == len(plain) + len(linear)
    assert not any("embed" in name or "norm" in name or "mlp.gate." in name for name in linear)
    order = list(tensors)
    for name in linear:
        numbers, scales = tensors[name], tensors[f"{name}_scale_inv"]
        assert order.index(f"{name}_scale_inv") == order.index(name) + 1
        assert (numbers.dtype, scales.dtype) == (FP8, torch.float32)
        assert scales.shape == tuple(-(-size // 128) for size in plain[name].shape)
        kept = dequantized(Fp8Blocks(numbers, scales), torch.bfloat16)
        assert torch.equal(kept, rounded(plain[name]))
    assert all(tensors[name] is plain[name] or name in linear for name in plain)


def test_a_rounded_model_loses_nothing() -> None:
    """The trainer's weights, to the bit, if both sides round (`model.rounding`)."""
    model = mixture(0)
    round_for_good(model)
    plain, tensors = sent(model, "model"), sent(model)
    for name, tensor in plain.items():
        if f"{name}_scale_inv" in tensors:
            blocks = Fp8Blocks(tensors[name], tensors[f"{name}_scale_inv"])
            assert torch.equal(dequantized(blocks, tensor.dtype), tensor), name


def test_every_byte_that_a_server_holds_is_compared() -> None:
    first, second = sent(mixture(1)), sent(mixture(2))
    checks = Checks(first, report(held(first)), of_host)
    checks.verify(checks.expect(first), report(held(first)))
    assert not checks.inexact and not checks.derived and checks.exact == len(held(first))
    expected, made = checks.expect(second), sources(second, held(second))
    for name, tensor in second.items():
        wrong = tensor.detach().clone()
        wrong.view(-1).view(torch.uint8)[-1] ^= 1
        (target,) = (target for target, parts in made.items() if name in parts)
        with pytest.raises(WrongWeights, match=f"^{re.escape(target)} holds bytes that differ"):
            checks.verify(expected, report(held({**second, name: wrong})))
    checks.verify(expected, report(held(second)))


def test_a_server_of_another_kind_is_refused() -> None:
    model = mixture(1)
    plain, fp8 = sent(model, "model"), sent(model)
    with pytest.raises(UnknownName, match=r"not in fp8 blocks.*publication\.dtype to model"):
        sources(fp8, held(plain))
    with pytest.raises(UnknownName, match=r"no scales for it: set publication\.dtype to fp8"):
        sources(plain, held(fp8))


def test_a_bucket_begins_where_its_types_do() -> None:
    """fp8 numbers and float32 scales follow one another without padding."""
    tensors = sent(mixture(0))
    for bucket in cut(tensors, 1 << 30):
        at = 0
        for name, dtype in zip(bucket.names, bucket.dtypes, strict=True):
            assert at % getattr(torch, dtype).itemsize == 0
            at += tensors[name].nbytes


def test_a_model_that_blocks_do_not_fit_is_refused() -> None:
    with pytest.raises(ModelError, match=r"set model\.rounding to none"):
        Fp8Checkpoint(mixture(0, width=192))
    assert isinstance(checkpoint_of(mixture(0, width=192), "model"), CheckpointNames)
    assert len(linear_weights(mixture(0))) == 4 + 2
