"""An agents actor whose agents are scripted: each asks the model so often, thinks between, and
gives its episode a reward."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import trio

from asyncrl.actors.reporting import Reporter
from asyncrl.messages import (
    Ask,
    Drain,
    Drained,
    GiveFailure,
    GiveReward,
    Play,
    Played,
    Reply,
    StopPlaying,
)
from asyncrl.runtime.ipc.link import Link
from asyncrl.runtime.ipc.waits import Waits

FIRST = 7
"""The first token of each context, which is behind the number of the prompt."""
TOOL = 9
"""The token that a tool's result has."""


class ScriptedAgents:
    """Agents of `turns` calls of `budget` tokens, with `think_s` seconds of virtual time between,
    or `slow_s` those of every third seed, and `held_out_s` those of held-out prompts.
    `reward(prompt_index, seed)` is what each gives in the end; None: nothing. The calls `failing`,
    by number, are said to be failed calls of `search`. Until the second `broken_s` of virtual time
    each fails at once, for the reason `broken`. `seen` are the contexts and answers of the
    episodes that were played to their end, by rollout."""

    def __init__(
        self,
        turns: int = 2,
        budget: int = 8,
        think_s: float = 0.1,
        slow_s: float | None = None,
        held_out_s: float | None = None,
        reward: Callable[[int, int], float | None] = lambda prompt_index, seed: float(seed % 2),
        failing: tuple[int, ...] = (),
        broken_s: float = 0.0,
        broken: str = "ConnectError: all connection attempts failed",
    ) -> None:
        self.turns, self.budget, self.reward, self.failing = turns, budget, reward, failing
        self.think_s, self.slow_s = think_s, think_s if slow_s is None else slow_s
        self.held_out_s, self.broken_s, self.broken = held_out_s, broken_s, broken
        self.seen: dict[int, list[tuple[list[int], list[int]]]] = {}
        self.attempts: list[tuple[int, int]] = []

    def _thinks(self, play: Play) -> float:
        if play.split == "evaluation" and self.held_out_s is not None:
            return self.held_out_s
        return self.think_s if play.seed % 3 else self.slow_s

    async def serve(self, link: Link, waits: Waits) -> None:
        """Be the actor until the coordinator drains it, or its link ends."""
        waiting: dict[tuple[int, int, int], trio.MemorySendChannel[tuple[list[int], Reply]]] = {}
        scopes: dict[tuple[int, int], trio.CancelScope] = {}

        async def ask(play: Play, number: int, context: list[int]) -> list[int] | None:
            key = play.rollout, play.attempt, number
            waiting[key], answer = trio.open_memory_channel[tuple[list[int], Reply]](math.inf)
            ids = np.array(context, np.int32).tobytes()
            await link.send(Ask(*key, self.budget), ids)
            found: list[int] = []
            async for tokens, reply in answer:
                found += tokens
                if reply.finish or reply.refused:
                    del waiting[key]
                    return None if reply.refused else found
            raise AssertionError("an answer never ends so")

        async def played(play: Play) -> None:
            self.attempts.append((play.rollout, play.attempt))
            if trio.current_time() < self.broken_s:
                failed = Played(play.rollout, play.attempt, "", "raised", self.broken)
                await link.send(failed)
                return
            context, seen = [play.prompt_index % 32 + 1, FIRST], []
            with scopes.setdefault((play.rollout, play.attempt), trio.CancelScope()):
                for number in range(self.turns):
                    answer = await ask(play, number, context)
                    if answer is None:
                        break
                    seen.append((context, answer))
                    if number in self.failing:
                        await link.send(GiveFailure(play.rollout, play.attempt, number, "search"))
                    context = [*context, *answer, TOOL]
                    await trio.sleep(self._thinks(play))
                given = self.reward(play.prompt_index, play.seed)
                if given is not None:
                    await link.send(GiveReward(play.rollout, play.attempt, None, given))
                self.seen[play.rollout] = seen
                await link.send(Played(play.rollout, play.attempt, "stop"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(Reporter(waits).run, link)
            async for message, buffers in link:
                match message:
                    case Play():
                        nursery.start_soon(played, message)
                    case Reply():
                        key = message.rollout, message.attempt, message.number
                        if key in waiting:
                            ids = np.frombuffer(buffers[0], np.int32).tolist()
                            waiting[key].send_nowait((ids, message))
                    case StopPlaying(rollout, attempt):
                        scopes.setdefault((rollout, attempt), trio.CancelScope()).cancel()
                    case Drain():
                        break
                    case _:
                        raise AssertionError(message)
            nursery.cancel_scope.cancel()
        await link.send(Drained())
