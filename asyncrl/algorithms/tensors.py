"""The type of a tensor, for modules that only call methods of tensors.

Settings, the coordinator and the command import such modules, and must not import torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor
else:
    Tensor = Any

__all__ = ["Tensor"]
