"""The newest rollouts as a part of the report and of the page: tokens in colours, by the version
that sampled them, by how likely they were, or by how much better than its group a rollout did;
episodes as trees. Which colours are shown is chosen with the style sheet alone, without a script.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import numpy as np

from asyncrl.escape import CUT
from asyncrl.explain.run_files import RunFiles
from asyncrl.explain.views.html_page import TEXT, Html, joined, lines, tag
from asyncrl.explain.views.rollout_records import Decode, decoder, facts, since
from asyncrl.explain.views.seen_rollouts import SeenRollout
from asyncrl.explain.views.seen_turns import SeenTurn
from asyncrl.words import share

ENDED, LIVING = 16, 4
"""Rollouts that are shown: of those that have ended, and of those that live and have tokens."""
SPANS = 20
"""Versions of a rollout that are listed."""
TOKENS = 2000
"""Tokens of a rollout that are shown, at most."""
DEEP = 32
"""Turns behind one another that a tree is indented for, at most."""
COLOURS = 8
"""Colours of versions; they begin again after so many."""
CHANCES = (0.9, 0.5, 0.1, 0.01)
"""The chances of a token below which it has another colour."""
COLOURED = {"version": "version", "chance": "log-probability", "gain": "advantage"}
"""Things that tokens may be coloured by: a name in the style sheet, and one for people."""
UNFINISHED = "\ufffd"
"""The end of a text whose last character is not whole."""

STYLE = """
fieldset{border:1px solid var(--line);border-radius:.4rem;margin:.5rem 0;padding:.3rem .8rem}
fieldset label{margin-right:1rem;display:inline-block;padding:.3rem 0}
pre{white-space:pre-wrap;overflow-wrap:anywhere;margin:.4rem 0;font-size:.9rem}
.tree{list-style:none;margin:.3rem 0;padding-left:.8rem;border-left:2px solid var(--line)}
.legend span{padding:0 .3rem;margin-right:.4rem;display:inline-block}
.legend{display:none}
""" + "".join(
    f".said:has(#by-{name}:checked) .legend.by-{name}{{display:block}}" for name in COLOURED
)
STYLE += "".join(
    f".said:has(#by-version:checked) .v{n}{{background:hsl({n * 360 // COLOURS} 70% 50%/.25)}}"
    for n in range(COLOURS)
)
STYLE += "".join(
    f".said:has(#by-chance:checked) .p{n}{{background:hsl({hue} 80% 50%/{share})}}"
    for n, hue, share in ((1, 50, 0.2), (2, 35, 0.3), (3, 20, 0.35), (4, 0, 0.45))
)
STYLE += (
    ".said:has(#by-gain:checked) .more{background:hsl(140 70% 45%/.25)}"
    ".said:has(#by-gain:checked) .less{background:hsl(0 80% 55%/.25)}"
)


def rollouts(files: RunFiles) -> Html:
    """The newest rollouts, the newest first, those that live before all. Raises ConfigError where
    the journal cannot be read."""
    found = _newest(files, 1)
    if len(found) < ENDED:  # the last checkpoint is new
        found = _newest(files, 2)
    notes: list[str] = []
    decode = decoder(files, notes.append)
    said = [*notes, *([] if found else ["The journal has none."])]
    return joined(
        *(tag("p", note, class_="dim") for note in said),
        *([_choice(), *_legends(found)] if found else []),
        *(_rollout(seen, decode) for seen in reversed(found)),
    )


def _newest(files: RunFiles, checkpoints: int) -> list[SeenRollout]:
    """The newest of those since so many checkpoints, those that live behind all."""
    ended, living = deque[SeenRollout](maxlen=ENDED), deque[SeenRollout](maxlen=LIVING)
    for seen in since(files, checkpoints):
        if seen.status in ("trained", "discarded", "buried"):
            ended.append(seen)
        elif seen.ids:
            living.append(seen)
    return [*ended, *living]


def _choice() -> Html:
    """The choice of colours."""
    choices = [
        tag(
            "label",
            tag("input", type="radio", name="by", id=f"by-{name}", **_checked(name)),
            f" {words}",
            for_=f"by-{name}",
        )
        for name, words in COLOURED.items()
    ]
    return tag("fieldset", tag("legend", "tokens coloured by"), *choices)


def _checked(name: str) -> dict[str, str]:
    return {"checked": ""} if name == "version" else {}


def _legends(found: Sequence[SeenRollout]) -> Iterator[Html]:
    """The meaning of the colours."""
    versions = sorted({span.version for seen in found for span in seen.spans})[-COLOURS:]
    named = [tag("span", f"version {v}", class_=f"v{v % COLOURS}") for v in versions]
    yield tag("p", *named, class_="legend by-version")
    bounds = [1.0, *CHANCES, 0.0]
    chances = [
        tag("span", f"{share(high)} to {share(low)}", class_=f"p{number}")
        for number, (high, low) in enumerate(pairwise(bounds))
    ]
    yield tag("p", "chance of the token when it was sampled: ", *chances, class_="legend by-chance")
    yield tag(
        "p",
        "reward less the mean of its group: ",
        tag("span", "above", class_="more"),
        tag("span", "below", class_="less"),
        "none: equal, or not known yet",
        class_="legend by-gain",
    )


def _rollout(seen: SeenRollout, decode: Decode) -> Html:
    gain = (
        None if seen.reward is None or seen.mean_reward is None else seen.reward - seen.mean_reward
    )
    said_of = [*facts(seen), *([f"advantage {gain:+.3g}"] if gain else [])]
    versions = ", ".join(str(span.version) for span in seen.spans[:SPANS])
    coloured = "more" if gain and gain > 0 else "less" if gain and gain < 0 else "even"
    said = _tokens(seen, decode)
    return tag(
        "details",
        tag("summary", ", ".join(said_of)),
        tag("pre", lines(decode(seen.prompt)), class_="dim"),
        _tree(seen.turns, said, decode, coloured)
        if seen.turns
        else tag("pre", tag("span", said(0, seen.tokens), class_=coloured)),
        tag("p", f"versions {versions}" if versions else "nothing sampled", class_="dim"),
    )


def _tokens(seen: SeenRollout, decode: Decode) -> Callable[[int, int], Html]:
    """A function that gives the sampled tokens [start, end) as text in runs of one colour."""
    versions = [span.version for span in seen.spans for _ in range(span.end - span.start)]
    chances = np.frombuffer(seen.behaviour, "<f4").tolist()
    kinds = [sum(p < bound for bound in CHANCES) for p in map(_chance, chances)]

    def text(start: int, end: int) -> Html:
        pieces, at, stop = [], start, min(end, TOKENS)
        while at < stop:
            to = at + 1
            while to < stop and (versions[to], kinds[to]) == (versions[at], kinds[at]):
                to += 1
            said = _decoded(seen.ids, at, to, decode)
            while said.endswith(UNFINISHED) and to < min(stop, at + TOKENS):
                to += 1  # the rest of a character
                said = _decoded(seen.ids, at, to, decode)
            version = versions[at]
            pieces.append(
                tag(
                    "span",
                    lines(said),
                    class_=f"v{version % COLOURS} p{kinds[at]}",
                    title=f"version {version}",
                )
            )
            at = to
        return joined(*pieces, *([lines(CUT)] if end > stop else []))

    return text


def _chance(logprob: float) -> float:
    return math.exp(min(0.0, logprob)) if math.isfinite(logprob) else 0.0


def _decoded(ids: bytes, start: int, end: int, decode: Decode) -> str:
    """The text of tokens as it is behind the one before: some tokenizers write a space only
    there."""
    if not start:
        return decode(ids[: 4 * end])
    before = decode(ids[4 * start - 4 : 4 * start])
    both = decode(ids[4 * start - 4 : 4 * end])
    return both[len(before) :] if both.startswith(before) else decode(ids[4 * start : 4 * end])


def _tree(
    turns: Sequence[SeenTurn], said: Callable[[int, int], Html], decode: Decode, coloured: str
) -> Html:
    """Turns as a list in a list: those that go on from a turn are below it, and deeper only where
    there are several."""
    starts, at = [], 0
    for turn in turns:
        starts.append(at)
        at += turn.tokens
    after: dict[int | None, list[int]] = {}
    for number, turn in enumerate(turns):
        after.setdefault(turn.parent, []).append(number)

    def item(number: int) -> Html:
        turn = turns[number]
        facts = [
            f"turn {number}",
            turn.role,
            f"{turn.tokens} tokens",
            f"reward {turn.reward:g}" if turn.reward is not None else "",
            f"failed call of {turn.failed}" if turn.failed else "",
            turn.finish,
        ]
        given = decode(turn.given[: 4 * TEXT]) if turn.given else ""
        return tag(
            "li",
            tag("p", ", ".join(filter(None, facts)), class_="dim"),
            *([tag("pre", lines(given), class_="dim")] if given else []),
            tag(
                "pre",
                tag("span", said(starts[number], starts[number] + turn.tokens), class_=coloured),
            ),
        )

    def below(parent: int | None, deep: int) -> Html:
        items: list[Html] = []
        while len(following := after.get(parent, [])) == 1:
            parent = following[0]
            items.append(item(parent))
        for number in following:
            rest = joined()
            if number in after:
                rest = below(number, deep + 1) if deep < DEEP else tag("p", CUT, class_="dim")
            items.append(tag("li", tag("ul", item(number), class_="tree"), rest))
        return tag("ul", *items, class_="tree")

    return below(None, 0)
