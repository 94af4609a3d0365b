"""Things that attempts open in a cloud that a test keeps: whenever an attempt is killed, nothing
is left; few open something at a time, also when all begin at once; and what is wrong is a sentence
for who did it."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest
import trio
from scripted_agents import TaskPlayer, played

from asyncrl.actors.agent_openings import AgentOpenings
from asyncrl.actors.agent_pool import AgentClock
from asyncrl.actors.agent_starts import AgentStarts
from asyncrl.actors.start_limit import LONGEST_S, MOST, StartLimit
from asyncrl.agents.agent_episode import EpisodeFacts
from asyncrl.agents.endings import AgentEnd, AgentEnded
from asyncrl.agents.gateway.errors import GatewayError
from asyncrl.bundled.bundled_model import write_tokenizer
from asyncrl.messages import GiveReward, Played, StopPlaying
from asyncrl.runtime.ipc.waits import Waits
from asyncrl.sandbox.enders import Enders, EndFailed
from asyncrl.sandbox.opened import Opened, left, note
from asyncrl.tasks.text import Tokenizer

PATIENCE_S = 120.0


class Cloud:
    """Sandboxes by id. One comes into being some time after it was asked for, whatever becomes of
    who asked, and at the latest when it was looked for in vain. `creating` are those on their
    way."""

    def __init__(self, draw: random.Random) -> None:
        self.sandboxes, self.creating = set[str](), set[str]()
        self._draw = draw

    async def create(self, name: str, made: trio.Event) -> None:
        self.creating.add(name)
        await trio.sleep(self._draw.uniform(0, 0.004))
        self._made(name)
        made.set()

    def _made(self, name: str) -> None:
        if name in self.creating:
            self.creating.discard(name)
            self.sandboxes.add(name)

    def end(self, name: str) -> bool:
        if name == "stuck":
            raise EndFailed("the cloud is away")
        if name in self.creating:
            self._made(name)
            return False
        found = name in self.sandboxes
        self.sandboxes.discard(name)
        return found


def openings_of(run: Path, cloud: Cloud) -> tuple[AgentOpenings, AgentStarts, Counter[str]]:
    counts = Counter[str]()

    def told(counter: str, sentence: str) -> None:
        counts[counter] += 1
        assert not sentence

    starts = AgentStarts(StartLimit(2), Waits(), free=lambda: 2**40)
    enders = Enders(run, (), {"cloud": cloud.end}, settle_s=0.0)
    return AgentOpenings(0, enders, starts, told), starts, counts


def scratch(run: Path) -> list[Path]:
    """The directories that attempts made, and left."""
    return list(run.glob("scratch/*"))


@pytest.mark.parametrize("seed", range(2))
async def test_attempts_that_are_killed_at_any_moment_leave_nothing(
    tmp_path: Path, seed: int
) -> None:
    """Forty begin at once, as after a resume; some end by themselves, and a few never call."""
    draw = random.Random(seed)
    cloud = Cloud(draw)
    openings, starts, counts = openings_of(tmp_path, cloud)
    note(tmp_path, Opened("remote", "before", ("cloud",)), "agents-0.r0-1")
    note(tmp_path, Opened("remote", "others", ("cloud",)), "agents-1.r0-1")
    cloud.sandboxes |= {"before", "others"}
    lives, opening, at_once = dict[str, float](), set[str](), list[int]()

    async def attempt(session: str, beside: trio.Nursery) -> None:
        things = openings.begin(session, AgentClock(60.0))
        try:
            with trio.move_on_after(lives[session]):
                name, made = f"sandbox-{session}", trio.Event()
                await openings.open(session, Opened("remote", name, ("cloud",)))
                opening.add(session)
                at_once.append(len(opening))
                beside.start_soon(cloud.create, name, made)
                await made.wait()
                opening.discard(session)
                things.called()
                await openings.open(session, Opened("directory", session))
                things.called()
                if session.endswith("3"):
                    assert not await openings.close(session, Opened("remote", name, ("cloud",)))
                await trio.sleep_forever()
        finally:
            opening.discard(session)
            await openings.end(session)

    async with trio.open_nursery() as beside:
        beside.start_soon(starts.run)
        await openings.end_predecessors()
        assert cloud.sandboxes == {"others"}
        async with trio.open_nursery() as nursery:
            for number in range(40):
                lives[f"r{number}-1"] = draw.uniform(0, 0.5)
                nursery.start_soon(attempt, f"r{number}-1", beside)
        beside.cancel_scope.cancel()
    assert cloud.sandboxes == {"others"} and not scratch(tmp_path)
    assert [found.owner for found in left(tmp_path)] == ["agents-1.r0-1"]
    assert 2 <= max(at_once) <= MOST * 2
    assert counts["agents_left_ended"] > 1 and "agents_left" not in counts
    assert (starts.counts.waiting, starts.counts.starting) == (0, 0)


async def test_a_sandbox_that_never_starts_is_in_nobodys_way(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two are on their way for ever; the third begins when they count as started. Clocks stand
    while an attempt waits."""

    async def at_once(function: Callable[..., object], *args: object, **_: object) -> object:
        await trio.lowlevel.checkpoint()
        return function(*args)

    monkeypatch.setattr(trio.to_thread, "run_sync", at_once)  # virtual time waits for no thread
    openings, starts, _ = openings_of(tmp_path, Cloud(random.Random(0)))
    clocks = {f"r{number}-1": AgentClock(1e9) for number in range(3)}
    began = list[float]()

    async def attempt(session: str, clock: AgentClock) -> None:
        openings.begin(session, clock)
        with clock.running():
            await openings.open(session, Opened("remote", session, ("cloud",)))
            began.append(trio.current_time())
            await trio.sleep(2 * LONGEST_S)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(starts.run)
        async with trio.open_nursery() as playing:
            for session, clock in clocks.items():
                playing.start_soon(attempt, session, clock)
        for session in clocks:
            await openings.end(session)
        nursery.cancel_scope.cancel()
    assert began[1] < 1.0 and LONGEST_S <= began[2] < LONGEST_S + 1
    assert all(clock.spent_s < 2 * LONGEST_S + 1 for clock in clocks.values())
    with pytest.raises(GatewayError, match="no episode is played"):
        await openings.open("r0-1", Opened("remote", "x", ("cloud",)))


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("model")
    write_tokenizer(folder)
    return Tokenizer(folder, chat=True)


