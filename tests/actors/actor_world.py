"""A whole run in one process and in virtual time: real coordinator, actors and links around
scripted engines, learner and verifiers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
import trio

from actors.coordinator.coordinator import Coordinator
from actors.coordinator.event_store import EventStore
from actors.coordinator.lifecycle import Outcome
from actors.coordinator.prompts import PromptSource
from actors.coordinator.statistics import RunStatistics
from actors.errors import CoordinatorLost
from actors.reporting import Reporter
from actors.reward_actor import reward_actor
from actors.rollout_actor import rollout_actor
from actors.trainer_actor import trainer_actor
from actors.verifier_process import TimedVerdict
from asyncrl.config import Config
from asyncrl.config.engines import capabilities
from asyncrl.engines.options import EngineOptions
from asyncrl.engines.protocol import Request
from asyncrl.engines.scripted import Script, ScriptedEngine, hashed
from asyncrl.experience import events as e
from asyncrl.experience.experience import Experience, fold
from asyncrl.experience.snapshot import Snapshot
from asyncrl.ipc.errors import LinkBroken, LinkError
from asyncrl.ipc.link import Link
from asyncrl.ipc.messages import (
    Exited,
    Hello,
    Message,
    MicroBatch,
    Prepare,
    Publish,
    Replace,
    Role,
    Scored,
    ScoreProximal,
    Split,
    TokenCount,
    Verdict,
)
from asyncrl.ipc.waits import Waits
from asyncrl.observe.metrics import Metrics
from asyncrl.observe.summary import Summary
from asyncrl.simulation.network import links

STOP = 0
VOCABULARY = 64


def configured(**sections: dict[str, object]) -> Config:
    """A small run; each section's settings can be changed."""
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
        "supervision": {"stall_s": 100.0},
    }
    for name, values in sections.items():
        settings[name] = settings.get(name, {}) | values
    return msgspec.convert(settings, Config)


def heavy(request: Request) -> Script:
    """One rollout in nine is eight times as long as the others."""
    left = (48 if request.key % 9 == 0 else 6) - request.prefix_tokens
    return Script(np.full(left, 5, np.int32), np.full(left, -1.0, np.float32), 0.02, "stop")


