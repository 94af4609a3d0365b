"""TRL's way: the settings of `trl_run.py` that `vs_trl.py` chooses."""

from __future__ import annotations

from typing import Literal

import msgspec


class Way(msgspec.Struct, frozen=True):
    """TRL's way. `updates` of the weights with what is generated: one (its ratio is 1, and
    its clip never acts), two with all of it (`num_iterations`), or one with each half of it
    (`steps_per_generation`). An update's rollouts are `parts` micro-batches. `continuous`:
    transformers' continuous batching."""

    updates: Literal["one", "two", "halves"] = "one"
    parts: int = 1
    continuous: bool = False

    @property
    def per_step(self) -> int:
        """Updates of a step."""
        return 1 if self.updates == "one" else 2
