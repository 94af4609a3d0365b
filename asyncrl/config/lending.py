"""Lending: rollout actors on the trainer's cores, which decode while it waits, as SeamlessFlow and
verl have it of GPUs. Nobody decides when: those actors have a low priority, so the system gives the
trainer its cores back as soon as it has work.
"""

from __future__ import annotations

from collections.abc import Iterator

from asyncrl.config.cluster import joined
from asyncrl.config.engines import capabilities
from asyncrl.config.schema import Config


def is_lent(config: Config, index: int) -> bool:
    """True for a rollout actor that is lent the trainer's cores: one of the last."""
    return index >= config.rollout.actors - config.rollout.lent_actors


def lending_contradictions(config: Config) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield the keys that contradict each other, and the remedy as the end of a sentence."""
    lent = "rollout.lent_actors"
    if not config.rollout.lent_actors:
        return
    if config.rollout.lent_actors >= config.rollout.actors:
        yield (
            (lent, "rollout.actors"),
            "one rollout actor at least needs cores of its own: raise actors, or lower lent_actors",
        )
    if joined(config):
        yield (lent, "cluster.kind"), "the trainer's cores are on this machine: set kind to local"
    if capabilities(config.engine.kind).serves_apart:
        yield (
            (lent, "engine.kind"),
            "a server decodes with devices of its own: choose the embedded engine, or set "
            "lent_actors to 0",
        )
    if config.train.device != "cpu":
        yield (lent, "train.device"), "a GPU knows no priority of processes: set lent_actors to 0"
