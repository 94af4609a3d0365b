"""A rollout with its text: messages with their roles; tokens in colours, by the version that
sampled them, by how likely they were, or by how much better than its group the rollout did;
episodes as trees. Which colours are shown is chosen with the style sheet alone, without a script.
"""

from __future__ import annotations

import math
from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from itertools import islice, pairwise

import numpy as np

from asyncrl.escape import CUT
from asyncrl.experience.image_marks import numbered_alone
from asyncrl.explain.views.html_page import TEXT, Html, joined, lines, tag
from asyncrl.explain.views.rollout_records import facts
from asyncrl.explain.views.run_texts import RunTexts
from asyncrl.explain.views.seen_messages import Decode, given, said
from asyncrl.explain.views.seen_rollouts import SeenRollout
from asyncrl.words import share

SPANS = 20
"""Versions of a rollout that are listed."""
TOKENS = 2000
"""Tokens of a rollout that are shown, at most."""
STRETCHES = 12
"""Stretches of tokens that are listed for each reason to leave them out."""
MARKED = 1000
"""Stretches of such tokens that are marked."""
DEEP = 32
"""Turns behind one another that a tree is indented for, at most."""
IMAGE_BYTES = 2**20
"""Bytes of the images of a rollout that are shown, at most."""
COLOURS = 8
"""Colours of versions; they begin again after so many."""
CHANCES = (0.9, 0.5, 0.1, 0.01)
"""The chances of a token below which it has another colour."""
COLOURED = {"version": "version", "chance": "log-probability", "gain": "advantage"}
"""Things that tokens may be coloured by: a name in the style sheet, and one for people."""
ROLES = ("system", "user", "assistant", "tool", "sampled")
"""Roles of messages that have a colour."""
UNFINISHED = "\ufffd"
"""The end of a text whose last character is not whole."""


def rollout_detail(seen: SeenRollout, texts: RunTexts) -> Html:
    """A rollout with all of its text: its images, what it was given as messages, what was sampled
    in colours, an episode as a tree, a right answer where one is known, and what its agent
    printed."""
    gain, decode = seen.gain, texts.decode
    coloured = "more" if gain and gain > 0 else "less" if gain and gain < 0 else "even"
    tokens = _tokens(seen, decode)
    versions = ", ".join(str(span.version) for span in seen.spans[:SPANS])
    prompt = decode(seen.prompt)
    right = texts.expected(seen.split, seen.prompt_index, prompt)
    return tag(
        "div",
        tag("p", ", ".join(facts(seen)), class_="dim"),
        *(tag("p", failure, class_="dim") for failure in seen.failures),
        *([] if seen.turns else _images(seen.images, texts.png)),
        _given(prompt),
        _tree(seen, tokens, texts, coloured)
        if seen.turns
        else _sampled(tokens(0, seen.tokens), decode(seen.ids), coloured),
        *([_message("right answer", lines(right))] if right else []),
        *(
            _message(f"printed by attempt {attempt}", lines(text))
            for attempt, text in texts.printed(seen.rollout).items()
        ),
        *([_left_out(seen)] if seen.left_out else []),
        tag("p", f"versions {versions}" if versions else "nothing sampled", class_="dim"),
        class_="rollout",
        id=f"rollout-{seen.rollout}",
    )


def _left_out(seen: SeenRollout) -> Html:
    """Say which tokens did not enter the loss, by their numbers from 0."""
    said = list[str]()
    for reason, count in sorted(seen.left_out.items()):
        places = seen.places.get(reason, [])
        shown = ", ".join(_stretch(*place) for place in places[:STRETCHES])
        known = sum(end - start for start, end in places[:STRETCHES])
        rest = f" and {count - known:,} more" if known < count else ""
        said.append(f"{reason} {shown}{rest}" if shown else f"{count:,} {reason}")
    return tag("p", f"left out of the loss (struck through): {'; '.join(said)}", class_="dim")


def _stretch(start: int, end: int) -> str:
    return f"{start:,}" if end == start + 1 else f"{start:,} to {end - 1:,}"


def _images(names: Sequence[str], png: Callable[[str], bytes]) -> Iterator[Html]:
    """Images, up to IMAGE_BYTES in all, in place of an address: a page asks nobody for them. One
    that cannot be read is a sentence."""
    left = IMAGE_BYTES
    for name in names:
        try:
            data = png(name)
        except ValueError as error:
            yield tag("p", str(error), class_="dim")
            continue
        left -= len(data)
        if left < 0:
            yield tag("p", f"an image of {len(data):,} bytes: images/{name}", class_="dim")
            continue
        source = f"data:image/png;base64,{b64encode(data).decode()}"
        yield tag("img", alt="an image that the model was given", src=source)