def heavy_tailed(batch_groups: int, group_size: int, **settings: dict[str, object]) -> World:
    """Eight steps of so many groups whose lengths have a heavy tail, and whose rewards tell the
    long from the short."""
    base: dict[str, dict[str, object]] = {
        "rollout": {"group_size": group_size, "max_new_tokens": 48, "filter": "none"},
        "train": {"steps": 8, "batch_groups": batch_groups, "eval_every": 0},
        "task": {"eval_size": 0},
        "staleness": {"max_lag": 6, "depth": 1},
    }
    made = World(
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


async def run_well(made: World) -> World:
    """Run it to its good end, where everything holds that holds at every end."""
    outcome = await made.run()
    made.check()
    assert outcome.ok, outcome.reason
    return made


class MemoryLog:
    """A journal that keeps its events."""

    def __init__(self) -> None:
        self.events: list[e.AnyEvent] = []
        self.kept: list[tuple[int, int, bytes]] = []  # number, version and state

    @property
    def appended(self) -> int:
        return len(self.events)

    durable = appended

    def append(self, event: e.AnyEvent) -> int:
        self.events.append(event)
        return len(self.events)

    def keep(self, version: int, experience: Experience) -> int:
        self.kept.append((len(self.events), version, msgspec.msgpack.encode(experience.snapshot())))
        return len(self.events)

    def compact(self, version: int) -> None:
        pass

    def abandon(self, version: int) -> None:
        pass

    async def room(self) -> None:
        await trio.lowlevel.checkpoint()

    async def flush(self) -> None:
        await trio.lowlevel.checkpoint()


class Source:
    """Prompts that are their own number."""

    sampled = VOCABULARY

    def __init__(self, config: Config) -> None:
        self._sizes: dict[Split, int] = {
            "train": config.task.train_size,
            "evaluation": config.task.eval_size,
        }
        self.prompts: Callable[[Split, int], str] = lambda split, prompt_index: f"{prompt_index}"

    def size(self, split: Split) -> int:
        return self._sizes[split]

    def prompt(self, split: Split, prompt_index: int) -> str:
        return self.prompts(split, prompt_index)

    def encode(self, text: str) -> list[int]:
        return [1 + ord(letter) % (VOCABULARY - 1) for letter in text]


class Weights:
    """What a scripted trainer sends: the version, by which it is checked too."""

    def __init__(self, version: int) -> None:
        self.weights: dict[str, object] = {}
        self.checksums = [1000 + version]


class ScriptedLearner:
    """Trains every token that its mask lets in, in so many seconds a token and a step."""

    def __init__(self, seconds_per_token: float = 0.0005, step_s: float = 0.05) -> None:
        self.version = 0
        self.port = 1
        self.batches: list[tuple[MicroBatch, bytes]] = []
        self.to_score: list[ScoreProximal] = []
        self.saved: list[tuple[int, int]] = []
        self._seconds_per_token, self._step_s = seconds_per_token, step_s

    async def accumulate(
        self, batch: MicroBatch, buffers: Sequence[memoryview]
    ) -> list[TokenCount]:
        assert batch.step == self.version
        mask = np.frombuffer(buffers[2], np.uint8)
        assert len(buffers[0]) == 4 * sum(
            s.prompt_tokens + s.response_tokens for s in batch.samples
        )
        assert len(buffers[1]) == 4 * len(mask) == 4 * sum(s.response_tokens for s in batch.samples)
        await trio.sleep(len(mask) * self._seconds_per_token)
        self.batches.append((batch, mask.tobytes()))
        counts, at = [], 0
        for sample in batch.samples:
            fresh = int(mask[at : at + sample.response_tokens].sum())
            stale = sample.response_tokens - fresh
            counts.append(TokenCount(sample.rollout, fresh, {"stale": stale} if stale else {}))
            at += sample.response_tokens
        return counts

    async def score_proximal(self, message: ScoreProximal, buffers: Sequence[memoryview]) -> None:
        assert message.step == self.version
        assert len(buffers[0]) == 4 * sum(
            s.prompt_tokens + s.response_tokens for s in message.samples
        )
        self.to_score.append(message)

    async def step(self) -> dict[str, float]:
        await trio.sleep(self._step_s)
        self.version += 1
        return {"loss": 0.0}

    async def save(self, cursor: int) -> Path:
        await trio.sleep(self._step_s)
        self.saved.append((self.version, cursor))
        return Path(f"/checkpoints/{self.version}")

    async def send(self, message: Publish) -> Weights:
        await trio.sleep(0.02)
        return Weights(self.version)


class ScriptedVerifiers:
    """A verdict after some seconds."""

    def __init__(self, verdict: Callable[[Split, int, bytes], Verdict], seconds: float) -> None:
        self._verdict, self._seconds = verdict, seconds
        self.asked = 0

    async def judge(self, split: Split, prompt_index: int, ids: bytes | memoryview) -> TimedVerdict:
        self.asked += 1
        await trio.sleep(self._seconds)
        return TimedVerdict(self._verdict(split, prompt_index, bytes(ids)), self._seconds)


def by_length(split: Split, prompt_index: int, ids: bytes) -> Verdict:
    """Rewards that differ within a group."""
    return Scored(float(len(ids) // 4 % 2))


class World:
    """One run. Change what is scripted before `run`; `kill` what lives while it runs."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.log = MemoryLog()
        self.store = EventStore(Experience(), self.log)
        self.source = Source(config)
        self.learner = ScriptedLearner()
        self.verifiers = ScriptedVerifiers(by_length, 0.05)
        self.script: Callable[[Request], Script] = hashed(
            vocab_size=VOCABULARY, stop_id=STOP, mean_tokens=10, seconds_per_token=0.01
        )
        self.checksums: Callable[[int, int], list[int]] = lambda index, version: (
            Weights(version).checksums
        )
        self.restart_s = 1.0
        self.late_s = 0.0  # by which each actor of a role starts later than the one before it
        self.restarts = True
        self.heard: list[Message] = []
        self.outcome: Outcome | None = None
        self.seconds = 0.0
        self._scopes: dict[str, trio.CancelScope] = {}
        self._changed = trio.Condition()

    async def run(self, *others: Callable[[], object]) -> Outcome:
        """Run to the end, beside `others` (async functions without arguments)."""
        prompts = PromptSource(
            self.source,
            self.source,
            seed=0,
            epochs=self.config.task.epochs,
            choice=self.config.task.curriculum,
        )
        self.coordinator = Coordinator(
            self.config,
            self.store,
            prompts,
            Metrics(clock=trio.current_time),
            Waits(),
            RunStatistics(),
        )
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            nursery.start_soon(self._launcher)
            nursery.start_soon(self._keep, "trainer", 0)
            for index in range(self.config.rollout.actors):
                nursery.start_soon(self._keep, "rollout", index)
            for index in range(self.config.reward.actors):
                nursery.start_soon(self._keep, "reward", index)
            for other in others:
                nursery.start_soon(other)  # type: ignore[arg-type]
            self.outcome = await self.coordinator.conduct()
            self.seconds = trio.current_time() - began
            self._nursery.cancel_scope.cancel()
        return self.outcome

    def kill(self, name: str) -> None:
        """End an actor at once, as SIGKILL does."""
        self._scopes[name].cancel()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Look every so often, in virtual time."""
        while not condition():
            await trio.sleep(0.01)

    def holds(self, name: str) -> bool:
        """Whether an actor is in the middle of a training rollout: some of its tokens are
        streamed."""
        engine_handle = self.coordinator.parts.engines.get(name)
        return engine_handle is not None and any(
            self.store.experience.rollouts[id].tokens for id in engine_handle.held["train"]
        )

    def tell(self, message: Message) -> None:
        """Say something as the launcher."""
        self._nursery.start_soon(self._launcher_link.send, message)

    # ------------------------------------------------------------------------------------ accounts

    def of(self, kind: type[e.Event]) -> list[e.Event]:
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
                    if trainable:
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
        """What holds at the end of every run."""
        experience = self.store.experience
        assert experience.ledger.balances()
        assert self.folded() == experience
        trained = Counter(
            event.rollout for event in self.log.events if isinstance(event, e.Trained)
        )
        assert max(trained.values(), default=0) <= 1
        if self.config.staleness.on_stale != "train":
            assert max(self.trained_lags(), default=0) <= self.config.staleness.max_lag

    # -------------------------------------------------------------------------------------- actors

    async def _keep(self, role: Role, index: int) -> None:
        """Run an actor, and another one when it was killed."""
        await trio.sleep(self.late_s * index)
        for incarnation in range(100):
            ended = False
            with trio.CancelScope() as scope:
                self._scopes[f"{role}-{index}"] = scope
                try:
                    await self._actor(role, index, incarnation)
                    ended = True
                except* (CoordinatorLost, LinkBroken):
                    pass  # cut off: the process ends, and another is started
            if ended:
                return
            if not self.restarts or role == "trainer":
                self.tell(Exited(role, index, -9, False))
                return
            self.tell(Exited(role, index, -9, True))
            await trio.sleep(self.restart_s)

    async def _actor(self, role: Role, index: int, incarnation: int) -> None:
        link = await self._connect(Hello(role, index, incarnation, 1))
        waits = Waits()
        reporter = Reporter(waits)
        try:
            if role == "trainer":
                await trainer_actor(link, self.learner, self.learner, waits, reporter)
            elif role == "reward":
                await reward_actor(
                    link,
                    self.verifiers,
                    waits,
                    reporter,
                    concurrency=self.config.reward.concurrency,
                    deadline_s=10.0,
                )  # type: ignore[arg-type]
            else:
                await rollout_actor(
                    link, self._engine(waits), partial(self._receive, index), reporter
                )
        finally:
            with trio.CancelScope(shield=True):
                await link.aclose()

    def _engine(self, waits: Waits) -> ScriptedEngine:
        engine = self.config.engine
        return ScriptedEngine(
            self.script,
            EngineOptions.of(engine),
            vocab_size=VOCABULARY,
            idle=waits.spent,
            keeps_versions=capabilities(self.config.engine.kind).keeps_versions,
        )

    async def _receive(self, index: int, message: Prepare) -> Weights:
        await trio.sleep(0.03)
        weights = Weights(message.version)
        weights.checksums = self.checksums(index, message.version)
        return weights

    async def _connect(self, hello: Hello) -> Link:
        ours, theirs = links()
        self._nursery.start_soon(self._attend, theirs)
        await ours.send(hello)
        return ours

    async def _attend(self, link: Link) -> None:
        try:
            await self.coordinator.attend(link)
        except* LinkError:
            pass
        finally:
            with trio.CancelScope(shield=True):
                await link.aclose()

    async def _launcher(self) -> None:
        self._launcher_link = await self._connect(Hello("launcher", 0, 0, 1))
        async for message, _ in self._launcher_link:
            self.heard.append(message)
            if isinstance(message, Replace):
                self.kill(f"{message.role}-{message.index}")
