"""A call and its answer in the one form that all dialects share. A dialect reads a body into a
`ModelCall`, and writes what was sampled by an `Envelope`; everything between knows no dialect.

Invariant: messages and tools have the form that chat templates know: text only, arguments as
objects, no null values.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import msgspec

from asyncrl.agents.gateway.errors import GatewayError
from asyncrl.agents.gateway.gateway_settings import Settings
from asyncrl.agents.gateway.tools import Delta, Thought, ToolCall

REFERS = "refers"
"""The key of a message with the names of items that stand for parts of it, until they are put in
their place."""


class ModelCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call. `messages` are a chat's, or there is a `prompt`, a text or ids. `tools` are those
    that the model is shown. At most `budget` tokens are sampled for each of `choices` answers
    (None: what the context holds; `capped`: a larger one is lowered to that). `ignored` are the
    parameters without effect. `after` names an earlier answer of the session that the messages
    follow; with `keeps` this one can be followed. A message that has `REFERS` names items of
    earlier answers that belong to it. `asked` are fields that the answer repeats. `role` is what
    the agent calls as; empty: it does not say. `texts` are the tools that take a text and no
    arguments."""

    model: str
    messages: list[dict[str, Any]] = []
    prompt: str | list[int] | None = None
    tools: list[dict[str, Any]] = []
    budget: int | None = None
    capped: bool = False
    stops: list[str] = []
    choices: int = 1
    stream: bool = False
    usage: bool = False
    scored: bool = False
    special: bool = False
    ignored: tuple[str, ...] = ()
    after: str = ""
    keeps: bool = False
    head: list[dict[str, Any]] = []
    asked: dict[str, Any] = {}
    role: str = ""
    texts: frozenset[str] = frozenset()


class CallEnd(msgspec.Struct, frozen=True):
    """The end of an answer: OpenAI's reason, the numbers of tokens in context and reply, and the
    stop string that ended it."""

    finish: Literal["stop", "length", "tool_calls"]
    prompt_tokens: int
    tokens: int
    stop: str | None = None


class Token(msgspec.Struct, frozen=True):
    """A reported token: its text and its log-probability."""

    text: str
    behaviour: float


class AnswerPart(msgspec.Struct):
    """A part of an answer: the text and calls that became readable, and the tokens sampled for
    them."""

    deltas: list[Delta] = []
    tokens: list[Token] = []


class AnswerFacts(NamedTuple):
    """The number of an answer, in letters and digits; its start in seconds since 1970; and the
    tokens in its context."""

    number: str
    created: int
    prompt_tokens: int


class SampledChoice(NamedTuple):
    """A whole answer."""

    parts: Sequence[AnswerPart]
    end: CallEnd

    @property
    def text(self) -> str:
        return text_of([delta for part in self.parts for delta in part.deltas])

    @property
    def thoughts(self) -> str:
        return thoughts_of([delta for part in self.parts for delta in part.deltas])

    @property
    def calls(self) -> list[ToolCall]:
        return calls_in([delta for part in self.parts for delta in part.deltas])

    @property
    def tokens(self) -> list[Token]:
        return [token for part in self.parts for token in part.tokens]


class Envelope(ABC):
    """Writes the answer to one call. Invariant: the joined parts of a stream equal the answer that
    is not streamed."""

    def __init__(self, call: ModelCall, facts: AnswerFacts) -> None:
        self._call, self._facts = call, facts

    @property
    def id(self) -> str:
        """The name by which a later call may follow this answer; empty if none can."""
        return ""

    @property
    def items(self) -> dict[str, dict[str, Any]]:
        """The answer's items by name, each as a message: a later call may name them."""
        return {}

    @abstractmethod
    def whole(self, choices: Sequence[SampledChoice]) -> bytes:
        """The whole answer."""

    @abstractmethod
    def part(self, index: int, read: AnswerPart) -> bytes:
        """The events of a stream for a part of a choice."""

    @abstractmethod
    def last(self, index: int, end: CallEnd) -> bytes:
        """The events that end a choice."""

    def done(self, ends: Sequence[CallEnd]) -> bytes:
        """The events that end a stream."""
        return b""

    @abstractmethod
    def failed(self, error: GatewayError) -> bytes:
        """The end of a stream that failed after it had begun."""


class Dialect(NamedTuple):
    """A dialect: the `path` behind `/sessions/NAME/v1` at which it is spoken, how it reads a body
    (in a thread; raises GatewayError), writes answers, and says errors. `counts` is the path at
    which it tells the tokens of a call's context, with the answer to that."""

    path: str
    read: Callable[[bytes, Settings], ModelCall]
    envelope: Callable[[ModelCall, AnswerFacts], Envelope]
    error: Callable[[GatewayError], bytes]
    counts: tuple[str, Callable[[int], bytes]] | None = None
    versions: tuple[str, ...] = ()
    version_header: str = ""


def text_input(call: ToolCall) -> str:
    """The text of a call of a custom tool; its arguments as they are where the model gave it
    others."""
    arguments = msgspec.json.decode(call.arguments)
    text = arguments.get("input") if isinstance(arguments, dict) and len(arguments) == 1 else None
    return text if isinstance(text, str) else call.arguments


def text_of(deltas: Sequence[Delta]) -> str:
    return "".join(delta for delta in deltas if isinstance(delta, str))


def thoughts_of(deltas: Sequence[Delta]) -> str:
    return "".join(delta.text for delta in deltas if isinstance(delta, Thought))


def calls_in(deltas: Sequence[Delta]) -> list[ToolCall]:
    return [delta for delta in deltas if isinstance(delta, ToolCall)]
