"""Choice of the next prompt. Invariant: it depends only on (seed, cursor), on the history and on
live groups; and no prompt is skipped forever.

Every curriculum chooses from one stream of prompts: epochs, each in a different order. The search
for the next prompt starts at a cursor into the stream.

`in_order`     each in turn, so the n-th prompt is a function of the seed alone
`unsolved`     prompts that every member solved rest for some epochs (history resampling, SRPO,
               arXiv 2504.14286)
`difficulty`   of the next few the one that is about half solved: there the rewards of a group vary
               most. The chance p that a rollout solves it is drawn from its Beta posterior, and
               p (1 - p) is compared, so that prompts with few visits are tried (as in VADE; DOTS,
               arXiv 2506.05316, aims at the same half)

With the last two, the next prompt depends on the verdicts so far: two runs of one seed with
different speeds choose differently. The journal records the choices. They choose by earlier visits,
so they have no effect in the first epoch.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Container
from typing import ClassVar, NamedTuple, Protocol

from asyncrl.algorithms.selection.prompt_history import History

ORDERS = 4
"""Number of epochs whose orders are kept, with 8 bytes for each prompt."""


class NextPrompt(NamedTuple):
    """A prompt, and the cursor for the next one.

    >>> NextPrompt(prompt_index=17, cursor=4).cursor
    4
    """

    prompt_index: int
    cursor: int


class PromptOrder:
    """The run's stream of `size` (at least 1) prompts: position n is in epoch n // size, and each
    epoch has an order of its own, a function of (seed, epoch). It ends after `epochs` of them; 0:
    never.

    >>> stream = PromptOrder(3, seed=0, epochs=2)
    >>> [stream.prompt_index(position) for position in range(6)], stream.over(6)
    ([0, 2, 1, 0, 1, 2], True)
    """

    def __init__(self, size: int, *, seed: int, epochs: int) -> None:
        self.size = size
        self.seed = seed
        self._epochs = epochs
        self._orders: dict[int, array[int]] = {}  # of the epochs requested last

    def over(self, position: int) -> bool:
        """Return True if the epochs are over at this position."""
        return bool(self._epochs) and position >= self._epochs * self.size

    def prompt_index(self, position: int) -> int:
        """Return the prompt at a position.

        Example: of 3 prompts position 7 is the second one of epoch 2, in the order of that epoch.
        """
        epoch, offset = divmod(position, self.size)
        if (order := self._orders.get(epoch)) is None:
            order = array("q", range(self.size))
            random.Random(f"{self.seed}/{epoch}").shuffle(order)
            if len(self._orders) == ORDERS:
                del self._orders[next(iter(self._orders))]
            self._orders[epoch] = order
        return order[offset]


class Curriculum(Protocol):
    """Rule for the next prompt. It is created with the stream; docs/extending.md adds one.

    >>> class Backwards:
    ...     def __init__(self, stream):
    ...         self._stream = stream
    ...     def next(self, history, live):
    ...         position = self._stream.size - 1 - history.cursor
    ...         return NextPrompt(position, history.cursor + 1) if position >= 0 else None
    >>> rule: Curriculum = Backwards(PromptOrder(3, seed=0, epochs=1))
    >>> rule.next(History(), live=set())
    NextPrompt(prompt_index=2, cursor=1)
    """

    def __init__(self, stream: PromptOrder) -> None: ...

    def next(self, history: History, live: Container[int]) -> NextPrompt | None:
        """Return the prompt to admit, from `history.cursor` on; None where the epochs are over.
        `live` has the prompts of live groups."""
        ...


class InOrder(Curriculum):
    """Each prompt in turn.

    >>> rule, history = InOrder(PromptOrder(3, seed=0, epochs=1)), History(cursor=2)
    >>> rule.next(history, live=set())
    NextPrompt(prompt_index=1, cursor=3)
    """

    kind: ClassVar[str] = "in_order"

    def __init__(self, stream: PromptOrder) -> None:
        self._stream = stream

    def next(self, history: History, live: Container[int]) -> NextPrompt | None:
        position = history.cursor
        return (
            None
            if self._stream.over(position)
            else NextPrompt(self._stream.prompt_index(position), position + 1)
        )


class Unsolved(Curriculum):
    """Each prompt once an epoch, except that a prompt that every member of its last group solved
    rests for `rest` epochs. Where all are solved, the search finds one within `rest` + 2 epochs
    from the cursor.

    Both rollouts of prompt 0 solved it in epoch 0. Epoch 1 has the order 0, 1, 2, and begins with
    prompt 1:

    >>> stream, history = PromptOrder(3, seed=0, epochs=0), History()
    >>> history.admit(0, cursor=1)
    >>> history.record(0, rewards=[1.0, 1.0], size=2)
    >>> history.cursor = 3
    >>> Unsolved(stream).next(history, live=set())
    NextPrompt(prompt_index=1, cursor=5)
    """

    kind: ClassVar[str] = "unsolved"

    def __init__(self, stream: PromptOrder, rest: int = 2) -> None:
        self._stream = stream
        self._rest = rest

    def next(self, history: History, live: Container[int]) -> NextPrompt | None:
        stream, position = self._stream, history.cursor
        while not stream.over(position):
            prompt_index = stream.prompt_index(position)
            seen = history.seen.get(prompt_index)
            if (
                seen is None
                or not seen.easy
                or position // stream.size > (seen.cursor - 1) // stream.size + self._rest
            ):
                return NextPrompt(prompt_index, position + 1)
            position += 1
        return None


class Difficulty(Curriculum):
    """One of each `among` positions of the stream: the one with the largest drawn p (1 - p),
    preferably one that is not live. So an epoch admits one in `among` of all prompts.

    A prompt that was not admitted for `patience` epochs is overdue, and the longest waiting one
    comes first. Each later epoch admits it, or one that waited as long: a prompt waits at most
    `patience` epochs plus one for each other prompt, and typically little more than `patience`. In
    the long run, at most `among` / `patience` of the admissions go to overdue ones.

    All rollouts solved prompt 0, and half of them prompt 1:

    >>> stream, history = PromptOrder(2, seed=0, epochs=0), History()
    >>> for prompt_index, rewards in enumerate([[1.0] * 8, [1.0, 0.0] * 4]):
    ...     history.admit(prompt_index, cursor=2)
    ...     history.record(prompt_index, rewards, size=8)
    >>> Difficulty(stream, among=2).next(history, live=set())
    NextPrompt(prompt_index=1, cursor=4)
    """

    kind: ClassVar[str] = "difficulty"

    def __init__(self, stream: PromptOrder, among: int = 4, patience: int = 16) -> None:
        self._stream = stream
        self._among = among
        self._patience = patience

    def next(self, history: History, live: Container[int]) -> NextPrompt | None:
        stream, start = self._stream, history.cursor
        if stream.over(start):
            return None
        epoch = start // stream.size
        end = min(start + self._among, (epoch + 1) * stream.size)
        positions = [
            position for position in range(start, end) if stream.prompt_index(position) not in live
        ] or list(range(start, end))
        waited, position = min(
            (self._admitted(history, position), position) for position in positions
        )
        if waited >= (epoch - self._patience) * stream.size + 1:
            position = max(positions, key=lambda position: self._spread(history, position))
        return NextPrompt(stream.prompt_index(position), end)

    def _admitted(self, history: History, position: int) -> int:
        """Return the cursor after the last admission of the prompt at this position; 0 where there
        was none."""
        seen = history.seen.get(self._stream.prompt_index(position))
        return seen.cursor if seen is not None else 0

    def _spread(self, history: History, position: int) -> float:
        """Return the variance of one rollout's success, if its chance is the drawn one. The draw is
        keyed by seed and position."""
        a, b = history.posterior(self._stream.prompt_index(position))
        p = random.Random(f"{self._stream.seed}/difficulty/{position}").betavariate(a, b)
        return p * (1 - p)
