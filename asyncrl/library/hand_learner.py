"""The learner of a loop written by hand: that of a run's trainer, with arrays as its input."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from transformers import PreTrainedModel

from asyncrl.algorithms.advantages import Advantage
from asyncrl.algorithms.objectives import Objective
from asyncrl.config import Config, ConfigError
from asyncrl.config.flow import max_lag
from asyncrl.config.losses import advantage_of
from asyncrl.config.micro_tokens import micro_tokens
from asyncrl.config.paths import exists, is_file, shown
from asyncrl.escape import escaped
from asyncrl.experience.group_facts import GroupFacts
from asyncrl.experience.micro_batches import micro_batches
from asyncrl.experience.sequence import TrainingSequence
from asyncrl.experience.training_message import training_message
from asyncrl.launch.hub.hub_models import model_directory, with_directories
from asyncrl.library.arrays import Sequence as PublicSequence
from asyncrl.library.given_config import as_config
from asyncrl.library.own_code import Corrections, for_this_process
from asyncrl.library.starting_model import as_model, opened
from asyncrl.messages import Sample, TokenCount
from asyncrl.tasks import TaskError
from asyncrl.training import learner as core
from asyncrl.training.checkpoint_io import export
from asyncrl.training.kl_terms import open_kl_terms
from asyncrl.training.model_writing import of_model
from asyncrl.training.models import ModelError
from asyncrl.training.rounding import round_in_training
from asyncrl.training.supervised import open_supervised
from asyncrl.training.trial import try_passes
from asyncrl.words import sentence


class StepFigures(NamedTuple):
    """One step, which made `version`: its `trained` tokens, the `discarded` ones by reason, and the
    learner's `metrics` (loss, grad_norm, lr, k3 …: docs/metrics.md)."""

    version: int
    trained: int
    discarded: dict[str, int]
    metrics: dict[str, float]


