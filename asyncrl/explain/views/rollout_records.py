"""`asyncrl rollouts [RUN]`: what the model said, with what became of it, the newest first.

Text is decoded by the tokenizer of the model that the run started from, and only of what is shown
or written. Lines of JSON have it whole, in ASCII; on a terminal it is escaped and cut.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import chain, islice

import msgspec

from asyncrl.escape import escaped
from asyncrl.explain.run_files import RunFiles
from asyncrl.explain.views.newest_rollouts import living, newest_ended
from asyncrl.explain.views.run_texts import Note, RunTexts, run_texts
from asyncrl.explain.views.seen_messages import SeenMessage, messages_of
from asyncrl.explain.views.seen_rollouts import RolloutFacts, SeenRollout
from asyncrl.messages import Finish, Span, Split

LAST = 10
"""Rollouts that are shown where nobody says how many."""
SPLITS: dict[Split, str] = {"train": "train", "evaluation": "held out"}
"""Names of the splits, for people."""
NAME = 9
"""Columns of the name of a role."""

SAME = (
    *(field.name for field in msgspec.structs.fields(RolloutFacts)),
    *("tokens", "spans", "step", "lag"),
)
"""Fields that a record has as the rollout has them."""


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """The rollouts that are asked for; what is None is not asked. Bounds of rewards leave out
    rollouts without one. `step` is the one that took them, `lag_above` a lag that theirs exceeds.
    With `failed`: those that were buried, had a failed attempt or call, or got no verdict. With
    `living`: only those that have not ended, in place of those that have. The `last` are the newest
    of all that fit."""

    split: Split | None = None
    prompt: int | None = None
    reward_below: float | None = None
    reward_above: float | None = None
    finish: Finish | None = None
    step: int | None = None
    lag_above: int | None = None
    failed: bool = False
    living: bool = False
    last: int | None = None

    def fits(self, seen: SeenRollout) -> bool:
        """True if it is one of those, were it not for `last` and `living`."""
        reward, lag = seen.reward, seen.lag
        return (
            self.split in (None, seen.split)
            and self.prompt in (None, seen.prompt_index)
            and self.finish in (None, seen.finish)
            and self.step in (None, seen.step)
            and (self.reward_below is None or (reward is not None and reward < self.reward_below))
            and (self.reward_above is None or (reward is not None and reward > self.reward_above))
            and (self.lag_above is None or (lag is not None and lag > self.lag_above))
            and (not self.failed or has_failed(seen))
        )


def has_failed(seen: SeenRollout) -> bool:
    """True if it was buried, got no verdict, or an attempt or a call of it failed."""
    return bool(
        seen.status == "buried"
        or seen.no_verdict
        or seen.failures
        or any(turn.failed for turn in seen.turns)
    )


class RolloutRecord(RolloutFacts, msgspec.Struct, frozen=True, kw_only=True):
    """A rollout as it is written: the fields of `SeenRollout`, with text. `spans` are
    `[version, start, end]`, places among the sampled `tokens`. `expected` is a right answer, empty
    where none is known; `failed_calls` counts an agent's, by the name of the tool. `messages` are
    those of an agent's episode alone: `prompt` and `response` are all that another one has.
    `printed` is what attempts of an agent printed, by their numbers."""

    turns: int
    tokens: int
    spans: list[Span]
    step: int | None
    lag: int | None
    prompt: str
    response: str
    expected: str = ""
    failed_calls: dict[str, int] = {}
    messages: list[SeenMessage] = []
    printed: dict[int, str] = {}


def records(files: RunFiles, wanted: Wanted, note: Note) -> Iterator[RolloutRecord]:
    """The newest rollouts that fit, the newest first; LAST of them where nobody said how many. The
    journal is open until the last is given. Raises ConfigError for one that cannot be read."""
    texts = run_texts(files, note)
    for seen in newest(files, wanted, LAST):
        yield record(seen, texts)


def newest(files: RunFiles, wanted: Wanted, most: int | None) -> Iterator[SeenRollout]:
    """The newest `wanted.last` rollouts that fit, or `most` where that is None, or all; the newest
    first. Raises ConfigError."""
    last = most if wanted.last is None else wanted.last
    yield from islice(filter(wanted.fits, _all(files, wanted.living)), last)


def _all(files: RunFiles, live: bool) -> Iterator[SeenRollout]:
    with files.journal() as history:
        if live:
            yield from reversed([*living(history)])
        else:
            yield from (seen for _, seen in newest_ended(history, history.forgotten))


def record(seen: SeenRollout, texts: RunTexts) -> RolloutRecord:
    """The record of a rollout."""
    said = {name: getattr(seen, name) for name in SAME}
    decode, prompt = texts.decode, texts.decode(seen.prompt)
    return RolloutRecord(
        **said,
        turns=len(seen.turns),
        prompt=prompt,
        response=decode(seen.ids),
        expected=texts.expected(seen.split, seen.prompt_index, prompt),
        failed_calls=Counter(turn.failed for turn in seen.turns if turn.failed),
        messages=messages_of(seen, decode) if seen.turns else [],
        printed=texts.printed(seen.rollout),
    )


def facts(one: SeenRollout | RolloutRecord) -> list[str]:
    """Facts about a rollout beside its text, in a few words each."""
    turns = one.turns if isinstance(one.turns, int) else len(one.turns)
    versions = [span.version for span in one.spans]
    left_out = ", ".join(f"{count} {reason}" for reason, count in sorted(one.left_out.items()))
    oldest, newest_version = min(versions, default=0), max(versions, default=0)
    found = [
        f"rollout {one.rollout}",
        SPLITS[one.split],
        f"prompt {one.prompt_index}",
        f"group {one.group}",
        f"reward {one.reward:g}" if one.reward is not None else "",
        f"no verdict: {one.no_verdict}" if one.no_verdict else "",
        f"{one.tokens} tokens",
        f"{turns} turns" if turns else "",
        f"version {oldest}" + (f" to {newest_version}" if newest_version > oldest else ""),
        f"step {one.step}" if one.step is not None else "",
        f"lag {one.lag}" if one.lag is not None else "",
        f"{one.attempts} attempts" if one.attempts > 1 else "",
        one.finish,
        became(one),
        f"tokens left out of the loss: {left_out}" if left_out else "",
    ]
    return [fact for fact in found if fact]


def became(one: SeenRollout | RolloutRecord) -> str:
    """Say what became of a rollout, or is its state by now."""
    if (one.split, one.status, one.reason) == ("evaluation", "discarded", "evaluation"):
        return "evaluated"
    return f"{one.status}: {one.reason}" if one.reason else one.status


def shown(one: RolloutRecord) -> str:
    """A few printable lines, and an empty one."""
    rows = [("expected", one.expected)] if one.expected else []
    rows += [("image", f"images/{image}") for image in one.images]
    rows += [("failed", failure) for failure in one.failures]
    if one.failed_calls:
        rows.append(("failed", ", ".join(f"{n} calls of {t}" for t, n in one.failed_calls.items())))
    if one.messages:
        rows += chain.from_iterable(map(_lines, one.messages))
    else:
        rows += [("prompt", one.prompt), ("response", one.response)]
    rows += [("printed", text.strip()) for text in one.printed.values()]
    return "\n".join(
        [
            "  ".join(map(escaped, facts(one))),
            *(f"  {escaped(name, 40):<{NAME}} {escaped(text)}" for name, text in rows),
            "",
        ]
    )


def _lines(message: SeenMessage) -> Iterator[tuple[str, str]]:
    """A message as lines of a name and a text."""
    if message.follows is not None:
        yield "", f"from turn {message.follows}:"
    if message.thoughts:
        yield "thinks", message.thoughts
    if message.text or not (message.calls or message.thoughts):
        yield message.role, message.text
    for call in message.calls:
        yield "calls", f"{call.name} {call.arguments}"
    if message.failed:
        yield "failed", f"this call of {message.failed} failed"
