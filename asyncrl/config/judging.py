"""Values that follow from the settings of a judge: the part of its limits that each reward actor
has, and the time within which an answer has a verdict.

Invariant: all reward actors together stay within the judge's limits.
"""

from __future__ import annotations

from collections.abc import Iterator

from asyncrl.config.mix import each
from asyncrl.config.schema import Config

VERIFIER = "judge"
"""The verifier that asks the judge."""
AHEAD = 2
"""A reward actor is given this many times the answers that it judges at a time, so that it never
waits for the next."""
LONGEST_PAUSE_S = 60.0
"""Seconds between two requests for one answer, at most, unless the server asks for more."""
BETWEEN_S = 30.0
"""Seconds that an answer waits on top of what its requests take."""


def asks(config: Config) -> bool:
    """True if a verifier of the run's tasks asks the judge."""
    return any(task.verifier == VERIFIER for task in each(config.task))


def at_a_time(config: Config) -> int:
    """Answers that a reward actor judges at a time. One that a judge has takes no process."""
    own = config.reward.concurrency
    return max(own, config.judge.concurrency) if asks(config) else own


def most_held(config: Config) -> int:
    """Answers that a reward actor is given, at most: room for a group whose members are judged
    together."""
    rollout, held = config.rollout, AHEAD * at_a_time(config)
    if not judges_groups(config):
        return held
    return max(held, rollout.group_size, rollout.group_size_max * (rollout.sizing != "fixed"))


def judges_groups(config: Config) -> bool:
    """True if the judge sees all answers of a group in one request."""
    return asks(config) and config.judge.together


def share_of(per_minute: int, config: Config) -> float:
    """The part of a limit that each reward actor has."""
    return per_minute / config.reward.actors


def judge_s(config: Config) -> float:
    """Seconds within which an answer that was given to a reward actor has the judge's verdict, or
    none: each of its requests waits for those of all others that the actor has. 0 without a
    judge."""
    if not asks(config):
        return 0.0
    judge, held = config.judge, most_held(config)
    tokens = config.engine.context_tokens + len(judge.template) + judge.max_tokens
    queue_s = (
        60.0
        * held
        * max(
            1 / share_of(judge.requests_per_minute, config),
            tokens / share_of(judge.tokens_per_minute, config),
        )
    )
    in_turn_s = held / judge.concurrency * judge.timeout_s
    each_s = queue_s + in_turn_s + LONGEST_PAUSE_S
    return (judge.retries + 1) * each_s + BETWEEN_S


def judge_rows(config: Config) -> Iterator[tuple[str, str, str]]:
    """The judge that will be asked, and how often, as a row of `check`."""
    if not asks(config):
        return
    judge = config.judge
    about = "answer" if not judge.together else f"group, whose answers are {judge.members}"
    yield (
        "judge",
        f"{judge.model} at {judge.url}".strip().removeprefix("at "),
        f"asked for each {about} ({judge.kind}): ≤ {judge.requests_per_minute:,} requests and "
        f"{judge.tokens_per_minute:,} tokens a minute, {judge.timeout_s:g} s each, "
        f"{judge.retries} retries; a key is {_key(config)}",
    )


def _key(config: Config) -> str:
    judge = config.judge
    if judge.api_key_env:
        return f"in the variable {judge.api_key_env}"
    return f"in {judge.api_key_file}" if judge.api_key_file else "not sent"
