"""A CUDA device that is none: real numbers, computed on a processor, under a CUDA device's name.
Invariant: what CUDA refuses is refused here, so a mistake about devices fails a test on a machine
without a GPU.

A tensor says that it is on `cuda:0`, so code takes the branches that it has for CUDA. Refused, as
CUDA does: operations on tensors of two devices (but for scalars, copies, and indices on the host),
`torch.cat` of host tensors into a buffer of the device, `numpy()`, a `set_device` without a number,
and a group of NCCL that is given tensors of the host. `Syncs` counts what would stop the device:
numbers that are read, and copies to the host.

It is made of three parts of torch: a wrapper of tensors on the spare device type (PrivateUse1), a
mode that translates device names, and one that has the device's tensors made.
"""

from __future__ import annotations

import copy
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from functools import cache
from typing import Any, ClassVar
from unittest.mock import patch

import torch
import torch.distributed as dist
import trio
from torch import Tensor
from torch.library import Library
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter, tree_map
from torch.utils.backend_registration import (
    _DummyBackendModule,
    _setup_privateuseone_for_python_backend,
)
from transformers import PreTrainedModel

NAME = "pretended"


class _Backend(_DummyBackendModule):
    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]


_setup_privateuseone_for_python_backend(NAME, _Backend())
CUDA, SPARE = torch.device("cuda", 0), torch.device(NAME, 0)
COPIES = {"aten::copy_", "aten::_to_copy", "aten::_copy_from"}
READS = {
    *("aten::_local_scalar_dense", "aten::equal", "aten::nonzero", "aten::masked_select"),
    *("aten::_unique2", "aten::unique_dim"),
}
"""Operations whose result the host waits for."""
INDEXED = {"aten::index", "aten::index_put_", "aten::index_put", "aten::_unsafe_index"}


class WrongDevice(RuntimeError):
    """An operation that CUDA would have refused."""


