"""Contradictions between settings. Invariant: a configuration that passes here has no
contradictions, whatever the machine.

A table's own are in its file (`Section.contradictions`). Others are beside the code that they
belong to, and collected here. `asyncrl.launch.preflight` checks what depends on the machine: cores,
ports, directories.
"""

from __future__ import annotations

from asyncrl.config.fields import SECTIONS, lookup
from asyncrl.config.flow import flow_contradictions
from asyncrl.config.fork_rules import fork_contradictions
from asyncrl.config.lending import lending_contradictions
from asyncrl.config.losses import loss_contradictions
from asyncrl.config.mix import mix_contradictions
from asyncrl.config.other_policies import policy_contradictions
from asyncrl.config.ranks import rank_contradictions
from asyncrl.config.schema import Config
from asyncrl.config.schema.section import Contradictions
from asyncrl.config.tags import tag_contradictions
from asyncrl.config.task_rules import task_contradictions


def contradictions(config: Config) -> Contradictions:
    """Yield the keys that contradict each other, and the remedy as the end of a sentence."""
    for table in SECTIONS:
        yield from lookup(config, table).contradictions(config)
    if wrong := list(mix_contradictions(config.task)):
        yield from wrong
        return
    yield from flow_contradictions(config)
    yield from fork_contradictions(config)
    yield from lending_contradictions(config)
    yield from loss_contradictions(config)
    yield from rank_contradictions(config)
    yield from policy_contradictions(config)
    yield from task_contradictions(config)
    yield from tag_contradictions(config)


Config.rules.append(contradictions)
