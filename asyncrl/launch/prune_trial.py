"""Trial of the rule that ends rollouts, before a run starts."""

from __future__ import annotations

import struct

from asyncrl.algorithms.selection.beginnings import Beginning, JudgedBeginning
from asyncrl.algorithms.selection.live_group import LiveGroup, LiveMember
from asyncrl.config.errors import ConfigError
from asyncrl.config.schema import RolloutConfig
from asyncrl.config.selection_names import PRUNES
from asyncrl.config.strategies import blamed
from asyncrl.messages import PromptFacts

LOGS = (-0.05, -0.5, -1.0, -3.0)
"""Log-probabilities of the tokens of the made-up members, from likely right to likely wrong."""
JUDGED = [
    JudgedBeginning(Beginning(8, log, 0.0, 0.5), right)
    for log, right in ((-0.05, True), (-3.0, False))
] * 32


def refuse_rule_that_ends_all(rollout: RolloutConfig) -> None:
    """Ask the rule that `rollout.prune` names about members of made-up groups, of an easy prompt
    and of a hard one. Raises ConfigError if it raises, or ends each of them for certain."""
    name, ended = rollout.prune, list[bool]()
    with blamed("prune rule", name):
        rule = PRUNES.find(name)(rollout.prune_share)
        for posterior in ((9.0, 1.0), (1.0, 9.0)):
            prompt = PromptFacts(0, posterior=posterior, longest=rollout.max_new_tokens)
            members = [_member(n, log) for n, log in enumerate(LOGS)]
            for asked in range(len(members)):
                ending = rule.ends(LiveGroup(members, asked, prompt, JUDGED, len(JUDGED)))
                ended.append(ending is not None and not (ending.kept or ending.chance))
    if all(ended):
        raise ConfigError(
            f"rollout.prune: {name!r} ended each of {len(ended)} made-up rollouts, of an easy and "
            "of a hard prompt, and so it would of most groups; let some continue."
        )


def _member(number: int, log: float) -> LiveMember:
    ids = struct.pack("<8i", *range(9 * number, 9 * number + 8))
    return LiveMember("live", 8, ids, struct.pack("<8f", *[log] * 8))
