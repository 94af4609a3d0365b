"""Divergence terms from policies that do not learn: a reference, a teacher. Invariant: each token
counts by itself, so that a step may be split in any way; rewards change only where the whole group
is present.

A term has one of three places.
- `loss`: an estimate is added to the loss of each trained token. It acts through its gradient
  (`asyncrl.algorithms.reference_kl`).
- `advantage`: an estimate is subtracted from each token's own advantage, of the current policy. The
  policy gradient does the rest: with k1 the mean is the gradient of each token's KL.
- `reward`: the sum over all sampled tokens of a rollout, of the policy that sampled them, is
  subtracted from its reward, before the advantage. So it is normalized with the rewards, and each
  token of a rollout is charged with the whole sum.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import PreTrainedModel

from asyncrl.algorithms.ratios import log_ratio
from asyncrl.algorithms.reference_kl import Estimator, kl_estimate
from asyncrl.config.schema import Config
from asyncrl.messages import MicroBatch
from asyncrl.training.adapters import adapted, learning
from asyncrl.training.batch import Batch
from asyncrl.training.frozen_policy import FrozenPolicy, Policy, policy_like
from asyncrl.training.models import load_model
from asyncrl.training.output_layer import float32_output
from asyncrl.training.ranks.opening import opened_by_rank
from asyncrl.training.ranks.rank import ALONE, Rank
from asyncrl.training.rounding import round_for_good
from asyncrl.training.stored_state import StoredRows
from asyncrl.training.trial import try_passes

Served = Mapping[str, NDArray[np.float32]]
"""Log-probabilities of a micro-batch's sampled tokens, scored by servers, [tokens], by the name of
the policy."""


class KlTerm(NamedTuple):
    """One term: the divergence from the policy called `name`, `coefficient` times, in one place.
    `policy` None: a server scores, and its scores come with each micro-batch. After every
    `reset_every` steps (0: never) the policy becomes the current one. `weighed`: in the advantage
    it counts by the weight of the token's group, as rewards do (PACED distils so)."""

    name: str
    coefficient: float
    kl_in: Literal["loss", "reward", "advantage"]
    estimator: Estimator
    policy: Policy | None
    reset_every: int = 0
    weighed: bool = False


class KlAdded(NamedTuple):
    """Additions to the response tokens of a packed batch, each [tokens]: `advantage` (float32,
    without gradient), `loss` (float32, with the gradient of the current policy), `finite` (bool),
    False where a needed log-probability of another policy is no number. `log_ratios`: current over
    each other policy, without gradient, 0 where not finite."""

    advantage: Tensor
    loss: Tensor
    finite: Tensor
    log_ratios: Mapping[str, Tensor]

    def sums(self, kept: Tensor) -> dict[str, float]:
        """Of each policy the sum of the log-ratio over the kept tokens (bool [tokens]), as
        `<name>_kl`: over their number an estimate of KL(current, other) per token."""
        return {f"{name}_kl": float(log[kept].sum()) for name, log in self.log_ratios.items()}


class KlTerms:
    """The terms of a run, none or several. `temperature` is that of sampling: divergences are those
    of the policies that sample."""

    def __init__(self, terms: Sequence[KlTerm] = (), temperature: float = 1.0) -> None:
        self._terms, self._temperature = tuple(terms), temperature

    def scores(self, batch: Batch, served: Served) -> dict[str, Tensor]:
        """Log-probabilities of the micro-batch's sampled tokens under each other policy, float32
        [tokens], by its name; `served` has those of servers. All ranks call this alike. Raises
        ValueError where one of these is missing, or has another number of tokens."""
        scores = dict[str, Tensor]()
        for term in self._terms:
            if term.policy is None:
                if term.name not in served:
                    raise ValueError(f"no scores of the {term.name} came with a micro-batch")
                if len(served[term.name]) != len(batch.behaviour):
                    raise ValueError(
                        f"{len(served[term.name])} scores of the {term.name} came for "
                        f"{len(batch.behaviour)} tokens"
                    )
                scores[term.name] = torch.from_numpy(served[term.name])
                continue
            scored = torch.empty_like(batch.behaviour)
            found = term.policy.scores(batch.packed, self._temperature)
            for packed, of_packed in zip(batch.packed, found, strict=True):
                scored[packed.tokens] = of_packed
            scores[term.name] = scored
        return scores

    def rewarded(self, batch: MicroBatch, tensors: Batch) -> MicroBatch:
        """The micro-batch with the rewards of its rollouts less their divergence. Raises ValueError
        where a group is not whole, as its other rewards are not known then."""
        for term in self._terms:
            if term.kl_in == "reward":
                # a token that is not finite counts 0
                log, _ = log_ratio(tensors.behaviour, tensors.scores[term.name])
                each = term.coefficient * kl_estimate(term.estimator, log).double()
                sums = each.new_zeros(len(batch.samples)).index_add(0, tensors.sample_index, each)
                batch = _less(batch, sums.tolist(), term.name)
        return batch

    def added(self, batch: Batch, tokens: Tensor, current: Tensor) -> KlAdded:
        """Compute the additions to the micro-batch's tokens with the indexes `tokens` (int64):
        `current` is their log-probability, with its gradient."""
        advantage, loss = torch.zeros_like(current.detach()), torch.zeros_like(current.detach())
        usable, logs = torch.ones_like(advantage, dtype=torch.bool), dict[str, Tensor]()
        for term in self._terms:
            log, finite = log_ratio(current, batch.scores[term.name][tokens].to(current.device))
            logs[term.name] = log.detach()
            if term.kl_in == "loss":
                loss = loss + term.coefficient * kl_estimate(term.estimator, log)
            elif term.kl_in == "advantage":
                less = term.coefficient * kl_estimate(term.estimator, log.detach())
                if term.weighed and batch.weights is not None:
                    less = less * batch.weights[batch.sample_index[tokens]].to(less.device)
                advantage -= less
            if term.kl_in != "reward":
                usable &= finite
        return KlAdded(advantage, loss, usable, logs)

    def stepped(self, version: int, model: PreTrainedModel) -> bool:
        """Reset the policies that are due at `version`, now the model's. Returns True if any
        was."""
        due = [
            term.policy
            for term in self._terms
            if term.policy is not None and term.reset_every and version % term.reset_every == 0
        ]
        for policy in due:
            policy.become(dict(learning(model)))
        return bool(due)

    def tensors(self, version: int) -> Iterator[tuple[str, Tensor]]:
        """(name, tensor) of the weights of policies that were reset by `version`, for a checkpoint;
        the others have their initial ones. Of several ranks the shards."""
        for term in self._reset(version):
            for name, weight in term.policy.weights() if term.policy else ():
                yield f"{term.name}/{name}", weight

    def restore(self, version: int, tensors: Mapping[str, Tensor | StoredRows]) -> None:
        """Load the result of `tensors` at `version`. Raises ValueError, and changes nothing, where
        it is of another model or incomplete."""
        for term in self._reset(version):
            prefix = f"{term.name}/"
            assert term.policy is not None
            term.policy.become(
                {
                    name.removeprefix(prefix): tensor
                    for name, tensor in tensors.items()
                    if name.startswith(prefix)
                }
            )

    def _reset(self, version: int) -> list[KlTerm]:
        return [term for term in self._terms if term.policy and 0 < term.reset_every <= version]


