"""The whole run in virtual time that the actors' tests have is used here too."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "actors"))
