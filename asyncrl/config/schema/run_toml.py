"""`run.toml` as a whole, and the environment variables for settings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import ClassVar

from asyncrl.config.errors import ContradictionError
from asyncrl.config.schema.agent_section import AgentConfig
from asyncrl.config.schema.cluster_section import ClusterConfig
from asyncrl.config.schema.engine_section import EngineConfig
from asyncrl.config.schema.evaluation_section import EvaluationConfig
from asyncrl.config.schema.foreign_section import ForeignConfig
from asyncrl.config.schema.game_section import GameConfig
from asyncrl.config.schema.journal_section import JournalConfig
from asyncrl.config.schema.judge_section import JudgeConfig
from asyncrl.config.schema.machine_section import MachineConfig
from asyncrl.config.schema.metrics_section import MetricsConfig
from asyncrl.config.schema.model_section import ModelConfig
from asyncrl.config.schema.publication_section import PublicationConfig
from asyncrl.config.schema.reference_section import ReferenceConfig
from asyncrl.config.schema.reward_section import RewardConfig
from asyncrl.config.schema.rollout_section import RolloutConfig
from asyncrl.config.schema.run_section import RunConfig
from asyncrl.config.schema.sandbox_section import SandboxConfig
from asyncrl.config.schema.section import Section
from asyncrl.config.schema.sft_section import SftConfig
from asyncrl.config.schema.share_section import ShareConfig
from asyncrl.config.schema.staleness_section import StalenessConfig
from asyncrl.config.schema.supervised_section import SupervisedConfig
from asyncrl.config.schema.supervision_section import SupervisionConfig
from asyncrl.config.schema.task_section import TaskConfig
from asyncrl.config.schema.teacher_section import TeacherConfig
from asyncrl.config.schema.train_section import TrainConfig
from asyncrl.config.setting import quoted


class Config(Section, frozen=True):
    """The whole run. However it is created, it has no contradictions."""

    rules: ClassVar[list[Callable[[Config], Iterator[tuple[tuple[str, ...], str]]]]] = []
    """Rules that yield the keys that contradict each other, and the remedy as the end of a
    sentence. `asyncrl.config.rules`, which imports this schema, registers itself."""

    task: TaskConfig = TaskConfig()
    model: ModelConfig = ModelConfig()
    engine: EngineConfig = EngineConfig()
    agent: AgentConfig = AgentConfig()
    sandbox: SandboxConfig = SandboxConfig()
    rollout: RolloutConfig = RolloutConfig()
    reward: RewardConfig = RewardConfig()
    judge: JudgeConfig = JudgeConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    train: TrainConfig = TrainConfig()
    reference: ReferenceConfig = ReferenceConfig()
    teacher: TeacherConfig = TeacherConfig()
    supervised: SupervisedConfig = SupervisedConfig()
    foreign: ForeignConfig = ForeignConfig()
    share: ShareConfig = ShareConfig()
    game: GameConfig = GameConfig()
    sft: SftConfig = SftConfig()
    staleness: StalenessConfig = StalenessConfig()
    publication: PublicationConfig = PublicationConfig()
    journal: JournalConfig = JournalConfig()
    metrics: MetricsConfig = MetricsConfig()
    machine: MachineConfig = MachineConfig()
    cluster: ClusterConfig = ClusterConfig()
    supervision: SupervisionConfig = SupervisionConfig()
    run: RunConfig = RunConfig()

    def __post_init__(self) -> None:
        """Check all settings. Raises ConfigError for one out of its range, or for
        contradictions."""
        super().__post_init__()
        for rule in self.rules:
            for keys, remedy in rule(self):
                values = {key: quoted(attrgetter(key)(self)) for key in keys}
                raise ContradictionError(values, remedy)


VARIABLES: dict[str, str] = {
    "ASYNCRL_MAX_LAG": "staleness.max_lag",
    "ASYNCRL_DEPTH": "staleness.depth",
    "ASYNCRL_WINDOW": "staleness.window",
    "ASYNCRL_ON_STALE": "staleness.on_stale",
    "ASYNCRL_CORRECTION": "staleness.correction",
    "ASYNCRL_OVERPROVISION": "rollout.overprovision",
    "ASYNCRL_ENGINE": "engine.kind",
    "ASYNCRL_LEASE_S": "rollout.lease_s",
    "ASYNCRL_JOURNAL_MS": "journal.commit_ms",
    "ASYNCRL_METRICS_PORT": "metrics.port",
    "ASYNCRL_RUN_DIR": "run.dir",
    "ASYNCRL_LOG": "run.log",
}
"""The closed set of environment variables, and the setting of each. `--set` wins over a variable, a
variable over run.toml."""
