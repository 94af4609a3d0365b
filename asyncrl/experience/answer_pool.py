"""The pool of a run's own old successes, for prompts at which a whole group fails (DART).
Invariant: it follows from the events alone, and has one answer for a prompt, the newest, and at
most POOL_TOKENS tokens: the prompt that was solved longest ago is evicted first.
"""

from __future__ import annotations

import msgspec

from asyncrl.experience.group import Group
from asyncrl.messages import ForeignAnswer, Scored

POOL_TOKENS = 2**20
"""Tokens that the pool has, at most, each with its log-probability: 8 MiB."""


class AnswerPool(msgspec.Struct):
    """The `answers` by the index of their training prompt, the oldest first."""

    answers: dict[int, ForeignAnswer] = msgspec.field(default_factory=dict)
    tokens: int = 0

    def keep(self, group: Group) -> None:
        """Keep the first fully right answer of a complete group's own members, in place of the
        earlier one of its prompt. It is as old as its oldest token."""
        for member in group.own_members:
            if isinstance(member.verdict, Scored) and member.verdict.exact and member.tokens:
                break
        else:
            return
        self._drop(group.prompt_index)
        self.answers[group.prompt_index] = ForeignAnswer(
            "pool",
            f"rollout {member.id}",
            member.oldest,
            bytes(member.ids),
            bytes(member.behaviour),
            member.finish,
        )
        self.tokens += member.tokens
        while self.tokens > POOL_TOKENS:
            self._drop(next(iter(self.answers)))

    def _drop(self, prompt_index: int) -> None:
        if (answer := self.answers.pop(prompt_index, None)) is not None:
            self.tokens -= len(answer.ids) // 4