async def test_an_agent_says_over_http_what_it_opens(tokenizer: Tokenizer, tmp_path: Path) -> None:
    cloud = Cloud(random.Random(0))
    enders = Enders(tmp_path, (), {"cloud": cloud.end}, settle_s=0.0)
    opened = trio.Event()

    async def agent(facts: EpisodeFacts) -> AgentEnd:
        url = f"{facts.base_url.partition('/sessions/')[0]}/v1/sessions/{facts.session}/opened"
        async with httpx2.AsyncClient(timeout=PATIENCE_S) as client:

            async def ask(method: str, body: object, key: str = facts.reward_key) -> Any:
                head = {"authorization": f"Bearer {key}"}
                answer = await client.request(method, url, json=body, headers=head)
                error = answer.json().get("error", {})
                return answer.json() if answer.is_success else (answer.status_code, error["code"])

            thing = {"kind": "remote", "name": f"of-{facts.session}", "end": ["cloud"]}
            assert await ask("POST", thing, facts.api_key) == (401, "invalid_api_key")
            assert (await ask("POST", {"kind": "x"}))[0] == 400
            for wrong in ({"name": "-f"}, {"end": ["nobody"]}, {"end": []}):
                assert await ask("POST", thing | wrong) == (422, "not_endable")
            assert await ask("DELETE", thing) == (422, "not_endable")  # it has not opened it
            assert await ask("POST", thing) == {"opened": f"of-{facts.session}"}
            cloud.sandboxes.add(f"of-{facts.session}")
            stuck = {"kind": "remote", "name": "stuck", "end": ["cloud"]}
            assert "opened" in await ask("POST", stuck)
            ended = {"ended": False, "reason": "the cloud is away"}
            assert await ask("DELETE", stuck) == ended
            folder = await ask("POST", {"kind": "directory", "name": facts.session})
            (Path(folder["opened"]) / "file").write_text("x")
            assert {found.opened.kind for found in left(tmp_path) if found.opened} == {
                *("remote", "directory")
            }
            opened.set()
            if facts.session == "r17-1":
                assert await ask("DELETE", thing) == {"ended": True, "reason": ""}
                return AgentEnded(1.0)
            await trio.sleep_forever()
            raise AssertionError

    with trio.fail_after(PATIENCE_S):
        async with played(tokenizer, TaskPlayer(agent), enders=enders) as coordinator:
            for rollout in (17, 18):
                opened = trio.Event()
                await coordinator.play(rollout)
                await opened.wait()
                if rollout == 18:
                    await coordinator.send(StopPlaying(18, 1))
                else:
                    assert (await coordinator.hear())[0] == GiveReward(17, 1, None, 1.0)
                    assert (await coordinator.hear())[0] == Played(17, 1, "stop")
    assert not cloud.sandboxes and not scratch(tmp_path)
    assert {found.opened for found in left(tmp_path)} == {Opened("remote", "stuck", ("cloud",))}
