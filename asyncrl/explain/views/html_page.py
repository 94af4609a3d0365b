"""HTML that cannot be broken out of. Invariant: text becomes part of a page by `tag` alone, which
escapes it for HTML, and for whoever reads the page's source in a terminal.

A page is one file. Its Content-Security-Policy allows its own style sheet, by its hash, and its
scripts: those of its server, which may ask that server alone, or those that are written in it, by
their hashes, which may ask nobody. No picture but those that are written in it (images of
prompts), no other request, no style of another; and no text can become a script
(`require-trusted-types-for`).
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Iterable, Sequence
from hashlib import sha256
from html import escape, unescape
from itertools import chain, repeat

from asyncrl.escape import CUT, escaped, escaped_lines
from asyncrl.words import share

TEXT = 4000
"""Characters of a text of several lines, at most."""
_TAG = re.compile("<[^>]*>")
VOID = frozenset({"meta", "input", "img"})
"""Tags without an end."""


class Html(str):
    """A piece of a page, made by `tag`."""

    __slots__ = ()


def tag(name: str, /, *children: str, **attributes: str | float) -> Html:
    """An element of these children, of which those that are no Html are text. An attribute's name
    is written with `_` for `-`, and may end with `_` where Python has the word.

    >>> tag("p", "1 < 2", tag("b", "&"), class_="note")
    '<p class="note">1 &lt; 2<b>&amp;</b></p>'
    """
    said = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(_whole(str(value)))}"'
        for key, value in attributes.items()
    )
    if name in VOID:
        return Html(f"<{name}{said}>")
    return Html(f"<{name}{said}>{''.join(map(_html, children))}</{name}>")


def text_of(html: Html) -> str:
    """The text of a piece, without its tags.

    >>> text_of(tag("td", "1 < 2", title="a > b"))
    '1 < 2'
    """
    return unescape(_TAG.sub("", html))


def lines(text: str) -> Html:
    """Text that keeps its lines, cut where it is long: for an element that shows them."""
    cut = text if len(text) <= TEXT else text[:TEXT] + CUT
    return Html(escape(escaped_lines(cut)))


def joined(*pieces: Html) -> Html:
    """Pieces one after the other."""
    return Html("".join(pieces))


def table(rows: Iterable[Iterable[str]], columns: Sequence[str] = ()) -> Html:
    """Rows of cells under the names of their columns; without these, each row begins with its
    own name."""
    head = [tag("tr", *(tag("th", name, scope="col") for name in columns))] if columns else []
    first = "td" if columns else "th"
    body = (tag("tr", *map(tag, chain([first], repeat("td")), cells)) for cells in rows)
    return tag("table", *head, *body)


def meter(part: float, **attributes: str) -> Html:
    """A part of a whole, 0 to 1, as a bar."""
    return tag("meter", share(part), value=f"{min(1.0, max(0.0, part)):.4f}", **attributes)


def _whole(text: str) -> str:
    return escaped(text, 10 * len(text) + 1)  # an escape has at most ten characters


def _html(child: str) -> str:
    return child if isinstance(child, Html) else escape(escaped(child))


def page(
    title: str,
    style: str,
    *body: Html,
    scripts: Sequence[Html] = (),
    written: Sequence[str] = (),
) -> str:
    """A whole page with this style sheet. Its `scripts` come from its own server, which they may
    ask, or they are `written` in it, and ask nobody."""
    policy = (
        f"default-src 'none'; style-src {policy_digest(style)}; img-src data:; base-uri 'none'; "
        "form-action 'none'"
    )
    if written:
        policy += f"; script-src {' '.join(map(policy_digest, written))}"
    elif scripts:
        policy += "; script-src 'self'; connect-src 'self'"
    if scripts:
        policy += "; require-trusted-types-for 'script'; trusted-types 'none'"
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", title),
        Html(f"<style>{style}</style>"),
    )
    whole = tag("html", head, tag("body", *body, *scripts), lang="en")
    return f"<!doctype html>\n{whole}\n"


def policy_digest(text: str) -> str:
    """The digest of a style sheet or a script, as a Content-Security-Policy names it."""
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"
