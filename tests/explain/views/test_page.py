"""The page of a living run, without a browser: who is answered, with what, and how often."""

from __future__ import annotations

import errno
import json
import os
import socket
import time
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import msgspec
import numpy as np
import pytest
import trio
from hostile import HOSTILE_SUMMARY, hostile_status
from look_support import evaluation, ids_of, life, make_journal, make_run, status, step
from report_support import Parsed, whole_run

from asyncrl.agents.printed import AttemptOutput, PrintedFile
from asyncrl.cli import main
from asyncrl.config.errors import ConfigError
from asyncrl.config.load import write
from asyncrl.config.schema import Config
from asyncrl.experience import events as e
from asyncrl.experience.episode import Strand, Turn
from asyncrl.explain import run_list, run_status, summary
from asyncrl.explain.curve import line_of
from asyncrl.explain.run_list import run_cells, runs_in
from asyncrl.explain.run_status import ActorStatus, GroupCounts
from asyncrl.explain.views.assets import SCRIPTS, STYLES, VENDORED, asset
from asyncrl.explain.views.flow_part import flow, who_waits
from asyncrl.explain.views.head_part import head
from asyncrl.explain.views.kept_rollouts import KeptRollouts
from asyncrl.explain.views.made_part import AGAIN_S
from asyncrl.explain.views.page_gate import ALWAYS, PageGate
from asyncrl.explain.views.page_process import loopback
from asyncrl.explain.views.rollout_part import rollout_detail
from asyncrl.explain.views.rollout_table import older
from asyncrl.explain.views.run_page import RunPage
from asyncrl.explain.views.run_parts import PARTS, RunPart
from asyncrl.explain.views.runs_page import RunsPage
from asyncrl.explain.views.seen_run import SeenRun
from asyncrl.explain.views.seen_turns import turns_of
from asyncrl.explain.views.settings_part import settings
from asyncrl.messages import Role
from asyncrl.runtime.ipc.waits import Waits
from asyncrl.runtime.run_dir import GAME, IMAGES, METRICS, RUN_TOML, STATUS, SUMMARY
from asyncrl.tasks.images.kept_images import KeptImages
from asyncrl.tasks.images.pixels import written_png
from asyncrl.words import NONE, clock

KEY = "0123456789abcdef"


HARM = "</pre><script>alert(1)</script>\x1b[2J\u202e"


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    return whole_run(tmp_path)


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    run = whole_run(tmp_path, text=HARM)
    run_status.write(hostile_status(), run / STATUS)
    summary.write(HOSTILE_SUMMARY, run / SUMMARY)
    return run


class Answered:
    """Status, headers and body of an answer."""

    def __init__(self) -> None:
        self.status, self.body, self.headers = 0, b"", dict[bytes, bytes]()

    async def send(self, event: Any) -> None:
        if event["type"] == "http.response.start":
            self.status, self.headers = event["status"], dict(event["headers"])
        else:
            self.body += event["body"]


async def receive() -> Any:
    raise AssertionError("a page reads no body")


async def ask(
    app: PageGate, path: str, *, host: str = "127.0.0.1:80", method: str = "GET", **headers: str
) -> Answered:
    answered = Answered()
    path, _, query = path.partition("?")
    named = {"host": host} | {name.replace("_", "-"): value for name, value in headers.items()}
    scope = {
        "type": "http",
        "method": method,
        "path": unquote(path),
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "headers": [(name.encode(), value.encode()) for name, value in named.items()],
    }
    await app(scope, receive, answered.send)
    assert {name: answered.headers[name] for name in ALWAYS} == ALWAYS
    return answered


def app_of(run: Path, key: str = "") -> PageGate:
    return PageGate(RunPage(run, waits=Waits(), now=lambda: 1e9), key=key, port=80)


async def test_it_has_each_part_of_the_report(whole: Path) -> None:
    app = app_of(whole)
    page = await ask(app, "/")
    assert (page.status, page.headers[b"content-type"]) == (200, b"text/html; charset=utf-8")
    found = Parsed(page.body.decode())
    assert set(PARTS) <= {value for name, value in found.attributes if name == "id"}
    for name in PARTS:
        part = await ask(app, f"/part/{name}")
        assert part.status == 200 and f'<section id="{name}"'.encode() in part.body
    assert b"6 * 7" in (await ask(app, "/part/rollouts")).body
    assert b"sampled" in (await ask(app, "/rollout/0")).body
    for number in ("1", "x", "-1", "9" * 30):
        assert (await ask(app, f"/rollout/{number}")).status == 404
    for name in SCRIPTS:
        assert (await ask(app, f"/assets/{name}")).status == 200
    assert (await ask(app, "/favicon.ico")).status == 204


