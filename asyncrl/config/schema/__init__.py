"""Typed shape of `run.toml`. Invariant: every setting that a run depends on is here, with a unit, a
range and one line of documentation.

It is frozen, and unknown keys are errors (`load.py` suggests the nearest name). `derived.py`
computes values derived from the settings.
"""

from asyncrl.config.schema.agent_section import PLAYED_BY_HOST, PLAYED_ELSEWHERE, AgentConfig
from asyncrl.config.schema.cluster_section import ClusterConfig
from asyncrl.config.schema.engine_section import (
    EngineConfig,
    ServersConfig,
    SglangConfig,
    VllmConfig,
)
from asyncrl.config.schema.evaluation_section import EvaluationConfig
from asyncrl.config.schema.foreign_section import ForeignConfig
from asyncrl.config.schema.game_section import GameConfig
from asyncrl.config.schema.journal_section import JournalConfig
from asyncrl.config.schema.judge_section import JudgeConfig
from asyncrl.config.schema.machine_section import MachineConfig
from asyncrl.config.schema.metrics_section import MetricsConfig
from asyncrl.config.schema.model_section import LoraConfig, ModelConfig
from asyncrl.config.schema.publication_section import PublicationConfig
from asyncrl.config.schema.reference_section import ReferenceConfig
from asyncrl.config.schema.reward_section import RewardConfig
from asyncrl.config.schema.rollout_section import RolloutConfig
from asyncrl.config.schema.run_section import RunConfig, SinkName
from asyncrl.config.schema.run_toml import VARIABLES, Config
from asyncrl.config.schema.sandbox_section import SandboxConfig
from asyncrl.config.schema.section import (
    Count,
    NonNegative,
    Positive,
    Seconds,
    Section,
    Share,
    Whole,
)
from asyncrl.config.schema.sft_section import SftConfig
from asyncrl.config.schema.share_section import ShareConfig
from asyncrl.config.schema.staleness_section import StalenessConfig
from asyncrl.config.schema.supervised_section import SupervisedConfig
from asyncrl.config.schema.supervision_section import SupervisionConfig
from asyncrl.config.schema.task_section import TaskConfig
from asyncrl.config.schema.teacher_section import TeacherConfig
from asyncrl.config.schema.train_section import TrainConfig

__all__ = [
    "PLAYED_BY_HOST",
    "PLAYED_ELSEWHERE",
    "VARIABLES",
    "AgentConfig",
    "ClusterConfig",
    "Config",
    "Count",
    "EngineConfig",
    "EvaluationConfig",
    "ForeignConfig",
    "GameConfig",
    "JournalConfig",
    "JudgeConfig",
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
    "SandboxConfig",
    "Seconds",
    "Section",
    "ServersConfig",
    "SftConfig",
    "SglangConfig",
    "Share",
    "ShareConfig",
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
