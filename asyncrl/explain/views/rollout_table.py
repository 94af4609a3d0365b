"""The newest rollouts as a table that can be browsed: `assets/rollouts.js` sorts and filters it,
opens a rollout, and lays two beside each other.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from asyncrl.explain.views.html_page import Html, joined, tag, text_of
from asyncrl.explain.views.kept_rollouts import FoundRollouts, KeptRollouts
from asyncrl.explain.views.rollout_part import choice, legends, rollout_detail
from asyncrl.explain.views.rollout_records import SPLITS, became
from asyncrl.explain.views.seen_messages import Decode
from asyncrl.explain.views.seen_rollouts import SeenRollout
from asyncrl.explain.views.seen_run import SeenRun

SNIPPET = 70
"""Characters of a text that a row has."""
SNIPPET_TOKENS = 80
WRITTEN = 24
"""Rollouts that a report has with all of their text."""
COLUMNS = (
    "rollout",
    "split",
    "prompt",
    "response",
    "reward",
    "advantage",
    "tokens",
    "lag",
    "end",
    "outcome",
)
RANKS: dict[str, Callable[[SeenRollout], float | None]] = {
    "rollout": lambda one: one.rollout,
    "reward": lambda one: one.reward,
    "advantage": lambda one: one.gain,
    "tokens": lambda one: one.tokens,
    "lag": lambda one: one.lag,
}
"""Numbers of a rollout, by the columns that have them."""


def rollouts(seen: SeenRun) -> Html:
    """The table, the newest first. Raises ConfigError where the journal cannot be read."""
    if seen.standing == "begins":
        return tag("p", "None yet.", class_="dim")
    found = seen.rollouts.renewed()
    notes = [*found.notes, *([] if found.rollouts else ["The journal has none yet."])]
    said = [tag("p", note, class_="dim") for note in notes]
    if not found.rollouts:
        return joined(*said)
    head = [
        tag("th", tag("button", name, type="button", data_sort=place), scope="col")
        for place, name in enumerate(COLUMNS)
    ]
    body = (_row(one, found) for one in found.rollouts)
    return joined(
        *said,
        tag("div", _tools(), choice(), class_="tools"),
        *legends(found.rollouts),
        tag(
            "div",
            tag(
                "table",
                tag("thead", tag("tr", tag("th", "compare", scope="col"), *head)),
                tag("tbody", *body),
            ),
            class_="scroll",
            tabindex=0,
            role="region",
            aria_label="rollouts",
        ),
        tag(
            "p",
            tag("button", "Look further back", type="button", id="rollout-older", hidden=""),
            " ",
            tag("button", "Newest only", type="button", id="rollout-newest", hidden=""),
            " ",
            tag("span", class_="dim", id="rollout-looked", aria_live="polite"),
            data_older=found.older or "",
        ),
        tag("div", class_="compared", aria_live="polite"),
    )


def older(kept: KeptRollouts, until: int, column: str, down: bool, words: str) -> Html:
    """Rows of rollouts that ended by event `until`, as a look finds them: those that have the
    `words`, the ones of the largest number of a column (`down`), or of the smallest, where it has
    numbers. Raises ConfigError."""
    known = kept.known()
    asked = [_pattern(word) for word in re.split(r"\s*,\s*", words.lower().strip()) if word]
    number = RANKS.get(column)

    def fits(one: SeenRollout) -> bool:
        return not asked or _has(_row(one, known), asked)

    def rank(one: SeenRollout) -> float | None:
        value = number(one) if number is not None else None
        return value if down or value is None else -value

    found = kept.look(until, fits, None if number is None else rank)
    return joined(
        tag("table", tag("tbody", *(_row(one, found) for one in found.rollouts))),
        tag("p", data_older=found.older or "", data_looked=found.looked),
    )


def _pattern(word: str) -> re.Pattern[str]:
    """A word as it is looked for: `prompt 7` is not in `prompt 70`."""
    return re.compile(re.escape(word) + ("(?![0-9])" if re.search("[0-9]$", word) else ""))


def _has(row: Html, asked: list[re.Pattern[str]]) -> bool:
    """True for a row that the filter shows (`assets/rollouts.js`)."""
    words = re.search('data-words="([^"]*)"', row)
    said = f"{text_of(row)} {words[1] if words else ''}".lower()
    return all(one.search(said) for one in asked)


def written(found: FoundRollouts) -> Html:
    """The first rollouts with all of their text, for a report, where nobody can be asked."""
    texts = (rollout_detail(one, found.texts) for one in found.rollouts[:WRITTEN])
    return tag("div", *texts, id="written", hidden="")


def _tools() -> Html:
    return joined(
        tag(
            "label",
            "filter ",
            tag("input", type="search", id="rollout-filter", placeholder="words, group 12, stop"),
            for_="rollout-filter",
        ),
        tag("button", "Compare two", type="button", id="rollout-compare", disabled=""),
    )


def _row(seen: SeenRollout, found: FoundRollouts) -> Html:
    gain, decode, number = seen.gain, found.texts.decode, str(seen.rollout)
    cells = [
        _snippet(seen.prompt, decode, last=True),
        _snippet(seen.ids, decode, last=False),
        _number(seen.reward) if seen.reward is not None else _plain(seen.no_verdict or "–"),
        _number(gain, "more" if gain and gain > 0 else "less" if gain and gain < 0 else ""),
        _number(seen.tokens),
        _number(seen.lag),
        _plain(seen.finish),
        _plain(became(seen)),
    ]
    where = f"group {seen.group}, prompt {seen.prompt_index}"
    at = found.ends.get(seen.rollout, "")
    opens = tag(
        "button", number, type="button", data_open=number, data_at=at, aria_expanded="false"
    )
    chosen = tag("input", type="checkbox", data_pick=number, aria_label=f"compare {number}")
    return tag(
        "tr",
        tag("td", chosen),
        tag("td", opens, data_value=seen.rollout, title=where),
        tag("td", SPLITS[seen.split], title=where),
        *cells,
        data_words=f"{where} {seen.finish}",
    )


def _snippet(ids: bytes, decode: Decode, *, last: bool) -> Html:
    """The end of what was given, or the beginning of what was said, in one line."""
    part = ids[-4 * SNIPPET_TOKENS :] if last else ids[: 4 * SNIPPET_TOKENS]
    text = " ".join(decode(part).split())
    cut = len(part) < len(ids) or len(text) > SNIPPET
    if cut:
        text = f"…{text[-SNIPPET:]}" if last else f"{text[:SNIPPET]}…"
    if last:  # the cell shows its end, too
        return tag("td", tag("bdi", text or "–", dir="ltr"), class_="text end")
    return tag("td", text or "–", class_="text")


def _number(value: float | None, coloured: str = "") -> Html:
    if value is None:
        return tag("td", "–", class_="number")
    text = f"{value:,}" if isinstance(value, int) else f"{value:.3g}"
    return tag("td", text, class_=f"number {coloured}".strip(), data_value=value)


def _plain(text: str) -> Html:
    return tag("td", text)