async def test_its_policy_has_no_script_but_its_own(whole: Path) -> None:
    page = (await ask(app_of(whole), "/")).body.decode()
    policy = next(said for said in page.split('"') if said.startswith("default-src"))
    assert "script-src &#x27;self&#x27;" in policy and "unsafe" not in policy
    assert "require-trusted-types-for" in policy and page.count("<script") == len(SCRIPTS)


@pytest.mark.parametrize(
    ("host", "answered"),
    [
        ("127.0.0.1:8000", 200),
        ("localhost", 200),
        ("LOCALHOST:80", 200),
        ("[::1]:8000", 200),
        ("evil.example", 421),
        ("localhost.evil.example:80", 421),
        ("127.0.0.1.evil.example", 421),
        ("", 421),
    ],
)
async def test_a_page_on_loopback_has_no_other_name(
    tmp_path: Path, host: str, answered: int
) -> None:
    """Else a web page whose name is made to point here would read it."""
    app = app_of(make_run(tmp_path / "r"))
    assert (await ask(app, "/", host=host)).status == answered
    assert app.known([(b"host", host.encode())]) == (answered == 200)


async def test_who_has_not_the_key_gets_nothing(whole: Path) -> None:
    app = app_of(whole, KEY)
    for path in (
        "/",
        "/assets/page.js",
        "/part/rollouts",
        "/?key=",
        "/?key=x",
        f"/part/head?key={KEY}",
    ):
        assert (await ask(app, path, host="any.example")).status == 401
    for cookie in ("asyncrl_page_80=x", f"asyncrl_page_81={KEY}", KEY, "asyncrl_page_80="):
        assert (await ask(app, "/", cookie=cookie)).status == 401
        assert not app.known([(b"cookie", cookie.encode())])
    given = await ask(app, f"/?key={KEY}", host="any.example")
    cookie = given.headers[b"set-cookie"].decode()
    assert given.status == 200 and "HttpOnly; SameSite=Strict" in cookie
    assert b"6 * 7" not in given.body and KEY.encode() not in given.body
    sent = f"other=1; {cookie.partition(';')[0]}"
    assert (await ask(app, "/part/rollouts", cookie=sent)).status == 200
    assert app.known([(b"cookie", sent.encode())])


async def test_it_is_only_read(tmp_path: Path) -> None:
    app = app_of(make_run(tmp_path / "r"))
    assert (await ask(app, "/", method="POST")).status == 405
    for path in (
        "/part/../run.toml",
        "/run.toml",
        "/part/",
        "/part/none",
        "/assets/x",
        "/assets/../run_page.py",
        "//",
    ):
        assert (await ask(app, path)).status == 404


async def test_what_has_not_changed_is_not_sent_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PARTS, "flow", msgspec.structs.replace(PARTS["flow"], rest=0.0))
    run = make_run(tmp_path / "r", [step(1)], status=status())
    app = app_of(run)
    first = await ask(app, "/part/flow")
    tag = first.headers[b"etag"].decode()
    again = await ask(app, "/part/flow", if_none_match=tag)
    assert (again.status, again.body) == (304, b"")
    run_status.write(status(step=99), run / STATUS)
    await trio.sleep(AGAIN_S)
    changed = await ask(app, "/part/flow", if_none_match=tag)
    assert changed.status == 200 and b"step 99 of" in changed.body


@contextmanager
def counted(name: str, monkeypatch: pytest.MonkeyPatch, busy_s: float) -> Iterator[list[float]]:
    """The moments at which a part is made, each of which costs so much."""
    made: list[float] = []

    def make(seen: Any) -> Any:
        made.append(time.monotonic())
        began = time.thread_time()  # of the page's thread, which is not the test's
        while time.thread_time() < began + busy_s:
            pass
        return PARTS["tokens"].make(seen)

    monkeypatch.setitem(PARTS, name, RunPart("", make, 1.0))
    yield made


