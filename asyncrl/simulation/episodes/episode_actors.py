"""Fake actors of a world of episodes. Invariant: a frame that waits in a mailbox is delivered in
the order in which it was sent, or not at all once its actor is gone."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from asyncrl.actors.coordinator.peers import Peer
from asyncrl.messages import (
    Ask,
    ChunkHead,
    Chunks,
    Enough,
    Finish,
    GiveFailure,
    GiveReward,
    Hello,
    Interrupt,
    Lease,
    Leases,
    Message,
    Note,
    Play,
    Played,
    Reply,
    StopPlaying,
)
from asyncrl.simulation import policy
from asyncrl.simulation.agent_script import (
    Script,
    ScriptedAsk,
    ScriptedFailure,
    ScriptedNote,
    ScriptedReward,
    script,
)
from asyncrl.simulation.network import links

Frame = tuple[Message, tuple[bytes, ...]]
Told = Callable[[str, Message, tuple[bytes, ...]], None]
"""Hears of an actor's name, and of a frame that it is sent."""


class MailboxPeer(Peer):
    """An actor as the coordinator sees it: what it is told lies in `inbox`, and `told` hears of it
    first."""

    def __init__(
        self, hello: Hello, told: Callable[[str, Message, tuple[bytes, ...]], None]
    ) -> None:
        super().__init__(hello, links()[0])
        self._told = told
        self.inbox: deque[Frame] = deque()

    def send(self, message: Message, *buffers: object) -> None:
        copied = tuple(bytes(buffer) for buffer in buffers)  # type: ignore[call-overload]
        self._told(self.name, message, copied)
        self.inbox.append((message, copied))


class FakeEngineActor:
    """A rollout actor whose tokens follow from the weights, the context and the key alone.
    `weights` are those of each version, `version` the one that it decodes with."""

    def __init__(self, peer: MailboxPeer, weights: dict[int, int]) -> None:
        self.peer, self.weights, self.version = peer, weights, 0
        self.outbox: deque[Frame] = deque()
        self._leases: dict[int, tuple[Lease, int, int]] = {}  # draws, and the tokens there are

    def hear(self) -> None:
        """Take the next frame in."""
        message, buffers = self.peer.inbox.popleft()
        if isinstance(message, Interrupt):
            for rollout in message.rollouts:
                if rollout in self._leases:
                    self._sample(rollout, 1, "interrupted")
        elif isinstance(message, Leases):
            at = 0
            for lease in message.leases:
                end = at + 4 * lease.prompt_tokens
                draws = policy.draws(buffers[0][at:end], lease.key, lease.temperature)
                self._leases[lease.rollout] = lease, draws, lease.prefix_tokens
                at = end + 4 * lease.prefix_tokens

    def act(self, draw: random.Random) -> None:
        """Sample some tokens of one lease."""
        if self._leases:
            self._sample(draw.choice(sorted(self._leases)), draw.randint(1, 4))

    def give_back(self) -> None:
        """Give everything back unasked."""
        for rollout in list(self._leases):
            self._sample(rollout, 0, "interrupted")

    def _sample(self, rollout: int, most: int, ending: Finish = "") -> None:
        lease, draws, start = self._leases[rollout]
        budget = lease.prefix_tokens + lease.max_new_tokens
        whole = policy.length(draws, budget)
        end = min(start + most, whole)
        ids, behaviour = policy.sampled(self.weights[self.version], draws, start, end)
        finish: Finish = ending
        if end == whole:
            finish = "length" if whole == budget else "stop"
        head = ChunkHead(rollout, lease.attempt, self.version, start, end - start, finish)
        self.outbox.append((Chunks([head]), (ids.tobytes(), behaviour.tobytes())))
        if finish:
            del self._leases[rollout]
        else:
            self._leases[rollout] = lease, draws, end


@dataclass
class _Awaited:
    """A call that the agent waits for, and the tokens that have come."""

    ask: ScriptedAsk
    ids: list[int] = field(default_factory=list)
    over: bool = False
    refused: bool = False

    @property
    def answer(self) -> tuple[int, ...] | None:
        return None if self.refused else tuple(self.ids[: self.ask.needs])


@dataclass
class _Run:
    """One attempt of one agent."""

    play: Play
    script: Script
    notes: dict[str, bytes]
    asked: int = 0
    waits: dict[int, _Awaited] = field(default_factory=dict)
    begun: bool = False
    stuck: bool = False


