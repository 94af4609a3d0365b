"""A task like a screen, drawn by Pillow: in which quarter is the button? `python -m
asyncrl.bundled.buttons FOLDER` writes screens and `rows.jsonl`, an ordinary data set with images.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

from asyncrl.files import write_whole

SIZE = 56
"""Pixels of a screen's side: four tokens of the small model, one for each quarter."""
LETTERS = "ABCD"
"""Names of the quarters, as one reads."""
ROWS = 512


def draw_screen(draw: random.Random, path: Path) -> str:
    """Draw a screen with a button among two bars and a line of text, and return its quarter."""
    from PIL import Image, ImageDraw

    half, shade = SIZE // 2, draw.randrange(200, 256)
    screen = Image.new("RGB", (SIZE, SIZE), (shade, shade, shade))
    pen = ImageDraw.Draw(screen)
    quarter = draw.randrange(4)
    for other in draw.sample([at for at in range(4) if at != quarter], 2):
        left, top = half * (other % 2) + draw.randrange(3, 7), half * (other // 2) + 8
        pen.rectangle((left, top, left + 18, top + draw.randrange(3, 7)), fill=(160, 160, 170))
    left = half * (quarter % 2) + draw.randrange(3, 10)
    top = half * (quarter // 2) + draw.randrange(3, 12)
    pen.rounded_rectangle((left, top, left + 15, top + 11), 3, fill=(30, 60, 220))
    screen.save(path)
    return LETTERS[quarter]


def write_buttons(folder: Path, rows: int = ROWS) -> None:
    """Write a data set of so many screens; the last fifth may be held out."""
    (folder / "screens").mkdir(parents=True, exist_ok=True)
    draw, lines = random.Random(0), list[str]()
    for number in range(rows):
        name = f"screens/{number}.png"
        answer = draw_screen(draw, folder / name)
        lines.append(json.dumps({"prompt": "Where?", "image": name, "answer": answer}))
    write_whole(folder / "rows.jsonl", "\n".join(lines) + "\n", forced=False)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m asyncrl.bundled.buttons FOLDER")
    write_buttons(Path(sys.argv[1]))
    print(f"{ROWS} screens, and questions about them, are in {sys.argv[1]}")
