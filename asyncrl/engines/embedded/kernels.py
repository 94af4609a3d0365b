"""Compiled pieces of the decode step. Invariant: each computes the same as the Python code it
replaces, and is checked against it.

- attention: as `cache.attend`, but each row up to its own position only: short rollouts do not pay
  for long neighbours;
- the cache's write of one position a row;
- root-mean-square norms, of modules that prove to be plain ones.

Compiled at first use with the machine's C++ compiler (5-12 s) and kept in the user's cache
directory, by source, torch version and processor. Compiling the whole step with torch.compile was
measured too: no faster than a trace alone, and 12-40 s a process.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface

from asyncrl.engines.embedded.cache import DecodeLayer, attend

KERNEL_ATTENTION = "asyncrl_slots_kernel"
_SOURCE = Path(__file__).with_name("kernels.cpp")
_FLAGS = ("-std=c++20", "-O3", "-march=native", "-ffast-math", "-fopenmp", "-fPIC")
_log = logging.getLogger(__name__)


def load_kernels() -> bool:
    """Load the operators, compiling them first if needed. Without a compiler, or where it fails,
    warns once and returns False."""
    if _loaded():
        return True
    compiler = shutil.which(os.environ.get("CXX", "g++")) or shutil.which("c++")
    if compiler is None:
        _log.warning(
            "engine.compile has no effect: no C++ compiler was found; install g++ or set CXX"
        )
        return False
    library = _library_path()
    try:
        if not library.exists():
            _compile(compiler, library)
        torch.ops.load_library(str(library))  # type: ignore[no-untyped-call]
    except (subprocess.CalledProcessError, OSError) as error:
        detail = (getattr(error, "stderr", None) or str(error)).strip().splitlines()
        _log.warning(
            "engine.compile has no effect: compiling with %s failed: %s",
            compiler,
            detail[0] if detail else "no message",
        )
        return False
    return True


def _loaded() -> bool:
    return hasattr(torch.ops.asyncrl, "slot_attention")


def _library_path() -> Path:
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    processor = Path("/proc/cpuinfo")
    flags = (
        [line for line in processor.read_text().splitlines() if line.startswith("flags")][:1]
        if processor.exists()
        else []
    )
    key = hashlib.sha256(
        "\n".join([_SOURCE.read_text(), torch.__version__, *_FLAGS, *flags]).encode()
    ).hexdigest()[:16]
    return home / "asyncrl" / f"kernels-{key}.so"


def _compile(compiler: str, library: Path) -> None:
    """Compile and link separately: linked with -ffast-math, a library would change how the whole
    process rounds tiny numbers. Linked to torch's own OpenMP library, since two of them would use
    twice the threads."""
    library.parent.mkdir(parents=True, exist_ok=True)
    torch_libraries = Path(torch.__file__).parent / "lib"
    # where torch is built for CUDA, its import asks for devices, and no process could fork then
    from torch.utils import cpp_extension

    includes = [f"-I{path}" for path in cpp_extension.include_paths()]
    with tempfile.TemporaryDirectory(dir=library.parent) as scratch:
        compiled, linked = Path(scratch) / "kernels.o", Path(scratch) / "kernels.so"
        openmp = [str(path) for path in torch_libraries.glob("libgomp*")]
        commands = [
            [compiler, *_FLAGS, "-c", str(_SOURCE), "-o", str(compiled), *includes],
            [
                compiler,
                "-shared",
                str(compiled),
                "-o",
                str(linked),
                f"-L{torch_libraries}",
                "-lc10",
                "-ltorch_cpu",
                *openmp,
                "-lm",
            ],
        ]
        for command in commands:
            subprocess.run(command, check=True, capture_output=True, text=True)
        linked.replace(library)


class KernelDecodeLayer(DecodeLayer):
    """A `DecodeLayer` that ignores `columns` and reads the whole cache of its rows."""

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        assert self.keys is not None and self.values is not None
        torch.ops.asyncrl.slot_write(
            self.keys, self.values, key_states, value_states, self.positions
        )
        rows = self.rows.shape[0]
        return self.keys[:rows], self.values[:rows]


class KernelNorm(nn.Module):
    """Replaces a root-mean-square norm, with the same parameter under the same name."""

    def __init__(self, weight: nn.Parameter, epsilon: float) -> None:
        super().__init__()
        self.weight, self.epsilon = weight, epsilon

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = torch.ops.asyncrl.rms_norm(x, self.weight, self.epsilon)
        return result


def replace_norms(model: nn.Module) -> None:
    """Replace every module that looks like a root-mean-square norm, and computes the same as
    `KernelNorm` on random numbers, by a `KernelNorm`."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            weight, epsilon = (
                getattr(child, "weight", None),
                getattr(child, "variance_epsilon", None),
            )
            if (
                isinstance(weight, nn.Parameter)
                and weight.dim() == 1
                and isinstance(epsilon, float)
                and not list(child.children())
            ):
                norm = KernelNorm(weight, epsilon)
                x = torch.linspace(-3, 2, 5 * len(weight)).sin().reshape(5, -1) * 2
                with torch.no_grad():
                    if torch.allclose(child(x), norm(x), rtol=1e-5, atol=1e-6):
                        setattr(parent, name, norm)


def _attend_with_kernel(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention as in `cache.attend`, but in a decode step `attention_mask` holds the rows'
    positions, int64 [rows, 1, 1, 1]; keys and values are the whole, contiguous cache of these rows,
    float32."""
    if attention_mask is None or attention_mask.is_floating_point():
        return attend(module, query, key, value, attention_mask, scaling, **kwargs)
    scale = query.shape[3] ** -0.5 if scaling is None else scaling
    return torch.ops.asyncrl.slot_attention(
        query, key, value, attention_mask.flatten(), scale
    ), None


AttentionInterface.register(KERNEL_ATTENTION, _attend_with_kernel)
