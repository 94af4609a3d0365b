"""A text that was made by a model's chat template, as the messages that it was made of. Pure.

Templates mark messages by special tokens of a few families. A text without marks is one message
of no role, so nothing of it is lost.
"""

from __future__ import annotations

import re
from typing import NamedTuple

ROLES = frozenset({"system", "user", "assistant", "tool", "developer"})
_MARKS = re.compile(
    r"<\|im_start\|>(?P<chatml>[a-z]{1,20})\n"
    r"|<\|start_header_id\|>(?P<llama>[a-z]{1,20})<\|end_header_id\|>\n{0,2}"
    r"|<start_of_turn>(?P<gemma>[a-z]{1,20})\n"
)
_ENDS = re.compile(r"(?:<\|im_end\|>|<\|eot_id\|>|<\|eom_id\|>|<end_of_turn>)\s*\Z")
_TOOL_RESULT = re.compile(r"\A\s*<tool_response>(.*)</tool_response>\s*\Z", re.DOTALL)
MESSAGES = 200
"""Messages of a text that are told apart; the rest is one."""


class ChatMessage(NamedTuple):
    """A message: the role of who said it, empty where that is not known, and its text."""

    role: str
    text: str


def chat_messages(text: str) -> list[ChatMessage]:
    """The messages of a text, in order.

    >>> chat_messages("<|im_start|>user\\nhi<|im_end|>\\n<|im_start|>assistant\\n")
    [ChatMessage(role='user', text='hi')]
    >>> chat_messages("6 * 7 =")
    [ChatMessage(role='', text='6 * 7 =')]
    """
    found, role, at = list[ChatMessage](), "", 0
    for mark in _MARKS.finditer(text):
        if len(found) >= MESSAGES:
            break
        found.append(_message(role, text[at : mark.start()]))
        role, at = mark["chatml"] or mark["llama"] or mark["gemma"], mark.end()
    found.append(_message(role, text[at:]))
    said = [message for message in found if message.text.strip()]
    return said or found[:1]


def _message(role: str, text: str) -> ChatMessage:
    text = _ENDS.sub("", text)
    role = "assistant" if role == "model" else role
    if role == "user" and (result := _TOOL_RESULT.match(text)):
        return ChatMessage("tool", result[1].strip("\n"))
    return ChatMessage("tool" if role == "ipython" else role, text)
