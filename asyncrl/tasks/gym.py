"""Any data set of reasoning-gym, scored by its own scorer. Invariant: no question is in both
splits, by construction.

A question belongs to the held-out quarter or to training by the hash of its text, whatever index
generates it. A prompt has a first index. If that gives a question of the other split, the search
walks on by a fixed stride until one of its own split comes. So prompts need no table, and any
process can make any prompt alone. A training split may show one question at several prompt indices,
as any generator with few questions does.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import hashlib
import math
from collections.abc import Mapping
from typing import Any

from asyncrl.config.schema import TaskConfig
from asyncrl.messages import Split
from asyncrl.tasks import TaskError
from asyncrl.tasks.gym_indices import LEAST, indices_of
from asyncrl.tasks.gym_library import DATASETS, create_dataset, extract_answer, lacking
from asyncrl.tasks.partial_credit import settled_reward
from asyncrl.tasks.screen import Screen, is_arithmetic, is_literal
from asyncrl.tasks.template import RIGHT, render

HELD_OUT = 4
"""One question in this many is held out."""
TRIES = 256
"""Indices tried for a prompt. A data set that fails this has hardly any questions: by chance alone
the odds are 0.75^256."""
ALMOST = math.nextafter(RIGHT, 0.0)


EXECUTING: Mapping[str, Screen] = {
    **dict.fromkeys(("binary_matrix", "n_queens", "spiral_matrix", "string_insertion"), is_literal),
    **dict.fromkeys(
        (
            "countdown",
            "intermediate_integration",
            "polynomial_multiplication",
            "puzzle24",
            "simple_integration",
        ),
        is_arithmetic,
    ),
}
"""Data sets whose scorers evaluate the answer as Python, and the check of an honest answer to
them."""


class GymTask:
    """A reasoning-gym data set. With `eval_size = 0` nothing is held out, and every question may be
    trained.

    >>> task = GymTask(TaskConfig(name="chain_sum", train_size=8, eval_size=2), seed=0)
    >>> answer = task.answer("evaluation", 1)
    >>> task.verify("evaluation", 1, f"The sum: <answer>{answer}</answer>")
    1.0
    """

    def __init__(self, config: TaskConfig, seed: int) -> None:
        """Raises TaskError for an unknown data set or parameter, or one that the data set
        refuses."""
        self._config = config
        self._sizes: dict[Split, int] = {"train": config.train_size, "evaluation": config.eval_size}
        self._indices = indices_of(config)
        self._stride = next(
            s
            for s in range(int(self._indices * 0.618), self._indices)
            if math.gcd(s, self._indices) == 1
        )
        self._data = _create(config, seed, self._indices)
        self.entry = functools.lru_cache(maxsize=1024)(self._entry)
        self._screen = EXECUTING.get(config.name)
        self._exact = settled_reward(config) == "exact"
        for split, size in self._sizes.items():
            if size:
                self._probe(split)

    @property
    def executes(self) -> bool:
        return self._screen is not None

    @property
    def languages(self) -> frozenset[str]:
        return frozenset()

    @property
    def writes(self) -> bool:
        return False  # its scorers compute, and no more

    @property
    def notes(self) -> tuple[str, ...]:
        return ()

    def warm(self) -> str:
        answer = self.answer("train", 0)
        if self.executes and answer is not None:  # the generator's own, and no text from outside
            self.verify("train", 0, answer)
        return self.prompt("train", 0)

    def size(self, split: Split) -> int:
        return self._sizes[split]

    def prompt(self, split: Split, prompt_index: int) -> str:
        return render(self._config, str(self.entry(split, prompt_index)["question"]))

    def answer(self, split: Split, prompt_index: int) -> str | None:
        known = self.entry(split, prompt_index)["answer"]
        return None if known is None else str(known)

    def verify(self, split: Split, prompt_index: int, answer: str) -> float:
        """A response that marks its answer as `<answer>…</answer>` is judged by the last such mark,
        else as a whole. An answer that a scorer would execute as a program is judged as an empty
        answer. A score over 1 is a sum of parts with a rounding error: it is not right."""
        entry, marked = self.entry(split, prompt_index), extract_answer(answer)
        text = str(answer) if marked is None else marked
        if self._screen is not None and text != entry["answer"] and not self._screen(text):
            text = ""
        score = float(self._data.score_answer(text, entry))
        if self._exact:
            return float(score == RIGHT)
        return score if score <= RIGHT else ALMOST

    def _entry(self, split: Split, prompt_index: int) -> dict[str, Any]:
        if not 0 <= prompt_index < self._sizes[split]:
            raise IndexError(
                f"prompt {prompt_index} is outside the {split} split of {self._sizes[split]}"
            )
        index = prompt_index if split == "train" else self._sizes["train"] + prompt_index
        for _ in range(TRIES):
            entry: dict[str, Any] = self._data[index]
            if not self._sizes["evaluation"] or held_out(entry["question"]) == (
                split == "evaluation"
            ):
                return entry
            index = (index + self._stride) % self._indices
        raise TaskError(
            f"task.name = {self._config.name!r} with these task.params has too few different "
            "questions to hold some out; "
            f"allow more by task.params, or set task.eval_size = 0"
        )

    def _probe(self, split: Split) -> None:
        try:
            self.entry(split, 0)
        except TaskError:
            raise
        except Exception as error:
            raise TaskError(
                f"reasoning-gym's {self._config.name} cannot make a question from task.params = "
                f"{self._config.params}: {_described(error)}"
            ) from error


def parameters(name: str) -> dict[str, Any]:
    """The parameters of the data set `name` itself, with their defaults."""
    defaults = {}
    for field in dataclasses.fields(DATASETS[name][1]):
        if field.name in ("seed", "size"):
            continue
        if field.default is not dataclasses.MISSING:
            defaults[field.name] = field.default
        elif field.default_factory is not dataclasses.MISSING:
            defaults[field.name] = field.default_factory()
    return defaults


def held_out(question: str) -> bool:
    """True if a question belongs to evaluation."""
    return hashlib.blake2b(question.encode(), digest_size=8).digest()[0] % HELD_OUT == 0


def _create(config: TaskConfig, seed: int, size: int) -> Any:
    if config.name not in DATASETS:
        raise TaskError(
            f"task.name = {config.name!r} is not a reasoning-gym data "
            f"set{_nearest(config.name, [*DATASETS, 'data'])}"
        )
    if package := lacking(config.name):
        raise TaskError(
            f"task.name = {config.name!r} needs {package}, of which no wheel is published: "
            "`make gym-source` builds it, or take another data set"
        )
    known = {field.name for field in dataclasses.fields(DATASETS[config.name][1])} - {
        "seed",
        "size",
    }
    for key in config.params:
        if key in ("seed", "size"):
            raise TaskError(
                f"task.params.{key} is not for task.params: set run.seed, task.train_size and "
                "task.eval_size instead"
            )
        if key not in known:
            raise TaskError(
                f"task.params.{key} is not a parameter of {config.name}"
                f"{_nearest(key, sorted(known))}"
            )
    try:
        return create_dataset(config.name, seed=_scattered(seed), size=size, **config.params)
    except Exception as error:
        raise TaskError(
            f"reasoning-gym's {config.name} refuses task.params = {config.params} at {size} "
            f"questions (more than task.train_size, {LEAST} at least): {_described(error)}"
        ) from error


def _scattered(seed: int) -> int:
    """31 bits: data sets seed each item with `seed + index`, so that the items of two runs with
    seeds 0 and 1 would be the same but one."""
    return int.from_bytes(hashlib.blake2b(str(seed).encode(), digest_size=4).digest()) >> 1


def _nearest(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; it has {', '.join(known)}" if len(known) < 30 else "; `asyncrl tasks` lists them"


def _described(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
