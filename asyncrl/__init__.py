"""Reinforcement learning of language models in which generation never stops.

    import asyncrl as rl

    run = rl.train(rl.Config(train={"steps": 100}))  # a run, as `asyncrl train` makes it
    learner, sampler = rl.Learner(path), rl.Sampler(path)  # a loop of your own

Names are imported when they are first asked for: `import asyncrl` alone imports nothing more.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from asyncrl.config import Config, ConfigError
    from asyncrl.engines.spec import EngineKind
    from asyncrl.library.learner import Learner, StepFigures
    from asyncrl.library.models import starting_model
    from asyncrl.library.run import Run
    from asyncrl.library.sampler import Sampler
    from asyncrl.library.sequence import Sequence
    from asyncrl.library.task import ListTask, open_task
    from asyncrl.library.train import train
    from asyncrl.strategies.curriculum import Curriculum, PromptOrder
    from asyncrl.tasks import Task
    from asyncrl.tasks.answer import Answer
    from asyncrl.tasks.verifiers import Verifier
    from staleness.admission import AdmissionPolicy
    from staleness.advantages import Advantage, GroupAdvantage, MemberAdvantage
    from staleness.corrections import Corrected, Correction
    from staleness.objectives import ClipBounds, Objective, TokenLoss

_HOMES = {
    "asyncrl.config": ("Config", "ConfigError"),
    "asyncrl.engines.spec": ("EngineKind",),
    "asyncrl.library.learner": ("Learner", "StepFigures"),
    "asyncrl.library.models": ("starting_model",),
    "asyncrl.library.run": ("Run",),
    "asyncrl.library.sampler": ("Sampler",),
    "asyncrl.library.sequence": ("Sequence",),
    "asyncrl.library.task": ("ListTask", "open_task"),
    "asyncrl.library.train": ("train",),
    "asyncrl.strategies.curriculum": ("Curriculum", "PromptOrder"),
    "asyncrl.tasks": ("Task",),
    "asyncrl.tasks.answer": ("Answer",),
    "asyncrl.tasks.verifiers": ("Verifier",),
    "staleness.admission": ("AdmissionPolicy",),
    "staleness.advantages": ("Advantage", "GroupAdvantage", "MemberAdvantage"),
    "staleness.corrections": ("Corrected", "Correction"),
    "staleness.objectives": ("ClipBounds", "Objective", "TokenLoss"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "AdmissionPolicy",
    "Advantage",
    "Answer",
    "ClipBounds",
    "Config",
    "ConfigError",
    "Corrected",
    "Correction",
    "Curriculum",
    "EngineKind",
    "GroupAdvantage",
    "Learner",
    "ListTask",
    "MemberAdvantage",
    "Objective",
    "PromptOrder",
    "Run",
    "Sampler",
    "Sequence",
    "StepFigures",
    "Task",
    "TokenLoss",
    "Verifier",
    "open_task",
    "starting_model",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(_HOME_OF[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return [*globals(), *__all__]