class CudaTensor(torch.Tensor):
    """A tensor of the device; `raw` has its numbers."""

    raw: Tensor

    @staticmethod
    def __new__(cls, raw: Tensor, requires_grad: bool = False) -> CudaTensor:
        raw = raw.raw if isinstance(raw, CudaTensor) else raw
        made: CudaTensor = torch.Tensor._make_wrapper_subclass(
            cls,
            raw.size(),
            strides=raw.stride(),
            storage_offset=raw.storage_offset(),
            dtype=raw.dtype,
            device=f"{NAME}:0",
            requires_grad=requires_grad,
        )
        made.raw = raw
        return made

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return CUDA

    @property
    def is_cuda(self) -> bool:  # type: ignore[override]
        return True

    def numpy(self, *_: Any, **__: Any) -> Any:  # type: ignore[override]
        raise TypeError("can't convert cuda:0 device type tensor to numpy")

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"CudaTensor({self.raw})"

    def __deepcopy__(self, memo: dict[int, Any]) -> CudaTensor:
        return memo.setdefault(id(self), type(self)(self.raw.clone(), self.requires_grad))

    @classmethod
    def __torch_dispatch__(
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return computed(function, args, kwargs or {})


def computed(function: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """The result of an operation, on the device if one of its tensors is, or if it is to be made
    there."""
    name = function._schema.name
    tensors = [each for each in tree_iter((args, kwargs)) if isinstance(each, Tensor)]
    ours = [each for each in tensors if isinstance(each, CudaTensor)]
    hosts = [each for each in tensors if not isinstance(each, CudaTensor)]
    asked = kwargs.get("device")
    if ours and hosts and name not in COPIES:
        _refuse_mixed(name, args, hosts)
    if ours and (
        name in READS
        or (name == "aten::_to_copy" and asked is not None and asked.type == "cpu")
        or (name == "aten::copy_" and not isinstance(args[0], CudaTensor))
        or (name in INDEXED and _of_bools(args[1]))
    ):
        Syncs.note(name)
    there = bool(ours) if asked is None else asked.type in (NAME, "cuda")
    if name == "aten::copy_":
        there = isinstance(args[0], CudaTensor)
    if asked is not None:
        kwargs = {**kwargs, "device": torch.device("cpu")}
    if kwargs.get("pin_memory"):
        kwargs = {**kwargs, "pin_memory": False}
    if name == "aten::_fused_sdp_choice":
        return 0  # the plain one
    result = function(*tree_map(_raw, args), **tree_map(_raw, kwargs))
    if not there:
        return result
    written = {
        id(_raw(value)): value
        for argument, value in zip(function._schema.arguments, args, strict=False)
        if argument.alias_info is not None and argument.alias_info.is_write
    } | {id(_raw(value)): value for key, value in kwargs.items() if key == "out"}

    def wrapped(value: Any) -> Any:
        if not isinstance(value, Tensor) or isinstance(value, CudaTensor):
            return value
        return written[id(value)] if id(value) in written else CudaTensor(value)

    return tree_map(wrapped, result)


def _raw(value: Any) -> Any:
    return value.raw if isinstance(value, CudaTensor) else value


def _of_bools(indices: Any) -> bool:
    return any(isinstance(each, Tensor) and each.dtype == torch.bool for each in indices)


def _refuse_mixed(name: str, args: Any, hosts: list[Tensor]) -> None:
    """Raise WrongDevice unless the host's tensors are such as CUDA takes beside its own."""
    if name in INDEXED and isinstance(args[0], CudaTensor):
        indices = {id(each) for each in args[1] if isinstance(each, Tensor)}
        hosts = [each for each in hosts if id(each) not in indices]
    if any(each.dim() for each in hosts) or name in ("aten::cat", "aten::stack"):
        raise WrongDevice(
            f"{name}: Expected all tensors to be on the same device, but found at least two "
            "devices, cuda:0 and cpu!"
        )


class _Made(TorchDispatchMode):
    """Has tensors made on the device."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None):
        return computed(function, args, kwargs or {})


class _Named(TorchFunctionMode):
    """Translates the names of CUDA devices."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None):
        if function is torch.device:
            return function(*args, **(kwargs or {}))
        given, named = tree_map(_translated, args), tree_map(_translated, kwargs or {})
        if function in (torch.tensor, torch.as_tensor) and named.get("device") == SPARE:
            return function(*given, **{**named, "device": "cpu"}).to(SPARE)
        return function(*given, **named)


def _translated(value: Any) -> Any:
    if isinstance(value, torch.device) and value.type == "cuda":
        return SPARE
    if isinstance(value, str) and value.partition(":")[0] == "cuda":
        return SPARE
    return value


class Syncs:
    """Operations that would have stopped the device, and where they came from."""

    open: ClassVar[list[Syncs]] = []

    def __init__(self) -> None:
        self.counts = Counter[str]()
        self.places = list[str]()

    @staticmethod
    def note(name: str) -> None:
        for each in Syncs.open:
            each.counts[name] += 1
            frames = [
                frame
                for frame in traceback.extract_stack()
                if any(room in frame.filename for room in ("/asyncrl/", "/weightsync/", "/actors/"))
            ]
            each.places.append(f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "")

    @property
    def total(self) -> int:
        return self.counts.total()


@contextmanager
def syncs() -> Iterator[Syncs]:
    """Counts what would stop the device in the block."""
    counted = Syncs()
    Syncs.open.append(counted)
    try:
        yield counted
    finally:
        Syncs.open.remove(counted)


class FakeNccl:
    """A group that takes tensors of the device alone, as NCCL does, and has gloo carry their bytes.
    It refuses a constructor that NCCL would refuse."""

    class Options:
        _timeout = timedelta(seconds=60)

    def __init__(self, store: Any, rank: int, world: int, options: Options) -> None:
        gloo: Any = dist.ProcessGroupGloo
        settings = gloo._Options()
        settings._timeout = options._timeout
        settings._devices = [gloo.create_device(hostname="127.0.0.1")]
        self._group = gloo(store, rank, world, settings)
        self.aborted = False

    def broadcast(self, tensor: Tensor, root: int, timeout: timedelta) -> Any:
        if not isinstance(tensor, CudaTensor):
            raise RuntimeError("No backend type associated with device type cpu")
        if not tensor.is_contiguous():
            raise RuntimeError("Tensors must be contiguous")
        return self._group.broadcast(tensor.raw, root, timeout)

    def abort(self) -> None:
        self.aborted = True
        self._group = None


@cache
def _installed() -> Library:
    """Has torch know the spare device, and make empty tensors on it where no mode is asked."""
    library = Library("aten", "IMPL")

    def empty(size: Any, **rest: Any) -> Tensor:
        return CudaTensor(torch.empty(size, dtype=rest.get("dtype") or torch.get_default_dtype()))

    def strided(size: Any, stride: Any, **rest: Any) -> Tensor:
        dtype = rest.get("dtype") or torch.get_default_dtype()
        return CudaTensor(torch.empty_strided(size, stride, dtype=dtype))

    library.impl("empty.memory_format", empty, "PrivateUse1")
    library.impl("empty_strided", strided, "PrivateUse1")
    return library


def _set_device(device: Any) -> None:
    index = torch.device(device).index if not isinstance(device, int) else device
    if index is None:
        raise ValueError(f"Expected a torch.device with a specified index, but got:{device}")
    if index:
        raise RuntimeError("CUDA error: invalid device ordinal")


@contextmanager
def pretended_cuda() -> Iterator[torch.device]:
    """A device `cuda:0` inside the block, in this thread and in trio's."""
    _installed()
    run_sync = trio.to_thread.run_sync

    async def run(work: Callable[..., Any], *given: Any, **options: Any) -> Any:
        def inside() -> Any:
            with _modes():
                return work(*given)

        return await run_sync(inside, **options)

    with ExitStack() as stack:
        stack.enter_context(patch.object(trio.to_thread, "run_sync", run))
        stack.enter_context(patch.object(torch.cuda, "set_device", _set_device))
        stack.enter_context(patch.object(torch.cuda, "synchronize", lambda *_: None))
        stack.enter_context(patch.object(dist, "ProcessGroupNCCL", FakeNccl, create=True))
        stack.enter_context(_modes())
        yield CUDA


def moved(model: PreTrainedModel) -> PreTrainedModel:
    """A copy of a model on the device. torch moves parameters of such a tensor one by one, and not
    in place: those that were one are made one again."""
    copied: PreTrainedModel = copy.deepcopy(model).to(CUDA)  # type: ignore[arg-type]
    copied.tie_weights()
    return copied


@contextmanager
def _modes() -> Iterator[None]:
    with _Named(), _Made():
        yield
