"""A taskset of `verifiers` in which each task ends in another way."""

from __future__ import annotations

import os
from collections.abc import Iterator

import verifiers.v1 as vf

__all__ = ["EndsTaskset"]

WAYS = ("right", "raises", "nan", "dies", "tells nothing")


class EndsTask(vf.Task[vf.TaskData, vf.State, vf.TaskConfig]):
    @vf.reward
    async def judged(self, trace: vf.Trace) -> float | dict[str, float]:
        match self.data.name:
            case "raises":
                raise ValueError("the judge\nbroke")
            case "dies":
                os._exit(3)
            case "nan":
                return float("nan")
            case "tells nothing":
                return {}
            case _:
                return float(trace.assistant_messages[-1].content == "yes")


class EndsTaskset(vf.Taskset[EndsTask, vf.TasksetConfig]):
    def load(self) -> Iterator[EndsTask]:
        for way in WAYS:
            yield EndsTask(vf.TaskData(name=way, prompt=f"{way}?"), self.config.task)