class FakeAgentsActor:
    """An agents actor whose agents are scripted. `unsteady` ones do something else in each
    attempt. `told` are the attempts that it was told to end."""

    def __init__(self, peer: MailboxPeer, *, unsteady: bool) -> None:
        self.peer, self._unsteady = peer, unsteady
        self.outbox: deque[Frame] = deque()
        self._runs: dict[int, _Run] = {}
        self._over: list[Frame] = []  # what attempts said last

    def hear(self) -> None:
        """Take the next frame in."""
        message, buffers = self.peer.inbox.popleft()
        if isinstance(message, Play):
            acts = script(message.seed, message.attempt, unsteady=self._unsteady)
            self._runs[message.rollout] = _Run(message, acts, dict(message.notes))
        elif isinstance(message, StopPlaying):
            self._runs.pop(message.rollout, None)
        elif isinstance(message, Reply):
            self._replied(message, np.frombuffer(buffers[0], np.int32).tolist())

    def act(self, draw: random.Random) -> None:
        """Let one agent that waits for nothing go on."""
        ready = [
            run
            for run in self._runs.values()
            if not run.stuck and all(awaited.over for awaited in run.waits.values())
        ]
        if ready:
            self._go_on(draw.choice(ready))

    def fail(self, draw: random.Random, reason: str) -> bool:
        """End one agent, as a raised error or a deadline does. Returns False if there is none."""
        if not self._runs:
            return False
        run = self._runs[draw.choice(sorted(self._runs))]
        self._end(run, "", reason)
        return True

    def repeat(self) -> bool:
        """Say once more what attempts that are over said last. Returns False if there is none."""
        self.outbox.extend(self._over)
        return bool(self._over)

    def hang(self, draw: random.Random) -> bool:
        """Have one agent do nothing more until its deadline. Returns False if there is none."""
        going = [run for run in self._runs.values() if not run.stuck]
        if going:
            draw.choice(going).stuck = True
        return bool(going)

    def expire(self) -> None:
        """The deadlines of all agents that hang have come."""
        for run in [run for run in self._runs.values() if run.stuck]:
            self._end(run, "", "agent_timeout")

    def _replied(self, message: Reply, ids: list[int]) -> None:
        run = self._runs.get(message.rollout)
        if run is None or run.play.attempt != message.attempt:
            return
        awaited = run.waits.get(message.number)
        if awaited is None or awaited.over:
            return  # it had enough of it
        awaited.ids += ids
        awaited.refused = bool(message.refused)
        awaited.over = bool(message.refused or message.finish)
        self._enough(run, message.number, awaited)

    def _enough(self, run: _Run, number: int, awaited: _Awaited) -> None:
        needs = awaited.ask.needs
        if not awaited.over and needs is not None and len(awaited.ids) >= needs:
            awaited.over = True
            self._say(Enough(run.play.rollout, run.play.attempt, number, needs))

    def _go_on(self, run: _Run) -> None:
        rollout, attempt = run.play.rollout, run.play.attempt
        answers = [awaited.answer for awaited in run.waits.values()]
        run.waits = {}
        try:
            act = run.script.send(answers) if run.begun else next(run.script)
            run.begun = True
            while not isinstance(act, list):
                kept: list[tuple[int, ...] | None] = []
                if isinstance(act, ScriptedReward):
                    self._say(GiveReward(rollout, attempt, act.number, act.reward))
                elif isinstance(act, ScriptedFailure):
                    self._say(GiveFailure(rollout, attempt, act.number, act.tool))
                elif isinstance(act, ScriptedNote):
                    if act.name not in run.notes:
                        run.notes[act.name] = act.value
                        self._say(Note(rollout, attempt, act.name, act.value))
                    kept = [tuple(run.notes[act.name])]
                act = run.script.send(kept)
        except StopIteration as end:
            self._end(run, end.value, "")
            return
        for ask in act:
            message = Ask(rollout, attempt, run.asked, ask.budget)
            self._say(message, np.array(ask.context, np.int32).tobytes())
            run.waits[run.asked] = awaited = _Awaited(ask, over=ask.abandoned)
            self._enough(run, run.asked, awaited)
            run.asked += 1

    def _end(self, run: _Run, finish: Finish, failed: str) -> None:
        played = Played(run.play.rollout, run.play.attempt, finish, failed)
        del self._runs[run.play.rollout]
        self._say(played)
        self._over = [(played, ())]
        if run.asked:
            ask = Ask(run.play.rollout, run.play.attempt, run.asked, 2)
            self._over.append((ask, (b"\1\0\0\0",)))

    def _say(self, message: Message, *buffers: bytes) -> None:
        self.outbox.append((message, buffers))
