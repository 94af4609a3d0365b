"""Parts of reading a request that dialects share. Invariant: an accepted one is done as written,
but for the parameters that `ignored` names; one that cannot be done is a 400 that names the
parameter.

Parameters that change the distribution which tokens are drawn from (`top_p`, penalties, a JSON
schema) have no effect, because the recorded log-probabilities must be those of the sampling. Agents
that ask for a form read a reply that has not got it, and try again: a reward teaches it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, TypeVar

import msgspec

from asyncrl.agents.gateway.errors import GatewayError, bad
from asyncrl.agents.gateway.gateway_settings import Settings

Positive = Annotated[int, msgspec.Meta(ge=1)]
ModelName = Annotated[str, msgspec.Meta(max_length=256)]
Temperature = Annotated[float, msgspec.Meta(ge=0, le=2)]
MESSAGES, STOP_CHARACTERS = 4096, 256
CHOICES = 8
"""Answers to one call, at most."""
_NAMED = 32
"""Parameters that an answer's header names, at most."""
_NAME = re.compile(r"[A-Za-z0-9_.:\[\]-]{1,64}")
_NULL = b"null"
_NOTHING = (_NULL, b"[]", b"{}", b'""', b"false")
"""Values of a refused parameter that change nothing, so they are accepted."""
TEXT_TOOL = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
}
"""Arguments of a custom tool, as the chat template shows them."""
NO_FORM = (
    "the reply's form is not enforced: sampling under a grammar would draw from another "
    "distribution than the one that is trained; ask for the form in the prompt, and reward it"
)
FORMS = {
    *("response_format", "text.format", "output_config.format", "output_format"),
    *("guided_json", "guided_regex", "guided_choice", "guided_grammar"),
    *("structured_outputs", "structural_tag", "json_schema", "regex", "ebnf", "grammar"),
}
"""Parameters that ask for a form of the reply: OpenAI's, Anthropic's, vLLM's and SGLang's."""

_Type = TypeVar("_Type")


def decode(body: bytes | msgspec.Raw, kind: type[_Type]) -> _Type:
    """JSON as a type. Raises GatewayError (400)."""
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        field = re.search(r"`\$\.(\w+)", str(error)) or re.search(
            r"required field `(\w+)`", str(error)
        )
        raise bad(str(error), field[1] if field else None) from error
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        raise GatewayError(
            400, "invalid_json", f"the body is not the JSON of a request: {error}"
        ) from error


def parse(
    body: bytes,
    kind: type[_Type],
    settings: Settings,
    *,
    neutral: Mapping[str, Any],
    ignored: Sequence[str],
    refused: Mapping[str, str],
) -> tuple[_Type, list[str]]:
    """The request in a body, and its parameters without effect: those of `ignored` that are given
    and not `neutral`, and those that `kind` does not have. With `settings.strict` these are
    refused. Of `refused` each is refused with its reason. Raises GatewayError (400)."""
    few(body.count(b","), settings.items)
    fields = decode(body, dict[str, msgspec.Raw])
    known = kind.__struct_fields__  # type: ignore[attr-defined]
    given = {name for name, value in fields.items() if bytes(value) != _NULL}
    for name, reason in refused.items():
        if name in given and bytes(fields[name]) not in _NOTHING:
            raise bad(f"{name}: {reason}", name, "unsupported_parameter")
    unknown = [name for name in fields if name not in known]
    if unknown and settings.strict:
        raise bad(
            f"the gateway does not know {unknown[0]!r}; leave it out (it knows "
            f"{', '.join(sorted(known))})",
            unknown[0],
            "unknown_parameter",
        )
    request = decode(body, kind)
    without = []
    for name in (*ignored, *neutral):
        value = getattr(request, name, None)
        if value is None or (name in neutral and value == neutral[name]):
            continue
        if name == "metadata" and value.keys() <= {"role"}:
            continue
        if settings.strict and name not in ALWAYS_IGNORED:
            allowed = neutral.get(name)
            must = (
                f"must be {msgspec.json.encode(allowed).decode()} or"
                if name in neutral
                else "must be"
            )
            raise bad(f"{name} {must} left out, not {value!r}", name, "unsupported_value")
        without.append(name)
    return request, [*without, *(name for name in unknown if name in given)]


ALWAYS_IGNORED = ("seed", "temperature")
"""Parameters that are accepted without effect where the others are refused, too."""


ROLE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
"""Names of roles."""


def role_of(role: Any, param: str) -> str:
    """The role of a call. Raises GatewayError (400)."""
    if not isinstance(role, str) or not ROLE.fullmatch(role):
        raise bad(
            f"{param}: a role is 1 to 64 letters, digits, dots, dashes and underscores, the first "
            "a letter or digit",
            param,
        )
    return role


def metadata_role(metadata: Mapping[str, Any] | None) -> str:
    """The role that a call's metadata name; empty if they name none. Raises GatewayError (400)."""
    if not metadata or metadata.get("role") is None:
        return ""
    return role_of(metadata["role"], "metadata.role")


