"""Host memory of a processor's own: SGLang registers each host buffer with CUDA, of whatever
device, and then cannot record the experts of tokens (`--enable-return-routed-experts`)."""

from typing import Any

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
