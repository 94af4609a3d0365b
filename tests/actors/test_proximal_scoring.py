"""The versions whose weights the trainer holds, because tokens of them may still come."""

from __future__ import annotations

import numpy as np
from memory_link import memory_links
from scripted_parts import MemoryLog
from scripted_world import configured

from asyncrl.actors.coordinator.event_store import EventStore
from asyncrl.actors.coordinator.leases import LeaseTable
from asyncrl.actors.coordinator.peers import Peer
from asyncrl.actors.coordinator.proximal_scoring import ProximalScoring
from asyncrl.actors.coordinator.trainer_commands import TrainerCommands
from asyncrl.experience import events as e
from asyncrl.experience.experience import Experience
from asyncrl.messages import Hello, Message, ScoreProximal

TOKEN = np.ones(1, np.int32).tobytes()


class Trainer(Peer):
    """A trainer that keeps what it is told."""

    def __init__(self) -> None:
        super().__init__(Hello("trainer", 0, 0, 1), memory_links()[0])
        self.told: list[ScoreProximal] = []

    def send(self, message: Message, *buffers: object) -> None:
        assert isinstance(message, ScoreProximal)
        self.told.append(message)


async def test_weights_are_held_for_tokens_that_are_on_their_way() -> None:
    store, leases, trainer = EventStore(Experience(), MemoryLog()), LeaseTable(60.0), Trainer()
    commands = TrainerCommands(trainer)
    config = configured(staleness={"proximal": "boundary"})
    scoring = ProximalScoring(store, commands, leases, config)

    def oldest(step: int) -> int:
        scoring.score(step, served=step)
        commands.answered(ScoreProximal)
        return trainer.told[-1].oldest

    store.record(e.Published(3))
    assert oldest(3) == 3
    store.record(e.Admitted(0, 0, 2, "train", 0, TOKEN, 4))
    store.record(e.Leased(0, "rollout-0", 1))
    leases.give(0, 1, tokens=0, now=0.0, served=3)
    store.record(e.Published(4))
    assert oldest(4) == 3, "its engine may have sampled under 3, and streams late"
    store.record(e.Extended(0, 1, 4, 0, TOKEN, TOKEN))
    assert oldest(4) == 4, "what comes after a token of 4 is no older"
    store.record(e.Published(5))
    assert oldest(5) == 4
    store.record(e.Extended(0, 1, 5, 1, TOKEN, TOKEN))
    assert oldest(5) == 5, "its last token counts, not its first"

    store.record(e.Requeued(0, 1, "late", failed=False))
    leases.back(0)
    store.record(e.Published(6))
    assert oldest(6) == 6, "no engine samples it"
    store.record(e.Leased(0, "rollout-1", 2))
    leases.give(0, 2, tokens=2, now=1.0, served=6)
    assert oldest(6) == 6, "it goes on under 6, whatever its first token is of"
