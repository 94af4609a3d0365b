"""Checks of a run's prompts as its model reads them, and of its verifier on an answer of the data.
Nothing is written, and each check has a bound in seconds.
"""

from __future__ import annotations

import time
import unicodedata
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path

import numpy as np
import trio

from asyncrl.actors.reward_actor import open_verifiers
from asyncrl.actors.worker_forks import WorkersLost
from asyncrl.bundled import bundled_model
from asyncrl.config import Config, ConfigError
from asyncrl.config.derived import Row
from asyncrl.config.mix import each
from asyncrl.config.vision import unseen
from asyncrl.escape import escaped, quoted
from asyncrl.messages import NoVerdict, Split
from asyncrl.own_folder import own_folder
from asyncrl.runtime.ipc.waits import Waits
from asyncrl.tasks import Task, TaskError
from asyncrl.tasks.foreign_process import CallEnded, CallFailed
from asyncrl.tasks.images.vision_model import VisionModel
from asyncrl.tasks.judge_request import JudgeRequest
from asyncrl.tasks.mixed import in_turn, tasks_of
from asyncrl.tasks.prompt import ChatPrompt, Prompt, text_of
from asyncrl.tasks.template_process import TemplateProcess
from asyncrl.tasks.text import Tokenizer
from asyncrl.words import sentence

MOST = 256
"""Prompts of a split that are checked, at most."""
CHECK_S = 1.0
"""Seconds for a split, of which at least one prompt is checked."""
PROBE = 4096
"""Characters of the first prompt that a strange tokenizer is tried with."""
UNANSWERED = "0"
"""The answer that a verifier is tried with where the data has none."""
CURES = {
    "raised": "fix it, and return 0.0 for an answer that it cannot read",
    "not finite": "a reward is a finite number of at most 1e38",
    "too large": "a reward is a finite number of at most 1e38",
    **dict.fromkeys(
        ("not a number", "unnamed rewards", "other rewards"),
        "it must return a number, or a mapping of the rewards that it names",
    ),
}
"""Kinds of reasons for no verdict on the data's own answer with which no run begins, and what to do
about each."""

AS_MESSAGES = (
    "where the prompt is a conversation, a completion is a list of messages, as in TRL: "
    'completions[0][0]["content"] is its text'
)
"""The form of completions that a function for TRL may have overlooked."""


@contextmanager
def own_tokenizer(config: Config, task: Task) -> Iterator[Tokenizer]:
    """The tokenizer of the model that learns. Raises TaskError."""
    if config.model.path:
        yield Tokenizer(config.model.path, chat=config.task.chat)
        return
    with own_folder("check") as folder:
        bundled_model.write_tokenizer(folder, bundled_model.task_frame(task))
        yield Tokenizer(folder)


def check_prompts(config: Config, task: Task) -> list[Row]:
    """Check prompts of each split, and the user's verifiers on the data's own answer to one.
    Returns notes. Raises ConfigError if no checked training prompt can be answered, if no response
    can end, and if a verifier gives no reward."""
    try:
        with own_tokenizer(config, task) as tokenizer:
            if config.model.path:
                _refuse_endless(tokenizer, text_of(task.prompt("train", 0))[:PROBE])
            if not tokenizer.stop_ids:
                raise ConfigError(
                    f"model.path is {config.model.path!r}, and none of its files names an end of "
                    "sequence, so that each response would be cut at rollout.max_new_tokens; set "
                    "eos_token_id in its generation_config.json."
                )
            notes = [
                *(Row("note", "task.path", note) for note in task.notes),
                *_of_tokenizer(config, tokenizer),
                *chat_rows(config, task, tokenizer),
                *_of_agents_images(config),
                *_of_split(config, task, tokenizer, "train"),
                *_of_split(config, task, tokenizer, "evaluation"),
            ]
            own = any(":" in member.verifier or ":" in member.name for member in each(config.task))
            if own and not config.cluster.reward_agents:  # else other machines judge
                notes += _of_verifiers(config, task, tokenizer)
    except TaskError as error:
        raise ConfigError(sentence(error)) from None
    return notes


def _refuse_endless(tokenizer: Tokenizer, text: str) -> None:
    """Raise TaskError if the tokenizer cannot read a short text, and write it again, in a process
    that can be killed: a normalizer may make a text a million times as long, and memory that is
    refused ends the process."""
    tried = TemplateProcess(lambda *_: tokenizer.decode(tokenizer.ids(text, start=True))[:1])
    try:
        tried.render((), ())
    except CallEnded as error:
        raise TaskError(f"the model's tokenizer fails at the first prompt: {error}") from None
    except CallFailed as error:
        raise TaskError(str(error)) from None


