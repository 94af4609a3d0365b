"""Calls of models that the session's run does not sample, and their answers."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import NamedTuple, Protocol

import msgspec

from asyncrl.agents.gateway.played_session import PlayedSession

ANSWER_BYTES = 2**20
"""The most bytes of an answer."""
_PASSED = ("anthropic-version", "anthropic-beta")
"""Headers of a call that are passed on."""


class OtherCall(NamedTuple):
    """A call of `model` at a dialect's `path`, as the agent sent it."""

    model: str
    path: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def digest(self) -> str:
        """The hash by which equal calls are known."""
        asked = [self.path, self.model, self.body]
        return hashlib.sha256(msgspec.msgpack.encode(asked)).hexdigest()

    def passed(self, *more: str) -> dict[str, str]:
        """The call's headers that are passed on, those in `more` included."""
        return {name: self.headers[name] for name in (*_PASSED, *more) if name in self.headers}

    def content(self, model: str) -> bytes:
        """The body, for a server that knows the model by this name."""
        sent = msgspec.json.decode(self.body, type=dict[str, msgspec.Raw])
        sent["model"] = msgspec.Raw(msgspec.json.encode(model))
        return msgspec.json.encode(sent)


class OtherAnswer(msgspec.Struct, frozen=True):
    """An answer: its content type, its text and its status."""

    type: str
    body: str
    status: int = 200


class OtherModels(Protocol):
    """Models that agents call through a gateway whose run does not train them."""

    @property
    def names(self) -> list[str]:
        """The names that are forwarded."""
        ...

    def refuse(self, model: str) -> None:
        """Raise GatewayError for a model that is neither forwarded nor trained."""
        ...

    async def answer(self, session: PlayedSession, call: OtherCall) -> OtherAnswer:
        """The answer to a call. Raises GatewayError."""
        ...


class _NamesModel(msgspec.Struct):
    model: str


def model_of(body: bytes) -> str:
    """The model that a call names; empty if the dialect has to report what is wrong with it."""
    try:
        return msgspec.json.decode(body, type=_NamesModel).model
    except (msgspec.DecodeError, RecursionError, ValueError):
        return ""
