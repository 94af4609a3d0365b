"""A guest's gateway, and a host's calls of its guests: strangers get no seat, and what has ended is
answered from notes."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path

import httpx2
import pytest
import trio
from gateway_world import CONTEXT, KEY, write_chat

from asyncrl.actors.guest_gateways import GuestGateways, GuestRefused
from asyncrl.agents.gateway.app import application
from asyncrl.agents.gateway.capability import capability
from asyncrl.agents.gateway.disk_waits import DiskWaits
from asyncrl.agents.gateway.errors import GatewayError
from asyncrl.agents.gateway.game_table import GameOutcome, GuestSeat, Table, outcome_of
from asyncrl.agents.gateway.gateway import Gateway
from asyncrl.agents.gateway.gateway_settings import Settings
from asyncrl.agents.gateway.other_call import OtherCall
from asyncrl.agents.gateway.played_session import PlayedSession
from asyncrl.agents.gateway.played_sessions import PlayedSessions
from asyncrl.agents.gateway.policy_calls import PolicyCalls
from asyncrl.agents.gateway.seats import Seats
from asyncrl.explain import summary
from asyncrl.explain.summary import STOPPED_EARLY, Summary
from asyncrl.messages import GiveReward, KeepGame, Kept, Message, NoSeat, Play, Played, Seek, Unseek
from asyncrl.runtime.ipc.waits import Waits
from asyncrl.runtime.run_dir import SUMMARY

SOUGHT = {"key": 5, "next": 8, "live": [4], "buried": [6]}


class Guest:
    """A guest's agents actor, whose coordinator says `states` of the games that are sought, and
    keeps all that it hears."""

    def __init__(self, states: Sequence[str] = ()) -> None:
        self.sessions, waits = PlayedSessions(KEY.encode()), Waits()
        self.keeping = DiskWaits(self.sessions.say, waits)
        self.seats = Seats(self.sessions.say, self.keeping, waits)
        self.heard: list[Message] = []
        self._states = [*states]

    async def send(self, message: Message, *buffers: bytes) -> None:
        self.heard.append(message)
        match message:
            case Seek(ticket) if self._states:
                self.seats.refuse(NoSeat(ticket, self._states.pop(0)))  # type: ignore[arg-type]
            case Seek(ticket):
                play = Play(7, 1, "train", 0, 5, CONTEXT, 1.0, {}, ticket=ticket)
                session = self.sessions.open(play, nullcontext)
                self.seats.give(ticket, session.name, json.dumps({"session": "r7-1"}).encode())
            case KeepGame(ticket):
                ended = any(isinstance(said, Played) for said in self.heard)
                self.keeping.take(Kept(ticket, "ended" if ended else "live"))


@asynccontextmanager
async def opened(guest: Guest, folder: Path) -> AsyncIterator[httpx2.AsyncClient]:
    """A client of it, without a key."""
    settings = Settings(model="policy", context_tokens=CONTEXT, vocabulary=300)
    gateway = Gateway(guest.sessions, write_chat(folder), settings, Waits())
    app = application(gateway, guest.sessions, None, seats=guest.seats)
    transport = httpx2.ASGITransport(app)
    async with (
        httpx2.AsyncClient(transport=transport, base_url="http://guest") as client,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(guest.sessions.send, guest)
        yield client
        nursery.cancel_scope.cancel()


def keyed(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


async def test_a_stranger_gets_no_seat(tmp_path: Path) -> None:
    guest = Guest()
    async with opened(guest, tmp_path) as client:
        for key in ("", "guess", capability(KEY.encode(), "r7-1", "reward")):
            refused = await client.post("/v1/episodes", json=SOUGHT, headers=keyed(key))
            assert refused.status_code == 401 and "run's key" in refused.text
        for body in ({}, SOUGHT | {"key": -1}, SOUGHT | {"pair": "x"}):
            wrong = await client.post("/v1/episodes", json=body, headers=keyed(KEY))
            assert wrong.status_code == 400
        assert not guest.heard
        for method, path in (("POST", "end"), ("POST", "kept"), ("DELETE", "")):
            url, body = f"/v1/sessions/r9-1/{path}".rstrip("/"), {"reward": 1.0}
            gone = await client.request(
                method, url, json=body if path else None, headers=keyed(KEY)
            )
            assert gone.status_code == 404 and "r9-1" in gone.text


async def test_a_seat_is_had_until_the_game_ends_on_the_disk(tmp_path: Path) -> None:
    guest = Guest(["ended", "given_up", "gone"])
    async with opened(guest, tmp_path) as client:
        for state in ("ended", "given_up", "gone"):
            said = await client.post("/v1/episodes", json=SOUGHT, headers=keyed(KEY))
            assert said.json() == {"state": state}
        seat = await client.post("/v1/episodes", json=SOUGHT, headers=keyed(KEY))
        assert seat.json() == {"session": "r7-1"}
        assert not [said for said in guest.heard if isinstance(said, Unseek)]
        own = keyed(capability(KEY.encode(), "r7-1", "reward"))
        kept = await client.post("/v1/sessions/r7-1/kept", json={}, headers=own)
        assert kept.json() == {"state": "live"}
        wrong = await client.post("/v1/sessions/r7-1/end", json={"reward": 1e39}, headers=own)
        assert wrong.status_code == 422
        ended = await client.post("/v1/sessions/r7-1/end", json={"reward": 0.5}, headers=own)
        assert ended.json() == {"state": "ended"}
        again = await client.post("/v1/sessions/r7-1/end", json={"reward": 1.0}, headers=own)
        assert again.status_code == 404
    rewards = [said for said in guest.heard if isinstance(said, GiveReward)]
    assert [reward.reward for reward in rewards] == [0.5]


def hosted(notes: dict[str, bytes]) -> PlayedSession:
    """A host's session, in its third attempt, whose guest has ended by the second."""
    play = Play(1, 3, "train", 0, 5, CONTEXT, 1.0, notes)
    session = PlayedSession(play, lambda message, *buffers: None, nullcontext, lambda: None)
    session.table = Table({}, GameOutcome(2, {"host": 1.0, "guest": 0.0}))
    return session


