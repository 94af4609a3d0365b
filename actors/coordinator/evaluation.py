"""Held-out accuracy, beside training. Invariant: every answer of one evaluation was sampled under
one version.

The version is pinned in the engines when it is committed, and served to evaluation leases alone
until every answer is judged; training and its publications go on meanwhile. Where an engine holds
one version (`Capabilities.keeps_versions`), the next publication waits for the last answer. If the
last engine that had it is lost, the evaluation is given up by name, and the next version takes its
place.
"""

from __future__ import annotations

from collections.abc import Callable

from actors.coordinator.engine_pool import EnginePool
from actors.coordinator.event_store import EventStore
from actors.coordinator.generation import Generation
from actors.coordinator.prompts import PromptSource
from asyncrl.config import Config
from asyncrl.experience.events import Dropped

PERFECT = 1.0
"""The reward of a correct answer; verifiers may give less for a part of it."""


class Evaluation:
    """One evaluation at a time."""

    def __init__(
        self,
        store: EventStore,
        generation: Generation,
        engine_pool: EnginePool,
        prompts: PromptSource,
        config: Config,
        evaluated: Callable[[int, float], None],
    ) -> None:
        self._store = store
        self._generation = generation
        self._engine_pool = engine_pool
        self._items = prompts.evaluation_items()
        self._every = config.train.eval_every
        self._evaluated = evaluated
        self._first: int | None = None
        self._again = False  # an evaluation was given up
        self.running: int | None = None
        self._correct = 0
        self._left = 0
        self.accuracy: dict[int, float] = {}  # by version

    def wants(self, version: int, last: bool) -> bool:
        """Whether `version` is to be evaluated now: the first, each `eval_every`-th, and the
        `last`."""
        if self.running is not None or version in self.accuracy or not self._items:
            return False
        if self._first is None:
            self._first = version
        regular = version == self._first or bool(self._every and version % self._every == 0)
        return regular or last or self._again

    def start(self, version: int) -> None:
        """`version` is pinned in every engine that committed it: ask the held-out prompts."""
        self.running, self._correct, self._again = version, 0, False
        self._left = sum(
            self._generation.start("evaluation", prompt_index, version=version)
            for prompt_index in self._items
        )

    def pump(self) -> None:
        """Lease what waits, and count what is judged."""
        if self.running is None:
            return
        if not self._engine_pool.serves("evaluation", self.running):
            self._give_up()
            return
        self._generation.lease("evaluation", self.running)
        for group in self._store.experience.ready("evaluation"):
            self._correct += sum(reward >= PERFECT for reward in group.rewards)
            self._left -= 1
            self._store.record(Dropped(group.id, "evaluation"))
        if not self._left:
            self.accuracy[self.running] = self._correct / len(self._items)
            self._evaluated(self.running, self.accuracy[self.running])
            self._end()

    def _give_up(self) -> None:
        for group in [g for g in self._store.experience.groups.values() if g.split == "evaluation"]:
            for member in group.members:
                self._generation.forget(member)
            self._store.record(Dropped(group.id, "evaluation"))
        self._again = True
        self._end()

    def _end(self) -> None:
        assert self.running is not None
        self.running = None
        self._generation.let_go(None)
