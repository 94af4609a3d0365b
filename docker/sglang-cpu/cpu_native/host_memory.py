"""Host memory of a processor's own, which SGLang would register with CUDA or pin, whatever the
device: it then can neither record the experts of tokens (`--enable-return-routed-experts`) nor
serve adapters (`--enable-lora`)."""

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor


def allocated(
    dims: tuple[int, ...], *, dtype: Any, device: str, allocator: Any, **_: object
) -> Tensor:
    """SGLang's `alloc_with_host_register` without the registration."""
    buffer: Tensor = allocator.allocate(dims, dtype=dtype, device=device)
    return buffer


def use_plain_memory() -> None:
    """Have SGLang's caches on a processor take this."""
    from sglang.srt.mem_cache.pool_host.common import ALLOC_MEMORY_FUNCS

    ALLOC_MEMORY_FUNCS["cpu"] = allocated


def pin_nothing() -> None:
    """Have torch make plain tensors where SGLang asks for pinned ones."""
    for name in ("tensor", "empty", "zeros", "arange"):
        setattr(torch, name, _unpinned(getattr(torch, name)))
    torch.Tensor.pin_memory = lambda self, *_: self


def _unpinned(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
    @wraps(make)
    def unpinned(*args: Any, **options: Any) -> Tensor:
        options.pop("pin_memory", None)
        return make(*args, **options)

    return unpinned
