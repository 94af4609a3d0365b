"""Prompts and scores that tasks have in common, without any extra."""

from __future__ import annotations

from asyncrl.config.schema import TaskConfig

RIGHT = 1.0
"""The score of a right answer."""


def render(config: TaskConfig, question: str) -> str:
    """The question in the template; bare if the model's chat template gives the form.

    >>> render(TaskConfig(template="Q: {question}\\nA: "), "1 + 1?")
    'Q: 1 + 1?\\nA: '
    """
    return question if config.chat else config.template.replace("{question}", question)
