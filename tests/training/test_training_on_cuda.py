"""Training on a CUDA device that is pretended (`pretend_cuda`): the numbers of the host, by the
branches for CUDA, with no tensor on the wrong device and few waits for the device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
import torch
import torch.nn.functional as F
from gpu_kit.shapes import TINY, build, settings, work
from pretend_cuda import CUDA, CudaTensor, moved, pretended_cuda, syncs
from some_values import some
from torch import Tensor
from transformers import PreTrainedModel

from asyncrl.actors import trainer_process
from asyncrl.config import load
from asyncrl.config.schema import StalenessConfig
from asyncrl.training import chunked_logits, forward
from asyncrl.training.checkpoint_io import take
from asyncrl.training.forward import falls_back
from asyncrl.training.learner import Learner
from asyncrl.training.models import ModelError
from asyncrl.training.optimizer import state_device
from asyncrl.training.ranks.rank import ALONE
from asyncrl.training.staging import Staging
from asyncrl.training.trial import try_passes


@pytest.fixture(autouse=True)
def cuda() -> Iterator[None]:
    with pretended_cuda():
        yield


def learner(model: PreTrainedModel, *, recompute: bool = False) -> Learner:
    device = model.device.type
    return Learner(model, settings(device, recompute=recompute), StalenessConfig(), temperature=1.0)


def host(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu().float().clone()


@pytest.mark.parametrize("way", some(["packed", "chunked", "recomputed", "padded", "alone"]))
@pytest.mark.parametrize("dtype", some([torch.float32, torch.bfloat16]))
def test_a_step_is_that_of_the_host(
    dtype: torch.dtype, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = build(TINY, dtype, "cpu", initializer_range=0.1)
    ours = moved(plain)
    given = work(plain, 8, 24, groups=3)
    gradients = []
    for model in (plain, ours):
        if way == "chunked":
            forward.make_logits_in_chunks(model)
            monkeypatch.setattr(chunked_logits, "LOGIT_BYTES", 16 * 4 * TINY.vocabulary)
        elif way in ("padded", "alone"):
            forward.use_passes(model, way)
        one = learner(model, recompute=way == "recomputed")
        one.accumulate(given.batch, given.buffers)
        gradients.append(
            {name: host(each.grad) for name, each in one.master_weights.named()}  # type: ignore[arg-type]
        )
        assert not one.step()["skipped"]
    assert all(isinstance(each, CudaTensor) for each in ours.parameters())
    length = torch.cat([each.flatten() for each in gradients[0].values()]).norm()
    for name, gradient in gradients[0].items():
        distance = (gradient - gradients[1][name]).norm() / length
        assert distance < (1e-5 if dtype == torch.float32 else 0.02), name


def test_a_micro_batch_waits_for_the_device_as_often_whatever_its_size() -> None:
    model = moved(build(TINY, torch.float32, "cpu"))
    one, counts = learner(model), []
    for groups in (1, 1, 8):  # the first makes what is kept
        given = work(model, 8, 24, groups=groups)
        with syncs() as waited:
            one.accumulate(given.batch, given.buffers)
        counts.append(waited.total)
    assert counts[1] == counts[2] <= 20, waited.places


@pytest.mark.explore
def test_a_model_is_tried_on_the_device() -> None:
    trial = try_passes(moved(build(TINY, torch.float32, "cpu")), 64)
    assert trial.passes == "packed" and "by tables" in trial.attention


@pytest.mark.parametrize("attention", some(["blocks", "auto"]))
def test_an_attention_that_falls_back_is_told_or_refused(attention: str) -> None:
    """No kernel of blocks can be compiled for a device that is pretended."""
    model = moved(build(TINY, torch.float32, "cpu"))
    context = cast(Any, SimpleNamespace(config=load(None, [f"train.attention={attention}"], {})))
    with pytest.raises(ModelError, match="C compiler") if attention == "blocks" else nullcontext():
        trainer_process._try(model, context, ALONE)
    assert falls_back(model)
    forward.attend_in_blocks(model)
    assert not falls_back(model)


def test_a_checkpoint_is_copied_to_the_host() -> None:
    model = moved(build(TINY, torch.float32, "cpu"))
    one, staging = learner(model), Staging()
    given = work(model, 8, 24)
    one.accumulate(given.batch, given.buffers)
    one.step()
    staged = take(one, 0, staging)
    assert staged.model is not None
    kept = {n: t for file in staged.model.files.values() for n, t in file.items()}
    for name, parameter in model.named_parameters():
        assert kept[name].device.type == "cpu" and torch.equal(kept[name], host(parameter)), name


def test_offloaded_moments_are_on_the_host_and_a_step_is_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch, "Generator", lambda _: torch.default_generator.clone_state())
    plain = build(TINY, torch.float32, "cpu", initializer_range=0.1)
    ours, given = moved(plain), work(plain, 8, 24, groups=3)
    train = msgspec.structs.replace(settings("cuda"), optimizer="adamw_offloaded")
    other = Learner(ours, train, StalenessConfig(), temperature=1.0)
    for each in (one := learner(plain), other):
        each.accumulate(given.batch, given.buffers)
        each.step()
    weights = dict(one.master_weights.named())
    for name, weight in other.master_weights.named():
        kept = other.optimizer.state[weight]["exp_avg"]
        assert isinstance(kept, CudaTensor) == (weight.dim() < 2), name
        assert state_device(other.optimizer, weight) == kept.device
        assert torch.allclose(host(weight), host(weights[name]), rtol=0, atol=1e-8), name


MISTAKES: dict[str, Callable[[Tensor, Tensor], object]] = {
    "parts joined into the device": lambda at_host, there: torch.cat(
        [at_host, at_host], out=torch.empty(6, device="cuda")
    ),
    "a sum": lambda at_host, there: there + at_host,
    "the device's index of a host's tensor": lambda at_host, there: at_host[there.long()],
    "a host's index": lambda at_host, there: torch.index_select(there, 0, at_host.long()),
    "a choice": lambda at_host, there: torch.where(there > 0, there, at_host),
    "a host's ids": lambda at_host, there: F.embedding(at_host.long(), there[None]),
    "an array": lambda at_host, there: there.numpy(),
    "a device without a number": lambda at_host, there: torch.cuda.set_device(torch.device("cuda")),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_what_cuda_refuses_is_refused(mistake: str) -> None:
    with pytest.raises((RuntimeError, TypeError, ValueError), match=r"device|cuda"):
        MISTAKES[mistake](torch.zeros(3), torch.zeros(3, device=CUDA))


def test_what_cuda_takes_is_taken() -> None:
    on_device = torch.arange(3.0, device="cuda")
    on_device[1:].copy_(torch.ones(2))
    assert (on_device * torch.tensor(2.0))[torch.tensor([0, 2])].tolist() == [0.0, 2.0]
    with syncs() as waited:
        assert float(on_device.sum()) == 2.0
        assert torch.equal(on_device.cpu(), torch.tensor([0.0, 1.0, 1.0]))
    assert waited.total == 2
