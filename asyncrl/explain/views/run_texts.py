"""The texts of a run's rollouts, from the tokenizer, the task and the agents of the run."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import msgspec
import numpy as np

from asyncrl.agents.printed import printed
from asyncrl.explain.run_files import RunFiles
from asyncrl.explain.views.expected_answers import Expected, expected_answers
from asyncrl.explain.views.seen_messages import Decode
from asyncrl.runtime.run_dir import IMAGES
from asyncrl.tasks import TaskError
from asyncrl.tasks.images.kept_images import KeptImages
from asyncrl.tasks.text import Tokenizer

Note = Callable[[str], None]
"""Hears one sentence for a person."""
Printed = Callable[[int], dict[int, str]]
"""Texts that the attempts at a rollout printed, by their numbers, as far as it is known."""


class RunTexts(msgspec.Struct, frozen=True):
    """`decode` gives the text of ids, `expected` the right answer to a prompt, `printed` what an
    agent printed, and `png` the bytes of an image by its hash."""

    decode: Decode
    expected: Expected
    printed: Printed
    png: Callable[[str], bytes]


def run_texts(files: RunFiles, note: Note) -> RunTexts:
    """The texts of a run; `note` as for `decoder`."""
    return RunTexts(
        decoder(files, note),
        expected_answers(files),
        partial(printed, files.path),
        KeptImages(files.path / IMAGES).png,
    )


def decoder(files: RunFiles, note: Note) -> Decode:
    """Decode by the tokenizer of the model that a run started from; where that is gone, `note`
    hears of it, and the text is the ids themselves."""
    try:
        tokenizer = Tokenizer(files.initial)
    except TaskError as error:
        note(f"Token ids are shown in place of text: {error}.")
        return lambda ids: " ".join(map(str, _numbers(ids)))
    return lambda ids: tokenizer.decode(_numbers(ids), special=True)


def _numbers(ids: bytes) -> list[int]:
    """Ids as numbers; one that no token can have is a large one, which has no text."""
    numbers: list[int] = np.frombuffer(ids, "<u4").tolist()
    return numbers
