"""Reinforcement learning of language models in which generation never stops.

    import asyncrl as rl

    run = rl.train(rl.Config(train=rl.TrainConfig(steps=100)), advantage=Mine)
    learner, sampler = rl.Learner(path), rl.Sampler(path)  # a loop of your own

Names are imported when they are first asked for: `import asyncrl` alone imports nothing more.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from asyncrl.algorithms.advantages import Advantage, GroupAdvantage, MemberAdvantage
    from asyncrl.algorithms.objectives import ClipBounds, Objective, TokenLoss
    from asyncrl.algorithms.selection.curriculum import Curriculum, PromptOrder
    from asyncrl.config import Config, ConfigError
    from asyncrl.config.schema import (
        AgentConfig,
        ClusterConfig,
        EngineConfig,
        EvaluationConfig,
        JournalConfig,
        LoraConfig,
        MachineConfig,
        MetricsConfig,
        ModelConfig,
        PublicationConfig,
        ReferenceConfig,
        RewardConfig,
        RolloutConfig,
        RunConfig,
        SftConfig,
        SglangConfig,
        StalenessConfig,
        SupervisedConfig,
        SupervisionConfig,
        TaskConfig,
        TeacherConfig,
        TrainConfig,
        VllmConfig,
    )
    from asyncrl.engines.spec import EngineKind
    from asyncrl.library.arrays import Sequence
    from asyncrl.library.hand_learner import Learner, StepFigures
    from asyncrl.library.hand_sampler import Sampler
    from asyncrl.library.merging import merge
    from asyncrl.library.opened_run import Run, open_run, runs
    from asyncrl.library.starting_model import starting_model
    from asyncrl.library.task import ListTask, open_task
    from asyncrl.library.trained_run import sft, train
    from asyncrl.staleness.admission import AdmissionPolicy
    from asyncrl.staleness.corrections import Corrected, Correction
    from asyncrl.tasks.answer import Answer
    from asyncrl.tasks.own_task import Task
    from asyncrl.tasks.verifiers import Verifier

_HOMES = {
    "asyncrl.config": ("Config", "ConfigError"),
    "asyncrl.config.schema": (
        "AgentConfig",
        "ClusterConfig",
        "EngineConfig",
        "EvaluationConfig",
        "JournalConfig",
        "LoraConfig",
        "MachineConfig",
        "MetricsConfig",
        "ModelConfig",
        "PublicationConfig",
        "ReferenceConfig",
        "RewardConfig",
        "RolloutConfig",
        "RunConfig",
        "SftConfig",
        "SglangConfig",
        "StalenessConfig",
        "SupervisedConfig",
        "SupervisionConfig",
        "TaskConfig",
        "TeacherConfig",
        "TrainConfig",
        "VllmConfig",
    ),
    "asyncrl.engines.spec": ("EngineKind",),
    "asyncrl.library.hand_learner": ("Learner", "StepFigures"),
    "asyncrl.library.starting_model": ("starting_model",),
    "asyncrl.library.opened_run": ("Run", "open_run", "runs"),
    "asyncrl.library.hand_sampler": ("Sampler",),
    "asyncrl.library.merging": ("merge",),
    "asyncrl.library.arrays": ("Sequence",),
    "asyncrl.library.task": ("ListTask", "open_task"),
    "asyncrl.library.trained_run": ("sft", "train"),
    "asyncrl.algorithms.selection.curriculum": ("Curriculum", "PromptOrder"),
    "asyncrl.tasks.answer": ("Answer",),
    "asyncrl.tasks.own_task": ("Task",),
    "asyncrl.tasks.verifiers": ("Verifier",),
    "asyncrl.staleness.admission": ("AdmissionPolicy",),
    "asyncrl.algorithms.advantages": ("Advantage", "GroupAdvantage", "MemberAdvantage"),
    "asyncrl.staleness.corrections": ("Corrected", "Correction"),
    "asyncrl.algorithms.objectives": ("ClipBounds", "Objective", "TokenLoss"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "AdmissionPolicy",
    "Advantage",
    "AgentConfig",
    "Answer",
    "ClipBounds",
    "ClusterConfig",
    "Config",
    "ConfigError",
    "Corrected",
    "Correction",
    "Curriculum",
    "EngineConfig",
    "EngineKind",
    "EvaluationConfig",
    "GroupAdvantage",
    "JournalConfig",
    "Learner",
    "ListTask",
    "LoraConfig",
    "MachineConfig",
    "MemberAdvantage",
    "MetricsConfig",
    "ModelConfig",
    "Objective",
    "PromptOrder",
    "PublicationConfig",
    "ReferenceConfig",
    "RewardConfig",
    "RolloutConfig",
    "Run",
    "RunConfig",
    "Sampler",
    "Sequence",
    "SftConfig",
    "SglangConfig",
    "StalenessConfig",
    "StepFigures",
    "SupervisedConfig",
    "SupervisionConfig",
    "Task",
    "TaskConfig",
    "TeacherConfig",
    "TokenLoss",
    "TrainConfig",
    "Verifier",
    "VllmConfig",
    "merge",
    "open_run",
    "open_task",
    "runs",
    "sft",
    "starting_model",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    exported = getattr(import_module(_HOME_OF[name]), name)
    globals()[name] = exported
    return exported


def __dir__() -> list[str]:
    return [*globals(), *__all__]
