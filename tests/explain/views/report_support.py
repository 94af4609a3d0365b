"""A page as a browser's parser sees it, and a run that has all of what a report shows."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

from look_support import evaluation, life, make_journal, make_run, status, step

from asyncrl.bundled.bundled_model import write_tokenizer
from asyncrl.experience import events as e
from asyncrl.explain.views.assets import SCRIPTS, asset
from asyncrl.runtime.run_dir import INITIAL

TAGS = """
html head meta title style script body main header nav section h1 h2 h3 p div table thead tbody tr
th td meter progress span svg polyline details summary pre ol ul li b dl dt dd fieldset legend label
input button a noscript del bdi
"""
NAMES = """
lang charset http-equiv content name class title value max viewbox preserveaspectratio role points
id scope type for checked disabled hidden placeholder tabindex href src defer data-every data-curves
data-sort data-open data-pick data-value data-words data-run aria-label aria-hidden aria-live
aria-pressed aria-expanded data-at data-older data-looked dir
"""


class Parsed(HTMLParser):
    """The elements, attributes and text of a page, as a browser sees them."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = self.style = ""
        self.scripts: list[str] = []
        self.feed(source)
        self.close()

    def handle_starttag(self, name: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(name)
        self.attributes += attributes
        if name not in ("meta", "input", "img"):
            self.open.append(name)

    def handle_endtag(self, name: str) -> None:
        assert self.open.pop() == name

    def handle_data(self, data: str) -> None:
        if self.open[-1:] == ["style"]:
            self.style += data
        elif self.open[-1:] == ["script"]:
            self.scripts.append(data)
        else:
            self.text += data

    def harmless(self) -> None:
        """Nothing is there but what a report is made of, and each element is closed."""
        assert set(self.tags) <= set(TAGS.split())
        assert {name for name, _ in self.attributes} <= set(NAMES.split())
        assert self.scripts in ([], [asset(name) for name in SCRIPTS])
        links = (value or "" for name, value in self.attributes if name in ("href", "src"))
        assert all(link.startswith(("#", "run/", "assets/", "../../", "/")) for link in links)
        assert not self.open and self.tags.count("style") == 1
        assert all(one.isprintable() for one in self.text.replace("\n", ""))


def whole_run(tmp_path: Path, text: str = "42") -> Path:
    points = [evaluation(0, 0.25), *(step(v) for v in range(1, 6)), evaluation(5, 0.75)]
    run = make_run(tmp_path / "r", points, status=status(ok=True, reason="done"))
    (run / INITIAL).mkdir()
    write_tokenizer(run / INITIAL)
    make_journal(run, [e.Published(0), *life(0, text=text, version=3)])
    return run
