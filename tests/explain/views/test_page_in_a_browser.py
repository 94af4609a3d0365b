"""The page and the report in a real browser: their looks as numbers, keys, and a run that means
harm. Skipped where there is no Chromium (`apt-get install chromium`)."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import trio
from browser import CHROMIUM, Browser, browser
from hostile import HOSTILE_SUMMARY, hostile_status
from look_support import HOSTILE, evaluation, ids_of, life, make_journal, make_run, status, step

from asyncrl.bundled.bundled_model import write_tokenizer
from asyncrl.config import Config
from asyncrl.config.load import write
from asyncrl.config.schema.train_section import TrainConfig
from asyncrl.experience import events as e
from asyncrl.explain import run_status, summary
from asyncrl.explain.run_status import ActorStatus, GroupCounts
from asyncrl.explain.views import kept_rollouts
from asyncrl.explain.views.assets import SCRIPTS
from asyncrl.explain.views.page_process import serve_page
from asyncrl.explain.views.report import write_report
from asyncrl.explain.views.run_parts import PARTS
from asyncrl.messages import Scored, Wait
from asyncrl.runtime.run_dir import INITIAL, RUN_TOML, STATUS, SUMMARY

pytestmark = pytest.mark.skipif(not CHROMIUM, reason="no Chromium is installed")

CONTRAST = """
(() => {
  const part = c => (c /= 255) <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
  const light = ([r, g, b]) => 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b);
  const numbers = text => text.match(/[\\d.]+/g).map(Number);
  const rgba = text => [...numbers(text), 1].slice(0, 4);
  const over = (top, below) => top.slice(0, 3).map((c, i) => c * top[3] + below[i] * (1 - top[3]));
  const behind = one => {
    const all = [];
    for (; one; one = one.parentElement) all.push(rgba(getComputedStyle(one).backgroundColor));
    return all.reverse().reduce((below, top) => over(top, below), [255, 255, 255]);
  };
  const found = [];
  for (const one of document.querySelectorAll("body *")) {
    const text = [...one.childNodes].some(n => n.nodeType === 3 && n.textContent.trim());
    if (!text || !one.getClientRects().length || one.closest("meter")) continue;
    const style = getComputedStyle(one);
    const back = behind(one);
    const front = over(rgba(one instanceof SVGElement ? style.fill : style.color), back);
    const [low, high] = [light(front), light(back)].sort((a, b) => a - b);
    const ratio = (high + 0.05) / (low + 0.05);
    if (ratio < 4.5) found.push(`${one.tagName}.${one.className} ${ratio.toFixed(2)}`);
  }
  return found;
})()
"""
"""Elements whose text has a contrast below 4.5, as WCAG 2 defines it."""
SMALL = """
[...document.querySelectorAll("body *")].filter(one =>
  [...one.childNodes].some(n => n.nodeType === 3 && n.textContent.trim())
  && one.getClientRects().length && one.getBoundingClientRect().height < 10 && !one.closest("meter")
).map(one => one.outerHTML.slice(0, 80))
"""
"""Elements whose text is less than ten pixels high."""
THERE = "[...document.querySelectorAll('section')].every(one => one.dataset.tag)"
CONTROLS = (
    "a[href], button:not([disabled], [hidden]), summary, select, [tabindex='0'], "
    "input:is(:checked, :not([type=radio]))"
)
DRAWN = "document.querySelectorAll('.card canvas').length"


def idle_run(run: Path, text: str = "42") -> Path:
    """A run that waits, with an episode that branches, and tokens that a correction rejected."""
    actors = [
        ActorStatus(
            name=name,
            role=role,  # type: ignore[arg-type]
            here=True,
            incarnation=0,
            pid=1,
            seconds=0.5,
            idle=idle,
            waits=[Wait("requests", name, 3.0, 60.0)],
            version=version,
        )
        for name, role, idle, version in (
            ("trainer-0", "trainer", {"command": 0.6}, None),
            ("rollout-0", "rollout", {"requests": 0.1}, 11),
            ("reward-0", "reward", {}, None),
        )
    ]
    standing = status(actors=actors, groups=GroupCounts(live=12, max_live=16, complete=3))
    points = [evaluation(0, 0.25), *(step(v) for v in range(1, 40)), evaluation(39, 0.75)]
    made = make_run(run, points, status=standing)
    (made / INITIAL).mkdir()
    write_tokenizer(made / INITIAL)
    ids = ids_of("abc")
    likely = np.log(np.array([0.95, 0.3, 0.001], "<f4")).tobytes()
    make_journal(
        made,
        [
            e.Published(0),
            *life(0, text=text, version=3),
            e.Admitted(1, 1, 1, "train", 3, ids, 99, played=True),
            e.Begun(1, "agents-0", 1),
            e.Called(1, 1, 2, None, ids, 5, 9, 1.0),
            e.Leased(2, "rollout-0", 1),
            e.Extended(2, 1, 0, 0, ids, likely),
            e.Answered(2, 1, "stop"),
            *(
                event
                for call in (3, 4)
                for event in (
                    e.Called(1, 1, call, (2, 6), ids, 100 + call, 9, 1.0),
                    e.Leased(call, "rollout-0", 1),
                    e.Extended(call, 1, 1, 0, ids, likely),
                    e.Answered(call, 1, "stop"),
                )
            ),
            e.Admitted(2, 5, 1, "train", 3, ids, 99),
            e.Leased(5, "rollout-0", 1),
            e.Extended(5, 1, 11, 0, ids, likely),
            e.Sealed(5, 1, "stop"),
            e.Judged(5, Scored(0.5)),
            e.Taken(11, [5]),
            e.Trained(5, 1, {"icepop": 2}, {"icepop": [(1, 3)]}),
        ],
    )
    return made


@contextmanager
def served(path: Path, tab: Browser, key: str = "") -> Iterator[str]:
    """The address of the page of a run, or of a folder, which the tab leaves before it ends."""
    said: list[int] = []
    begun, scope = threading.Event(), trio.CancelScope()
    token: list[trio.lowlevel.TrioToken] = []

    async def serve() -> None:
        token.append(trio.lowlevel.current_trio_token())
        with scope:
            async with trio.open_nursery() as nursery:
                said.append(await nursery.start(partial(serve_page, path, "127.0.0.1", 0, key)))
                begun.set()

    thread = threading.Thread(target=trio.run, args=(serve,))
    thread.start()
    assert begun.wait(60)
    try:
        yield f"http://127.0.0.1:{said[0]}/"
        tab.open("about:blank#left")
    finally:
        token[0].run_sync_soon(scope.cancel)
        thread.join()


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("browser")) as one:
        yield one


@pytest.fixture
def quiet(tab: Browser) -> Iterator[Browser]:
    """The browser, whose console must have nothing to say."""
    tab.said.clear()
    tab.asked.clear()
    tab.screen(1280, 900, dark=False)
    yield tab
    tab.open("about:blank#over")
    assert tab.said == []


def looks_good(tab: Browser) -> None:
    """Text has contrast and a size, and fits, in whatever colours tokens are."""
    tab.value("document.querySelectorAll('details').forEach(one => { one.open = true })")
    tab.value("document.querySelector('[data-open=\"5\"]').click()")
    tab.until("document.querySelector('tr.opened .rollout') !== null")
    rejected = "document.querySelector('tr.opened .sampled del')"
    assert tab.value(f"{rejected}.title.includes('icepop')")
    assert tab.value(f"getComputedStyle({rejected}).textDecorationLine") == "line-through"
    tab.until(f"{DRAWN} >= 8")
    for chosen in ("version", "chance", "gain"):
        tab.value(f"document.getElementById('by-{chosen}').checked = true")
        assert tab.value(CONTRAST) == []
    assert tab.value(SMALL) == []
    assert tab.value("document.documentElement.scrollWidth <= innerWidth"), "it fits"


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [390, 1280])
def test_page_and_report_are_readable(
    tmp_path: Path, quiet: Browser, width: int, dark: bool
) -> None:
    run = idle_run(tmp_path / "r")
    quiet.screen(width, 844, dark=dark)
    quiet.language("en-US@posix" if dark else "en-US")  # LANG=C is said so by some
    with served(run, quiet) as url:
        quiet.open(url)
        quiet.until(THERE)
        looks_good(quiet)
        for name in PARTS:
            text = quiet.value(f"document.getElementById('{name}').innerText")
            assert text.strip() and "loading" not in text
    asked = {one.removeprefix(url).split("/")[0] for one in quiet.asked}
    assert asked <= {"", "assets", "part", "rollout"}
    quiet.asked.clear()
    report = write_report(run, None, 1e9).resolve()
    quiet.open(report.as_uri())
    looks_good(quiet)
    assert quiet.asked == [report.as_uri()]


def test_keys_reach_every_control_and_each_shows_that_it_is_reached(
    tmp_path: Path, quiet: Browser
) -> None:
    run = idle_run(tmp_path / "r")
    with served(run, quiet) as url:
        quiet.open(url)
        quiet.until(THERE)
        quiet.value("document.getElementById('hold').click()")  # so that nothing is renewed
        count = quiet.value(f"document.querySelectorAll({CONTROLS!r}).length")
        assert count >= len(PARTS)
        reached = []
        for _ in range(count):
            quiet.press("Tab")
            width = quiet.value("parseFloat(getComputedStyle(document.activeElement).outlineWidth)")
            assert width >= 2, quiet.value("document.activeElement.outerHTML")
            reached.append(
                quiet.value(
                    f"[...document.querySelectorAll({CONTROLS!r})].indexOf(document.activeElement)"
                )
            )
        assert sorted(reached) == [*range(count)]
        assert quiet.value("document.activeElement.dataset.open") is not None
        quiet.press("Enter", "\r")
        quiet.until("document.querySelector('tr.opened .rollout') !== null")
        key = "document.querySelector('.card b').textContent"
        last = quiet.value(key)
        quiet.value("document.querySelector('.plot').focus()")
        quiet.press("ArrowLeft")
        assert quiet.value(key) != last, "the value of the place before"


def test_runs_are_laid_over_each_other_and_rollouts_are_browsed(
    tmp_path: Path, quiet: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(kept_rollouts.ENDED, "train", 0)  # they are a look away
    runs = tmp_path / "runs"
    idle_run(runs / "one")
    make_run(runs / "other", [step(v, reward=1.0 - v / 50) for v in range(1, 60)])
    with served(runs, quiet) as url:
        quiet.open(url)
        quiet.until("document.querySelectorAll('[data-run]').length === 2")
        for name in ("one", "other"):
            quiet.value(f"document.querySelector('[data-run={name}]').click()")
        quiet.value("document.getElementById('runs-compare').click()")
        quiet.until("location.hash.startsWith('#with=')")
        keys = "[...document.querySelectorAll('.card .keys')].map(one => one.innerText).join()"
        quiet.until(f"['one', 'other'].every(name => ({keys}).includes(name))")
        differences = "document.getElementById('differences')"
        quiet.until(f"{differences}?.innerText.includes('reward, last steps')")
        alone = "find(one => one.innerText === 'This run only').click()"
        quiet.value(f"[...document.querySelectorAll('.tools button')].{alone}")
        quiet.until(f"{differences} === null")
        quiet.open(f"{url}run/one/")
        quiet.until(f"{THERE} && {DRAWN} >= 8")
        cards = "[...document.querySelectorAll('.card')]"
        reward = f"{cards}.find(one => one.innerText.startsWith('Reward'))"
        quiet.value(f"{reward}.querySelector('.plot').focus()")
        quiet.press("Home")
        assert "0.01" in quiet.value(f"{reward}.querySelector('.keys').innerText")
        for words in ("Time", "Reset zoom"):
            quiet.value(
                "[...document.querySelectorAll('.tools button')]"
                f".find(one => one.innerText === '{words}').click()"
            )
        quiet.value("document.querySelector('.tools [type=checkbox]').click()")
        rows = "[...document.querySelectorAll('#rollouts tbody tr:not([hidden])')].length"
        newest = quiet.value(rows)
        quiet.value("document.getElementById('rollout-older').click()")
        quiet.until("document.getElementById('rollout-looked').innerText.includes('all that')")
        every = quiet.value(rows)
        assert every > newest
        quiet.value("document.querySelector('[data-further] [data-open]').click()")
        quiet.until("document.querySelector('tr.opened .rollout') !== null")
        field = "document.getElementById('rollout-filter')"
        quiet.value(f"{field}.value = 'zero_variance'; {field}.dispatchEvent(new Event('input'))")
        assert quiet.value(rows) < every
        quiet.value(f"{field}.value = ''; {field}.dispatchEvent(new Event('input'))")
        quiet.value("document.querySelectorAll('[data-sort]')[6].click()")
        cells = "document.querySelectorAll('#rollouts tbody tr td:nth-child(8)')"
        tokens = f"[...{cells}].map(one => one.innerText)"
        assert quiet.value(tokens) == sorted(quiet.value(tokens), key=int, reverse=True)
        quiet.value(
            "[...document.querySelectorAll('[data-pick]')].slice(0, 2).forEach(one => one.click())"
        )
        quiet.value("document.getElementById('rollout-compare').click()")
        quiet.until("document.querySelectorAll('.compared pre').length === 2")


QUESTIONS = {
    "Is it learning?": ([], "figures", "75%\n25% at first"),
    "How long yet?": ([], "head", "step 39 of 100"),
    "What limits it?": ([], "diagnosis", "generation is the slow side"),
    "What does it cost?": ([], "head", "of device time"),
    "What failed?": (["[href='#alarms']"], "alarms", "None."),
    "Which settings are not the defaults?": (["[href='#settings']"], "settings", "train.steps"),
    "What did it say on prompt 7?": (["type prompt 7", "[data-open='0']"], "rollouts", "right"),
    "Which tokens were rejected?": (["[data-open='5']"], "rollouts", "icepop 1 to 2"),
    "Are episodes sane?": (["[data-open='1']"], "rollouts", "turn 2, 3 tokens"),
    "What did yesterday's run do better?": (["choose other"], "differences", "reward, last steps"),
}
"""Questions of a stranger: clicks, of which two are the most, and a text that a part has then."""


def test_a_strangers_questions_are_answered_at_most_two_clicks_away(
    tmp_path: Path, quiet: Browser
) -> None:
    runs = tmp_path / "runs"
    write(Config(train=TrainConfig(steps=7)), idle_run(runs / "one", text="it is right") / RUN_TOML)
    make_run(runs / "other", [step(v, reward=1.0 - v / 50) for v in range(1, 60)])
    box = "document.querySelector('.tools select')"
    field = "document.getElementById('rollout-filter')"
    with served(runs, quiet) as url:
        quiet.open(f"{url}run/one/")
        quiet.until(f"{THERE} && {box}?.options.length > 1")
        for question, (clicks, part, answer) in QUESTIONS.items():
            assert len(clicks) <= 2
            quiet.value(f"{field}.value = ''; {field}.dispatchEvent(new Event('input'))")
            for click in clicks:
                match click.split(" ", 1):
                    case ["type", words]:
                        quiet.value(f"{field}.value = {words!r}")
                        quiet.value(f"{field}.dispatchEvent(new Event('input'))")
                    case ["choose", run]:
                        quiet.value(f"{box}.value = {run!r}")
                        quiet.value(f"{box}.dispatchEvent(new Event('change'))")
                    case _:
                        quiet.value(f"document.querySelector({click!r}).click()")
            shown = f"document.getElementById({part!r})?.innerText.includes({answer!r})"
            try:
                quiet.until(shown)
            except AssertionError:
                text = quiet.value(f"document.getElementById({part!r})?.innerText")
                pytest.fail(f"{question} {answer!r} is not in {text!r}")


@pytest.mark.explore
def test_parts_are_renewed_but_not_under_the_eyes_of_who_reads(
    tmp_path: Path, quiet: Browser
) -> None:
    run = idle_run(tmp_path / "r")
    flow = "document.getElementById('flow').innerText"
    with served(run, quiet) as url:
        quiet.open(url)
        quiet.until(THERE)
        quiet.value("document.getElementById('by-chance').checked = true")
        quiet.value("document.querySelector('[data-open]').click()")
        quiet.until("document.querySelector('tr.opened .rollout') !== null")
        run_status.write(status(step=77), run / STATUS)
        quiet.until(f"{flow}.includes('step 77 of 100')")
        assert quiet.value("document.querySelector('tr.opened') !== null")
        quiet.value("document.getElementById('hold').click()")
        assert quiet.value("document.getElementById('hold').innerText") == "Resume updates"
        run_status.write(status(step=78), run / STATUS)
        quiet.value("new Promise(later => setTimeout(later, 2500))")
        assert "step 77" in quiet.value(flow)
        quiet.value("document.getElementById('hold').click()")
        quiet.until(f"{flow}.includes('step 78 of 100')")
        assert quiet.value("document.querySelector('input:checked').id") == "by-chance"


def test_a_hostile_run_is_text_that_nothing_obeys(tmp_path: Path, quiet: Browser) -> None:
    harm = HOSTILE + "</pre><img src=x onerror=alert(1)><svg onload=alert(2)><a href=javascript:x>"
    run = idle_run(tmp_path / "r", text=harm)
    run_status.write(hostile_status(), run / STATUS)
    summary.write(HOSTILE_SUMMARY, run / SUMMARY)
    run = run.rename(tmp_path / "<script>alert(3)<script>"[:-8])

    def is_text() -> None:
        quiet.value("document.querySelectorAll('details').forEach(one => { one.open = true })")
        quiet.value("[...document.querySelectorAll('[data-open]')].at(-1).click()")
        quiet.until("document.querySelector('tr.opened .rollout') !== null")
        assert (
            quiet.value("document.querySelectorAll('img, iframe, [onerror], [onload]').length") == 0
        )
        assert quiet.value("document.querySelectorAll('a[href^=javascript]').length") == 0
        said = quiet.value("document.body.innerText")
        for text in ("<script>alert(1)</script>", "<img src=x onerror=alert(1)>", "\\u202e"):
            assert text in said
        assert not [one for one in said if not one.isprintable() and one not in "\n\t"]

    with served(run, quiet) as url:
        quiet.open(url)
        quiet.until(THERE)
        is_text()
        assert quiet.value("document.querySelectorAll('script').length") == len(SCRIPTS)
    quiet.open(write_report(run, None, 1e9).resolve().as_uri())
    is_text()
    assert quiet.value("document.querySelectorAll('script').length") == len(SCRIPTS)


def test_text_cannot_become_a_script_of_the_page(tmp_path: Path, tab: Browser) -> None:
    """Even where our own script was wrong."""
    tab.screen(1280, 900, dark=False)
    with served(idle_run(tmp_path / "r"), tab) as url:
        tab.open(url)
        for harm in (
            "document.body.innerHTML = '<b>x</b>'",
            "document.body.append(Object.assign(document.createElement('script'), {text: 'x'}))",
            "await fetch('http://127.0.0.2:1/')",
        ):
            tried = f"(async () => {{ {harm} }})().then(() => 'done', () => 'refused')"
            assert tab.value(tried) == "refused"
    tab.said.clear()


def test_with_a_key_the_page_is_one_step_behind_the_address(tmp_path: Path, quiet: Browser) -> None:
    with served(idle_run(tmp_path / "r"), quiet, "a-key") as url:
        quiet.open(f"{url}?key=a-key")
        quiet.value("document.querySelector('a').click()")
        quiet.until(f"location.href === {url!r} && {THERE}")
        assert "a-key" not in quiet.value("document.documentElement.outerHTML + document.cookie")
