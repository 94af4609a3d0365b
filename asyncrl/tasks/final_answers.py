"""The final answer in a response, and whether it is the expected one. Pure, and linear in the
response's length: a response is foreign text, and may be anything.
"""

from __future__ import annotations

import re
import unicodedata
from decimal import Decimal
from fractions import Fraction

from asyncrl.tasks.answer import Answer
from asyncrl.tasks.written_numbers import same_number, written_number

THOUGHT = "</think>"
"""The end of a response's reasoning, as most models write it."""
LONG = 2_000
"""Characters of the longest answer that is compared in another way than character by character."""
DIGITS = 400
"""Digits, and the exponent, of the largest number that is compared as a fraction."""


def spoken(answer: str) -> str:
    """The response behind its reasoning, or the whole of it if no reasoning ends in it.

    >>> spoken("Is it 4?</think>5"), spoken("5")
    ('5', '5')
    """
    whole = Answer.of(answer).text_special
    return (whole if THOUGHT in whole else str(answer)).rpartition(THOUGHT)[2]


# ------------------------------------------------------------------------------------------- boxes

_BOX = re.compile(r"\\f?box(?:ed)?\s*\{|\\boxed +(?P<bare>[^\s\\{}$]{1,100})|\\.|[{}]", re.DOTALL)


def last_boxed(text: str) -> str | None:
    r"""The contents of the last box with balanced braces: `\boxed{…}`, `\fbox{…}` or `\boxed 5`.
    None if there is none. Of a box within a box it is the inner one.

    >>> last_boxed(r"\boxed{1}, or rather \boxed{\frac{1}{2}}, or \boxed{3")
    '\\frac{1}{2}'
    """
    opened, best, found = list[int](), -1, None
    for part in _BOX.finditer(text):
        token = part[0]
        if part["bare"] is not None:
            if part.start() > best:
                best, found = part.start(), part["bare"].rstrip(".,;:")
        elif token == "{":
            opened.append(-1)
        elif token.endswith("{") and len(token) > 2:
            opened.append(part.end())
        elif token == "}" and opened and (start := opened.pop()) > best:
            best, found = start, text[start : part.start()]
    return found


# ----------------------------------------------------------------------------------------- numbers

_RUN = re.compile(
    r"(?P<date>(?<=/))?(?:\.(?=[0-9]))?[0-9](?:[.,]?[0-9])*+"
    r"(?P<rest>[eE][+-]?[0-9]++(?!\w)|(?(date)(?!)|/[0-9]++(?![\w/])))?"
)
"""Digits with marks between them, which may be several numbers."""
_AT_END = re.compile(r"(?:(?:(?<![0-9.,])[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+)\Z")
_MINUS = re.compile(r"(?:(?<![\w)\]}.%])[-\u2212](?:\\?[$€£¥])?|[$€£¥]-)\Z")
_DIGITS = {0xFF10 + digit: str(digit) for digit in range(10)}
_BEFORE = 4
"""Characters before a number that may be its sign and currency."""


def last_number(text: str) -> str | None:
    """The last number in a text, with its sign, commas, fraction or exponent; None if it has none.
    Digits behind a letter (`x2`) are none.

    >>> [last_number(text) for text in ("7 of 12.", "it is -3/4", "costs $1,234.50 in total", "no")]
    ['12', '-3/4', '1,234.50', None]
    """
    text = text.translate(_DIGITS)
    for typeset, plain in (("{,}", ","), ("\\,", ""), ("\\!", "")):
        text = text.replace(typeset, plain)
    found = None
    for run in _RUN.finditer(text):
        before = text[max(run.start() - 1, 0) : run.start()]
        if not (before.isalpha() or before == "_"):
            found = run
    if found is None:
        return None
    rest = found["rest"] or ""
    digits = found[0].removesuffix(rest)
    marked = digits.strip("0123456789")
    at_end = _AT_END.search(digits, max(len(digits) - LONG, 0)) if marked else None
    number = at_end[0] if at_end else digits
    before = text[max(found.start() - _BEFORE, 0) : found.start()]
    negative = len(number) == len(digits) and _MINUS.search(before)
    return "-" * bool(negative) + number + rest


_FRACTION = re.compile(
    r"(-?)(?:\\frac\{(-?[0-9]+)\}\{(-?[0-9]+)\}|(-?[0-9]+)/(-?[0-9]+))", re.ASCII
)


