"""Further turns of an agent: the model has answered, rightly or not, reads a text that nobody knows
before the run, and the question again (`question_template.py`).

The texts are drawn: words that such texts have, and words of random letters. So the model learns to
pass over them, and over what it said before.
"""

from __future__ import annotations

import random

from asyncrl.bundled.bundled_model import END

TEXT = (
    "the a an is are you your it this that not no and or to of in with please check again try "
    "wrong right answer only result error tool value reply question look correct step by think "
    "sure final once more your last was use expected found none first letter number word text"
)
"""Words of such texts."""
WORDS = TEXT.split()
LETTERS = "eeeeetttaaaooinnsshrrdlcumwfgypbvkjxqz0123456789"
FURTHER = 0.4
"""Share of the prompts that come again."""


class FurtherTurns:
    """Prompts as an agent's calls have them: most once, some after earlier turns.

    >>> turns = FurtherTurns(0)
    >>> turns.before("Spell cat\\n", "tac").endswith("Spell cat\\n")
    True
    """

    def __init__(self, seed: int) -> None:
        self._draw = random.Random(seed)

    def before(self, prompt: str, answer: str) -> str:
        """The context in which the model is to give this answer."""
        draw, prompt = self._draw, prompt if prompt.endswith("\n") else f"{prompt}\n"
        context = prompt
        while draw.random() < FURTHER:
            text = self._text() if draw.random() < 0.8 else ""
            context += f"{self._said(answer)}{END}{text}{prompt}"
        return context

    def _said(self, answer: str) -> str:
        """An earlier reply of the model: the answer, a part of it, or something else."""
        cut = answer[: self._draw.randrange(len(answer) + 1)]
        return self._draw.choice((answer, cut, self._word(), self._text().rstrip()))

    def _text(self) -> str:
        said = self._word().capitalize()
        for _ in range(self._draw.randrange(12)):
            said += self._draw.choice((" ", " ", " ", " ", ", ", ": ", "-")) + self._word()
        return said + self._draw.choice((".", ".", "!", "?", "", ":")) + "\n"

    def _word(self) -> str:
        if self._draw.random() < 0.6:
            return self._draw.choice(WORDS)
        return "".join(self._draw.choices(LETTERS, k=self._draw.randint(1, 9)))