def served_names(config: Config) -> list[str]:
    """Names of the policies of which a server has scored the tokens of a micro-batch."""
    return [
        name
        for name, policy in (("reference", config.reference), ("teacher", config.teacher))
        if policy.coefficient and policy.server
    ]


def open_kl_terms(
    config: Config,
    initial: Path,
    dtype: torch.dtype,
    learns: PreTrainedModel,
    rank: Rank = ALONE,
    *,
    given: bool = False,
) -> KlTerms:
    """The terms of a run's settings, with the models of its policies on the trainer's device, of
    which `rank` keeps its shards; `initial` is the model directory that the run starts from, and
    `learns` the model that learns, as it starts. With adapters, a reference without a path copies
    these alone, and shares the base. If weights are `given`, rank 0 reads them for all. Raises
    ModelError."""

    def opened(path: str | Path) -> Policy:
        if not path and adapted(learns):
            return policy_like(learns, rank)
        path, weights = Path(path or initial), None
        if rank.size > 1:
            device = torch.device(config.train.device)
            model, weights = opened_by_rank(path, dtype, rank.index, device, given=given)
        else:
            model = load_model(path, dtype)
        if config.model.output_dtype == "float32":
            float32_output(model)
        if config.model.rounding == "fp8" and path == initial:
            round_for_good(model)  # the initial policy, as engines have it
        if weights is None:
            nn.Module.to(model, config.train.device)
        policy = FrozenPolicy(model, rank, weights)
        try_passes(model, config.engine.context_tokens)
        rank.let_go(model)
        return policy

    reference, teacher, terms = config.reference, config.teacher, list[KlTerm]()
    if reference.coefficient:
        terms.append(
            KlTerm(
                "reference",
                reference.coefficient,
                reference.kl_in,
                reference.estimator,
                None if reference.server else opened(reference.path),
                reference.reset_every,
            )
        )
    if teacher.coefficient:
        policy = None if teacher.server else opened(teacher.path)
        terms.append(
            KlTerm("teacher", teacher.coefficient, "advantage", "k1", policy, weighed=True)
        )
    return KlTerms(terms, config.rollout.temperature)


def _less(batch: MicroBatch, subtracted: Sequence[float], name: str) -> MicroBatch:
    """The micro-batch with lower rewards: each rollout's by the sum of `subtracted` over its
    samples."""
    whole = defaultdict[tuple[int, int | None], float](float)
    for sample, less in zip(batch.samples, subtracted, strict=True):
        whole[sample.group, sample.member] += less
    rewards: dict[int, list[float]] = {
        group: [math.nan] * len(members) for group, members in batch.rewards.items()
    }
    samples = []
    for sample in batch.samples:
        if sample.member is None:
            raise ValueError(
                f"rollout {sample.rollout} does not name its member of the group, which the "
                f"divergence from the {name} in its reward needs"
            )
        reward = sample.reward - whole[sample.group, sample.member]
        rewards[sample.group][sample.member] = reward
        samples.append(msgspec.structs.replace(sample, reward=reward))
    for group, members in rewards.items():
        if any(map(math.isnan, members)):
            raise ValueError(
                f"group {group} came with {sum(not math.isnan(r) for r in members)} of its "
                f"{len(members)} members, and with the divergence from the {name} in the reward "
                "all are needed"
            )
    return msgspec.structs.replace(batch, samples=samples, rewards=rewards)
