"""Bounds of what a run keeps: its steps, the bytes of its queue and of its journal."""

from __future__ import annotations

import math

from asyncrl.config.chunk_tokens import chunk_tokens
from asyncrl.config.flow import admission_policy, max_members
from asyncrl.config.mix import trained_size
from asyncrl.config.schema import Config

EVENT_BYTES = 40
"""Approximate bytes of an event in the journal beside its tokens."""
ROLLOUT_EVENTS = 4
"""Events of a rollout beside its chunks: leased, sealed, judged, trained."""
LOG_BYTES = 8 * 2**20
"""Bytes to which the journal's write-ahead log is truncated."""


def queue_bytes(config: Config, routing: int = 0) -> int:
    """Most bytes of token arrays alive at one time: `int32` ids of prompt and response, `float32`
    log-probabilities of the response, and records of its experts, of `routing` bytes a token."""
    new = config.rollout.max_new_tokens
    of_rollout = 4 * (config.engine.context_tokens + new) + routing * new
    return admission_policy(config).max_live_filtered * max_members(config) * of_rollout


def steps(config: Config) -> int:
    """Most optimizer steps: `train.steps`, or as many as the data gives. Example: 2 epochs of 100
    prompts, 16 in a step, give at most 13. A supervised run has counted its data: `train.steps` are
    its steps."""
    if config.sft.run or not config.task.epochs:
        return config.train.steps
    return min(
        config.train.steps,
        math.ceil(config.task.epochs * trained_size(config.task) / config.train.batch_groups),
    )


def journal_steps(config: Config) -> int:
    """Most steps in the journal: a checkpoint compacts all before its predecessor."""
    return min(2 * config.train.checkpoint_every or config.train.steps, steps(config))


def journal_bytes(config: Config, routing: int = 0) -> int:
    """Most bytes of the journal: of its steps, of the live rollouts and of three states of them,
    one of which is also in the log while it is written. Discarded and evaluated rollouts belong to
    no step, and come on top. `routing`: bytes of the record of a sampled token's experts."""
    rollout, groups = config.rollout, config.train.batch_groups * journal_steps(config)
    events = math.ceil(rollout.max_new_tokens / chunk_tokens(config)) + ROLLOUT_EVENTS
    tokens = (8 + routing) * rollout.max_new_tokens
    responses = groups * max_members(config) * (tokens + EVENT_BYTES * events)
    prompts = groups * 4 * config.engine.context_tokens
    return responses + prompts + 5 * queue_bytes(config, routing) + LOG_BYTES