def value_of(text: str) -> Fraction | Decimal | None:
    r"""The number that a text is; one too large for a fraction is a Decimal. None if it is none.

    >>> value_of(r"-\frac{1}{2}"), value_of("3/4") == value_of("0.75"), value_of("12 apples")
    (Fraction(-1, 2), True, None)
    """
    text = text.strip()
    written = written_number(text)
    if written is not None:
        return _exact(written.value)
    form = _FRACTION.fullmatch(text) if len(text) < DIGITS else None
    if form is None:
        return None
    above, below = (int(part) for part in form.groups()[1:] if part)
    return None if not below else Fraction(above, below) * (-1 if form[1] else 1)


def _exact(value: Decimal) -> Fraction | Decimal:
    _, digits, exponent = value.as_tuple()
    small = len(digits) < DIGITS and abs(int(exponent)) < DIGITS
    return Fraction(value) if small else value


def same_value(found: str, expected: str | float) -> bool:
    """True if both are numbers, and equal: as fractions, or a float as the nearest one.

    >>> same_value("3/4", 0.75), same_value("1e999999999", "1e999999999"), same_value("2", "3")
    (True, True, False)
    """
    if same_number(found, expected):
        return True
    one, other = value_of(found), value_of(str(expected))
    return one is not None and type(one) is type(other) and one == other


# ------------------------------------------------------------------------------------- typesetting

_SPACES = re.compile(r"\\[!,;: ]|~|\\(?:left|right|displaystyle|limits|quad|qquad)(?![a-zA-Z])")
_UNIT = re.compile(
    r"(?:\\text|\\mathrm|\\mbox)\{\s[^{}]*\}$|[\s~]\\(?:text|mathrm|mbox)\{[^{}]*\}$"
)
_WORDS = re.compile(
    r"\\(?:text|textbf|textit|textrm|texttt|mathrm|mathbf|mathit|mbox|operatorname)\{([^{}]*)\}"
)
_FRAC = re.compile(r"\\[dtc]frac(?![a-zA-Z])")
_BARE = re.compile(r"\\frac\s*(\{[^{}]*\}|[0-9a-zA-Z])\s*(\{[^{}]*\}|[0-9a-zA-Z])")
_ROOT = re.compile(r"\\sqrt\s*([0-9a-zA-Z])")
_DEGREES = re.compile(r"\^\s*(?:\{\s*\\circ\s*\}|\\circ)|°|\\?%|[\\]degree")
_NAME = re.compile(r"[a-zA-Z](?:_\{?\w\}?)?\s*(?:=|\\in(?![a-zA-Z]))")
_SAME = {"\\leq": "\\le", "\\geq": "\\ge", "\\neq": "\\ne", "\\lbrace": "\\{", "\\rbrace": "\\}"}
_SAMES = re.compile("|".join(re.escape(name) + "(?![a-zA-Z])" for name in _SAME))


def plain_latex(text: str) -> str:
    r"""A text in the one form that those have which differ by typesetting alone: spaces, sizes of
    brackets, `\tfrac`, dollars, degrees and percent signs, units, `x =` before a value.

    >>> plain_latex(r"$x = \tfrac12\,\text{ cm}$"), plain_latex(r"\left(1,\, 2\right)")
    ('\\frac{1}{2}', '(1,2)')
    """
    text = unicodedata.normalize("NFC", text).strip()
    for start, end in (("$$", "$$"), ("$", "$"), ("\\(", "\\)"), ("\\[", "\\]")):
        if text.startswith(start) and text.endswith(end) and len(text) >= len(start + end):
            text = text[len(start) : len(text) - len(end)].strip()
    text = text.replace("\\$", "").replace("{,}", ",").replace("\u2212", "-").rstrip(".")
    text = _UNIT.sub("", text)
    text = _WORDS.sub(r"\1", _SPACES.sub("", _FRAC.sub(r"\\frac", text)))
    text = _SAMES.sub(lambda name: _SAME[name[0]], _DEGREES.sub("", text))
    text = _ROOT.sub(r"\\sqrt{\1}", _BARE.sub(_braced, text))
    named = _NAME.match(text)
    if named and text.count("=") <= 1:
        text = text[named.end() :]
    text = re.sub(r"\s+", "", text)
    return text.casefold() if text.isalpha() and len(text) > 1 else text


