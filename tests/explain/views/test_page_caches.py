"""The page keeps parts: each answer is one that its own run gave for its own name, not longer ago
than the part's price allows. A part is sent again to every client but those that have it."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from asyncrl.explain.views import made_part, run_page
from asyncrl.explain.views.html_page import tag
from asyncrl.explain.views.made_part import AGAIN_S
from asyncrl.explain.views.page_gate import PageGate
from asyncrl.explain.views.run_page import RunPage
from asyncrl.explain.views.run_parts import RunPart
from asyncrl.runtime.ipc.waits import Waits

RUNS, NAMES = ("one", "other"), ("cheap", "dear")
REST = {"cheap": 0.0, "dear": 100.0}
Look = tuple[str, str, str, float]
"""A part of a run, and what happens to it: it is asked for, with the digest of what the browser
has or not, by several at once; it changes; it cannot be made the next time; or seconds pass."""
LOOKS = st.lists(
    st.tuples(
        st.sampled_from(RUNS),
        st.sampled_from(NAMES),
        st.sampled_from(
            ["ask", "ask", "ask again", "ask with another's", "three", "change", "fail"]
        ),
        st.sampled_from([0.0, 0.0, 0.5, AGAIN_S, 1.0, 3.0, 9.0]),
    ),
    max_size=30,
)


class World:
    """Two runs with two parts each; `state` is what a part says, and `cost_s` what it takes."""

    def __init__(self) -> None:
        self.state = {(run, name): 0 for run in RUNS for name in NAMES}
        self.cost_s = {"cheap": 0.001, "dear": 0.05}
        self.fails = set[tuple[str, str]]()
        self.worked_s = 0.0
        self.made: dict[tuple[str, str], list[tuple[float, int]]] = {}
        self.pages = dict[str, PageGate]()

    def open(self) -> None:
        self.pages = {
            run: PageGate(RunPage(Path(run), waits=Waits(), now=trio.current_time), key="", port=1)
            for run in RUNS
        }

    def make(self, name: str, seen: Any) -> Any:
        at = (str(seen.run), name)
        self.worked_s += self.cost_s[name]
        if at in self.fails:
            self.fails.discard(at)
            raise RuntimeError("the part cannot be made")
        self.made.setdefault(at, []).append((trio.current_time(), self.state[at]))
        return tag("p", f"{at} {self.state[at]}")

    async def ask(self, run: str, name: str, digest: bytes = b"") -> tuple[int, bytes, bytes]:
        """Status, digest and body of an answer."""
        found: list[Any] = []
        headers = [(b"host", b"localhost")] + [(b"if-none-match", digest)] * bool(digest)
        scope = {"method": "GET", "raw_path": f"/part/{name}".encode(), "headers": headers}

        async def send(event: Any) -> None:
            found.append(event)

        await self.pages[run](scope, None, send)  # type: ignore[arg-type]  # it reads no body
        return found[0]["status"], dict(found[0]["headers"])[b"etag"], found[1]["body"]


async def watched(looks: list[Look], world: World) -> None:
    sent: dict[tuple[str, str], tuple[bytes, int]] = {}
    due = dict.fromkeys(world.state, 0.0)
    said = dict.fromkeys(world.state, -1)
    await trio.sleep(1.0)
    for run, name, what, seconds in looks:
        at, now = (run, name), trio.current_time()
        if what == "change":
            world.state[at] += 1
        elif what == "fail":
            world.fails.add(at)
        else:
            fresh, before = said[at] < 0 or now >= due[at], len(world.made.get(at, []))
            other = (run, NAMES[name == NAMES[0]])
            known = sent.get(other if "another" in what else at, (b"", -1))
            digest = known[0] if what in ("ask again", "ask with another's") else b""
            if fresh and at in world.fails:
                with pytest.raises(RuntimeError):
                    await world.ask(run, name, digest)
                assert len(world.made.get(at, [])) == before
            else:
                answers: list[tuple[int, bytes, bytes]] = []

                async def ask(
                    run: str = run, name: str = name, digest: bytes = digest, answers: Any = answers
                ) -> None:
                    answers.append(await world.ask(run, name, digest))

                async with trio.open_nursery() as nursery:
                    for _ in range(3 if what == "three" else 1):
                        nursery.start_soon(ask)
                assert len({*answers}) == 1
                if fresh:
                    said[at] = world.state[at]
                    due[at] = now + max(AGAIN_S, REST[name] * world.cost_s[name])
                assert len(world.made[at]) == before + fresh, "no more often than it may be"
                status, etag, body = answers[0]
                same = digest != b"" and "another" not in what and known[1] == said[at]
                assert status == (304 if same else 200)
                text = str(tag("p", f"{at} {said[at]}"))
                assert body == b"" if same else text in body.decode(), (at, body)
                sent[at] = etag, said[at]
        await trio.sleep(seconds)


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads work at once, since a clock would jump while they do."""

    async def run(function: Any, *given: Any) -> Any:
        await trio.lowlevel.checkpoint()
        return function(*given)

    monkeypatch.setattr(trio.to_thread, "run_sync", run)


@example(
    looks=[
        ("one", "dear", "ask", 0.0),
        ("one", "dear", "change", 4.0),
        ("one", "dear", "ask again", 9.0),
        ("one", "dear", "ask again", 0.0),
        ("other", "dear", "three", 0.0),
        ("one", "cheap", "ask with another's", 1.0),
        ("one", "cheap", "fail", 0.0),
        ("one", "cheap", "ask", 0.0),
        ("one", "cheap", "three", 0.0),
    ]
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(looks=LOOKS)
def test_an_answer_is_its_own_runs_and_as_new_as_its_price_allows(
    looks: list[Look], at_once: None
) -> None:
    async def main() -> None:
        with pytest.MonkeyPatch.context() as patched:
            world = World()
            parts = {
                name: RunPart("", partial(world.make, name), 1.0, REST[name]) for name in NAMES
            }
            patched.setattr(run_page, "PARTS", parts)
            world.open()
            patched.setattr(made_part.time, "thread_time", lambda: world.worked_s)
            await watched(looks, world)

    trio.run(main, clock=MockClock(autojump_threshold=0))