def form_ignored(form: Any, param: str, settings: Settings) -> list[str]:
    """The name of the parameter that asks for a form of the reply, which has no effect; nothing for
    plain text. Raises GatewayError (400) for a form without a type, and where parameters are
    strict."""
    kind = "text" if form is None else form.get("type") if isinstance(form, Mapping) else None
    if kind == "text":
        return []
    if not isinstance(kind, str):
        raise bad(f"{param} must be an object with a type, not {form!r}", param.partition(".")[0])
    if settings.strict:
        raise bad(
            f"{param} must be {{'type': 'text'}} or left out: {NO_FORM}",
            param.partition(".")[0],
            "unsupported_value",
        )
    return [param]


def served(model: str, settings: Settings) -> None:
    """Refuse another model's name where parameters are strict."""
    if settings.strict and model != settings.model:
        raise GatewayError(
            404,
            "model_not_found",
            f"there is no model {model!r}; ask for {settings.model!r}",
            param="model",
        )


def shown(ignored: Sequence[str]) -> str:
    """Names of parameters for a header, which holds no other characters."""
    names = dict.fromkeys(name if _NAME.fullmatch(name) else "?" for name in ignored)
    return ", ".join([*names][:_NAMED])


def checked_stops(stop: str | list[str] | None, most: int, param: str) -> list[str]:
    """Stop strings. Raises GatewayError (400)."""
    stops = [stop] if isinstance(stop, str) else stop or []
    if len(stops) > most or not all(0 < len(one) <= STOP_CHARACTERS for one in stops):
        raise bad(
            f"{param} must be at most {most} strings, none of them empty or of more than "
            f"{STOP_CHARACTERS} characters",
            param,
        )
    return stops


def function_tool(
    at: int, name: Any, description: Any, parameters: Any, **more: Any
) -> dict[str, Any]:
    """A tool as chat templates know it. Raises GatewayError (400) for one that is none."""
    if not isinstance(name, str) or not name:
        raise bad(f"tools[{at}] must have a name", "tools")
    if parameters is not None and not _is_schema(parameters):
        raise bad(
            f"tools[{at}]: the parameters of {name!r} must be the JSON schema of an object", "tools"
        )
    function = {"name": name, "description": description, "parameters": parameters, **more}
    return {
        "type": "function",
        "function": {key: value for key, value in function.items() if value is not None},
    }


def custom_tool(at: int, tool: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """A custom tool of OpenAI's, which takes a text, as chat templates know it: a function of one
    argument. Its grammar has no effect, and is named. Raises GatewayError (400)."""
    form = tool.get("format") or {"type": "text"}
    if not isinstance(form, Mapping) or form.get("type") not in ("text", "grammar"):
        raise bad(f"tools[{at}]: its format must be of type text or grammar", "tools")
    shown = function_tool(at, tool.get("name"), tool.get("description"), TEXT_TOOL)
    return shown, ["tools.format"] * (form["type"] == "grammar")


def _is_schema(parameters: Any) -> bool:
    """True for an object whose type, if it has one, is `object`, whose properties are objects, and
    whose required properties are a list of names."""
    if not isinstance(parameters, Mapping) or parameters.get("type", "object") != "object":
        return False
    properties = parameters.get("properties") or {}
    required = parameters.get("required") or []
    return (
        isinstance(properties, Mapping)
        and all(isinstance(one, Mapping | bool) for one in properties.values())
        and isinstance(required, list)
        and all(isinstance(name, str) for name in required)
    )


def is_named(tools: Sequence[Mapping[str, Any]], name: Any) -> None:
    """Raise GatewayError (400) if a tool that must be called is not offered."""
    if name not in [tool["function"]["name"] for tool in tools]:
        raise bad(f"tool_choice names the tool {name!r}, which is not in tools", "tool_choice")


def arguments_of(where: str, name: str, text: str, settings: Settings) -> dict[str, Any]:
    """The arguments of a call. Raises GatewayError (400)."""
    few(text.count(","), settings.items)
    try:
        return msgspec.json.decode(text or "{}", type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        raise bad(
            f"{where}: the arguments of {name!r} are not a JSON object", where_of(where)
        ) from error


def where_of(where: str) -> str:
    """The parameter of a place: `messages` of `messages[3]`."""
    return where.partition("[")[0]


def few(commas: int, items: int) -> None:
    """Refuse JSON with more items than this, counted by commas, which costs one pass over it."""
    if commas > items:
        raise bad(f"the request's JSON has more than {items} items", code="too_many_items")


def named(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages, results of tools with the name of the tool: templates may need it."""
    names: dict[str, str] = {}
    for message in messages:
        for call in message.get("tool_calls", ()):
            names[call["id"]] = call["function"]["name"]
        name = names.get(message.get("tool_call_id", ""))
        if message["role"] == "tool" and name and not message.get("name"):
            message["name"] = name
    return messages
