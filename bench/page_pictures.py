"""The pictures of README and docs/looking.md: the page of a run on a wide screen and on a phone,
and its report, in a real Chromium.

    python bench/page_pictures.py runs/first [--out docs]
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests/explain/views"))

from browser import Browser, browser

from asyncrl.explain.views.report import write_report

THERE = "[...document.querySelectorAll('section')].every(one => one.dataset.tag)"
DRAWN = "document.querySelectorAll('.card canvas').length >= 8"
FILTER = """
((words) => {
  const field = document.getElementById("rollout-filter");
  field.value = words;
  field.dispatchEvent(new Event("input"));
  document.getElementById("by-chance").click();
  document.querySelector("#rollouts tbody tr:not([hidden]) [data-open]").click();
})
"""
"""Filter the rollouts by words, colour tokens by their chance, and open the first."""
OPENED = "document.querySelector('tr.opened .rollout') !== null"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("run", type=Path)
    parser.add_argument("--out", type=Path, default=Path("docs"))
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as home, browser(Path(home)) as tab:
        with served(args.run) as url:
            for name, width, dark in (("desktop", 1440, False), ("phone", 390, True)):
                tab.screen(width, 900 if width > 1000 else 844, dark=dark)
                tab.open(url)
                tab.until(f"{THERE} && {DRAWN}")
                tab.picture(args.out / f"page-{name}.png")
            rollouts(tab, args.out / "page-phone-rollouts.png", "trained")
            tab.open("about:blank#left")
        report = write_report(args.run, Path(home) / "report.html", time.time()).resolve()
        tab.screen(1280, 1000, dark=False)
        tab.open(report.as_uri())
        tab.until(DRAWN)
        rollouts(tab, args.out / "report.png", "")  # it has the text of its newest alone


def rollouts(tab: Browser, path: Path, words: str) -> None:
    """Write a picture of the rollouts with these words, of which the first is opened."""
    tab.value(f"{FILTER}({words!r})")
    tab.until(OPENED)
    tab.value("document.getElementById('rollouts').scrollIntoView()")
    tab.picture(path)


@contextmanager
def served(run: Path) -> Iterator[str]:
    """The address of a run's page, as `asyncrl page` serves it."""
    command = [sys.executable, "-m", "asyncrl.cli", "page", str(run), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        found = re.search(r"http://\S+/", server.stdout.readline())
        assert found
        try:
            yield found[0]
        finally:
            server.terminate()


if __name__ == "__main__":
    main()