def _of_tokenizer(config: Config, tokenizer: Tokenizer) -> Iterator[Row]:
    """A note if the tokenizer ends each text, so that a prompt differs from what it gives."""
    if tokenizer.ending and not config.task.chat:
        ending = escaped(tokenizer.ending, 40)
        yield Row("note", "model.path", f"its tokenizer ends a text with {ending}: no prompt does")


def chat_rows(config: Config, task: Task, tokenizer: Tokenizer) -> list[Row]:
    """Try the chat template on the roles of conversations. Returns a note on how conversations are
    written. Raises ConfigError for a template that leaves a role out."""
    chats = [
        prompt
        for index in range(min(task.size("train"), MOST))
        if isinstance(prompt := task.prompt("train", index), ChatPrompt)
    ]
    if not chats:
        return []
    if not config.model.path:
        return [
            Row(
                "note",
                "task.path",
                "prompts are conversations, of which the bundled model reads each message as a "
                "line, without its role",
            )
        ]
    if not tokenizer.has_template:
        tools = ", and their tools are left out" if any(chat.tools for chat in chats) else ""
        return [
            Row(
                "note",
                "task.path",
                "prompts are conversations, and the model has no chat "
                f"template: they are written as text{tools}",
            )
        ]
    for chat in {tuple(one["role"] for one in chat.messages): chat for chat in chats}.values():
        _refuse_dropped(config, tokenizer, chat)
    return [Row("note", "task.path", "prompts are conversations, in the model's chat template")]


def _refuse_dropped(config: Config, tokenizer: Tokenizer, chat: ChatPrompt) -> None:
    """Raise ConfigError if the template leaves out a message of the conversation, or its tools."""
    words = [f"probe{number}of{len(chat.messages)}" for number in range(len(chat.messages))]
    messages = [{**one, "content": word} for one, word in zip(chat.messages, words, strict=True)]
    rendered = tokenizer.render(messages, chat.tools)
    lost = [one["role"] for one, word in zip(messages, words, strict=True) if word not in rendered]
    if lost:
        raise ConfigError(
            f"the chat template of {config.model.path} leaves out the messages of "
            f"{', '.join(dict.fromkeys(lost))}, which the prompts have: take them out of the data, "
            "or give a model whose template has that role."
        )


def _of_agents_images(config: Config) -> Iterator[Row]:
    """A note if agents of a model that reads images cannot show it any with these settings."""
    if config.agent.run and config.model.path and (why := unseen(config)):
        with suppress(TaskError):  # a model of text
            VisionModel(Path(config.model.path))
            yield Row("note", "agent.run", f"agents' calls with images are refused: {why}")