async def test_many_who_look_share_a_part_and_a_dear_one_is_made_seldom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = app_of(make_run(tmp_path / "r"))
    with counted("flow", monkeypatch, 0.05) as made:
        end = trio.current_time() + AGAIN_S + 0.5
        while trio.current_time() < end:
            async with trio.open_nursery() as nursery:
                for _ in range(10):
                    nursery.start_soon(ask, app, "/part/flow")
    assert len(made) == 1, "0.05 s are not spent again within 5 s"


async def test_a_hostile_run_is_only_text(hostile: Path) -> None:
    app = app_of(hostile)
    for name in PARTS:
        body = (await ask(app, f"/part/{name}")).body.decode()
        found = Parsed(body.replace("<!doctype html><meta charset=utf-8>", "<style></style>"))
        found.harmless()


async def test_a_directory_that_has_gone_is_said(tmp_path: Path) -> None:
    app = app_of(tmp_path / "gone")
    for name in PARTS:
        assert b"there is no such directory" in (await ask(app, f"/part/{name}")).body


def test_an_episode_that_branches_is_a_tree(tmp_path: Path) -> None:
    prompt, other = bytes(8), b"\1\0\0\0"
    turns = [Turn(2, "stop"), Turn(3, "stop", 0.5), Turn(4, "length", failed="search")]
    strands = [Strand(None, 0, [prompt, 0, other, 1]), Strand(0, 5, [other, 2])]
    found = turns_of(turns, strands, prompt)
    assert [turn.parent for turn in found] == [None, 0, 0]
    assert [turn.given for turn in found] == [b"", other, other]
    assert [(turn.reward, turn.failed) for turn in found][1:] == [(0.5, ""), (None, "search")]
    from_the_prompt = turns_of(turns, [strands[0], Strand(0, 2, [other, 2])], prompt)
    assert from_the_prompt[2].parent is None


def test_tokens_have_the_colour_of_their_chance(tmp_path: Path) -> None:
    run = make_run(tmp_path / "r")
    events = life(0, text="abcd", end=False)
    logprobs = np.log(np.array([0.95, 0.95, 0.3, 0.001], "<f4")).tobytes()
    events[2] = e.Extended(0, 1, 3, 0, events[2].ids, logprobs)  # type: ignore[union-attr]
    make_journal(run, [e.Published(0), *events])
    found_rollouts = KeptRollouts(run).renewed()
    [one] = found_rollouts.rollouts
    PrintedFile(run, 0).keep(AttemptOutput(one.rollout, 1, "<b>no such tool</b>"))
    found = Parsed(rollout_detail(one, found_rollouts.texts))
    assert "printed by attempt 1" in found.text and "<b>no such tool</b>" in found.text
    colours = [value for name, value in found.attributes if name == "class" and value]
    assert [one for one in colours if one.startswith("v3 ")] == ["v3 p0", "v3 p2", "v3 p4"]


def test_all_rollouts_are_reached_from_the_table_and_the_best_of_all_found(tmp_path: Path) -> None:
    """A look goes on where the last one ended; one by a column finds the first of all."""
    run = make_run(tmp_path / "r")
    make_journal(run, [e.Published(0)], *(life(n, text="abcd") for n in range(400)))
    kept = KeptRollouts(run)
    first = kept.renewed()
    shown, until, looks = [one.rollout for one in first.rollouts], first.older, 0
    while until is not None:
        page = Parsed(older(kept, until, "", True, ""))
        rows = [int(value or "") for name, value in page.attributes if name == "data-open"]
        shown, looks = [*shown, *rows], looks + 1
        until = int(next(v for name, v in page.attributes if name == "data-older") or "0") or None
    assert shown == [*range(399, -1, -1)] and looks == 3
    assert first.older is not None
    lowest = Parsed(older(kept, first.older, "rollout", False, "prompt"))
    rows = [value for name, value in lowest.attributes if name == "data-open"]
    assert rows == [str(n) for n in range(100)]
    found = kept.look(first.older, lambda one: one.rollout == 7, None)
    (seven,), end = found.rollouts, found.ends[7]
    assert kept.one(7, end) == seven and kept.one(7, None) is None and kept.one(8, end) is None
    named = Parsed(older(kept, first.older, "", True, f"prompt {seven.prompt_index}, no such"))
    assert not [name for name, _ in named.attributes if name == "data-open"]


