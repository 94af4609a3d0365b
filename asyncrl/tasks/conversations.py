"""Conversations as token ids, with a mask of what is learned. Invariant: what is learned stands
behind exactly the ids that an engine is given before it.

A chat template is no function of one message: it may begin an answer with a text of its own (a
generation prompt), leave out the thinking of earlier answers, or what stands behind the last one.
So each answer is found by two renderings: of the messages before it, ready for the answer, as an
engine gets them, and of those with it. What the second has more is learned, up to the token that
ends it. Answers share one sequence as long as the ids before the next one go on from it. Where they
do not (thinking was taken out), that answer is a sequence of its own; the trainer computes what
they have in common once (`training/trees/prefix_tree.py`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from asyncrl.config.schema.sft_section import LossOn
from asyncrl.escape import escaped
from asyncrl.tasks import TaskError
from asyncrl.tasks.prompt import Prompt
from asyncrl.tasks.text import Tokenizer

ASSISTANT = "assistant"
SAID = ("system", "developer", "user")
"""Roles whose text a template must show as it is; it may encode what a tool returned."""
_SHOWN = 40
"""Characters of a text that a sentence quotes."""
Message = Mapping[str, Any]


class LearnedIds(NamedTuple):
    """The ids of a sequence, and for each whether it is learned: a `mask` of 0 and 1. An id
    `-1 - n` is a part of image `n` of `images`, by their hashes.

    >>> LearnedIds([5, 6, 7], bytes([0, 1, 1])).learned
    2
    """

    ids: list[int]
    mask: bytes
    images: tuple[str, ...] = ()

    @property
    def learned(self) -> int:
        return self.mask.count(1)

    def showing(self, token: int, images: Sequence[tuple[str, int]]) -> LearnedIds:
        """The sequence with images in the places of a `token`, each by its hash and its number of
        parts; no part is learned. A sequence of a conversation's beginning shows the first ones.
        Raises TaskError for a place without an image.

        >>> LearnedIds([9, 5, 9], bytes([0, 1, 0])).showing(9, [("a", 2), ("a", 2)])
        LearnedIds(ids=[-1, -1, 5, -1, -1], mask=b'\\x00\\x00\\x01\\x00\\x00', images=('a',))
        """
        places = self.ids.count(token)
        if places > len(images):
            raise TaskError(
                f"the chat template gives {places} places to {len(images)} images: it may not know "
                "parts of images, or the text names their token"
            )
        names = list(dict.fromkeys(name for name, _ in images[:places]))
        ids, mask, left = list[int](), bytearray(), iter(images)
        for one, learned in zip(self.ids, self.mask, strict=True):
            name, parts = next(left) if one == token else ("", 1)
            ids += [-1 - names.index(name)] * parts if name else [one]
            mask += bytes(parts) if name else bytes([learned])
        return LearnedIds(ids, bytes(mask), tuple(names))


def answered(tokenizer: Tokenizer, prompt: Prompt, answer: str) -> LearnedIds:
    """A prompt without a chat template, and its answer, which is learned with its end. Raises
    TaskError where either is empty, or the model has no end."""
    before, after = tokenizer.encode(prompt), tokenizer.ids(answer)
    if not before:
        raise TaskError("its prompt is empty")
    if not after:
        raise TaskError("its answer is empty")
    return LearnedIds([*before, *after, end_of(tokenizer)], _mask(len(before), len(after) + 1))


def conversation(
    tokenizer: Tokenizer,
    messages: Sequence[Message],
    tools: Sequence[Mapping[str, Any]] = (),
    loss_on: LossOn = "assistant",
    most: int = 0,
) -> list[LearnedIds]:
    """The sequences of a conversation, whose tokenizer has the model's chat template; of one with
    more than `most` tokens (0: any number) only those up to the first that is longer, because each
    answer renders all that is before it. Raises TaskError where there is nothing to learn, where
    the template cannot render it or leaves out what is said, or where it begins an answer with a
    text that the answer does not have."""
    turns = [at for at, message in enumerate(messages) if message.get("role") == ASSISTANT]
    if not turns:
        raise TaskError("it has no message of the assistant, so there is nothing to learn")
    if loss_on == "all":
        return [_whole(tokenizer, messages, tools)]
    _refuse_left_out(tokenizer, messages[: turns[-1]], tools)
    found = list[LearnedIds]()
    ids, mask = list[int](), bytearray()
    for at in turns if loss_on == ASSISTANT else turns[-1:]:
        prompt = tokenizer.render(messages[:at], tools)
        before, answer = tokenizer.ids(prompt), _answer(tokenizer, prompt, messages, at, tools)
        if not before:
            raise TaskError("the chat template puts nothing before its first answer")
        if before[: len(ids)] == ids:
            mask += bytes(len(before) - len(ids))
        else:
            found.append(LearnedIds(ids, bytes(mask)))
            mask = bytearray(len(before))
        after = _up_to_end(tokenizer, tokenizer.ids(answer))
        ids = before + after
        mask += b"\x01" * len(after)
        if most and len(ids) > most:
            break
    return [*found, LearnedIds(ids, bytes(mask))]


def images_shown(messages: Sequence[Message], loss_on: LossOn = "assistant") -> int:
    """The number of images that the last sequence of a conversation has: none follows its last
    answer, unless all is learned.

    >>> part = {"type": "image"}
    >>> images_shown([{"role": "user", "content": [part, part]}, {"role": "assistant"}])
    2
    """
    roles = [message.get("role") for message in messages]
    end = len(roles) if loss_on == "all" else len(roles) - roles[::-1].index(ASSISTANT)
    return sum(
        isinstance(part, dict) and part.get("type") == "image"
        for message in messages[:end]
        if isinstance(parts := message.get("content"), list)
        for part in parts
    )


def end_of(tokenizer: Tokenizer) -> int:
    """The id that ends a response. Raises TaskError for a model without one."""
    if tokenizer.end_id is None:
        raise TaskError(
            "the model's files name no eos_token, so no answer could be taught to end; name it in "
            "tokenizer_config.json"
        )
    return tokenizer.end_id


def _mask(given: int, learned: int) -> bytes:
    return bytes(given) + b"\x01" * learned


def _up_to_end(tokenizer: Tokenizer, ids: list[int]) -> list[int]:
    """An answer's ids up to the last that ends a response; with one where it has none. What the
    template writes behind it, an engine never samples."""
    ends = {*tokenizer.stop_ids, end_of(tokenizer)}
    last = max((at for at, token in enumerate(ids) if token in ends), default=None)
    return [*ids, end_of(tokenizer)] if last is None else ids[: last + 1]


def _whole(
    tokenizer: Tokenizer, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]
) -> LearnedIds:
    """A conversation of which every token is learned but the first, which nothing predicts."""
    _refuse_left_out(tokenizer, messages, tools)
    ids = tokenizer.ids(tokenizer.written(messages, tools))
    if len(ids) < 2:
        raise TaskError("the chat template makes nothing of it")
    return LearnedIds(ids, _mask(1, len(ids) - 1))


def _answer(
    tokenizer: Tokenizer,
    prompt: str,
    messages: Sequence[Message],
    at: int,
    tools: Sequence[Mapping[str, Any]],
) -> str:
    """The text that the model is to write behind `prompt`, so that the conversation has its message
    `at`, with the end that the template gives it.

    Where the template leaves out a part of what the message says, which it does with thinking, the
    message is written as it is: that is what an engine would have sampled. A template may begin the
    answer by a text with which the message begins, too (`<think>`); it is not learned twice."""
    message = messages[at]
    whole = tokenizer.written(messages[: at + 1], tools)
    said = _said(message)
    if whole.startswith(prompt) and _squeezed(said) in _squeezed(whole[len(prompt) :]):
        return _refuse_lost(message, whole[len(prompt) :])
    text, opened = said.strip(), 0
    if not whole.startswith(prompt):
        opened = _opened(prompt, whole, text)
        if not opened:
            begins = prompt[len(tokenizer.written(messages[:at], tools)) :]
            raise TaskError(
                f"the chat template begins an answer with '{escaped(begins, _SHOWN)}', and the "
                f"answer '{escaped(said, _SHOWN)}' has no such beginning: write it into the "
                "answers, or correct the template"
            )
    pairs = enumerate(zip(prompt, whole, strict=False))
    shown = whole[next((at for at, (one, other) in pairs if one != other), len(prompt)) :]
    kept = bisect_right(range(1, len(text) + 1), 0, key=lambda n: text[-n:] not in shown)
    if not kept:
        raise TaskError(f"the chat template leaves out the answer '{escaped(said, _SHOWN)}'")
    rest = text[opened:]
    if opened and prompt[-1].isspace():
        rest = rest.lstrip()
    return _refuse_lost(message, rest + shown.rpartition(text[-kept:])[2])


def _refuse_lost(message: Message, answer: str) -> str:
    """The answer, if it has what its message says beside its content. Raises TaskError."""
    thinking = message.get("reasoning_content")
    if isinstance(thinking, str) and _squeezed(thinking) not in _squeezed(answer):
        raise TaskError("the chat template leaves out reasoning_content")
    for call in message.get("tool_calls") or ():
        name = str((call.get("function") or call).get("name", ""))
        if name not in answer:
            raise TaskError(f"the chat template leaves out the call of '{escaped(name, _SHOWN)}'")
    return answer


def _refuse_left_out(
    tokenizer: Tokenizer, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]
) -> None:
    """Raise TaskError where a conversation as the template renders it lacks what a message says, of
    those before the answers."""
    text = _squeezed(tokenizer.render(messages, tools)) if messages else ""
    for message in messages:
        if message.get("role") in SAID and _squeezed(said := _said(message)) not in text:
            raise TaskError(
                f"the chat template leaves out what {escaped(str(message.get('role')), _SHOWN)} "
                f"says ('{escaped(said, _SHOWN)}')"
            )


def _opened(prompt: str, whole: str, text: str) -> int:
    """The number of characters at the beginning of an answer's `text` with which the `prompt` ends,
    but the conversation as it stands, `whole`, does not go on; 0 if there are none."""
    end = prompt.rstrip()
    for count in range(min(len(end), len(text)), 0, -1):
        if end.endswith(text[:count]) and whole.startswith(end[:-count]):
            return count
    return 0


def _said(message: Message) -> str:
    """The text of a message, which may be in parts."""
    content = message.get("content")
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return "" if content is None else str(content)


def _squeezed(text: str) -> str:
    """A text without white space, which templates add and take away."""
    return "".join(text.split())
