"""`python -m asyncrl.bundled.small_vision DIRECTORY ROWS.jsonl` as the tests of the pages run it:
the model is taught for three steps, and not until it answers, which takes 20 core seconds.
"""

from __future__ import annotations

import sys
from pathlib import Path

from asyncrl.bundled.small_vision import teach, write_vision_model

if __name__ == "__main__":
    directory, rows = map(Path, sys.argv[1:])
    write_vision_model(directory)
    teach(directory, rows, accuracy=0.3, steps=3)
