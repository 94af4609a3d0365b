"""The mask of conversations, with the shapes that chat templates have. A sequence is shown as its
text, with what is learned in «»."""

from __future__ import annotations

from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncrl.bundled.bundled_model import END, write_tokenizer
from asyncrl.tasks import TaskError
from asyncrl.tasks.conversations import LearnedIds, answered, conversation
from asyncrl.tasks.text import Tokenizer

CHATML = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}END\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
"""A turn is a role, a text, an end, and a line break that no model writes (Qwen2.5)."""
THINKS = (
    "{% set last = messages | map(attribute='role') | list %}"
    "{% for m in messages %}<{{ m.role }}>"
    "{% if m.role == 'assistant' %}{% set parts = m.content.split('</think>') %}"
    "{% if loop.last %}<think>\n{{ parts[0].split('<think>')[-1].strip() if parts | length > 1 }}"
    "\n</think>\n\n{% endif %}{{ parts[-1].strip() }}{% else %}{{ m.content }}{% endif %}END\n"
    "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)
"""Thinking of the last answer alone is kept, in a form of its own (Qwen3)."""
OPENS = (
    "BOS{% for m in messages %}{% if m.role == 'assistant' %}<A>"
    "{{ m.content.split('</think>')[-1].strip() }}END{% else %}<U>{{ m.content }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<A><think>\n{% endif %}"
)
"""An answer begins with a text that conversations do not keep (DeepSeek-R1)."""
DROPS = OPENS.replace("<think>\n{% endif %}", "{% endif %}")
"""Thinking is dropped of every answer, and nothing begins one (the first DeepSeek-R1)."""
INST = (
    "BOS{% for m in messages %}{% if m.role == 'assistant' %}{{ m.content }}END"
    "{% else %}[INST]{{ m.content | trim }}[/INST]{% endif %}{% endfor %}"
)
"""Nothing begins an answer (Mistral)."""
BARE = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
"""No answer has an end."""


def tokenizer(folder: Path, template: str | None) -> Tokenizer:
    write_tokenizer(folder)
    if template is not None:
        (folder / "chat_template.jinja").write_text(template.replace("END", END))
    return Tokenizer(folder, chat=template is not None)


def said(*texts: str, roles: str = "ua") -> list[dict[str, Any]]:
    names = {"u": "user", "a": "assistant", "s": "system"}
    return [
        {"role": names[roles[at % len(roles)]], "content": text} for at, text in enumerate(texts)
    ]


def shown(own: Tokenizer, sequence: LearnedIds) -> str:
    assert len(sequence.ids) == len(sequence.mask) and not sequence.mask[0]
    text = ""
    for learned, run in groupby(zip(sequence.mask, sequence.ids, strict=True), itemgetter(0)):
        part = own.decode([token for _, token in run], special=True).replace(END, "END")
        text += f"«{part}»" if learned else part
    return text


THOUGHT = "<think>\na\n</think>\n\n"


@pytest.mark.parametrize(
    ("template", "texts", "sequences"),
    [
        (CHATML, ["q", "a"], ["<user>q END<assistant>«aEND»".replace(" END", "END\n")]),
        (
            CHATML,
            ["q", "a", "r", "b", "s"],
            ["<user>qEND\n<assistant>«aEND»\n<user>rEND\n<assistant>«bEND»"],
        ),
        (THINKS, ["q", "a"], ["<user>qEND\n<assistant>«<think>\n\n</think>\n\naEND»"]),
        (
            THINKS,
            ["q", "<think>\na\n</think>\n\nx", "r", "<think>b</think>y"],
            [
                f"<user>qEND\n<assistant>«{THOUGHT}xEND»",
                "<user>qEND\n<assistant>xEND\n<user>rEND\n<assistant>"
                "«<think>\nb\n</think>\n\nyEND»",
            ],
        ),
        (
            OPENS,
            ["q", "<think>\na\n</think>\nx", "r", "<think>\nb</think>y"],
            [
                "BOS<U>q<A><think>\n«a\n</think>\nxEND»",
                "BOS<U>q<A>xEND<U>r<A><think>\n«b</think>yEND»",
            ],
        ),
        (
            DROPS,
            ["q", "<think>\na</think>x", "r", "y"],
            [
                "BOS<U>q<A>«<think>\na</think>xEND»",
                "BOS<U>q<A>xEND<U>r<A>«yEND»",
            ],
        ),
        (INST, ["q ", "a", "r", "b"], ["BOS[INST]q[/INST]«aEND»[INST]r[/INST]«bEND»"]),
        (
            BARE,
            ["q", "a", "r", "b"],
            [
                "user: q\nassistant: «a\nEND»",
                "user: q\nassistant: a\nuser: r\nassistant: «b\nEND»",
            ],
        ),
    ],
)
def test_each_answer_is_learned_behind_what_an_engine_gets(
    tmp_path: Path, template: str, texts: list[str], sequences: list[str]
) -> None:
    own = tokenizer(tmp_path, template)
    found = conversation(own, said(*texts))
    assert [shown(own, one) for one in found] == sequences
    prompts = [own.render(said(*texts)[:at]) for at in range(1, len(texts), 2)]
    for prompt in prompts:  # by the rendering of its beginning: what an engine is given
        ids = own.ids(prompt)
        assert any(
            one.ids[: len(ids)] == ids and one.mask[len(ids) - 1 : len(ids) + 1] == b"\x00\x01"
            for one in found
        ), prompt


TEXT = st.text(st.sampled_from("ab \n<>é"), min_size=1, max_size=6).filter(lambda t: t.strip())


@given(
    texts=st.lists(TEXT, min_size=2, max_size=7),
    template=st.sampled_from([CHATML, INST, THINKS, DROPS]),
)
@settings(max_examples=60, deadline=None)
def test_the_learned_tokens_are_the_answers_and_their_ends(
    texts: list[str], template: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    own = _known(tmp_path_factory, template)
    found = conversation(own, said(*texts))
    runs = [run.partition("»")[0] for one in found for run in shown(own, one).split("«")[1:]]
    answers = texts[1::2]
    assert len(runs) == len(answers)
    for run, answer in zip(runs, answers, strict=True):
        assert run.endswith("END") and run.count("END") == 1
        assert "".join(answer.split()) in "".join(run.split())


_MADE: dict[str, Tokenizer] = {}


def _known(factory: pytest.TempPathFactory, template: str) -> Tokenizer:
    if template not in _MADE:
        _MADE[template] = tokenizer(factory.mktemp("model"), template)
    return _MADE[template]


def test_the_last_answer_or_every_token(tmp_path: Path) -> None:
    own = tokenizer(tmp_path, CHATML)
    messages = said("q", "a", "r", "b")
    (last,) = conversation(own, messages, loss_on="last")
    assert shown(own, last) == "<user>qEND\n<assistant>aEND\n<user>rEND\n<assistant>«bEND»"
    (whole,) = conversation(own, messages, loss_on="all")
    assert shown(own, whole) == "<«user>qEND\n<assistant>aEND\n<user>rEND\n<assistant>bEND\n»"


def test_a_prompt_and_an_answer_without_a_template(tmp_path: Path) -> None:
    own = tokenizer(tmp_path, None)
    assert shown(own, answered(own, "1 + 1 =\n", "2")) == "1 + 1 =\n«2END»"


@pytest.mark.parametrize(
    ("template", "messages", "says"),
    [
        (CHATML, said("q", roles="u"), "no message of the assistant"),
        (
            OPENS,
            said("q", "a"),
            r"begins an answer with '<A><think>\\n', and the answer 'a' has no",
        ),
        (
            "{% for m in messages if m.role != 'system' %}{{ m.content }}{% endfor %}",
            said("be brief", "q", "a", roles="sua"),
            r"leaves out what system says \('be brief'\)",
        ),
        (
            "{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}",
            said("q", "a"),
            "leaves out the answer 'a'",
        ),
        (
            CHATML,
            [*said("q"), {"role": "assistant", "content": "", "tool_calls": [{"name": "add"}]}],
            "leaves out the call of 'add'",
        ),
        (
            CHATML,
            [*said("q"), {"role": "assistant", "content": "a", "reasoning_content": "since"}],
            "leaves out reasoning_content",
        ),
        (
            "{{ raise_exception('roles') if messages | length > 1 }}{{ messages[0].content }}",
            said("q", "a"),
            "cannot render this: roles",
        ),
    ],
)
def test_what_a_template_would_change_is_refused(
    tmp_path: Path, template: str, messages: list[dict[str, Any]], says: str
) -> None:
    own = tokenizer(tmp_path, template)
    with pytest.raises(TaskError, match=says):
        conversation(own, messages)
