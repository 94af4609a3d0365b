"""Requests of agents, parsed from JSON. Invariant: an accepted request is done exactly as written;
one that cannot be done is a 400 that names the parameter.

Two kinds of parameters are refused on purpose: those that change the distribution that tokens are
drawn from (`top_p`, penalties), because the recorded log-probabilities would not be those of the
sampling; and those that ask for what engines do not offer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

import msgspec

from asyncrl.agents.agent_rewards import KEY
from asyncrl.agents.gateway.errors import GatewayError, bad

Positive = Annotated[int, msgspec.Meta(ge=1)]
NEUTRAL = {
    "top_p": 1,
    "frequency_penalty": 0,
    "presence_penalty": 0,
    "n": 1,
    "best_of": 1,
    "parallel_tool_calls": True,
}
"""Values that these parameters must have if they are sent."""
IGNORED = ("seed", "temperature")
"""Parameters that are accepted and have no effect; an answer says so in the header `x-ignored`."""
_STOPS, _STOP_CHARACTERS, _MESSAGES = 4, 256, 4096
_NULL = b"null"


class StreamOptions(msgspec.Struct, forbid_unknown_fields=True):
    """OpenAI's options of a stream."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class ResponseFormat(msgspec.Struct, forbid_unknown_fields=True):
    """OpenAI's form of a reply; text is the only one here."""

    type: Literal["text"]


class _Part(msgspec.Struct, forbid_unknown_fields=True):
    type: Literal["text"]
    text: str


