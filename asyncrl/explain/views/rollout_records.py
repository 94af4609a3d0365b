"""`asyncrl rollouts RUN`: what the model said, with what became of it.

Text is decoded by the tokenizer of the model that the run started from, and only of what is shown
or written. Lines of JSON have it whole, in ASCII; on a terminal it is escaped and cut.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator

import msgspec
import numpy as np

from asyncrl.escape import escaped
from asyncrl.explain.run_files import RunFiles
from asyncrl.explain.views.seen_rollouts import RolloutFacts, SeenRollout, seen_rollouts
from asyncrl.messages import Finish, Span, Split
from asyncrl.tasks import TaskError
from asyncrl.tasks.text import Tokenizer

LAST = 10
"""Rollouts that are shown where nobody says how many."""

Decode = Callable[[bytes], str]
"""Turns `int32` ids to text."""
Note = Callable[[str], None]
"""Hears one sentence for a person."""
SAME = (
    *(field.name for field in msgspec.structs.fields(RolloutFacts)),
    *("tokens", "spans", "step", "lag"),
)
"""Fields that a record has as the rollout has them."""


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


class RolloutRecord(RolloutFacts, frozen=True, kw_only=True):
    """A rollout as it is written: the fields of `SeenRollout`, with text. `spans` are
    `[version, start, end]`, places among the sampled `tokens`."""

    turns: int
    tokens: int
    spans: list[Span]
    step: int | None
    lag: int | None
    prompt: str
    response: str


def records(files: RunFiles, wanted: Wanted, note: Note) -> list[RolloutRecord]:
    """The newest rollouts that fit, the oldest of them first; LAST of them where nobody said how
    many. Raises ConfigError for a journal that cannot be read."""
    found = newest(files, wanted, LAST)
    decode = decoder(files, note)
    return [record(seen, decode) for seen in found]


def newest(files: RunFiles, wanted: Wanted, most: int | None) -> Iterable[SeenRollout]:
    """The last `wanted.last` rollouts that fit, or `most` where that is None, or all. The journal
    is read, and closed, before the first is given, unless they are all. Raises ConfigError."""
    fitting = filter(wanted.fits, since(files))
    last = most if wanted.last is None else wanted.last
    return fitting if last is None else deque(fitting, maxlen=last)


def since(files: RunFiles, checkpoints: int | None = None) -> Iterator[SeenRollout]:
    """The rollouts that ended since so many checkpoints ago, or as long ago as the journal begins,
    and those that live. Raises ConfigError."""
    with files.journal() as history:
        after = history.forgotten
        if checkpoints is not None:
            snapshots = [number for number, _ in history.snapshots()]
            if len(snapshots) >= checkpoints:
                after = max(after, snapshots[-checkpoints])
        yield from seen_rollouts(history, after)


def decoder(files: RunFiles, note: Note) -> Decode:
    """Decode by the tokenizer of the model that a run started from; where that is gone, `note`
    hears of it, and the text is the ids themselves."""
    try:
        tokenizer = Tokenizer(files.initial)
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
    said = {name: getattr(seen, name) for name in SAME}
    return RolloutRecord(
        **said, turns=len(seen.turns), prompt=decode(seen.prompt), response=decode(seen.ids)
    )


def facts(one: SeenRollout | RolloutRecord) -> list[str]:
    """Facts about a rollout beside its text, in a few words each."""
    turns = one.turns if isinstance(one.turns, int) else len(one.turns)
    versions = [span.version for span in one.spans]
    oldest, newest_version = min(versions, default=0), max(versions, default=0)
    found = [
        f"rollout {one.rollout}",
        one.split,
        f"prompt {one.prompt_index}",
        f"group {one.group}",
        f"reward {one.reward:g}" if one.reward is not None else "",
        f"no verdict: {one.no_verdict}" if one.no_verdict else "",
        f"{one.tokens} tokens",
        f"{turns} turns" if turns else "",
        f"version {oldest}" + (f" to {newest_version}" if newest_version > oldest else ""),
        f"lag {one.lag}" if one.lag is not None else "",
        f"{one.attempts} attempts" if one.attempts > 1 else "",
        one.finish,
        f"{one.status}: {one.reason}" if one.reason else one.status,
    ]
    return [fact for fact in found if fact]


def shown(one: RolloutRecord) -> str:
    """Three printable lines, and an empty one."""
    return "\n".join(
        [
            "  ".join(map(escaped, facts(one))),
            f"  prompt    {escaped(one.prompt)}",
            f"  response  {escaped(one.response)}",
            "",
        ]
    )
