"""The catalog of reasoning-gym's data sets: each with an example, and with how well the bundled
model learns it.

It was measured once, with the data sets' own parameters and the default settings, by
`bench/learnable.py`, which writes `catalog.json` and docs/tasks.md. So reading it is
fast, and imports no data set.
"""

from __future__ import annotations

from functools import cache
from importlib import resources

import msgspec

from asyncrl.config.schema import EngineConfig, ModelConfig, RolloutConfig

FILE = "catalog.json"


class Learned(msgspec.Struct, frozen=True, kw_only=True):
    """A warm-up of the bundled model: the share of right answers that it reached (0 to 1), its
    steps, and its seconds on one core. `ended` says that it ended by its accuracy or its last step,
    and not by the time limit of the measurement.

    >>> Learned(accuracy=0.31, steps=140, seconds=11.8, ended=True).accuracy
    0.31
    """

    accuracy: float
    steps: int
    seconds: float
    ended: bool


class CatalogEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One data set: a question of it, its answer (None: it has none), and the most tokens of
    prompts and of answers, in the bundled model's bytes. `learned` is None if it was not
    measured.

    >>> entry = CatalogEntry(
    ...     name="gcd", question="gcd(4, 6)?", answer="2", prompt_tokens=10, answer_tokens=1
    ... )
    >>> entry.answer, entry.learned
    ('2', None)
    """

    name: str
    question: str
    answer: str | None
    prompt_tokens: int
    answer_tokens: int
    learned: Learned | None = None


@cache
def catalog() -> dict[str, CatalogEntry]:
    """Every data set that is listed, by its name, in the order of names."""
    data = resources.files("asyncrl.tasks").joinpath(FILE).read_bytes()
    entries = msgspec.json.decode(data, type=list[CatalogEntry])
    return {entry.name: entry for entry in entries}


def fits(entry: CatalogEntry) -> bool:
    """True if prompt and answer fit the default `engine.context_tokens`, and the answer
    `rollout.max_new_tokens`."""
    most = RolloutConfig().max_new_tokens
    return (
        entry.answer_tokens <= most and entry.prompt_tokens + most <= EngineConfig().context_tokens
    )


def verdict(entry: CatalogEntry) -> str:
    """Describe in a few words whether the bundled model can learn it.

    >>> one = dict(name="a", question="1 + 1 =", answer="2", prompt_tokens=8, answer_tokens=2)
    >>> verdict(CatalogEntry(**one))
    'not measured'
    >>> verdict(CatalogEntry(**one, learned=Learned(accuracy=0.5, steps=9, seconds=4, ended=True)))
    'yes: 0.50 right after 4 s'
    """
    if entry.answer is None:
        return "no: it has no answers; set model.path"
    if (learned := entry.learned) is None:
        return "not measured" if fits(entry) else "not measured: it is long for the defaults"
    result = f"{learned.accuracy:.2f} right after {learned.seconds:.0f} s"
    if learned.accuracy >= ModelConfig().warmup_accuracy:
        return f"yes: {result}"
    return f"no: {result}" if learned.ended else f"not in that time: {result}"