def _of_split(config: Config, task: Task, tokenizer: Tokenizer, split: Split) -> Iterator[Row]:
    """Notes if some prompts cannot be answered, or not by the data's own answers. Raises
    ConfigError if no training prompt can."""
    size = task.size(split)
    unfit, longest, looked, unread = Counter[str](), 0, 0, ""
    unsayable = Counter[str]()
    end = time.monotonic() + CHECK_S
    for index in islice(range(0, size, max(1, size // MOST)), MOST):
        if looked and time.monotonic() > end:
            break
        try:
            ids = np.asarray(_ids_of(config, tokenizer, task.prompt(split, index)), np.int64)
        except TaskError as error:  # one row of a large data set, or an image
            unread = unread or str(error)
            unfit["cannot be read"] += 1
            looked += 1
            continue
        looked, longest = looked + 1, max(longest, len(ids))
        if not len(ids):
            unfit["have no token"] += 1
        elif len(ids) + config.rollout.max_new_tokens > config.engine.context_tokens:
            unfit["leave no room for an answer"] += 1
        elif tokenizer.embedded and int(ids.max()) >= tokenizer.embedded:
            unfit["have a token that the model's embedding has no row for"] += 1
        if (answer := task.answer(split, index)) is not None:
            unsayable[_unsayable(answer, tokenizer, config.rollout.max_new_tokens)] += 1
    if unread and unfit["cannot be read"] == looked and split == "train":
        raise TaskError(unread)
    del unsayable[""]
    kind = "training" if split == "train" else "held-out"
    for what, count in unsayable.items():
        yield Row(
            "note",
            "task",
            f"the data's own answers to {count} of {looked} {kind} prompts that were checked "
            + what,
        )
    if not unfit:
        return
    words = ", ".join(f"{count} {what}" for what, count in unfit.items())
    words = (
        f"of {looked} {kind} prompts that were checked {words} "
        f"(rollout.max_new_tokens = {config.rollout.max_new_tokens}, "
        f"engine.context_tokens = {config.engine.context_tokens}, the longest prompt has {longest})"
    )
    if split == "train" and unfit.total() == looked:
        raise ConfigError(
            f"{words}, so nothing can be trained: raise engine.context_tokens, or check "
            "task.template and the model's tokenizer."
        )
    words += f"; the first that cannot be read: {escaped(unread, 300)}" * bool(unread)
    left_out = "they are dropped" if split == "train" else "accuracy leaves them out"
    yield Row("note", "engine.context_tokens", f"{words}: {left_out}")


def _ids_of(config: Config, tokenizer: Tokenizer, prompt: Prompt) -> list[int]:
    """The ids of a prompt, which may have images. Raises ConfigError where the settings have no
    images, and TaskError."""
    if not isinstance(prompt, ChatPrompt) or not prompt.images:
        return tokenizer.encode(prompt)
    if why := unseen(config):
        raise ConfigError(f"prompts have images, and {why}.")
    for name, other in (("reference", config.reference), ("teacher", config.teacher)):
        if other.coefficient and other.path and not _reads_alike(config.model.path, other.path):
            raise ConfigError(
                f"prompts have images, and {name}.path does not read them as model.path's "
                "model does: choose a model of the same family."
            )
    return tokenizer.encode_shown(prompt)[0]


def _reads_alike(path: str, other: str) -> bool:
    try:
        return VisionModel(Path(other)).reads_as(VisionModel(Path(path)))
    except TaskError:
        return False


def _unsayable(answer: str, tokenizer: Tokenizer, most: int) -> str:
    """The reason why a response cannot be this answer, in words; empty if it can."""
    ids = tokenizer.ids(answer)
    if len(ids) >= most:
        return f"leave no room for the end in rollout.max_new_tokens = {most}"
    text = unicodedata.normalize("NFC", tokenizer.decode(ids))
    if text.strip() != unicodedata.normalize("NFC", answer).strip():
        return "are other texts once the tokenizer has read them (unknown letters, special tokens)"
    return ""


def _of_verifiers(config: Config, task: Task, tokenizer: Tokenizer) -> list[Row]:
    """Judge the own answer of each task's first line, as a reward actor does. Returns notes on
    answers on which a verifier fails. Raises ConfigError if it gives no reward."""
    notes = list[Row]()

    async def look(directory: str) -> None:
        async with open_verifiers(config.task, config.run.seed, directory, Waits()) as verifiers:
            for index in islice(in_turn(task), len(tasks_of(task))):
                if (answer := task.answer("train", index)) is None and task.languages:
                    continue  # no program is known
                try:
                    asked = _ids_of(config, tokenizer, task.prompt("train", index))
                except TaskError:  # another check counts it
                    continue
                answer = answer or UNANSWERED
                ids = np.asarray(tokenizer.ids(answer), np.int32).tobytes()
                context = np.asarray(asked, np.int32).tobytes()
                reply = await verifiers.judge("train", index, ids, "stop", context)
                if isinstance(reply, JudgeRequest):  # a judge is asked nothing before a run
                    continue
                own = task.answer("train", index) is not None
                if isinstance(reply.verdict, NoVerdict):
                    notes.append(_failing(index, answer, reply.verdict.reason, own=own))
                elif own and reply.verdict.reward <= 0:
                    notes.append(_worthless(index, answer))

    with own_folder("check") as folder:
        if not config.model.path:
            bundled_model.write_tokenizer(folder, bundled_model.task_frame(task))
        try:
            trio.run(look, config.model.path or str(folder))
        except WorkersLost as error:
            raise ConfigError(f"the verifier cannot be started: {escaped(str(error))}.") from None
    return notes


def _worthless(index: int, answer: str) -> Row:
    """The note on a verifier that gives nothing for a right answer: it may read another form, as
    messages in place of texts."""
    words = f"it gives no reward to the data's own answer to prompt {index}"
    return Row("note", "task.verifier", f"{words} ({quoted(answer, 40)}): see that it should")


def _failing(index: int, answer: str, reason: str, *, own: bool) -> Row:
    """The note on a verifier that was too slow, died, or raised on an answer that is not the
    data's `own`. Raises ConfigError for any other reason."""
    whose = "the data's own" if own else "an"
    words = f"on {whose} answer to prompt {index} ({quoted(answer, 40)})"
    kind = reason.partition(":")[0]
    if kind in CURES and (own or kind != "raised"):
        form = f"; {AS_MESSAGES}" * ("'list' object has no attribute" in reason)
        raise ConfigError(
            f"the verifier gives no reward {words}: {escaped(reason, 200)}{form}; {CURES[kind]}."
        )
    return Row("note", "task.verifier", f"no verdict {words}: {escaped(reason, 200)}")
