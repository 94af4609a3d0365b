"""Numbers as people and models write them. Invariant: a text that may mean another number is no
number.

| text | read as |
|---|---|
| `1234`, `1234.0`, `1.234e3`, `+1234`, `1234.` | 1234 |
| `1,234`, `1,234.50` | commas between groups of three digits: 1234, 1234.5 |
| `−5` (U+2212) | -5 |
| `$1,234.50`, `-$5`, `€5` | 1234.5, -5 and 5, of one currency: `$5` is not `€5`, and `5` is both |
| `1,2`, `1,23,456`, `0,123`, `1234,567` | no number: a list, or a decimal comma |
| `1/2`, `50%`, `1_000`, `1 000`, `1.234,5`, `12 apples`, `nan`, `inf` | no number |
"""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation
from typing import NamedTuple

_FORMS = str.maketrans(
    {"\N{MINUS SIGN}": "-"} | {0xFF10 + digit: str(digit) for digit in range(10)}
)
"""The minus of mathematics, and the digits of full width that East Asian texts have."""
_FORM = re.compile(
    r"""
    (?P<sign>[+-]?) (?P<currency>[$€£¥]?) (?P<inner>[+-]?)
    (?P<digits>(?: (?!0)[0-9]{1,3}(?:,[0-9]{3})+ | [0-9]+ ) (?:\.[0-9]*)? | \.[0-9]+)
    (?P<exponent>(?:[eE][+-]?[0-9]+)?)
    """,
    re.VERBOSE,
)


class WrittenNumber(NamedTuple):
    """A finite number and its currency, empty if none is written.

    >>> WrittenNumber(Decimal("5.0"), "$").equals(WrittenNumber(Decimal(5)))
    True
    """

    value: Decimal
    currency: str = ""

    def equals(self, other: WrittenNumber) -> bool:
        """True if the values are equal, and not in different currencies."""
        differ = self.currency and other.currency and self.currency != other.currency
        return self.value == other.value and not differ


def written_number(text: str) -> WrittenNumber | None:
    """The number that `text` is, up to white space at its ends; None if it is not one.

    >>> written_number(" $1,234.50 ")
    WrittenNumber(value=Decimal('1234.50'), currency='$')
    >>> written_number("1,2") is None
    True
    """
    found = _FORM.fullmatch(text.strip().translate(_FORMS))
    if found is None or (found["sign"] and found["inner"]):
        return None
    digits = found["digits"].replace(",", "")
    try:
        value = Decimal(found["sign"] + found["inner"] + digits + found["exponent"])
    except InvalidOperation:  # its exponent is too large
        return None
    return WrittenNumber(value, found["currency"]) if value.is_finite() else None


def same_number(answer: str, expected: str | float) -> bool:
    """True if `answer` is a number equal to the expected one. A float is compared as a float: the
    nearest one to what is written.

    >>> same_number("1,234", "1234.0"), same_number("4", 4.0), same_number("0.3", 0.1 + 0.2)
    (True, True, False)
    """
    found = written_number(answer)
    if found is None:
        return False
    if isinstance(expected, float):
        return float(found.value) == expected
    right = written_number(str(expected))
    return right is not None and found.equals(right)
