"""Settings that had another name: who writes an old one is told the new one."""

from __future__ import annotations

_MOVED = {
    "task.choice": "task.curriculum",
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
    "door.port": "gateway.port",
    "door": "gateway",
}

RENAMED = {old: f"is called {new} now" for old, new in _MOVED.items()} | {
    "rollout.top_p": "is gone: the whole distribution is sampled, because no engine records the kept set",
}
"""The old name of a setting or section → the end of the sentence that says so."""