@pytest.fixture
def lying(tmp_path: Path) -> Path:
    """A run whose rollout says that a step left out tokens which nothing has."""
    run, ids = make_run(tmp_path / "r"), ids_of("abc")
    lies = {"icepop": [(-9, 2**60), (3, 1)], "<script>": [(0, 2**62)] * 5000}
    ended = [e.Taken(0, [0]), e.Trained(0, 1, {"icepop": 2}, lies)]
    behind = e.Admitted(1, 1, 1, "train", 3, ids, 9)
    make_journal(run, [e.Published(0)], life(0, text="abc", end=False), [*ended, behind])
    return run


async def test_a_look_that_nobody_can_take_is_refused_and_places_may_be_any_numbers(
    lying: Path,
) -> None:
    app, last = app_of(lying), "9" * 18
    seen = await ask(app, "/rollout/0/")
    assert seen.status == 200 and b"<script>" not in seen.body and b"left out" in seen.body
    assert (await ask(app, "/older/7/reward/down/a, [(*<script>")).status == 200
    for path in (
        *("older/", "older/7", "older/x/reward/down/", "older/-1/a/b/c", f"older/{last}9/a/b/c"),
        *("rollout/", "rollout/x/3", "rollout/7/3", f"rollout/7/{last}", f"older/{last}/a/b/c"),
    ):
        assert (await ask(app, f"/{path}")).status == 404, path


def test_only_loopback_needs_no_key() -> None:
    assert loopback("127.0.0.1") and loopback("127.1.2.3")
    assert not loopback("0.0.0.0") and not loopback("10.0.0.1")


def test_what_others_wrote_is_as_they_wrote_it_and_has_its_licence() -> None:
    for name, vendored in VENDORED.items():
        assert sha256(asset(name).encode()).hexdigest() == vendored.sha256
        assert vendored.version in vendored.origin
    assert set(VENDORED) <= {*SCRIPTS, *STYLES} and "MIT License" in asset("uplot/LICENSE")
    for name in SCRIPTS:  # a report has them in itself
        assert "</script" not in asset(name).lower() and "<!--" not in asset(name)


async def test_a_game_has_a_page_and_is_in_the_list_of_its_folder(tmp_path: Path) -> None:
    game = tmp_path / "runs" / "guess"
    for name, reward in (("proposer", 0.25), ("solver", 0.75)):
        make_run(game / name, [evaluation(0, reward), step(1)], status=status())
    (game / GAME).write_text("{}")
    app = PageGate(RunsPage(game, waits=Waits(), now=lambda: 1e9), key="", port=80)
    assert b"Game guess" in (await ask(app, "/")).body
    said = (await ask(app, "/part/runs")).body.decode()
    for text in ("0.250", "0.750", "proposer │ The run was killed", "solver │ ", "run/solver/"):
        assert text in said, text
    assert (await ask(app, "/run/solver/part/curves")).status == 200
    app = PageGate(RunsPage(tmp_path / "runs", waits=Waits(), now=lambda: 1e9), key="", port=80)
    assert 'href="run/guess%2Fsolver/"' in (await ask(app, "/part/runs")).body.decode()
    for part in ("", "part/head"):
        assert (await ask(app, f"/run/guess%2Fsolver/{part}")).status == 200
    said = (await ask(app, "/compared/guess%2Fsolver/guess%2Fproposer")).body.decode()
    assert "0.75" in said and "0.25" in said
    for path in ("/run/guess/", "/run/guess/none/", "/run/guess%2F..%2Fguess%2Fsolver/"):
        assert (await ask(app, path)).status == 404, path


