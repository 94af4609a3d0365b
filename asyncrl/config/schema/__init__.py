"""Typed shape of `run.toml`. Invariant: every setting that a run depends on is here, with a unit, a
range and one line of documentation.

It is frozen, and unknown keys are errors (`load.py` says the nearest name). `derived.py` has what
follows from the settings.
"""

from asyncrl.config.schema.engine_sections import (
    EngineConfig,
    ServersConfig,
    SglangConfig,
    VllmConfig,
)
from asyncrl.config.schema.process_sections import (
    ClusterConfig,
    JournalConfig,
    MachineConfig,
    MetricsConfig,
    PublicationConfig,
    RewardConfig,
    RunConfig,
    SinkName,
    SupervisionConfig,
)
from asyncrl.config.schema.rollout_sections import (
    PLAYED_ELSEWHERE,
    AgentConfig,
    EvaluationConfig,
    RolloutConfig,
)
from asyncrl.config.schema.run_toml import VARIABLES, Config
from asyncrl.config.schema.section import (
    Count,
    NonNegative,
    Positive,
    Seconds,
    Section,
    Share,
    Whole,
)
from asyncrl.config.schema.staleness_section import StalenessConfig
from asyncrl.config.schema.task_sections import LoraConfig, ModelConfig, TaskConfig
from asyncrl.config.schema.training_sections import (
    Credit,
    ReferenceConfig,
    SupervisedConfig,
    TeacherConfig,
    TrainConfig,
)

__all__ = [
    "PLAYED_ELSEWHERE",
    "VARIABLES",
    "AgentConfig",
    "ClusterConfig",
    "Config",
    "Count",
    "Credit",
    "EngineConfig",
    "EvaluationConfig",
    "JournalConfig",
    "LoraConfig",
    "MachineConfig",
    "MetricsConfig",
    "ModelConfig",
    "NonNegative",
    "Positive",
    "PublicationConfig",
    "ReferenceConfig",
    "RewardConfig",
    "RolloutConfig",
    "RunConfig",
    "Seconds",
    "Section",
    "ServersConfig",
    "SglangConfig",
    "Share",
    "SinkName",
    "StalenessConfig",
    "SupervisedConfig",
    "SupervisionConfig",
    "TaskConfig",
    "TeacherConfig",
    "TrainConfig",
    "VllmConfig",
    "Whole",
]
