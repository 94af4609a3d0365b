"""Old names of settings and of their values, with the new one for the message."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

MOVED = {
    "task.choice": "task.curriculum",
    "agent.eval_s": "evaluation.hold_s",
    "rollout.max_hops": "rollout.max_resumes",
    "run.lease_s": "rollout.lease_s",
    "run.reward_actors": "reward.actors",
    "run.reward_concurrency": "reward.concurrency",
    "run.journal_ms": "journal.commit_ms",
    "run.metrics_port": "metrics.port",
    "run.metrics_host": "metrics.host",
    "run.cores": "machine.cores",
    "run.trainer_cores": "machine.trainer_cores",
    "run.restarts": "supervision.restarts",
    "run.restart_window_s": "supervision.restart_window_s",
    "run.start_s": "supervision.start_s",
    "run.stall_s": "supervision.stall_s",
    "run.grace_s": "supervision.grace_s",
}
"""Old name of a setting or section → new one."""

_PLAYED = (
    "is gone: agents play episodes, which are trained; set agent.run (to http for programs that "
    "run elsewhere) and agent.port"
)

GONE = {
    "rollout.top_p": (
        "is gone: the whole distribution is sampled, because no engine records the kept set"
    ),
    "gateway": _PLAYED,
    "door": _PLAYED,
}
"""Removed setting → the end of the sentence that says why."""

FIXED: Mapping[str, float] = {
    "agent.alarm_rewritten": 0.1,
    "staleness.alarm_k3": 0.1,
    "staleness.alarm_masked": 0.5,
    "staleness.alarm_ess": 0.1,
    "staleness.alarm_proximal": 0.1,
    "staleness.alarm_truncated": 0.5,
}
"""Setting that is now a constant → its value. The run.toml of an earlier run may have it, with that
value."""

VALUES = {"staleness.on_stale": {"recycle": "restart"}}
"""Setting → its old values, each with its new name."""


def says_nothing(path: Sequence[str], value: object) -> bool:
    """True for a setting that is a constant now, with the value of that constant."""
    return FIXED.get(".".join(path)) == value


def about_old_name(path: Sequence[str]) -> str:
    """Return a sentence about an old setting, without its full stop, or "" where `path` (section,
    name, …) is not an old one.

    Example: ("run", "cores") gives "run.cores is called machine.cores now".
    """
    for key in (".".join(path[:2]), path[0]):
        if key in MOVED:
            return f"{key} is called {MOVED[key]} now"
        if key in GONE:
            return f"{key} {GONE[key]}"
        if key in FIXED:
            return f"{key} is gone: it is {FIXED[key]:g} in every run; remove it"
    return ""
