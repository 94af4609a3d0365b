"""The response chooses the expected option of several, by its letter."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar

from asyncrl.tasks.final_answers import chosen_letter, spoken
from asyncrl.tasks.verifiers import BuiltIn, shown

_LETTER = re.compile(r"\(?([A-Ja-j])[).:]?")


class ChosenLetter(BuiltIn):
    """1 if the letter that the response chooses is the line's, A to J, however it is written.

    >>> [ChosenLetter()(text, {"answer": "B"}) for text in ("(B)", "It is b. Answer: B", "A or B")]
    [1.0, 1.0, 0.0]
    """

    kind: ClassVar[str] = "choice"

    def __call__(self, answer: str, line: Mapping[str, Any]) -> float:
        return float(chosen_letter(spoken(answer)) == _letter(line["answer"]))

    def check(self, line: Mapping[str, Any]) -> None:
        super().check(line)
        _letter(line["answer"])


def _letter(answer: Any) -> str:
    """The letter of the right option. Raises LookupError."""
    found = _LETTER.fullmatch(str(answer).strip())
    if found is None:
        raise LookupError(
            f"its verifier is `choice` and its answer {shown(answer)} is no letter from A to J: "
            "write the letter of the right option, or name another verifier"
        )
    return found[1].upper()