async def test_a_folder_has_a_list_and_the_page_of_each_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of runs that are damaged, without a step, or gone, and there is no way out of it."""
    monkeypatch.setitem(PARTS, "head", msgspec.structs.replace(PARTS["head"], rest=0.0))
    runs = tmp_path / "runs"
    app = PageGate(RunsPage(runs, waits=Waits(), now=lambda: 1e9), key="", port=80)
    assert b"There is no run in" in (await ask(app, "/part/runs")).body
    points = [evaluation(0, 0.25), step(1), evaluation(1, 0.75)]
    make_run(runs / "learns", points, status=status(), toml='task.name = "spell_backward"\n')
    make_run(runs / "bare")
    (make_run(runs / "damaged", status=status()) / STATUS).write_text("{")
    (runs / "none").mkdir()
    make_run(runs / "lr%2f5 50%")
    make_run(runs / os.fsdecode(b"\xff\xfe"))
    app = PageGate(RunsPage(runs, waits=Waits(), now=lambda: 1e9), key="", port=80)
    said = (await ask(app, "/part/runs")).body.decode()
    found = Parsed(said.replace("<!doctype html><meta charset=utf-8>", "<style></style>"))
    found.harmless()
    for text in ("learns", "killed", "12/100", "0.750", "spell_backward", "damaged", "bare"):
        assert text in found.text
    assert (await ask(app, "/")).status == 200
    for name in ("learns", "bare", "damaged", "lr%252f5%2050%25", "%FF%FE"):
        assert f'href="run/{name}/"' in said
        assert (await ask(app, f"/run/{name}/")).status == 200
        for part in PARTS:
            assert (await ask(app, f"/run/{name}/part/{part}")).status == 200
    assert said.count("data-run=") == 4  # none to compare whose name no script can read
    wrong = ("none/", "%FE/", "%00/", f"{300 * 'n'}/", "../", "..%2f/", "learns", "%2e%2e/")
    for path in (*(f"/run/{name}" for name in wrong), "/x"):
        assert (await ask(app, path)).status == 404
    (runs / "learns" / "run.toml").write_text('task.name = "spell_backward"\ntrain.lr = 0.5\n')
    make_run(runs / "a b", points, status=status(), toml="train.lr = 0.25\n")
    said = (await ask(app, "/compared/learns/a%20b")).body.decode()
    assert "train.lr" in said and "0.5" in said and "0.25" in said, said
    assert b"damaged" in (await ask(app, "/compared/learns/damaged")).body
    for path in ("learns", "learns/learns", "learns/none", "learns/..", "/".join("abcdefg"), ""):
        assert (await ask(app, f"/compared/{path}")).status == 404, path
    gone = next(files for files in runs_in(runs) if files.path.name == "bare")
    (runs / "bare").rename(tmp_path / "bare")
    assert run_cells(gone, 1e9) == (NONE,) * 5
    await trio.sleep(AGAIN_S)
    assert b"no such directory" in (await ask(app, "/run/bare/part/head")).body
    monkeypatch.setattr(Path, "iterdir", _unreadable)
    app = PageGate(RunsPage(runs, waits=Waits(), now=lambda: 1e9), key="", port=80)
    assert b"cannot be read (Permission denied)" in (await ask(app, "/part/runs")).body


def test_a_directory_of_somebody_else_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that may not be searched hid all runs of its folder."""
    make_run(tmp_path / "one")
    (tmp_path / "closed").mkdir()

    def closed(path: Path) -> bool:
        if path.name == "closed":
            raise ConfigError("this cannot be used (Permission denied)")
        return False

    monkeypatch.setattr(run_list, "is_game", closed)
    assert [files.path.name for files in runs_in(tmp_path)] == ["one"]


def _unreadable(folder: Path) -> None:
    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def test_what_cannot_be_served_is_refused_in_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "nice", lambda _: 0)  # it would be the tests' own
    (tmp_path / "file").touch()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for arguments, said in (
            ([str(tmp_path / "none")], "there is no such directory"),
            ([str(tmp_path / "file")], "this is not a directory"),
            ([str(tmp_path), "--port", port], f"127.0.0.1:{port} cannot be served"),
            ([str(tmp_path), "--host", "no.such.host.invalid"], "cannot be served"),
            ([str(tmp_path), "--host", "a..b"], "cannot be served (a host cannot have this name"),
            ([str(tmp_path), "--host", "x" * 300], "cannot be served (a host cannot have this"),
        ):
            assert main(["page", *arguments]) == 2
            assert said in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        main(["page", "--port", "65536"])


async def test_numbers_that_are_none_and_a_torn_line_leave_a_curve(tmp_path: Path) -> None:
    run = make_run(tmp_path / "r", [step(1), step(2, metrics={"loss": None})])
    with (run / METRICS).open("ab") as file:
        line = line_of(step(3, reward=0.5))
        file.write(line.replace(b"0.5", b"NaN", 1) + line.replace(b"0.5", b"1e400", 1) + line[:60])
    curves = (await ask(app_of(run), "/part/curves")).body.decode()
    assert "NaN" not in curves and "Infinity" not in curves
    shown = dict(Parsed(curves.replace("<!doctype html><meta charset=utf-8>", "")).attributes)
    assert json.loads(shown["data-curves"] or "")["steps"]["version"] == [1, 2]


