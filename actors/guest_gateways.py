"""The gateways of a game's guests, as the host's agents actor asks them over HTTP."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, Protocol

import httpx2
import msgspec
import trio

from asyncrl.agents.gateway.game_table import GuestSeat
from asyncrl.explain import summary
from asyncrl.runtime.ipc.keys import read_private
from asyncrl.runtime.run_dir import GATEWAY_KEY, GATEWAY_URL, SUMMARY

logger = logging.getLogger(__name__)


class GuestRefused(Exception):
    """A guest cannot be reached, or does not go on with a game."""


def is_over(run: Path) -> bool:
    """True if a run has made its steps, and plays nothing any more. One that was drained, or
    heals, goes on."""
    try:
        told = summary.read(run / SUMMARY)
    except (OSError, msgspec.DecodeError):
        return False
    return told.ok and told.reason != summary.STOPPED_EARLY


class Guests(Protocol):
    """The guests of a host."""

    async def seek(self, name: str, asked: dict[str, Any]) -> GuestSeat | str | None:
        """Ask a guest once for a seat in a game (`game_routes`): the seat, or the game's state
        there; None: not yet. Raises GuestRefused."""
        ...

    async def tell(self, seat: GuestSeat, what: str, body: object) -> str:
        """Tell a guest that a game is to be `kept`, or to `end`, and return its state there once
        that is on the disk. Raises GuestRefused."""
        ...

    async def leave(self, seat: GuestSeat) -> None:
        """Tell a guest that an attempt is over. Raises GuestRefused."""
        ...


class GuestGateways:
    """The guests beside the directory of a run."""

    def __init__(self, run: Path, client: httpx2.AsyncClient) -> None:
        self._run, self._client = run, client

    async def seek(self, name: str, asked: dict[str, Any]) -> GuestSeat | str | None:
        """As `Guests.seek`."""
        folder = self._run.parent / name
        if await trio.to_thread.run_sync(is_over, folder):
            return "gone"
        try:
            url = (await trio.Path(folder / GATEWAY_URL).read_text()).strip()
            key = read_private(folder / GATEWAY_KEY, 1024).decode()
        except OSError as error:
            raise GuestRefused(f"the run of {name} has not begun: {error}") from error
        response = await self._asked("POST", f"{url}/v1/episodes", key, asked)
        if response.status_code == 204:
            return None
        body = response.json()
        return str(body["state"]) if "state" in body else msgspec.convert(body, GuestSeat)

    async def tell(self, seat: GuestSeat, what: str, body: object) -> str:
        """As `Guests.tell`."""
        url = f"{seat.session_url}/{what}"
        response = await self._asked("POST", url, seat.reward_key, body)
        return str(response.json()["state"])

    async def leave(self, seat: GuestSeat) -> None:
        """As `Guests.leave`."""
        await self._asked("DELETE", seat.session_url, seat.reward_key, None)

    async def _asked(self, method: str, url: str, key: str, body: object) -> httpx2.Response:
        """A good answer. Raises GuestRefused."""
        try:
            response = await self._client.request(
                method, url, json=body, headers={"authorization": f"Bearer {key}"}
            )
        except httpx2.HTTPError as error:
            raise GuestRefused(f"{url} cannot be reached ({type(error).__name__})") from error
        if response.status_code not in (200, 204):
            raise GuestRefused(f"{url} said {response.status_code}: {response.text[:200]}")
        return response
