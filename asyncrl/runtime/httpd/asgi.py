"""Types between an HTTP server and the application behind it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any, Literal

Headers = Sequence[tuple[bytes, bytes]]
"""Names, in small letters, and values."""
Scope = MutableMapping[str, Any]
Event = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]
"""An ASGI application."""
HttpRefusal = Literal[
    "key", "request", "malformed", "silent", "slow", "crowded", "busy", "descriptors", "failed"
]
"""The reason why a connection was closed. Its client has no key; sent a request that failed; sent
something that is not a request; sent nothing in time; did not read its answer in time; made room
for another stranger; exceeded the limit. Or no descriptor was left, or the application failed."""
