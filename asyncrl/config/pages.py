"""Pages of the docs that are generated from the schema: `python -m asyncrl.config.pages` (`make
pages`) writes them, in a checkout."""

from __future__ import annotations

from pathlib import Path

from asyncrl.config import Config, render

ROOT = Path(__file__).parents[2]


def pages() -> dict[Path, str]:
    """Return the text of each page."""
    return {ROOT / "docs/defaults.toml": render(Config())}


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")
