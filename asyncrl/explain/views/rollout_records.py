"""`asyncrl rollouts RUN`: what the model said, with what became of it.

Text is decoded by the tokenizer of the model that the run started from, and only of what is shown
or written. Lines of JSON have it whole, in ASCII; on a terminal it is escaped and cut.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import msgspec
import numpy as np

from asyncrl.config import ConfigError
from asyncrl.escape import escaped
from asyncrl.experience.call import ImpossibleEvent
from asyncrl.explain.views.seen_rollouts import SeenRollout, seen_rollouts
from asyncrl.journal import JournalError, SqliteHistory
from asyncrl.messages import Finish, Span, Split
from asyncrl.runtime.run_dir import INITIAL, JOURNAL, refuse_no_run
from asyncrl.tasks import TaskError
from asyncrl.tasks.text import Tokenizer

LAST = 10
"""Rollouts that are shown where nobody says how many."""

Decode = Callable[[bytes], str]
"""Turns `int32` ids to text."""
Note = Callable[[str], None]
"""Hears one sentence for a person."""


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """The rollouts that are asked for; what is None is not asked. `reward_below` leaves out those
    without a reward; of all that fit, the `last` are the newest."""

    split: Split | None = None
    prompt: int | None = None
    reward_below: float | None = None
    finish: Finish | None = None
    last: int | None = None

    def fits(self, seen: SeenRollout) -> bool:
        """True if it is one of those, were it not for `last`."""
        return (
            self.split in (None, seen.split)
            and self.prompt in (None, seen.prompt_index)
            and self.finish in (None, seen.finish)
            and (
                self.reward_below is None
                or (seen.reward is not None and seen.reward < self.reward_below)
            )
        )


class RolloutRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A rollout as it is written: the fields of `SeenRollout`, with text. `spans` are
    `[version, start, end]`, places among the sampled `tokens`."""

    rollout: int
    group: int
    split: Split
    prompt_index: int
    status: str
    reason: str
    reward: float | None
    no_verdict: str
    finish: Finish
    attempts: int
    turns: int
    tokens: int
    spans: list[Span]
    step: int | None
    lag: int | None
    prompt: str
    response: str


def records(run: Path, wanted: Wanted, note: Note) -> list[RolloutRecord]:
    """The newest rollouts that fit, the oldest of them first; LAST of them where nobody said how
    many. Raises ConfigError for what is no run, or a journal that cannot be read."""
    found = newest(run, wanted, LAST)
    decode = decoder(run, note)
    return [record(seen, decode) for seen in found]


def newest(run: Path, wanted: Wanted, most: int | None) -> Iterable[SeenRollout]:
    """The last `wanted.last` rollouts that fit, or `most` where that is None, or all. The journal
    is read, and closed, before the first is given, unless they are all. Raises ConfigError."""
    refuse_no_run(run)
    fitting = filter(wanted.fits, _read(run))
    last = most if wanted.last is None else wanted.last
    return fitting if last is None else deque(fitting, maxlen=last)


def since(run: Path, checkpoints: int) -> Iterator[SeenRollout]:
    """The rollouts that ended since so many checkpoints ago, or as long ago as the journal begins,
    and those that live. Raises ConfigError."""
    refuse_no_run(run)
    return _read(run, checkpoints)


def _read(run: Path, checkpoints: int | None = None) -> Iterator[SeenRollout]:
    """All rollouts that the journal has, or as `since`."""
    try:
        with SqliteHistory(run / JOURNAL) as history:
            after = history.forgotten
            if checkpoints is not None:
                snapshots = [number for number, _ in history.snapshots()]
                if len(snapshots) >= checkpoints:
                    after = max(after, snapshots[-checkpoints])
            yield from seen_rollouts(history, after)
    except JournalError as error:
        raise ConfigError(f"{error}.") from None
    except ImpossibleEvent as error:
        raise ConfigError(
            f"{run / JOURNAL}: its events do not follow from one another ({error}), so that its "
            "rollouts are not known."
        ) from None


def decoder(run: Path, note: Note) -> Decode:
    """Decode by the tokenizer of the model that a run started from; where that is gone, `note`
    hears of it, and the text is the ids themselves."""
    try:
        tokenizer = Tokenizer(run / INITIAL)
    except TaskError as error:
        note(f"Token ids are shown in place of text: {error}.")
        return lambda ids: " ".join(map(str, _numbers(ids)))
    return lambda ids: tokenizer.decode(_numbers(ids), special=True)


def _numbers(ids: bytes) -> list[int]:
    """Ids as numbers; one that no token can have is a large one, which has no text."""
    numbers: list[int] = np.frombuffer(ids, "<u4").tolist()
    return numbers


def record(seen: SeenRollout, decode: Decode) -> RolloutRecord:
    """The record of a rollout."""
    return RolloutRecord(
        rollout=seen.rollout,
        group=seen.group,
        split=seen.split,
        prompt_index=seen.prompt_index,
        status=seen.status,
        reason=seen.reason,
        reward=seen.reward,
        no_verdict=seen.no_verdict,
        finish=seen.finish,
        attempts=seen.attempts,
        turns=len(seen.turns),
        tokens=len(seen.ids) >> 2,
        spans=seen.spans,
        step=seen.step,
        lag=seen.lag,
        prompt=decode(seen.prompt),
        response=decode(seen.ids),
    )


def shown(one: RolloutRecord) -> str:
    """Three printable lines, and an empty one."""
    versions = [span.version for span in one.spans]
    oldest, newest_version = min(versions, default=0), max(versions, default=0)
    facts = [
        f"rollout {one.rollout}",
        one.split,
        f"prompt {one.prompt_index}",
        f"group {one.group}",
        f"reward {one.reward:g}" if one.reward is not None else "",
        f"no verdict: {one.no_verdict}" if one.no_verdict else "",
        f"{one.tokens} tokens",
        f"{one.turns} turns" if one.turns else "",
        f"version {oldest}" + (f" to {newest_version}" if newest_version > oldest else ""),
        f"lag {one.lag}" if one.lag is not None else "",
        f"{one.attempts} attempts" if one.attempts > 1 else "",
        one.finish,
        f"{one.status}: {one.reason}" if one.reason else one.status,
    ]
    return "\n".join(
        [
            "  ".join(escaped(fact) for fact in facts if fact),
            f"  prompt    {escaped(one.prompt)}",
            f"  response  {escaped(one.response)}",
            "",
        ]
    )
