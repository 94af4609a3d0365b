"""Things that agents open outside, as the gateway's routes see them."""

from __future__ import annotations

from typing import Protocol

from asyncrl.sandbox.opened import Opened


class Openings(Protocol):
    """Keeps notes of what attempts opened (`asyncrl.actors.agent_openings`)."""

    async def open(self, session: str, opened: Opened) -> str:
        """Note a thing before it is opened, and return its name or path. Raises GatewayError,
        NoteError and OSError."""
        ...

    async def close(self, session: str, opened: Opened) -> str:
        """End a thing that may already be gone. Returns why it could not be ended, or "" if it is
        gone. Raises GatewayError and NoteError."""
        ...