async def test_what_a_guest_said_before_it_ended_is_said_again() -> None:
    def answer(request: httpx2.Request) -> httpx2.Response:
        assert request.headers["authorization"] == "Bearer key"
        assert json.loads(request.content)["model"] == "policy"
        return httpx2.Response(200, json={"said": "hello"})

    body = json.dumps({"model": "guest", "messages": []}).encode()
    asked = OtherCall("guest", "/chat/completions", {}, body)
    async with httpx2.AsyncClient(transport=httpx2.MockTransport(answer)) as client:
        calls = PolicyCalls("host", ("guest",), client, Waits(), call_s=1.0)
        first = hosted({})
        seat = GuestSeat("r7-1", "http://guest/sessions/r7-1/v1", "key", "reward")
        assert seat.session_url == "http://guest/v1/sessions/r7-1"
        first.table = Table({"guest": seat})
        said = await calls.answer(first, asked)
        assert json.loads(said.body) == {"said": "hello"}
        notes = {name.replace("/3/", "/2/"): value for name, value in first._notes.items()}
        later = hosted(notes)
        assert await calls.answer(later, asked) == said
        with pytest.raises(GatewayError, match="has already ended this game"):
            await calls.answer(later, asked)  # a second one
        calls.refuse("host")
        calls.refuse("policy")
        with pytest.raises(GatewayError, match=r"no policy 'gest'; .* one of host, guest"):
            calls.refuse("gest")


async def test_another_attempt_gets_the_answers_that_a_frozen_policy_gave() -> None:
    asked = list[bytes]()

    def answer(request: httpx2.Request) -> httpx2.Response:
        asked.append(request.content)
        return httpx2.Response(200, json={"said": len(asked)})

    call = OtherCall("past", "/chat/completions", {}, b'{"model": "past", "messages": []}')
    seats = {"past": GuestSeat("r7-1", "http://past/sessions/r7-1/v1", "key", "reward")}
    async with httpx2.AsyncClient(transport=httpx2.MockTransport(answer)) as client:
        calls = PolicyCalls("host", ("guest", "past"), client, Waits(), 1.0, ("past",))
        (first := hosted({})).table = Table(seats)
        said = [await calls.answer(first, call) for _ in range(2)]
        assert [json.loads(one.body) for one in said] == [{"said": 1}, {"said": 2}]
        for table in (Table(seats), Table({}, GameOutcome(1, {}))):
            (later := hosted(first._notes)).table = table
            assert [await calls.answer(later, call) for _ in range(2)] == said
        assert len(asked) == 2


async def test_a_guest_plays_until_it_has_made_its_steps(tmp_path: Path) -> None:
    (folder := tmp_path / "guest").mkdir()
    async with httpx2.AsyncClient() as client:
        guests = GuestGateways(tmp_path / "host", client)
        for ok, reason in ((False, "the trainer was lost"), (True, STOPPED_EARLY)):
            summary.write(Summary(ok=ok, reason=reason, steps=1, seconds=1.0), folder / SUMMARY)
            with pytest.raises(GuestRefused, match="has not begun"):
                await guests.seek("guest", SOUGHT)
        done = Summary(ok=True, reason="all 3 steps are done", steps=3, seconds=1.0)
        summary.write(done, folder / SUMMARY)
        assert await guests.seek("guest", SOUGHT) == "gone"


def test_the_outcome_of_the_last_attempt_counts() -> None:
    notes = {
        f"asyncrl/outcome/{n}": json.dumps({"attempt": n, "rewards": {"host": n}}).encode()
        for n in (2, 10, 9)
    }
    assert outcome_of(notes | {"asyncrl/game/11/x/0": b"1"}) == GameOutcome(10, {"host": 10.0})
    assert outcome_of({}) is None