class Learner:
    """A model that learns: `add` sequences, then `step`.

    Its settings are those of a run, from the same Config: `[train]` without the settings of when
    and how often (steps, batch_groups, ranks), `[staleness]`, `model.dtype`, `model.rounding`,
    `rollout.temperature`, and those of other policies. A step trains what was added since the last
    one.

    >>> import asyncrl as rl
    >>> config = rl.Config(model={"warmup_steps": 0}, train={"lr": 1e-3})
    >>> learner = rl.Learner(rl.starting_model(config), config)
    >>> rewards = 1.0, 0.0
    >>> learner.add(
    ...     rl.Sequence([65, 66 + n], [-5.5], prompt_tokens=1, reward=reward)
    ...     for n, reward in enumerate(rewards)
    ... )
    >>> figures = learner.step()
    >>> learner.version, figures.trained
    (1, 2)
    """

    def __init__(
        self,
        model: str | Path | PreTrainedModel,
        config: Config | None = None,
        *,
        advantage: type[Advantage] | None = None,
        objective: type[Objective] | None = None,
        correction: Corrections | Sequence[Corrections] | None = None,
    ) -> None:
        """Learn from a model directory or a name on a hub, or from a model, which the learner takes
        over. Keywords are those of `train`. Raises ConfigError for settings that need a whole run,
        and a model that cannot be trained."""
        given = {"advantage": advantage, "objective": objective, "correction": correction}
        config = for_this_process(
            Config() if config is None else as_config("Learner", config), given
        )
        _refuse_settings_of_runs(config)
        self.config = config = with_directories(config)
        self.path = model_directory(model) if isinstance(model, str | Path) else None
        self.model = opened(model, config) if self.path else as_model(model)
        if self.path is None and (config.reference.coefficient and not config.reference.path):
            raise ConfigError(
                "Learner: reference.coefficient is set, and a model in memory has no reference: "
                "give the learner a model directory, or set reference.path."
            )
        torch.nn.Module.to(self.model, config.train.device)
        initial = self.path or Path()
        try:
            if config.model.rounding == "fp8":
                round_in_training(self.model)
            try_passes(self.model, config.engine.context_tokens)
            terms = open_kl_terms(config, initial, self.model.dtype, self.model)
            examples = open_supervised(config, initial)
        except (ModelError, TaskError) as error:
            raise ConfigError(sentence(error)) from None
        self._core = core.Learner(
            self.model,
            config.train,
            config.staleness,
            config.rollout.temperature,
            budget=config.rollout.max_new_tokens,
            kl_terms=terms,
            supervised=examples,
        )
        self._vocabulary = self.model.get_input_embeddings().num_embeddings
        self._whole_step = advantage_of(config.train).whole_step
        self._rollouts = self._index = 0
        self._groups = set[int]()  # of the open step
        self._counts = list[TokenCount]()

    @property
    def version(self) -> int:
        """Number of steps taken."""
        return self._core.version

    def add(self, sequences: Iterable[PublicSequence]) -> None:
        """Add the gradient of these to the open step. A group must come whole, in one call, and
        with an advantage that compares a whole step (reinforce_pp, gdpo) the whole step. Raises
        ValueError if they cannot be trained, before any of them is."""
        added = list(sequences)
        self._refuse_unfit(added)
        members = defaultdict[int, list[PublicSequence]](list)
        for sequence in added:
            members[sequence.group].append(sequence)
        pieces = [self._pieces(group, of_group) for group, of_group in members.items()]
        facts = {
            group: GroupFacts(
                rewards=[float(sequence.reward or 0) for sequence in of_group],
                parts=[[] for _ in of_group],
                lengths=[sequence.sampled_tokens for sequence in of_group],
                turns=[[] for _ in of_group],
            )
            for group, of_group in members.items()
        }
        config = self.config
        for batch in micro_batches(pieces, _tokens, micro_tokens(config)):
            named = members.keys() if self._whole_step else {sample.group for sample, _ in batch}
            packed = training_message(
                self.version,
                self._index,
                batch,
                {group: facts[group] for group in named},
                max_lag(config),
                mask_truncated=config.rollout.truncated == "mask",
                whole_step=self._whole_step,
            )
            self._counts += self._core.accumulate(packed.message, packed.buffers)
            self._index += 1
        self._groups |= members.keys()

    def step(self) -> StepFigures:
        """Take the optimizer step, which makes the next version; if nothing was added, the weights
        stay."""
        metrics = self._core.step()
        counts, self._counts = self._counts + self._core.counts, []
        self._index, self._groups = 0, set()
        discarded = Counter[str]()
        for count in counts:
            discarded.update(count.discarded)
        trained = sum(count.trained for count in counts)
        return StepFigures(self.version, trained, dict(discarded), metrics)

    def save(self, path: str | Path) -> Path:
        """Write the model as a Hugging Face directory, replacing a model at `path`, with the
        tokenizer of the directory from which the learner began. Raises ConfigError if `path` has
        anything else, which would be lost, and CheckpointError if it cannot be written."""
        target = Path(path)
        if exists(target) or target.is_symlink():
            if target.is_symlink() or not is_file(target / "config.json"):
                raise ConfigError(
                    f"{shown(target)}: this exists and is not a model directory; choose another "
                    "path."
                )
            if other := next((file for file in target.iterdir() if not of_model(file)), None):
                raise ConfigError(
                    f"{shown(target)}: {escaped(other.name)} there is no file of a saved model, "
                    "and would be lost; choose another path."
                )
        return export(path, self.model, self.path or Path(path))

    def _pieces(
        self, group: int, members: Sequence[PublicSequence]
    ) -> list[tuple[Sample, TrainingSequence]]:
        pieces = []
        for member, public in enumerate(members):
            sequence, reward = public.to_train(), float(public.reward or 0)
            pieces.append((sequence.sample(self._rollouts, group, reward, member=member), sequence))
            self._rollouts += 1
        return pieces

    def _refuse_unfit(self, added: Sequence[PublicSequence]) -> None:
        for number, item in enumerate(added):
            if not isinstance(item, PublicSequence):
                raise ValueError(
                    f"item {number} is a {type(item).__name__}, and not an rl.Sequence"
                )
            if (
                item.reward is None
                or item.reward != item.reward
                or abs(item.reward) == float("inf")
            ):
                raise ValueError(
                    f"sequence {number} has the reward {item.reward}: give each a number, as by "
                    "sequence.rewarded(1.0)"
                )
            if int(item.ids.min()) < 0 or int(item.ids.max()) >= self._vocabulary:
                raise ValueError(
                    f"sequence {number} has an id outside of the model's vocabulary of "
                    f"{self._vocabulary}"
                )
            if item.versions.max() > self.version:
                raise ValueError(
                    f"sequence {number} is of version {item.versions.max()}, and the learner has "
                    f"made {self.version}: versions count its steps"
                )
            if len(item.ids) > (most := micro_tokens(self.config)):
                raise ValueError(
                    f"sequence {number} has {len(item.ids)} tokens, and a micro-batch {most}: "
                    "raise train.micro_tokens"
                )
            if item.group in self._groups:
                raise ValueError(
                    f"sequence {number} is of group {item.group}, of which others were added to "
                    "this step before: add a group in one call"
                )
        if self._whole_step and self._groups:
            raise ValueError(
                f"the advantage {self.config.train.advantage} compares a whole step: add all of "
                "it in one call"
            )


def _tokens(piece: tuple[Sample, TrainingSequence]) -> int:
    return piece[0].prompt_tokens + piece[0].response_tokens


def _refuse_settings_of_runs(config: Config) -> None:
    """Raise ConfigError for settings that a loop in one process cannot use."""
    for key, is_set, why in (
        ("train.ranks", config.train.ranks > 1, "several ranks are processes of a run"),
        ("model.lora.rank", config.model.lora.rank > 0, "adapters learn in runs alone"),
        ("reference.server", bool(config.reference.server), "a run asks servers for scores"),
        ("teacher.server", bool(config.teacher.server), "a run asks servers for scores"),
        (
            "staleness.proximal",
            config.staleness.proximal == "boundary",
            "a run scores tokens at the end of each step",
        ),
    ):
        if is_set:
            raise ConfigError(
                f"Learner: {key} is set, and {why}: leave it at its default, or use asyncrl.train."
            )
