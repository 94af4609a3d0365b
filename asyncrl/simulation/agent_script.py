"""A scripted agent. Invariant: what it does next is a function of its seed and of what it was
answered, unless it is unsteady: then also of its attempt."""

from __future__ import annotations

import random
from collections.abc import Generator
from typing import NamedTuple

from asyncrl.messages import Finish

BUDGETS = (2, 4, 8, 60)
"""Tokens that a call may ask for."""
ROLES = ("", "planner", "critic")
"""Roles of calls."""
KEYS = ("", "", "here", "there", "answer")
"""Keys of turns."""


class ScriptedAsk(NamedTuple):
    """A call: its context (token ids), the tokens that it asks for, and how many of them it needs;
    None: all of them. The agent leaves an `abandoned` one without a word. It may name its
    `role`."""

    context: tuple[int, ...]
    budget: int
    needs: int | None
    abandoned: bool = False
    role: str = ""


class ScriptedNote(NamedTuple):
    """A result of a tool, to be kept under a name. The agent goes on with the one that is kept."""

    name: str
    value: bytes


class ScriptedReward(NamedTuple):
    """A reward for the turn of call `number`, and its key; with None, for the whole episode."""

    number: int | None
    reward: float
    key: str = ""


class ScriptedFailure(NamedTuple):
    """Word that call `number` was a failed call of a tool."""

    number: int
    tool: str


Act = list[ScriptedAsk] | ScriptedNote | ScriptedReward | ScriptedFailure
"""An act of an agent. It waits for the answers to all calls of a list, and for none other."""

Script = Generator[Act, list[tuple[int, ...] | None], Finish]
"""Acts of an agent, which is sent the answers to its calls (None where one was refused), or the
note that is kept, as token ids. It returns how it ended."""


def script(seed: int, attempt: int, *, unsteady: bool, ends: bool = False) -> Script:
    """An agent of one to four turns. Each is one call, or up to three at a time, of which some have
    the same context. After a turn it goes on with the answer and a tool's result, or goes back to
    what it had asked in an earlier turn. It may end early, and at its end it may leave three calls
    that it does not wait for: together they may sample more than is left of its budget. With `ends`
    it leaves none, and in most episodes it gives each call a reward that has none yet."""
    draw = random.Random(f"agent/{seed}")
    whims = random.Random(f"whims/{seed}/{attempt}") if unsteady and attempt > 1 else None
    context: tuple[int, ...] = (seed % 97 + 1, 7)
    earlier, number = list[tuple[int, ...]](), 0
    hurry, leaves = random.Random(f"hurry/{seed}"), False
    rewarded, of_ends = set[int](), random.Random(f"ends/{seed}")
    for turn in range(draw.randint(1, 4)):
        if leaves := hurry.random() < 0.1:
            break
        if whims and whims.random() < 0.1:
            context += (300 + attempt,)
        asks, budget = list[ScriptedAsk](), draw.choice(BUDGETS)
        for branch in range(draw.choice((1, 1, 1, 2, 3))):
            own, needs = (branch,) * (draw.random() < 0.5), draw.choice((*[None] * 4, 0, 1, 3))
            if whims and whims.random() < 0.8:
                needs = whims.choice((0, 1))
            most = budget if draw.random() < 0.7 else draw.choice(BUDGETS)
            # it changes with the attempt, and the call is the same all the same
            role = random.Random(f"role/{seed}/{turn}/{branch}/{attempt}").choice(ROLES)
            asks.append(ScriptedAsk(context + own, most, needs, role=role))
        earlier.append(context)
        answers = yield asks
        if any(answer is None for answer in answers):
            return "length"
        for place in range(len(asks)):
            if draw.random() < 0.3:
                rewarded.add(number + place)
                key = random.Random(f"key/{seed}/{turn}/{place}/{attempt}").choice(KEYS)
                yield ScriptedReward(number + place, draw.choice((0.0, 0.25, 1.0)), key)
            if (failing := random.Random(f"failed/{seed}/{turn}/{place}")).random() < 0.25:
                yield ScriptedFailure(number + place, failing.choice(("search", "run")))
        number += len(asks)
        # a tool that never says the same twice: only a note makes the next attempt the same
        spoken = random.Random(f"tool/{seed}/{turn}/{attempt}").randrange(256)
        (kept,) = yield ScriptedNote(f"tool-{turn}", bytes([spoken]))
        assert kept is not None
        if draw.random() < 0.25:
            context = draw.choice(earlier) + kept * draw.randint(0, 1)
        else:
            context = asks[0].context + (answers[0] or ()) + kept
    if ends and of_ends.random() < 0.75:
        for call in sorted(set(range(number)) - rewarded):
            yield ScriptedReward(call, of_ends.choice((0.0, 0.25, 1.0)))
    if (leaves or draw.random() < 0.5) and not ends:
        yield [ScriptedAsk((*context, 9, n), 60, None, abandoned=True) for n in range(3)]
    if draw.random() < 0.7:
        yield ScriptedReward(None, draw.choice((0.0, 0.5, 1.0)))
    return "stop"
