"""near.py: a sum that is nearly right is worth a little, and one that does not end nothing."""

from collections.abc import Mapping
from typing import Any

from asyncrl.tasks.answer import Answer


def near(answer: Answer, line: Mapping[str, Any]) -> dict[str, float]:
    if answer.finish == "length":
        return {"right": 0.0, "near": 0.0}
    wrong_by = abs(int(answer) - int(line["answer"]))
    return {"right": float(wrong_by == 0), "near": 0.5 * (wrong_by == 1)}


near.rewards = ("right", "near")  # type: ignore[attr-defined]
