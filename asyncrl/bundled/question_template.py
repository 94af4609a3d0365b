"""The bundled model's chat template for an agent's run: of a message that has the task's question
it reads the question alone.

An agent asks within texts of its own (a system message, tools, sentences around the question),
and the model is too small to read them. After each later message, a tool's result or a second
look, comes the question again. A conversation without the question is as in other runs. It goes on
from the tokens that were sampled, because what stands for a message follows from it and from those
before.
"""

from __future__ import annotations

from collections.abc import Sequence

from asyncrl.bundled.bundled_model import CHAT_TEMPLATE, common_start

AROUND = " \"'`*"
"""Characters by which an author ends a question that is set apart."""
SHORTEST = 8
"""Characters of a start that no other text has by chance."""
QUESTION = r"""
{%- set asked = namespace(question='') %}
{%- for message in messages if message.role == 'user' and START in (message.content or '') %}
{%- if loop.first %}{%- set asked.question = START %}{% endif %}
{%- endfor %}
{%- if not asked.question %}OTHER{% else %}
{%- set asked.question = '' %}
{%- for message in messages %}{% set text = message.content or '' %}
{%- if message.role == 'assistant' %}{{ text }}CALLS{{ '<|end|>' }}
{%- else %}
{%- if message.role == 'user' and START in text %}
{%- set own = text.split(START)[-1].split('\n')[:LINES] | join('\n') %}
{%- set asked.question = START + own.rstrip(AROUND) + '\n' %}
{%- elif asked.question %}{{ text }}{% if not text.endswith('\n') %}{{ '\n' }}{% endif %}
{%- endif %}{{ asked.question }}
{%- endif %}
{%- endfor %}{% endif %}"""


def question_template(prompts: Sequence[str]) -> str:
    """The chat template for a task with these prompts; that of other runs if they have no long
    start in common.

    >>> question_template(["1 + 1", "2 + 2"]) == CHAT_TEMPLATE
    True
    >>> "'Spell backward '" in question_template(["Spell backward cat", "Spell backward dog"])
    True
    """
    if len(start := common_start(prompts)) < SHORTEST:
        return CHAT_TEMPLATE
    lines = max(prompt[len(start) :].rstrip("\n").count("\n") + 1 for prompt in prompts)
    calls = CHAT_TEMPLATE[CHAT_TEMPLATE.index("\n{%- for call") :]
    calls = calls[: calls.index("{%- endfor %}") + len("{%- endfor %}")]
    template = QUESTION.replace("LINES", str(lines)).replace("AROUND", repr(AROUND))
    template = template.replace("START", repr(start)).replace("CALLS", calls)
    return template.replace("OTHER", CHAT_TEMPLATE).lstrip("\n")
