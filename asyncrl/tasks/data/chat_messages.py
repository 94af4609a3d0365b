"""Messages of a conversation, as data sets have them. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from asyncrl.escape import escaped
from asyncrl.tasks.images.image_source import MARK, image_part
from asyncrl.tasks.prompt import Messages

ROLES = {
    **{role: role for role in ("system", "developer", "user", "assistant", "tool", "function")},
    "human": "user",
    "gpt": "assistant",
    "bot": "assistant",
    "model": "assistant",
    "chatgpt": "assistant",
    "observation": "tool",
    "function_call": "assistant",
}
"""Roles, and other names of them."""
FIRST = ("system", "developer")
"""Roles of messages that stand before all others."""


def conversation(listed: Sequence[Any]) -> Messages:
    """Messages with the usual names, without empty fields. Raises LookupError for what is no
    conversation, and for roles out of order.

    >>> conversation([{"from": "human", "value": "1 + 1?", "weight": None}])
    [{'role': 'user', 'content': '1 + 1?'}]
    """
    messages = [_message(number, one) for number, one in enumerate(listed, 1)]
    roles = [message["role"] for message in messages]
    if "user" not in roles:
        said = ", ".join(dict.fromkeys(roles)) or "none"
        raise LookupError(f"its messages have no user's among them (the roles are: {said})")
    if roles[0] == "tool":
        raise LookupError("its first message is a tool's: a tool answers a call of the assistant")
    for number, (role, before) in enumerate(zip(roles[1:], roles, strict=False), 2):
        if role in FIRST and before not in FIRST:
            raise LookupError(
                f"its message {number} is the {role}'s, behind one of the {before}: the system "
                "speaks before all others"
            )
        if role == "tool" and before not in ("assistant", "tool"):
            raise LookupError(
                f"its message {number} is a tool's, behind one of the {before}: a tool answers a "
                "call of the assistant"
            )
    return messages


def _message(number: int, one: Any) -> dict[str, Any]:
    if not isinstance(one, Mapping):
        raise LookupError(f"its message {number} is {kind(one)}, and must be an object with a role")
    fields = {key: pruned(value) for key, value in one.items() if value is not None}
    role = fields.pop("from", None) if "role" not in fields else fields.pop("role")
    if not isinstance(role, str) or role not in ROLES:
        raise LookupError(
            f"its message {number} has the role {escaped(str(role), 40)!r}; there are "
            "system, user, assistant and tool"
        )
    content = fields.pop("content", fields.pop("value", None))
    if isinstance(content, list):
        content = _joined(number, content)
        if isinstance(content, list) and ROLES[role] == "assistant":
            raise LookupError(f"its message {number} is the assistant's, and has an image")
    if content is None and fields.get("tool_calls"):
        content = ""
    if not isinstance(content, str | list):
        raise LookupError(
            f"the content of its message {number} is {kind(content)}, and must be a text"
        )
    if (calls := fields.get("tool_calls")) and not _are_calls(calls):
        raise LookupError(
            f"the tool_calls of its message {number} are no list of objects with a function's "
            "name, as chat templates take them"
        )
    fields.pop("weight", None)
    return {"role": ROLES[role], "content": content, **fields}


def _are_calls(calls: Any) -> bool:
    """True for calls of tools as chat templates take them, with or without `function`."""
    if not isinstance(calls, list) or not all(isinstance(call, Mapping) for call in calls):
        return False
    functions = [call.get("function") or call for call in calls]
    return all(isinstance(one, Mapping) and isinstance(one.get("name"), str) for one in functions)


def _joined(number: int, parts: Sequence[Any]) -> str | list[Any]:
    """Parts of a content as one text, or as parts where there is an image among them."""
    texts = [one if isinstance(one, str) else _part(one) for one in parts]
    seen = [image_part(one) is not None for one in parts]
    if any(text is None and not image for text, image in zip(texts, seen, strict=True)):
        raise LookupError(
            f"its message {number} has a part that is neither text nor image: only these are read"
        )
    if any(seen):
        return [
            part if text is None else {"type": "text", "text": text}
            for part, text in zip(parts, texts, strict=True)
        ]
    return "".join(text or "" for text in texts)


def _part(part: Any) -> str | None:
    text = part.get("text") if isinstance(part, Mapping) else None
    return text if isinstance(text, str) and part.get("type", "text") == "text" else None


def tools_of(value: Any) -> Messages:
    """The tools of a row: a list of objects, or the JSON of one. Raises LookupError.

    >>> tools_of('[{"type": "function"}]'), tools_of(None)
    ([{'type': 'function'}], [])
    """
    if isinstance(value, str) and value.strip():
        try:
            value = msgspec.json.decode(value)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            raise LookupError(f"its tools are no JSON ({error})") from error
    if not value:
        return []
    if not isinstance(value, list) or not all(isinstance(one, Mapping) for one in value):
        raise LookupError("its tools are no list of objects, as chat templates take them")
    return [pruned(one) for one in value]


def pruned(value: Any) -> Any:
    """A value without the keys that tables fill with null."""
    if isinstance(value, Mapping):
        return {key: pruned(one) for key, one in value.items() if one is not None}
    return [pruned(one) for one in value] if isinstance(value, list) else value


def said(message: Mapping[str, Any]) -> str:
    """The content of a message as one text, with a mark for each image.

    >>> said({"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "Which?"}]})
    '<image>Which?'
    """
    content = message["content"]
    if isinstance(content, str):
        return content
    return "".join(MARK if part.get("type") == "image" else part["text"] for part in content)


def as_text(messages: Messages) -> str:
    """A conversation as one text: its contents, each with who said it once there is a reply in it.

    >>> as_text([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1 + 1?"}])
    'Be brief.\\n1 + 1?'
    """
    replies = any(message["role"] in ("assistant", "tool") for message in messages)
    if not replies:
        return "\n".join(map(said, messages))
    lines = [f"{message['role'].capitalize()}: {said(message)}" for message in messages]
    return "\n".join([*lines, "Assistant:"])


def kind(value: object) -> str:
    """The kind of a value, in words.

    >>> [kind(value) for value in (None, True, 1, "", [], {})]
    ['null', 'true or false', 'a number', 'a text', 'a list', 'an object']
    """
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true or false"
    if isinstance(value, int | float):
        return "a number"
    if isinstance(value, str):
        return "a text"
    if isinstance(value, list | tuple):
        return "a list"
    return "an object" if isinstance(value, Mapping) else f"a {type(value).__name__}"
