"""The whole response is the expected text."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from typing import Any, ClassVar

from asyncrl.tasks.verifiers import BuiltIn
from asyncrl.tasks.written_numbers import same_number


class Exact(BuiltIn):
    """1 if the answer is the expected text, up to white space at its ends and Unicode's equivalent
    forms. A JSON number with a fraction or an exponent has no text of its own: it is compared as a
    number (`4.0` = `4`), and an integer by its digits.

    >>> Exact()(" twelve\\n", {"answer": "twelve"}), Exact()("It is twelve", {"answer": "twelve"})
    (1.0, 0.0)
    """

    kind: ClassVar[str] = "exact"

    def __call__(self, answer: str, line: Mapping[str, Any]) -> float:
        expected = line["answer"]
        if isinstance(expected, float):
            return float(same_number(answer, expected))
        return float(_plain(answer) == _plain(str(expected)))


def _plain(text: str) -> str:
    return unicodedata.normalize("NFC", text).strip()
