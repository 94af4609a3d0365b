"""The part of a run's task that the gateway needs. Invariant: what has no verdict has no reward."""

from __future__ import annotations

from typing import Protocol

from asyncrl.ipc.messages import Finish, Verdict


class TaskVerifier(Protocol):
    """The training prompts of a task, numbered from 0, and its verifier."""

    async def prompt(self, prompt_index: int) -> str:
        """The text of a prompt. Raises IndexError where there is none."""
        ...

    async def judge(self, prompt_index: int, reply: bytes, finish: Finish) -> Verdict:
        """The verdict on a reply (`int32` ids, as they were sampled), which ended by `finish`, to a
        prompt; a reward that is finite, or none."""
        ...
