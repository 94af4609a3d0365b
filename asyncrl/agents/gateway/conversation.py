"""Conversations whose replies keep their sampled tokens (`agent.history = "as_sampled"`).

A template may render an earlier reply differently from how it was sampled: some drop its thoughts.
The next call's context would then diverge inside the reply. Here it does not: it is the context of
the call that sampled the conversation's last reply, that reply, and then the messages that follow
as the template renders them.

    messages   user a, assistant <think>…</think>b, user c
    template   [user]a[assistant]b[user]c[assistant]            the thought is gone
    as sampled [user]a[assistant]<think>…</think>b[user]c[assistant]

Invariant: a reply is recognized if all messages before it, the tools and the reply itself are those
of the call that sampled it. White space around a reply, and the numbers of its tool calls, may
differ; and clients may leave thoughts out.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from asyncrl.agents.gateway.inner_call import text_of, thoughts_of
from asyncrl.agents.gateway.tools import Delta, ToolCall

Messages = Sequence[Mapping[str, Any]]
Render = Callable[[Messages], str]
"""The chat template, ready for an answer."""


class Conversation:
    """The messages of a call and the tools that it offers."""

    def __init__(self, messages: Messages, tools: Messages) -> None:
        self.messages = messages
        self._hasher = hashlib.blake2b(msgspec.json.encode(tools, order="sorted"), digest_size=16)
        self._digests = [*self._read()]

    def replies(self) -> Iterator[tuple[int, bytes]]:
        """Its replies, the last one first: their positions, and digests of everything up to
        them."""
        for at in reversed(range(len(self.messages))):
            if self.messages[at]["role"] == "assistant":
                yield at, self._digests[at]

    def replied(self, deltas: Sequence[Delta]) -> list[bytes]:
        """The digests of the conversation with this reply at its end, with its thoughts and without
        them; none if the reply is nested too deeply to be read again."""
        hasher = self._hasher.copy()
        try:
            reply = _reply(text_of(deltas), _calls(deltas))
        except (msgspec.DecodeError, RecursionError):
            return []
        hasher.update(reply)
        return [_thought(hasher, thoughts) for thoughts in {"", thoughts_of(deltas)}]

    def rest(self, at: int, render: Render) -> str | None:
        """The text that the template puts after the reply at this position; None if that cannot be
        determined. Raises what `render` raises."""
        mark = secrets.token_hex(16)
        marked = {"role": "assistant", "content": mark}
        text = render([*self.messages[:at], marked, *self.messages[at + 1 :]])
        return text.partition(mark)[2] if text.count(mark) == 1 else None

    def _read(self) -> Iterator[bytes]:
        for message in self.messages:
            if message["role"] == "assistant":
                calls = [call["function"] for call in message.get("tool_calls", ())]
                self._hasher.update(_reply(message["content"], calls))
                yield _thought(self._hasher, message.get("reasoning_content", ""))
            else:
                self._hasher.update(msgspec.json.encode(message, order="sorted"))
                yield self._hasher.digest()


def _reply(text: str, calls: Sequence[Mapping[str, Any]]) -> bytes:
    return msgspec.json.encode(["assistant", text.strip(), calls], order="sorted")


def _thought(hasher: hashlib.blake2b, thoughts: str) -> bytes:
    """The digest of a conversation up to a reply that came with these thoughts."""
    hasher = hasher.copy()
    hasher.update(b"\0" + thoughts.strip().encode(errors="surrogatepass"))
    return hasher.digest()


def _calls(deltas: Sequence[Delta]) -> list[dict[str, Any]]:
    return [
        {"name": call.name, "arguments": msgspec.json.decode(call.arguments)}
        for call in deltas
        if isinstance(call, ToolCall)
    ]
