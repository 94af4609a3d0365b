"""Causes of bad ends. Invariant: a fault excuses an end only if it can have such an end, touched
the actor that the end names, or everybody, and was not over long before.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from asyncrl.config import Config
from asyncrl.simulation.injector import Injector

_FROZEN = r"stop_.*|link_.*"
_ENGINES = (
    r"engine_.*|garbage_.*|lost_.*|wrong_weights|reception_fails|transfer_slow|kill_rollout"
    r"|told_to_end"
)
_VERIFIERS = r"verifier_(hangs|dies|slow)|kill_reward"
_STILL = rf"disk_.*|engine_.*|transfer_slow|{_VERIFIERS}|{_FROZEN}"
_NAMES = r"(?:trainer|rollout|reward|agents)-[0-9]+"

HUNG_S = 42.0
"""Seconds for which a reward actor may owe a verdict: 6 times `task.verdict_s`, and 30."""
AFTERMATH_S = 30.0
"""Seconds in which a link, a phase of a publication or a lease finds out that somebody is gone."""


class _BadEnd(NamedTuple):
    """Bad ends whose reasons have a pattern, the kinds of fault that may cause them (a pattern),
    and the seconds that may lie between. With `named` it has to have touched an actor that the
    reason names."""

    reason: str
    kinds: str
    window_s: Callable[[Config], float]
    named: bool = False


CAUSES = (
    _BadEnd(r"stopped early|grace period", r"restart_everything", lambda c: 1.0),
    _BadEnd(r"everything was killed", r"kill_everything.*|checkpoint_damaged", lambda c: 1.0),
    _BadEnd(r"coordinator-0 was killed", r"kill_coordinator.*", lambda c: 1.0),
    _BadEnd(r"the simulated disk is", r"disk_.*", lambda c: 1.0),
    _BadEnd(  # the last version is evaluated before the end, by agents too
        r"the last checkpoint was not written",
        r"checkpoint_fails",
        lambda c: AFTERMATH_S + (c.evaluation.hold_s + c.agent.episode_s if c.agent.run else 0.0),
    ),
    _BadEnd(
        r"stands still|coordinator-0 ended with exit code 0",
        r"stop_coordinator",
        lambda c: AFTERMATH_S,
    ),
    _BadEnd(
        r"no token and no step.*episodes of agents-[0-9]+ failed",
        rf"agent_(raises|crashes|gives_up|hangs)|agents_lost|{_STILL}",
        lambda c: c.supervision.stall_s + HUNG_S,
    ),
    _BadEnd(
        r"no token and no step",
        _STILL,
        lambda c: c.supervision.stall_s + HUNG_S,
    ),
    _BadEnd(
        r"publications failed in a row",
        rf"transfer_.*|{_ENGINES}|{_FROZEN}",
        lambda c: 10 * c.publication.deadline_s,
    ),
    _BadEnd(
        r"trainer",
        rf"kill_trainer|checkpoint_cut|transfer_slow|{_FROZEN}",
        lambda c: AFTERMATH_S,
        named=True,
    ),
    _BadEnd(
        r"agents-[0-9]+ ",
        rf"restart_beside_agents|agents_lost|kill_agents.*|{_FROZEN}",
        lambda c: AFTERMATH_S,
        named=True,
    ),
    _BadEnd(
        r"(rollout|reward)-[0-9]+ ",
        rf"restart_beside|{_VERIFIERS}|{_ENGINES}|{_FROZEN}",
        lambda c: AFTERMATH_S,
        named=True,
    ),
)


def unexplained(reason: str, config: Config, injector: Injector) -> str:
    """The sentence that no fault explains this end; empty if one does."""
    for cause in CAUSES:
        if re.search(cause.reason, reason):
            named = {*re.findall(_NAMES, reason), *(["trainer-0"] if "trainer" in reason else [])}
            if injector.explains(
                cause.kinds, named if cause.named else None, cause.window_s(config)
            ):
                return ""
            near = [(s.kind, s.victim, s.since, s.until) for s in injector.strikes]
            return f"no fault explains the end of a life: {reason}; there were {near}"
    return f"a life ended for a reason that no fault has: {reason}"
