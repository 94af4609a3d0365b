"""The catalog of reasoning-gym's data sets: each with an example, and with what the bundled model
makes of it.

It was measured once, with the data sets' own parameters and the default settings, by
`bench/learnable.py`, which writes `catalog.json` and docs/tasks.md. So it is read in an instant,
and nothing is imported for it.
"""

from __future__ import annotations

from functools import cache
from importlib import resources

import msgspec

from asyncrl.config.schema import EngineConfig, ModelConfig, RolloutConfig

FILE = "catalog.json"


class Learned(msgspec.Struct, frozen=True, kw_only=True):
    """A warm-up of the bundled model: the share of right answers that it came to, 0 to 1, after so
    many steps, in so many seconds of one core. It `ended` by its accuracy or its last step, or else
    by the time that the measurement gave it.

    >>> Learned(accuracy=0.31, steps=140, seconds=11.8, ended=True).accuracy
    0.31
    """

    accuracy: float
    steps: int
    seconds: float
    ended: bool


class CatalogEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One data set: a question of it, its answer (None: it knows none), and the most tokens of
    prompts and of answers, in the bundled model's bytes. `learned` is None where nobody measured
    it.

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
    """Say in a few words if the bundled model can learn it.

    >>> one = dict(name="a", question="1 + 1 =", answer="2", prompt_tokens=8, answer_tokens=2)
    >>> verdict(CatalogEntry(**one))
    'not measured'
    >>> verdict(CatalogEntry(**one, learned=Learned(accuracy=0.5, steps=9, seconds=4, ended=True)))
    'yes: 0.50 right after 4 s'
    """
    if entry.answer is None:
        return "no: it knows no answers; set model.path"
    if (learned := entry.learned) is None:
        return "not measured" if fits(entry) else "not measured: it is long for the defaults"
    said = f"{learned.accuracy:.2f} right after {learned.seconds:.0f} s"
    if learned.accuracy >= ModelConfig().warmup_accuracy:
        return f"yes: {said}"
    return f"no: {said}" if learned.ended else f"not in that time: {said}"
