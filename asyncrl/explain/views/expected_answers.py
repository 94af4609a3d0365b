"""Right answers to the prompts of a run, by its task. Invariant: no code of a user is imported, so
a task that is one knows none here."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec

from asyncrl.config import ConfigError
from asyncrl.config.mix import each
from asyncrl.config.schema import TaskConfig
from asyncrl.explain.run_files import RunFiles
from asyncrl.messages import Split
from asyncrl.tasks import TaskError, open_task
from asyncrl.tasks.prompt import ChatPrompt, Prompt

Expected = Callable[[Split, int, str], str]
"""The right answer to the prompt of a split at an index, whose text as the model read it is given;
empty where none is known."""


def expected_answers(files: RunFiles) -> Expected:
    """Right answers by the run's task, which is opened at the first question. They are for the
    prompt that was read alone: data that has changed since, or a data set that another process
    draws in another order, gives none."""
    tasks = list[Any]()

    def expected(split: Split, index: int, prompt: str) -> str:
        if not tasks:
            tasks.append(_opened(files))
        if tasks[0] is None:
            return ""
        with suppress(TaskError, IndexError, OSError):
            if _asked(tasks[0].prompt(split, index)) in prompt:
                return tasks[0].answer(split, index) or ""
        return ""

    return expected


def _asked(prompt: Prompt) -> str:
    """The part of a prompt that is in every form of it: of a conversation the last message."""
    if isinstance(prompt, ChatPrompt):
        content = prompt.messages[-1].get("content") if prompt.messages else ""
        if isinstance(content, list):  # the text behind its last image
            content = content[-1].get("text")
        return content.strip() if isinstance(content, str) else ""
    return prompt.strip() if isinstance(prompt, str) else ""


def _opened(files: RunFiles) -> Any:
    """The task of a run; None where it needs code of a user, or cannot be opened here."""
    with suppress(ConfigError, TaskError, msgspec.ValidationError, OSError, ValueError):
        tables = files.tables
        task = msgspec.convert(tables.get("task", {}), TaskConfig, strict=False)
        members = each(task)
        if any(":" in one.name for one in members):
            return None
        # the answers of data are in its rows, whatever judges them
        task = msgspec.structs.replace(task, verifier=TaskConfig().verifier)
        if any(":" in one.verifier for one in each(task)):
            return None
        return open_task(task, int(tables.get("run", {}).get("seed", 0)))
    return None