def _given(text: str) -> Html:
    """A text that a model was given, as the messages of which it is made."""
    return joined(*(_message(message.role, lines(message.text)) for message in given(text)))


def _sampled(tokens: Html, text: str, coloured: str) -> Html:
    """The sampled tokens as the model's message, and the calls of tools in their text."""
    calls = (tag("code", f"{call.name}({call.arguments[:TEXT]})") for call in said(text).calls)
    called = [tag("p", "calls ", call) for call in calls]
    return joined(_message("sampled", tag("span", tokens, class_=coloured)), *called)


def _message(role: str, body: Html) -> Html:
    coloured = f"message {role}" if role in ROLES else "message"
    return tag("div", tag("span", role, class_="role"), tag("pre", body), class_=coloured)


def choice() -> Html:
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


def legends(found: Sequence[SeenRollout]) -> Iterator[Html]:
    """The meaning of the colours."""
    versions = sorted({span.version for seen in found for span in seen.spans})[-COLOURS:]
    named = [tag("span", f"version {v}", class_=f"v{v % COLOURS}") for v in versions]
    out = [tag("del", "left out of the loss")] if any(one.places for one in found) else []
    yield tag("p", *named, *out, class_="legend by-version")
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


def _tokens(seen: SeenRollout, decode: Decode) -> Callable[[int, int], Html]:
    """A function that gives the sampled tokens [start, end) as text in runs of one colour."""
    versions = [span.version for span in seen.spans for _ in range(span.end - span.start)]
    chances = np.frombuffer(seen.behaviour, "<f4").tolist()
    kinds = [sum(p < bound for bound in CHANCES) for p in map(_chance, chances)]
    notes = _notes(seen)

    def text(start: int, end: int) -> Html:
        pieces, at, stop = [], start, min(end, TOKENS)
        while at < stop:
            to = at + 1
            look = versions[at], kinds[at], notes.get(at)
            while to < stop and (versions[to], kinds[to], notes.get(to)) == look:
                to += 1
            said = _decoded(seen.ids, at, to, decode)
            while said.endswith(UNFINISHED) and to < min(stop, at + TOKENS):
                to += 1  # the rest of a character
                said = _decoded(seen.ids, at, to, decode)
            version, note = versions[at], notes.get(at, "")
            pieces.append(
                tag(
                    "del" if note else "span",
                    lines(said),
                    class_=f"v{version % COLOURS} p{kinds[at]}",
                    title=f"version {version}{note}",
                )
            )
            at = to
        return joined(*pieces, *([lines(CUT)] if end > stop else []))

    return text


def _notes(seen: SeenRollout) -> dict[int, str]:
    """Reasons why tokens of the first TOKENS did not enter the loss, by their numbers. Places may
    be any numbers, and as many."""
    every = ((reason, *place) for reason, places in seen.places.items() for place in places)
    return {
        at: f", left out of the loss: {reason}"
        for reason, start, end in islice(every, MARKED)
        for at in range(max(start, 0), min(end, seen.tokens, TOKENS))
    }


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
    seen: SeenRollout, tokens: Callable[[int, int], Html], texts: RunTexts, coloured: str
) -> Html:
    """Turns as a list in a list: those that go on from a turn are below it, and deeper only where
    there are several."""
    turns, starts, at, decode = seen.turns, list[int](), 0, texts.decode
    for turn in turns:
        starts.append(at)
        at += turn.tokens
    pictures = dict(zip(seen.images, _images(seen.images, texts.png), strict=True))
    after: dict[int | None, list[int]] = {}
    for number, turn in enumerate(turns):
        after.setdefault(turn.parent, []).append(number)

    def item(number: int) -> Html:
        turn = turns[number]
        facts = [
            f"turn {number}",
            f"{turn.tokens} tokens",
            f"reward {turn.reward:g}" if turn.reward is not None else "",
            f"failed call of {turn.failed}" if turn.failed else "",
            turn.finish,
        ]
        context = decode(turn.given[: 4 * TEXT]) if turn.given else ""
        start, end = starts[number], starts[number] + turn.tokens
        return tag(
            "li",
            tag("p", ", ".join(filter(None, facts)), class_="dim"),
            *(pictures[name] for name in numbered_alone(turn.given, seen.images)[1]),
            _given(context),
            _sampled(tokens(start, end), decode(seen.ids[4 * start : 4 * end]), coloured),
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
