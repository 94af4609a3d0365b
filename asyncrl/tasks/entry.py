"""The entry of a prompt, which agents get: what a task knows of it besides its text."""

from __future__ import annotations

from typing import Any

import msgspec

from asyncrl.messages import Split
from asyncrl.tasks import Task


def entry_of(task: Task, split: Split, prompt_index: int) -> dict[str, Any]:
    """The entry, as JSON reads it; values of types that JSON lacks become text. Empty for a task
    that has no method `entry(split, prompt_index)`. Raises IndexError outside the split."""
    entry = getattr(task, "entry", None)
    if entry is None:
        return {}
    text = msgspec.json.encode(entry(split, prompt_index), enc_hook=str)
    return msgspec.json.decode(text, type=dict[str, Any])
