"""Settings of rollouts and their groups."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from msgspec import Meta

from asyncrl.config.schema.section import BASIC, Contradictions, Section
from asyncrl.config.selection_names import FILTERS, FORKS, PRUNES, SIZINGS

if TYPE_CHECKING:
    from asyncrl.config.schema.run_toml import Config


class RolloutConfig(Section, frozen=True):
    """Generation of rollouts."""

    resumable = ("actors", "lent_actors", "lending", "attempts", "lease_s")

    actors: Annotated[int, BASIC, Meta(ge=1, description="rollout processes")] = 1
    lent_actors: Annotated[
        int,
        Meta(
            ge=0,
            description=(
                "how many of actors, the last ones, decode on the trainer's devices while it waits"
            ),
        ),
    ] = 0
    lending: Annotated[
        Literal["priority", "switch"],
        Meta(
            description=(
                "how lent_actors share: at a low priority on the trainer's cores, or with work "
                "only while the trainer has none, if that pays (servers, GPUs)"
            )
        ),
    ] = "priority"
    group_size: Annotated[
        int, BASIC, Meta(ge=1, le=2**16, description="rollouts of one prompt")
    ] = 8
    k_min: Annotated[int, Meta(ge=1, description="verdicts a group needs to be trained")] = 2
    max_new_tokens: Annotated[
        int, BASIC, Meta(ge=1, description="tokens of a response, at most")
    ] = 32
    temperature: Annotated[
        float, BASIC, Meta(gt=0, description="temperature of sampling; evaluation is greedy")
    ] = 1.0
    truncated: Annotated[
        Literal["keep", "mask", "penalize"],
        Meta(
            description=(
                "a response that is cut at its budget: trained like any other, left out of the "
                "loss, or penalized by its length (DAPO)"
            )
        ),
    ] = "keep"
    overlong_band: Annotated[
        int,
        Meta(
            ge=0,
            description=(
                "penalize: tokens before the budget over which the penalty grows to 1; 0: a fifth "
                "of max_new_tokens"
            ),
        ),
    ] = 0
    filter: Annotated[
        str,
        FILTERS.named,
        Meta(
            description=(
                "dropped groups: those whose rewards are all equal (with reinforce_pp they have a "
                "signal, and stay), or none"
            )
        ),
    ] = "zero_variance"
    filter_patience: Annotated[
        int, Meta(ge=1, description="groups filtered in a row that end the run")
    ] = 512
    accept_floor: Annotated[
        float,
        Meta(
            ge=0,
            lt=1,
            description="share of groups passing the filter below which the run ends",
        ),
    ] = 0.01
    sizing: Annotated[
        str,
        SIZINGS.named,
        Meta(
            description=(
                "rollouts of a prompt: group_size, or up to group_size_max, at the start or "
                "added once the others are judged"
            )
        ),
    ] = "fixed"
    group_size_max: Annotated[
        int,
        Meta(ge=1, le=2**16, description="rollouts of a prompt, at most, if sizing is not fixed"),
    ] = 16
    prune: Annotated[
        str,
        PRUNES.named,
        Meta(
            description=(
                "rollouts that end before their response is complete: those that probably fail, "
                "or that the group has enough of, that begin alike, or that are too long"
            )
        ),
    ] = "none"
    prune_after: Annotated[
        int, Meta(ge=1, description="tokens of a response between two decisions of prune")
    ] = 512
    prune_share: Annotated[
        float,
        Meta(
            gt=0,
            lt=1,
            description=(
                "unlikely: chance of success, relative to the mean, below which a rollout may "
                "end; balance: share of a group that continues; converged: mean edit distance"
            ),
        ),
    ] = 0.5
    prune_weight: Annotated[
        Literal["none", "inverse"],
        Meta(
            description=(
                "weight of a rollout that continued by chance: 1, or the inverse of its chance, "
                "which leaves no bias (with train.advantage = rloo)"
            )
        ),
    ] = "none"
    fork: Annotated[
        str,
        FORKS.named,
        Meta(
            description=(
                "rollouts that fork while they are generated, so that what branches share is "
                "generated once: off, at depths, or where the last tokens were surprising"
            )
        ),
    ] = "off"
    fork_after: Annotated[
        int, Meta(ge=1, description="tokens between two places where a response may fork")
    ] = 64
    fork_leaves: Annotated[
        int,
        Meta(
            ge=2,
            le=2**16,
            description=(
                "rollouts that each first one may become; a group begins with group_size / "
                "fork_leaves"
            ),
        ),
    ] = 2
    mode: Annotated[
        Literal["in_flight", "batch"],
        Meta(
            description=(
                "the other rollouts, once a step has its groups: continue, or are interrupted, "
                "kept, and resumed first"
            )
        ),
    ] = "in_flight"
    overprovision: Annotated[
        float, Meta(ge=1, le=1000, description="groups started for each that a step needs")
    ] = 1.0
    max_resumes: Annotated[
        int,
        Meta(
            ge=0,
            description=(
                "times a rollout may be requeued and resumed before it is dropped; 0: any number"
            ),
        ),
    ] = 0
    lease_s: Annotated[
        float, Meta(gt=0, description="seconds a rollout may stay with one rollout actor, at most")
    ] = 600.0
    attempts: Annotated[int, Meta(ge=1, description="leases of a rollout before it is dropped")] = 3

    def contradictions(self, whole: Config) -> Contradictions:
        if self.k_min > self.group_size:
            yield (
                ("rollout.k_min", "rollout.group_size"),
                "a group cannot have more verdicts than rollouts: lower k_min or raise group_size",
            )
        if self.truncated == "penalize" and self.overlong_band > self.max_new_tokens:
            yield (
                ("rollout.overlong_band", "rollout.max_new_tokens"),
                "the band ends at the budget, so it cannot be longer: lower overlong_band, or set "
                "it "
                "to 0",
            )
        yield from self._prune_contradictions(whole)
        if self.sizing != "fixed" and self.group_size_max < self.group_size:
            yield (
                ("rollout.group_size_max", "rollout.group_size"),
                "a prompt would get fewer rollouts than the least: raise group_size_max",
            )

    def _prune_contradictions(self, whole: Config) -> Contradictions:
        if self.prune == "none":
            if self.prune_weight != "none":
                yield (
                    ("rollout.prune_weight", "rollout.prune"),
                    "no rollout is ended, so none has a chance to weigh by: set prune to unlikely "
                    "or a rule of your own that draws, or prune_weight to none",
                )
            return
        if whole.agent.run:
            yield (
                ("rollout.prune", "agent.run"),
                "an agent's episode is never ended by a rule, because its environment would be "
                "left in the middle of it: set prune to none (agent.episode_s and agent.max_calls "
                "bound episodes)",
            )
        if self.prune_after >= self.max_new_tokens:
            yield (
                ("rollout.prune_after", "rollout.max_new_tokens"),
                "a response of so many tokens is complete before the rule is asked: lower "
                "prune_after",
            )
        if self.k_min >= self.group_size and self.prune != "longest":
            yield (
                ("rollout.prune", "rollout.k_min", "rollout.group_size"),
                "the last k_min rollouts of a group are never ended, so none could be: lower k_min "
                "or raise group_size",
            )
        if self.prune_weight == "none":
            return
        if self.prune in ("balance", "converged", "longest"):
            yield (
                ("rollout.prune_weight", "rollout.prune"),
                f"{self.prune} ends rollouts without a draw, so nothing could stand for them: set "
                "prune to unlikely, or prune_weight to none",
            )
        if whole.train.advantage != "rloo" or whole.train.credit != "episode":
            yield (
                ("rollout.prune_weight", "train.advantage"),
                "weights leave no bias with leave-one-out rewards alone: set advantage to rloo and "
                "credit to episode, or prune_weight to none",
            )
        if self.filter != "none":
            yield (
                ("rollout.prune_weight", "rollout.filter"),
                "a filter that looks at those that went on would take with it what they stand for: "
                "set filter to none, or prune_weight to none",
            )
        if whole.train.keep != "all":
            yield (
                ("rollout.prune_weight", "train.keep"),
                "a choice among those that went on would be weighted by the chance of something "
                "else: set keep to all, or prune_weight to none",
            )
