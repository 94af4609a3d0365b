"""Conversations as prompts: what `check` says of how a model reads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from asyncrl.agents.agent_episode import EpisodeFacts, messages_of
from asyncrl.config import Config, ConfigError
from asyncrl.config.schema import ModelConfig
from asyncrl.launch.prompt_checks import chat_rows
from asyncrl.library.task import ListTask
from asyncrl.tasks.prompt import ChatPrompt

TURNS = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "1 + 1?"},
]


class Template:
    """A tokenizer whose template leaves these roles out."""

    def __init__(self, *dropped: str, has_template: bool = True) -> None:
        self._dropped, self.has_template = dropped, has_template

    def render(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()
    ) -> str:
        return "".join(one["content"] for one in messages if one["role"] not in self._dropped)


class Chats(ListTask):
    """A task whose prompts are one conversation."""

    def __init__(self, **more: Any) -> None:
        super().__init__([{"prompt": "x"}] * 3, lambda answer, line: 1.0)
        self._chat = ChatPrompt(TURNS, "Be brief.\n1 + 1?\n", **more)

    def prompt(self, split: Any, prompt_index: int) -> Any:
        return self._chat


def said(task: Any, template: Any, path: str = "model") -> str:
    rows = chat_rows(Config(model=ModelConfig(path=path)), task, template)
    return "".join(row.meaning for row in rows)


def test_how_a_model_reads_conversations_is_said() -> None:
    for _ in range(2):
        assert "in the model's chat template" in said(Chats(), Template())
    assert "each message as a line" in said(Chats(), Template(), path="")
    bare = Template(has_template=False)
    assert said(Chats(), bare).endswith("they are written as text")
    assert said(Chats(tools=[{"type": "function"}]), bare).endswith("their tools are left out")
    plain = ListTask([{"prompt": "x"}], lambda answer, line: 1.0)
    assert said(plain, Template()) == ""


def test_a_template_that_leaves_a_role_out_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"template of model leaves out the messages of system"):
        said(Chats(), Template("system"))


def test_an_agent_begins_with_the_conversation_of_the_data() -> None:
    facts = {"prompt_index": 0, "seed": 0, "attempt": 1, "base_url": "http://h/sessions/a/v1"}
    rest = {"api_key": "k", "reward_key": "r"}
    with_turns = EpisodeFacts(prompt="1 + 1?", entry={"prompt": TURNS}, **facts, **rest)  # type: ignore[arg-type]
    assert messages_of(with_turns) == TURNS
    text = EpisodeFacts(prompt="1 + 1?", entry={"prompt": "1 + 1?"}, **facts, **rest)  # type: ignore[arg-type]
    assert messages_of(text) == [{"role": "user", "content": "1 + 1?"}]
