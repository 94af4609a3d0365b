"""A rollout as messages with roles: what the model was given, said and called, and what came back.
Pure functions of text. Invariant: only what was sampled is the model's own; what it was given may
have any text, and has the roles that its marks claim.

Chat templates mark roles by special tokens, of which there are few forms. A model without them has
a prompt and replies.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import msgspec

from asyncrl.agents.gateway.formats.every_format import every_format
from asyncrl.agents.gateway.formats.thoughts import PAIRS
from asyncrl.agents.gateway.tools import ToolCall
from asyncrl.explain.views.seen_rollouts import SeenRollout

Decode = Callable[[bytes], str]
"""Turns `int32` ids to text, with the names of special tokens."""

_HEAD = re.compile(
    r"<\|im_start\|>(?P<chatml>[\w .-]{1,40})\n"
    r"|<\|start_header_id\|>(?P<llama>[\w .-]{1,40})<\|end_header_id\|>\s*"
    r"|<start_of_turn>(?P<gemma>\w{1,40})\n|<\|turn>(?P<turn>\w{1,40})\n"
    r"|<\|start\|>(?P<harmony>[\w.]{1,40})[^<]{0,80}(?:<\|channel\|>[^<]{0,80})?<\|message\|>"
    r"|<\|im_(?:system|user|assistant)\|>(?P<kimi>\w{1,40})[^<]{0,80}<\|im_middle\|>"
    r"|<\|(?P<bar>system|user|assistant|observation|tool|developer)\|>\n?"
    r"|<｜(?P<wide>User|Assistant|tool▁outputs▁begin)｜>"
    r"|\[(?P<square>SYSTEM_PROMPT|INST|/INST|TOOL_RESULTS)\]"
)
_END = re.compile(
    r"(?:<\|(?:im_end|eot_id|eom_id|end|return|call|endoftext|eot|end_of_text)\|>|<end_of_turn>"
    r"|<turn\|>|<｜end▁of▁sentence｜>|<｜tool▁outputs▁end｜>|</s>|\[/(?:TOOL_RESULTS|SYSTEM_PROMPT)\])"
)
_BEGIN = re.compile(
    r"\A(?:<s>|<bos>|<\|begin_of_text\|>|<｜begin▁of▁sentence｜>|\[gMASK\]|<sop>|\s)+"
)
_NEXT = re.compile(r"<\|start\|>assistant\s*\Z")
"""The head of a reply to come, where it is no whole mark."""
_RESULT = re.compile(r"<tool_response>\n?(.*?)\n?</tool_response>", re.DOTALL)
_ROLES = {
    "model": "assistant",
    "/INST": "assistant",
    "INST": "user",
    "human": "user",
    "ipython": "tool",
    "observation": "tool",
    "TOOL_RESULTS": "tool",
    "tool▁outputs▁begin": "tool",
    "SYSTEM_PROMPT": "system",
}


class SeenCall(msgspec.Struct, frozen=True):
    """A call of the tool `name`; `arguments` is JSON as the model wrote it."""

    name: str
    arguments: str


class SeenMessage(msgspec.Struct, frozen=True):
    """A message. `role` is `system`, `user`, `assistant`, `tool` or what a template calls it;
    `prompt` and `given` where the text has no roles. What was `sampled` is of the turn of that
    number, and begins with `thoughts`; `failed` names the tool whose failed call it was. A message
    goes on from the one before it, or else from the end of turn `follows`."""

    role: str
    text: str
    sampled: int | None = None
    thoughts: str = ""
    calls: list[SeenCall] = []
    failed: str = ""
    follows: int | None = None


def messages_of(seen: SeenRollout, decode: Decode) -> list[SeenMessage]:
    """The messages of a rollout, turn by turn. A turn that does not go on from the one before it
    has only what is new in it.

    >>> given("<|im_start|>user\\nadd 1<|im_end|>\\n<|im_start|>assistant\\n")[0]
    SeenMessage(role='user', text='add 1', sampled=None, thoughts='', calls=[], failed='', \
follows=None)
    >>> said("so<tool_call>{\\"name\\": \\"f\\", \\"arguments\\": {}}</tool_call><|im_end|>").calls
    [SeenCall(name='f', arguments='{}')]
    """
    if not seen.turns:
        return [*given(decode(seen.prompt)), *([said(decode(seen.ids))] if seen.ids else [])]
    found, at, last = list[SeenMessage](), 0, None
    for number, turn in enumerate(seen.turns):
        text = (decode(seen.prompt) if turn.prompted else "") + decode(turn.given)
        new = given(text, first=not found)
        if number and turn.parent != last and new:
            new[0] = msgspec.structs.replace(new[0], follows=turn.parent)
        end = at + 4 * turn.tokens
        reply = said(decode(seen.ids[at:end]), number)
        away = number > 0 and turn.parent != last and not new
        found += new
        found.append(
            msgspec.structs.replace(
                reply, failed=turn.failed, follows=turn.parent if away else None
            )
        )
        at, last = end, number
    return found


def given(text: str, *, first: bool = True) -> list[SeenMessage]:
    """The messages in a text that a model was given; the head of the reply to come is none."""
    text = _NEXT.sub("", _BEGIN.sub("", text) if first else text)
    heads = list(_HEAD.finditer(text))
    before = _END.sub("", text[: heads[0].start()] if heads else text).strip("\n")
    found = [SeenMessage("prompt" if first else "given", before)] if before.strip() else []
    ends = [*(head.start() for head in heads[1:]), len(text)]
    for head, end in zip(heads, ends, strict=False):  # without a head there is an end alone
        body = _END.sub("", text[head.end() : end])
        found += _given_by(next(filter(None, head.groups())), body)
    return [one for one in found if one.role != "assistant" or not _is_head(one.text)]


def _given_by(role: str, body: str) -> Iterator[SeenMessage]:
    role = _ROLES.get(role, role.lower())
    results = _RESULT.findall(body)
    if results and not _RESULT.sub("", body).strip():
        for result in results:
            yield SeenMessage("tool", result)
        return
    if role.startswith("functions."):
        role = "tool"
    yield SeenMessage(role, body.strip("\n"))


def _is_head(text: str) -> bool:
    """True if this much of a reply is the template's own: a thought may be opened, or closed."""
    return not text.strip() or any(
        text.strip() in (opens, closes) or re.fullmatch(rf"{opens}\s*{closes}", text.strip())
        for opens, closes in ((re.escape(a), re.escape(b)) for a, b in PAIRS)
    )


def said(text: str, turn: int = 0) -> SeenMessage:
    """The message that a model sampled, with its thoughts and calls told apart."""
    rest, thoughts = _END.sub("", text), ""
    for opens, closes in PAIRS:
        if closes in rest:
            thoughts, _, rest = rest.partition(closes)
            thoughts = thoughts.strip().removeprefix(opens).strip("\n")
            break
    for form in every_format():
        if not any(mark in text for mark in form.marks):
            continue
        parser = form.parser({})
        parts = [*parser.push(rest), *parser.end()]
        if calls := [SeenCall(p.name, p.arguments) for p in parts if isinstance(p, ToolCall)]:
            left = "".join(part for part in parts if isinstance(part, str))
            return SeenMessage("assistant", left.strip("\n"), turn, thoughts, calls)
    return SeenMessage("assistant", rest.strip("\n"), turn, thoughts)
