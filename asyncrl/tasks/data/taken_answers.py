"""The answer that a solution ends with. Pure.

Data sets of mathematics write whole solutions as answers, and mark the result: gsm8k by `#### 12`,
MATH by `\\boxed{12}`. A verifier wants the result alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

_COMMA = re.compile(r"(?<=[0-9]),(?=[0-9]{3}(?![0-9]))")
_MARK = "####"
_BOXES = ("\\boxed", "\\fbox")


def after_mark(text: str) -> str | None:
    """The text behind the last `####`, a number without its commas; None without a mark.

    >>> after_mark("3 * 400 = 1200\\n#### 1,200")
    '1200'
    """
    _, mark, last = text.rpartition(_MARK)
    return _COMMA.sub("", last.strip()) if mark else None


def boxed(text: str) -> str | None:
    """The text in the last `\\boxed{}`; None without one that is closed.

    >>> boxed("so $x = \\\\boxed{\\\\frac{1}{2}}$.")
    '\\\\frac{1}{2}'
    """
    at = max(text.rfind(box) for box in _BOXES)
    if at < 0:
        return None
    rest = text[at:].partition("x" if text.startswith("\\fbox", at) else "d")[2].lstrip()
    if not rest.startswith("{"):  # `\boxed 5`
        return re.split(r"[\s$.]", rest, maxsplit=1)[0] or None
    depth = 0
    for place, character in enumerate(rest):
        depth += (character == "{") - (character == "}")
        if not depth:
            return rest[1:place].strip()
    return None


RULES: Mapping[str, tuple[Callable[[str], str | None], str]] = MappingProxyType(
    {
        "mark": (after_mark, "the answer is what stands behind its `####`"),
        "boxed": (boxed, "the answer is what stands in its last \\boxed{}"),
    }
)
"""Rules by name: what an answer is taken by, and the words on it."""


def rule_of(answers: Sequence[object]) -> str:
    """The rule by which each of these answers has a result; empty if there is none.

    >>> rule_of(["1 + 1 = 2\\n#### 2", "#### 3"]), rule_of(["#### 2", "3"])
    ('mark', '')
    """
    texts = [answer for answer in answers if isinstance(answer, str)]
    if not texts or len(texts) < len(answers):
        return ""
    for name, (take, _) in RULES.items():
        if all(take(text) for text in texts):
            return name
    return ""
