"""Find and click the button: an environment with screens, drawn by Pillow (the extra `vision`).
`agent.run = "asyncrl.agents.examples.find_the_button:Screens"`, of a model that reads images.

Screens are drawn by the episode's seed, so a line of the task is only its number and how many it
has: `{"prompt": "7", "answer": "", "screens": 2}`. The answer to a screen is the letter of a
quarter, A to D as one reads, which is clicked.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from asyncrl.agents import Shown, Step

SIZE = 56
"""Pixels of a screen's side: four tokens of the bundled small model, one for each quarter."""
LETTERS, QUESTION = "ABCD", "Where?"
SCREENS, PATCHES = 2, 2
"""Buttons of an episode whose line does not say, and clicks that are patched, at most."""


class Screens:
    """Shows one button after another, each where the seed says. A click on it earns its share of
    1; one beside it shows the same screen with a mark where it fell, and earns nothing. Each screen
    may be clicked twice, and the second click earns half."""

    screens = 3
    """Of its history the model sees the newest screens alone."""

    def reset(self, entry: Mapping[str, Any], seed: int) -> Shown:
        self._draw = random.Random(seed)
        self._quarter, self._missed, self._patched = 0, 0, 0
        self._left = self._buttons = int(entry.get("screens", SCREENS))
        if not 1 <= self._buttons <= 16:
            raise ValueError(f"an episode has 1 to 16 screens, not {self._buttons}")
        self._next()
        return Shown(QUESTION, [self._screen()])

    def step(self, reply: str) -> Step:
        clicked = reply.strip()[:1].upper()
        hit = clicked == LETTERS[self._quarter]
        reward = hit / (1 + self._missed) / self._buttons
        if hit or self._missed:
            self._left -= 1
            if not self._left:
                return Step("", reward, done=True)
            self._next()
        else:
            self._missed = 1
            self._mark = LETTERS.find(clicked) if clicked else -1
        return Step(Shown(QUESTION, [self._screen()]), reward, done=False)

    def _next(self) -> None:
        """Draw the next screen's places: of the button, and of two bars elsewhere."""
        draw, half = self._draw, SIZE // 2
        self._missed, self._mark, self._quarter = 0, -1, draw.randrange(4)
        self._shade = draw.randrange(200, 256)
        others = draw.sample([at for at in range(4) if at != self._quarter], 2)
        self._bars = [
            (half * (at % 2) + draw.randrange(3, 7), half * (at // 2) + 8, draw.randrange(3, 7))
            for at in others
        ]
        self._place = (
            half * (self._quarter % 2) + draw.randrange(3, 10),
            half * (self._quarter // 2) + draw.randrange(3, 12),
        )

    def _screen(self) -> Any:
        from PIL import Image, ImageDraw

        screen = Image.new("RGB", (SIZE, SIZE), (self._shade,) * 3)
        pen = ImageDraw.Draw(screen)
        for left, top, height in self._bars:
            pen.rectangle((left, top, left + 18, top + height), fill=(160, 160, 170))
        left, top = self._place
        pen.rounded_rectangle((left, top, left + 15, top + 11), 3, fill=(30, 60, 220))
        if self._mark >= 0:
            x, y = SIZE // 2 * (self._mark % 2) + 20, SIZE // 2 * (self._mark // 2) + 20
            pen.ellipse((x, y, x + 6, y + 6), fill=(220, 30, 30))
        return screen


class PatchedScreens(Screens):
    """The game with UI-S1's semi-online patches (arXiv 2509.11543): after a click beside a button
    the history has the right letter in place of the reply, and the next screen comes, as if the
    expert had clicked. The third miss ends the episode."""

    def step(self, reply: str) -> Step:
        right, hit = LETTERS[self._quarter], reply.strip()[:1].upper() == LETTERS[self._quarter]
        self._left, self._patched = self._left - 1, self._patched + (not hit)
        done = not self._left or self._patched > PATCHES
        self._next()
        shown = Shown(QUESTION, [self._screen()])
        return Step(shown, hit / self._buttons, done, said="" if hit else right)