def test_the_images_of_a_prompt_are_in_its_page_and_no_other_bytes(tmp_path: Path) -> None:
    run = make_run(tmp_path / "r")
    kept = KeptImages(run / IMAGES)
    there = kept.keep(written_png(np.full((2, 3, 3), 9, np.uint8)))
    events = life(0, text="abcd", end=False)
    images = (there, "0" * 64, "../run.toml")
    events[0] = msgspec.structs.replace(events[0], images=images)  # type: ignore[type-var]
    make_journal(run, [e.Published(0), *events])
    found_rollouts = KeptRollouts(run).renewed()
    [one] = found_rollouts.rollouts
    page = rollout_detail(one, found_rollouts.texts)
    sources = [value for name, value in Parsed(page).attributes if name == "src"]
    assert sources == [f"data:image/png;base64,{b64encode(kept.png(there)).decode()}"]
    assert "cannot be read" in page and "no hash" in page and "run.toml" not in page


def test_the_images_of_an_agent_are_beside_the_turns_that_were_given_them(tmp_path: Path) -> None:
    run = make_run(tmp_path / "r")
    kept = KeptImages(run / IMAGES)
    first, second = (kept.keep(written_png(np.full((2, 3, 3), n, np.uint8))) for n in (7, 9))

    def called(call: int, given: list[int], after: tuple[int, int] | None, image: str) -> e.Called:
        ids = np.array(given, np.int32).tobytes()
        return e.Called(0, 1, call, after, ids, call, 4, 1.0, images=(image,))

    def said(call: int) -> list[e.AnyEvent]:
        ids, behaviour = np.array([98], np.int32), np.array([-0.5], np.float32)
        extended = e.Extended(call, 1, 0, 0, ids.tobytes(), behaviour.tobytes())
        return [e.Leased(call, "rollout-0", 1), extended, e.Answered(call, 1, "stop")]

    events = [
        e.Published(0),
        e.Admitted(0, 0, 1, "train", 0, np.array([97], np.int32).tobytes(), 20, played=True),
        e.Begun(0, "agents-0", 1),
        called(1, [97, -1, -1, 99], None, first),
        *said(1),
        called(2, [-2, 100], (1, 5), second),
        *said(2),
    ]
    make_journal(run, events)
    found_rollouts = KeptRollouts(run).renewed()
    [one] = found_rollouts.rollouts
    assert one.images == [first, second]
    page = rollout_detail(one, found_rollouts.texts)
    sources = [value for name, value in Parsed(page).attributes if name == "src"]
    urls = [f"data:image/png;base64,{b64encode(kept.png(n)).decode()}" for n in (first, second)]
    assert sources == urls
    assert page.index("turn 0") < page.index(urls[0]) < page.index("turn 1") < page.index(urls[1])


def test_a_setting_that_is_left_alone_is_at_its_default(tmp_path: Path) -> None:
    run = make_run(tmp_path / "r")
    write(Config(), run / RUN_TOML)
    changed, _, kept = str(settings(SeenRun(run, 0.0))).partition("<details>")
    assert "staleness." not in changed and "staleness.correction" in kept


def test_who_has_ended_with_the_run_is_not_gone_for_a_moment() -> None:
    actor = ActorStatus(
        name="trainer-0", role="trainer", here=False, incarnation=0, pid=1, seconds=0.06
    )
    said = [str(who_waits(status(actors=[actor], ok=ok))) for ok in (None, True)]
    assert "gone 60 ms ago" in said[0] and "ago" not in said[1]


def test_a_limit_that_filtered_groups_exceed_says_what_it_limits() -> None:
    for live, words in ((32, "(limit 32)"), (80, "(limit 32 that pass the filter)")):
        standing = status(groups=GroupCounts(live=live, max_live=32))
        assert f"{live} groups in flight {words}" in str(flow(standing))


def test_the_head_says_what_a_run_cost(tmp_path: Path) -> None:
    """As `asyncrl runs` does: the time of the trainer and of each rollout actor."""
    roles: list[Role] = ["trainer", "rollout", "rollout", "reward"]
    actors = [
        ActorStatus(name=f"{role}-{n}", role=role, here=True, incarnation=0, pid=1, seconds=0.1)
        for n, role in enumerate(roles)
    ]
    points = [step(version) for version in range(1, 6)]
    run = make_run(tmp_path / "r", points, status=status(actors=actors, ok=True, reason="done"))
    said = str(head(SeenRun(run, 0.0)))
    assert f"{clock(points[-1].seconds)} worked" in said
    assert f"{clock(3 * points[-1].seconds)} of device time" in said