class _Function(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    arguments: str


class _Call(msgspec.Struct, forbid_unknown_fields=True):
    id: str
    function: _Function
    type: Literal["function"] = "function"
    index: int | None = None


class _Message(msgspec.Struct, forbid_unknown_fields=True):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[_Part] = ""
    tool_calls: list[_Call] = []
    tool_call_id: str = ""
    name: str = ""
    reasoning_content: str = ""
    annotations: msgspec.Raw = msgspec.Raw()


class CallRequest(msgspec.Struct, kw_only=True):
    """The fields that both kinds of request have. None leaves the choice to the gateway."""

    model: str
    max_tokens: Positive | None = None
    temperature: Annotated[float, msgspec.Meta(ge=0, le=2)] | None = None
    stop: str | list[str] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    seed: int | None = None
    user: str | None = None
    n: int | None = None
    top_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    skip_special_tokens: bool | None = None

    @property
    def special(self) -> bool:
        """True if the reply has the names of special tokens: the default of servers is false."""
        return self.skip_special_tokens is False

    @property
    def budget(self) -> int | None:
        """Tokens to sample at most."""
        return self.max_tokens

    @property
    def stops(self) -> list[str]:
        return [self.stop] if isinstance(self.stop, str) else self.stop or []

    @property
    def usage(self) -> bool:
        """True if a stream ends with its usage."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @property
    def scored(self) -> bool:
        """True if log-probabilities are wanted."""
        return False


class ChatRequest(CallRequest, kw_only=True):
    """The body of `/v1/chat/completions`."""

    messages: Annotated[list[msgspec.Raw], msgspec.Meta(min_length=1, max_length=_MESSAGES)]
    max_completion_tokens: Positive | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Literal["auto", "none"] | None = None
    parallel_tool_calls: bool | None = None
    response_format: ResponseFormat | None = None

    @property
    def budget(self) -> int | None:
        return (
            self.max_completion_tokens
            if self.max_completion_tokens is not None
            else self.max_tokens
        )

    @property
    def scored(self) -> bool:
        return bool(self.logprobs)

    @property
    def offered(self) -> list[dict[str, Any]]:
        """The tools that are shown to the model."""
        return [] if self.tool_choice == "none" else self.tools or []


class TextRequest(CallRequest, kw_only=True):
    """The body of `/v1/completions`."""

    prompt: str | list[int | str]
    logprobs: int | None = None
    best_of: int | None = None
    echo: Literal[False] | None = None
    suffix: None = None

    @property
    def scored(self) -> bool:
        return self.logprobs is not None


PromptIndex = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]


_Request = TypeVar("_Request", ChatRequest, TextRequest)


def parse(body: bytes, kind: type[_Request], items: int) -> _Request:
    """The request in `body`, whose JSON has at most about `items` items. Raises GatewayError
    (400)."""
    _few(body.count(b","), items)
    fields = _decode(body, dict[str, msgspec.Raw])
    known = kind.__struct_fields__
    if unknown := [name for name in fields if name not in known]:
        raise bad(
            f"the gateway does not know {unknown[0]!r}; leave it out (it knows "
            f"{', '.join(sorted(known))})",
            unknown[0],
            "unknown_parameter",
        )
    request = _decode(body, kind)
    for name, neutral in NEUTRAL.items():
        value = getattr(request, name, None)
        if value is not None and value != neutral:
            raise bad(
                f"{name} must be {msgspec.json.encode(neutral).decode()} or left out, not {value}",
                name,
                "unsupported_value",
            )
    if len(request.stops) > _STOPS or not all(
        0 < len(stop) <= _STOP_CHARACTERS for stop in request.stops
    ):
        raise bad(
            f"stop must be at most {_STOPS} strings, none of them empty or of more than "
            f"{_STOP_CHARACTERS} characters",
            "stop",
        )
    if getattr(request, "top_logprobs", 0) or (
        isinstance(request, TextRequest) and request.logprobs
    ):
        name = "top_logprobs" if isinstance(request, ChatRequest) else "logprobs"
        raise bad(
            f"{name} must be 0 or left out: the gateway knows the log-probabilities of the "
            "tokens that were sampled alone",
            name,
        )
    return request


class TurnReward(msgspec.Struct, forbid_unknown_fields=True):
    """A reward for a turn, or, without one, for the whole. `key`: of the turn, which advantages may
    compare by."""

    reward: float
    turn: Annotated[int, msgspec.Meta(gt=-(1 << 31), lt=1 << 31)] | None = None
    key: Annotated[str, msgspec.Meta(max_length=KEY)] = ""


class TurnFailed(msgspec.Struct, forbid_unknown_fields=True):
    """A turn that was a failed call of a tool."""

    tool: Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
    turn: Annotated[int, msgspec.Meta(gt=-(1 << 31), lt=1 << 31)] = -1


class FailedAttempt(msgspec.Struct, forbid_unknown_fields=True):
    """The end of an attempt that has failed, and why, if the agent gives a reason."""

    reason: str = ""


class _Noted(msgspec.Struct, forbid_unknown_fields=True):
    value: msgspec.Raw


def turn_reward(body: bytes) -> TurnReward:
    """The reward in `body`. Raises GatewayError (400)."""
    return _decode(body, TurnReward)


def turn_failed(body: bytes) -> TurnFailed:
    """The failed call in `body`. Raises GatewayError (400)."""
    return _decode(body, TurnFailed)


def given_up(body: bytes) -> FailedAttempt:
    """The failed attempt in `body`, which may be empty. Raises GatewayError (400)."""
    return _decode(body, FailedAttempt) if body else FailedAttempt()


def note(body: bytes) -> bytes:
    """The JSON of the value in `body`. Raises GatewayError (400)."""
    return bytes(_decode(body, _Noted).value)


def messages(request: ChatRequest, items: int) -> list[dict[str, Any]]:
    """The messages as chat templates know them: text alone, arguments as objects of at most about
    `items` items, and nothing that is null. Raises GatewayError (400)."""
    return [_message(at, message, items) for at, message in enumerate(request.messages)]


def tools(request: ChatRequest) -> list[dict[str, Any]]:
    """The tools as they were sent. Raises GatewayError (400) for a tool that is not a function with
    a name."""
    for at, tool in enumerate(request.offered):
        function = tool.get("function")
        if (
            tool.get("type") != "function"
            or not isinstance(function, Mapping)
            or not isinstance(function.get("name"), str)
        ):
            raise bad(
                f"tools[{at}] must be a function with a name: {{'type': 'function', 'function': "
                f"{{'name': ...}}}}",
                "tools",
            )
    return request.offered


def _message(at: int, raw: msgspec.Raw, items: int) -> dict[str, Any]:
    """Convert one message. Clients send replies back with every field that was null."""
    try:
        fields = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
        present = {name: value for name, value in fields.items() if bytes(value) != _NULL}
        message = msgspec.json.decode(msgspec.json.encode(present), type=_Message)
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        raise bad(f"messages[{at}]: {error}", "messages") from error
    text = (
        message.content
        if isinstance(message.content, str)
        else "".join(part.text for part in message.content)
    )
    plain: dict[str, Any] = {
        "role": "system" if message.role == "developer" else message.role,
        "content": text,
    }
    if message.tool_calls:
        plain["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {
                    "name": call.function.name,
                    "arguments": _arguments(at, call.function, items),
                },
            }
            for call in message.tool_calls
        ]
    for name in ("tool_call_id", "name", "reasoning_content"):
        if value := getattr(message, name):
            plain[name] = value
    return plain


def _arguments(at: int, function: _Function, items: int) -> dict[str, Any]:
    _few(function.arguments.count(","), items)
    try:
        return msgspec.json.decode(function.arguments, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        raise bad(
            f"messages[{at}]: the arguments of {function.name!r} are not a JSON object", "messages"
        ) from error


def _few(commas: int, items: int) -> None:
    """Refuse JSON with more items than this, counted by commas, which costs one pass over it."""
    if commas > items:
        raise bad(f"the request's JSON has more than {items} items", code="too_many_items")


_Type = TypeVar("_Type")


def _decode(body: bytes, kind: type[_Type]) -> _Type:
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        field = re.search(r"`\$\.(\w+)", str(error)) or re.search(
            r"required field `(\w+)`", str(error)
        )
        raise bad(str(error), field[1] if field else None) from error
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        raise GatewayError(
            400, "invalid_json", f"the body is not the JSON of a request: {error}"
        ) from error
