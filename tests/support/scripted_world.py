"""A run of scripted parts in one process and in virtual time, supervised as every run is."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, TypeVar

import msgspec
import numpy as np
import trio
from scripted_parts import (
    STOP,
    VOCABULARY,
    MemoryLog,
    ScriptedLearner,
    ScriptedTask,
    ScriptedVerifiers,
    ScriptedWeights,
    by_length,
)
from without_rules import without_rules

from asyncrl.actors.coordinator.coordinator import Coordinator
from asyncrl.actors.coordinator.event_store import EventStore
from asyncrl.actors.coordinator.lifecycle import Outcome
from asyncrl.actors.coordinator.prompts import PromptSource
from asyncrl.config import Config
from asyncrl.config.engines import capabilities
from asyncrl.engines.options import EngineOptions
from asyncrl.engines.protocol import Request
from asyncrl.engines.scripted import Script, ScriptedEngine, hashed
from asyncrl.experience import events as e
from asyncrl.experience.experience import Experience, fold
from asyncrl.experience.snapshot import Snapshot
from asyncrl.explain.summary import Summary
from asyncrl.messages import Message, Prepare, Replace, Scored, StatusUpdate
from asyncrl.simulation.observer import WorldObserver
from asyncrl.simulation.sim_process import SimProcess, leaves
from asyncrl.simulation.world import World

Kind = TypeVar("Kind", bound=e.Event)


def configured(**sections: dict[str, object]) -> Config:
    """A small run; each section's settings can be changed, also to what a run is refused: its parts
    are scripted, and have no servers and no models."""
    settings: dict[str, dict[str, object]] = {
        "task": {"eval_size": 4, "train_size": 1000},
        "engine": {"kind": "scripted", "slots": 8, "chunk_tokens": 4, "context_tokens": 64},
        "rollout": {"group_size": 4, "max_new_tokens": 24, "filter": "none", "lease_s": 50.0},
        "train": {
            "steps": 4,
            "batch_groups": 2,
            "eval_every": 2,
            "checkpoint_every": 2,
            "micro_tokens": 128,
        },
        "supervision": {"stall_s": 100.0, "restarts": 100},
    }
    for name, values in sections.items():
        settings[name] = settings.get(name, {}) | values
    with without_rules():
        return msgspec.convert(settings, Config)


def heavy(request: Request) -> Script:
    """One rollout in nine is eight times as long as the others."""
    left = (48 if request.key % 9 == 0 else 6) - request.prefix_tokens
    return Script(np.full(left, 5, np.int32), np.full(left, -1.0, np.float32), 0.02, "stop")


def heavy_tailed(
    batch_groups: int, group_size: int, **settings: dict[str, object]
) -> ScriptedWorld:
    """Eight steps of so many groups whose lengths have a heavy tail, and whose rewards tell the
    long from the short."""
    base: dict[str, dict[str, object]] = {
        "rollout": {"group_size": group_size, "max_new_tokens": 48, "filter": "none"},
        "train": {"steps": 8, "batch_groups": batch_groups, "eval_every": 0},
        "task": {"eval_size": 0},
        "staleness": {"max_lag": 6, "depth": 1},
    }
    made = ScriptedWorld(
        configured(
            **{
                section: base.get(section, {}) | settings.get(section, {})
                for section in {*base, *settings}
            }
        )
    )
    made.script = heavy
    made.verifiers._verdict = lambda split, prompt_index, ids: Scored(float(len(ids) > 40))
    return made


async def run_well(world: ScriptedWorld) -> ScriptedWorld:
    """Run it to its good end, where everything holds that holds at every end."""
    outcome = await world.run()
    world.check()
    assert outcome.ok, outcome.reason
    return world


class ScriptedWorld(World):
    """One run, of one life. Change what is scripted before `run`; `kill` what lives while it runs.

    `script` says what an engine samples for a request, `checksums` what those of the rollout actor
    of an index are of a version. A start of an actor that follows another comes `restart_s` later,
    and each actor of a role `late_s` later than the one before it. An actor in `absent` never
    connects. `heard` is what the supervisor heard of the coordinator, `outcome` how the coordinator
    ended the run, `seconds` how long it took.
    """

    def __init__(self, config: Config) -> None:
        super().__init__(config, WorldObserver())
        self.log = MemoryLog()
        self.store = EventStore(Experience(), self.log)
        self.source = ScriptedTask(config)
        self.learner: Any = ScriptedLearner()
        self.verifiers = ScriptedVerifiers(by_length, 0.05)
        self.script: Callable[[Request], Script] = hashed(
            vocab_size=VOCABULARY, stop_id=STOP, mean_tokens=10, seconds_per_token=0.01
        )
        self.checksums: Callable[[int, int], list[int]] = lambda index, version: (
            ScriptedWeights(version).checksums
        )
        self.restart_s = 1.0
        self.late_s = 0.0
        self.absent: set[str] = set()
        self.heard: list[Message] = []
        self.outcome: Outcome | None = None
        self.seconds = 0.0
        self._others: tuple[Callable[[], Awaitable[object]], ...] = ()
        self._errors: list[BaseException] = []

    async def run(self, *others: Callable[[], Awaitable[object]]) -> Outcome:
        """Run to the end, beside `others`, which begin when there is a coordinator and end with its
        run. Raises what ended an actor, where nothing was to end it."""
        self._others = others
        await self.life()
        if self._errors:
            raise BaseExceptionGroup("an actor ended by an error", self._errors)
        assert self.outcome is not None, self.lives[-1].reason
        return self.outcome

    def kill(self, name: str) -> None:
        """End an actor at once, as SIGKILL does."""
        self.processes[name].kill()

    async def successor(self, name: str) -> None:
        """Start an actor once more, whatever became of the last start, and wait for its end."""
        await self.double(self.processes[name]).wait()

    def tell(self, message: Message) -> None:
        """Say something to the coordinator, as the launcher."""
        self.supervisor.tell(message)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Look every so often, in virtual time."""
        while not condition():  # noqa: ASYNC110 (any condition, of virtual time, too)
            await trio.sleep(0.01)

    def holds(self, name: str) -> bool:
        """True if an actor is in the middle of a training rollout: some of its tokens are
        streamed."""
        engine = self.coordinator.parts.engines.get(name)
        return engine is not None and any(
            self.store.experience.rollouts[id].tokens for id in engine.held["train"]
        )

    # -------------------------------------------------------------------------------------- results

    def of(self, kind: type[Kind]) -> list[Kind]:
        return [event for event in self.log.events if isinstance(event, kind)]

    def coordinator_summary(self, outcome: Outcome) -> Summary:
        return self.coordinator.summary(outcome)

    def trained_lags(self) -> Counter[int]:
        """Tokens that entered a loss, by lag, recounted from the events and the masks that the
        learner got."""
        tokens: dict[int, list[int]] = {}
        for event in self.log.events:
            if isinstance(event, e.Extended):
                tokens.setdefault(event.rollout, []).extend([event.version] * (len(event.ids) // 4))
        lags: Counter[int] = Counter()
        for batch, mask in self.learner.batches:
            at = 0
            for sample in batch.samples:
                for version, trainable in zip(
                    tokens[sample.rollout], mask[at : at + sample.response_tokens], strict=True
                ):
                    if trainable == 1:
                        lags[batch.step - version] += 1
                at += sample.response_tokens
        return lags

    def folded(self) -> Experience:
        """The state by what the log has: the newest state written down, and the events after it."""
        for number, _, written in reversed(self.log.kept):
            state = Experience.of(msgspec.msgpack.decode(written, type=Snapshot))
            for event in self.log.events[number:]:
                state.apply(event)
            return state
        return fold(self.log.events)

    def check(self) -> None:
        """Check what holds at the end of every run."""
        experience = self.store.experience
        assert experience.ledger.balances()
        assert self.folded() == experience
        trained = Counter(
            event.rollout for event in self.log.events if isinstance(event, e.Trained)
        )
        assert max(trained.values(), default=0) <= 1
        if self.config.staleness.on_stale != "train":
            assert max(self.trained_lags(), default=0) <= self.config.staleness.max_lag

    # ------------------------------------------------------------------------------------- World

    def prompts(self) -> PromptSource:
        task = self.config.task
        return PromptSource(
            self.source, self.source, seed=0, epochs=task.epochs, curriculum=task.curriculum
        )

    @asynccontextmanager
    async def open_store(self, process: SimProcess) -> AsyncIterator[EventStore]:
        yield self.store
        await trio.lowlevel.checkpoint()

    def start_s(self, process: SimProcess) -> float:
        if process.name in self.absent:
            return 1e9
        return self.restart_s if process.incarnation else self.late_s * process.index

    async def conduct(self, coordinator: Coordinator) -> Outcome:
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            for other in self._others:
                nursery.start_soon(other)
            self.outcome = await coordinator.conduct()
            self.seconds = trio.current_time() - began
            nursery.cancel_scope.cancel()
        return self.outcome

    def failed(self, process: SimProcess, error: BaseException) -> None:
        """An error ended an actor: the run ends, unless it is one that ends actors."""
        if not all(isinstance(leaf, self.expected[process.role]) for leaf in leaves(error)):
            self._errors.append(error)
            self.supervisor.cancel()

    def on_status(self, update: StatusUpdate) -> None:
        self.heard.append(update)

    def on_replace(self, message: Replace) -> None:
        self.heard.append(message)

    def make_engine(self, process: SimProcess) -> Any:
        return ScriptedEngine(
            self.script,
            EngineOptions.of(self.config),
            vocab_size=VOCABULARY,
            idle=process.waits.idle_for,
            keeps_versions=capabilities(self.config.engine.kind).keeps_versions,
        )

    def make_receiver(self, process: SimProcess) -> Any:
        return SimpleNamespace(receive=lambda message, own: self.receive(process.index, message))

    async def receive(self, index: int, message: Prepare) -> Any:
        """The weights that a rollout actor receives."""
        await trio.sleep(0.03)
        weights = ScriptedWeights(message.version)
        weights.checksums = self.checksums(index, message.version)
        return weights

    def make_learner(self, process: SimProcess) -> Any:
        return self.learner

    def make_verifiers(self, process: SimProcess) -> Any:
        return self.verifiers