def _braced(form: re.Match[str]) -> str:
    above, below = (part if part.startswith("{") else f"{{{part}}}" for part in form.groups())
    return f"\\frac{above}{below}"


def same_final(found: str, expected: str | float) -> bool:
    r"""True if a final answer is the expected one: the same text, the same number, or the same form
    in other typesetting.

    >>> same_final(r"\tfrac{3}{4}", 0.75), same_final("1,000", 1000), same_final("yes", "Yes")
    (True, True, True)
    >>> same_final("x + 1", "1 + x"), same_final("(1, 2)", "[1, 2]")
    (False, False)
    """
    wanted = str(expected)
    boxed = last_boxed(wanted)
    wanted = wanted if boxed is None else boxed
    if found.strip() == wanted.strip() or same_value(found, expected):
        return True
    if max(len(found), len(wanted)) > LONG:
        return False
    one, other = plain_latex(found), plain_latex(wanted)
    return one == other != "" or same_value(one, other)


# ----------------------------------------------------------------------------------------- choices

# each repetition is bounded: of two beside each other, one would try all that the other leaves

_END = r"(?=\s{0,4}(?:[.,;:!?)\]}*<$'\"]|\\|$))"
"""A mark, or the end of its line: they stand behind a letter that is no word."""
_OPEN = r"[\s:*_(\[{$\"'=]{0,8}(?:\\(?:text|textbf|mathrm|mathbf|boxed)\{){0,2}[\s*(\[\"']{0,4}"
_LETTER = rf"(?:(?P<large>[A-HJ])(?![\w'])|(?P<small>[A-Ja-j])(?![\w']){_END})"
_IS = r"(?i:\s{1,3}(?:is|(?:would|should|must) be))?(?i:[\s:]{1,4}(?:option|choice|letter))?"
_SAID = re.compile(rf"(?i:\b(?:answer|ans)\b){_IS}{_OPEN}{_LETTER}", re.MULTILINE)
_CHOSEN = re.compile(
    rf"(?i:\b(?:option|choice|choose|select|pick|go with)\b){_IS}{_OPEN}{_LETTER}"
    r"|(?<![\w'])(?P<right>[A-HJ])[)\]*]{0,3} (?i:is (?:the )?(?:correct|right|best)\b)",
    re.MULTILINE,
)
_BARE_LETTER = re.compile(r"^[\s*_(\[]{0,4}(?P<letter>[A-J])[\s.:)\]*_]{0,6}$")
_ALONE = re.compile(
    r"^[\s*_(\[{$\"']*(?:\\(?:text|textbf|mathrm)\{)?[(\[]?(?P<letter>[A-Ja-j])[)\]}]*"
    r"(?:[.:)][ \t]*\S.*|[\s.:)*_\"'$\\}]*)$"
)
_IN_BRACKETS = re.compile(r"[(\[](?P<letter>[A-J])[)\]]")


def chosen_letter(text: str) -> str:
    r"""The letter from A to J that a response chooses; empty if it names none. A box counts first,
    then the last "answer is B", then the last "option B" or "B is correct", then a last line with
    one ("B. red", "so it is (B)"), a line with nothing else, a first line with one, and the last
    letter in brackets.

    >>> [chosen_letter(text) for text in (r"\boxed{\text{B}}", "B. red", "I take (C).", "a cat")]
    ['B', 'B', 'C', '']
    """
    box = last_boxed(text)
    if box is not None and len(box) < DIGITS:
        inner = re.fullmatch(r"\W*([A-Ja-j])(?:[).:]\s*.*|\W*)", _WORDS.sub(r"\1", box), re.DOTALL)
        if inner:
            return inner[1].upper()
    if said := _last(_SAID, text) or _last(_CHOSEN, text):
        letter: str = next(filter(None, said.groups()))
        return letter.upper()
    lines = [line for line in text.splitlines() if len(line) < LONG and line.strip()]
    tried = (
        (_ALONE, lines[-1:]),
        (_IN_BRACKETS, lines[-1:]),
        (_BARE_LETTER, lines[-50:]),
        (_ALONE, lines[:1]),
        (_IN_BRACKETS, [text]),
    )
    for pattern, parts in tried:
        for part in reversed(parts):
            if found := _last(pattern, part):
                return found["letter"].upper()
    return ""


def _last(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    found = None
    for match in pattern.finditer(text):
        found = match
    return found
