"""Replies that a session's client was sent. A client sends a reply back without its thoughts, and
with its calls as JSON of its own. Both are kept here, so that the template gets everything that was
sampled.

Invariant: a reply that comes back changed is not recognized, and stays as it is.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import msgspec

from asyncrl.agents.gateway.inner_call import REFERS, calls_in, text_of
from asyncrl.agents.gateway.tools import Delta, Thought

RESPONSES = 32
"""The most answers of a session that a later call may follow."""


class SentReply(msgspec.Struct, frozen=True):
    """Parts that clients may leave out: thoughts, how they were sampled, and the text of calls'
    arguments."""

    thoughts: str
    raw: str
    arguments: tuple[str, ...]


class SentReplies:
    """The replies of one attempt, bounded by its calls, and the chats of the last responses."""

    def __init__(self) -> None:
        self._replies: dict[bytes, SentReply] = {}
        self._chats: dict[str, list[dict[str, Any]]] = {}
        self._items: dict[str, Mapping[str, dict[str, Any]]] = {}

    def add(self, deltas: Sequence[Delta]) -> None:
        """Add a reply."""
        calls = calls_in(deltas)
        thoughts = [delta for delta in deltas if isinstance(delta, Thought)]
        try:
            key = _key(text_of(deltas), [(c.name, msgspec.json.decode(c.arguments)) for c in calls])
        except (msgspec.DecodeError, RecursionError, ValueError):
            return
        self._replies[key] = SentReply(
            "".join(one.text for one in thoughts),
            "".join(one.raw for one in thoughts),
            tuple(call.arguments for call in calls),
        )

    def of(self, message: Mapping[str, Any]) -> SentReply | None:
        """The left-out parts of a message that came back; None if it is not known."""
        functions = [call["function"] for call in message.get("tool_calls", ())]
        return self._replies.get(
            _key(message["content"], [(f["name"], f["arguments"]) for f in functions])
        )

    def keep(
        self,
        name: str,
        chat: Sequence[dict[str, Any]],
        items: Mapping[str, dict[str, Any]] = MappingProxyType({}),
    ) -> None:
        """Keep a chat that a later call may follow, by the name of its answer, and the answer's
        items, which a later call may name."""
        self._chats[name], self._items[name] = [*chat], items
        while len(self._chats) > RESPONSES:
            first = next(iter(self._chats))
            del self._chats[first], self._items[first]

    def chat(self, name: str) -> list[dict[str, Any]] | None:
        """The chat up to an answer; None if it is not or no longer kept."""
        return self._chats.get(name)

    def resolved(self, message: dict[str, Any]) -> dict[str, Any] | None:
        """A message with the items that it names in their place. None if nothing but thoughts is
        in it. Raises KeyError for an item that is not or no longer kept.

        >>> sent = SentReplies()
        >>> sent.keep("resp_1", [], {"rs_1": {}, "msg_1": {"content": "a"}})
        >>> sent.resolved({"role": "assistant", "content": "", REFERS: ["rs_1", "msg_1"]})
        {'role': 'assistant', 'content': 'a'}
        """
        if REFERS not in message:
            return message
        kept = {name: item for items in self._items.values() for name, item in items.items()}
        parts = [*(kept[name] for name in message[REFERS]), message]
        text = "".join(part.get("content", "") for part in parts)
        calls = [call for part in parts for call in part.get("tool_calls", ())]
        if not text and not calls:
            return None
        return {"role": "assistant", "content": text} | ({"tool_calls": calls} if calls else {})


def as_message(deltas: Sequence[Delta]) -> dict[str, Any]:
    """A reply as a message."""
    message: dict[str, Any] = {"role": "assistant", "content": text_of(deltas)}
    if calls := calls_in(deltas):
        message["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": msgspec.json.decode(call.arguments)},
            }
            for call in calls
        ]
    return message


def _key(text: str, calls: Sequence[tuple[str, Any]]) -> bytes:
    said = msgspec.json.encode([text.strip(), calls], order="sorted")
    return hashlib.blake2b(said, digest_size=16).digest()
