"""The folder of the user's for what can be made again."""

from __future__ import annotations

import os
from pathlib import Path


def cache() -> Path:
    """`$XDG_CACHE_HOME/asyncrl`, or `~/.cache/asyncrl`."""
    home = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(home) if home else Path.home() / ".cache") / "asyncrl"
