"""Settings of rollouts and their groups."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from msgspec import Meta

from asyncrl.config.schema.section import BASIC, Contradictions, Section, Tag
from asyncrl.config.selection_names import FILTERS, FORKS, PRUNES, SIZINGS

if TYPE_CHECKING:
    from asyncrl.config.schema.run_toml import Config


class RolloutConfig(Section, frozen=True):
    """Generation of rollouts."""

    resumable = ("actors", "lent_actors", "lending", "needs", "attempts", "lease_s")

    actors: Annotated[int, BASIC, Meta(ge=1, description="rollout processes")] = 1
    lent_actors: Annotated[
        int,
        Meta(
            ge=0,
            description=(
                "how many of actors, counted from the last, share the trainer's devices and "
                "decode while it waits"
            ),
        ),
    ] = 0
    lending: Annotated[
        Literal["priority", "switch"],
        Meta(
            description=(
                "how lent_actors share: priority, always at a low priority on the trainer's "
                "cores; switch, with work only while the trainer has none, if that pays "
                "(servers, GPUs)"
            )
        ),
    ] = "priority"
    needs: Annotated[
        tuple[Tag, ...],
        Meta(
            description=(
                "a tag for each actor, such as long_prefill, or an empty text: the actor starts "
                "only on a machine that joined with this tag, and prompts whose task.prefers is "
                "this tag go to it first"
            )
        ),
    ] = ()
    group_size: Annotated[int, BASIC, Meta(ge=1, le=2**16, description="rollouts per prompt")] = 8
    k_min: Annotated[
        int, Meta(ge=1, description="fewest verdicts with which a group is trained")
    ] = 2
    max_new_tokens: Annotated[
        int,
        BASIC,
        Meta(
            ge=1,
            description=(
                "most tokens in a response, or in all of an agent's (512 with an agent, if "
                "engine.context_tokens is not set either)"
            ),
        ),
    ] = 32
    temperature: Annotated[
        float, BASIC, Meta(gt=0, description="sampling temperature; evaluation is greedy")
    ] = 1.0
    truncated: Annotated[
        Literal["keep", "mask", "penalize"],
        Meta(
            description=(
                "what to do with a response cut off at its budget: train it like any other, "
                "mask it from the loss, or penalize its length (DAPO)"
            )
        ),
    ] = "keep"
    overlong_band: Annotated[
        int,
        Meta(
            ge=0,
            description=(
                "penalize: the penalty grows to 1 over this many tokens before the budget; 0: "
                "a fifth of max_new_tokens"
            ),
        ),
    ] = 0
    filter: Annotated[
        str,
        FILTERS.named,
        Meta(
            description=(
                "groups to drop: those whose rewards are all equal (with reinforce_pp they "
                "have a signal, and stay), or none"
            )
        ),
    ] = "zero_variance"
    filter_patience: Annotated[
        int, Meta(ge=1, description="the run ends after this many filtered groups in a row")
    ] = 512
    accept_floor: Annotated[
        float,
        Meta(
            ge=0,
            lt=1,
            description="the run ends if a smaller share of groups passes the filter",
        ),
    ] = 0.01
    sizing: Annotated[
        str,
        SIZINGS.named,
        Meta(
            description=(
                "rollouts per prompt: group_size, or up to group_size_max, chosen at the start "
                "or added once the first ones are judged"
            )
        ),
    ] = "fixed"
    group_size_max: Annotated[
        int,
        Meta(ge=1, le=2**16, description="most rollouts per prompt, if sizing is not fixed"),
    ] = 16
    prune: Annotated[
        str,
        PRUNES.named,
        Meta(
            description=(
                "rollouts to end before their response is complete: those that will probably "
                "fail, that the group has enough of, that begin alike, or that are too long"
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
                "be ended; balance: share of a group that continues; converged: mean edit "
                "distance"
            ),
        ),
    ] = 0.5
    prune_weight: Annotated[
        Literal["none", "inverse"],
        Meta(
            description=(
                "weight of a rollout that a draw let continue: 1, or the inverse of its "
                "chance, which is unbiased (with train.advantage = rloo)"
            )
        ),
    ] = "none"
    fork: Annotated[
        str,
        FORKS.named,
        Meta(
            description=(
                "fork rollouts during generation, so that the shared part of branches is "
                "generated once: off, at set depths, or where the last tokens were surprising"
            )
        ),
    ] = "off"
    fork_after: Annotated[
        int,
        Meta(ge=1, description=("tokens of a response between two points at which it may fork")),
    ] = 64
    fork_leaves: Annotated[
        int,
        Meta(
            ge=2,
            le=2**16,
            description=(
                "most rollouts that one may become by forks: a group begins with group_size / "
                "fork_leaves"
            ),
        ),
    ] = 2
    mode: Annotated[
        Literal["in_flight", "batch"],
        Meta(
            description=(
                "unfinished rollouts once a step has its groups: they continue, or are "
                "interrupted and resumed first after the publication"
            )
        ),
    ] = "in_flight"
    overprovision: Annotated[
        float, Meta(ge=1, le=1000, description="groups started per group that a step needs")
    ] = 1.0
    max_resumes: Annotated[
        int,
        Meta(
            ge=0,
            description=(
                "most times that a rollout is requeued and resumed before it is dropped; 0: no "
                "limit"
            ),
        ),
    ] = 0
    lease_s: Annotated[
        float,
        Meta(gt=0, description=("longest lease of a rollout to one rollout actor, in seconds")),
    ] = 600.0
    attempts: Annotated[
        int, Meta(ge=1, description=("failed leases after which a rollout is dropped"))
    ] = 3

    def contradictions(self, whole: Config) -> Contradictions:
        if self.k_min > self.group_size:
            yield (
                ("rollout.k_min", "rollout.group_size"),
                "a group cannot have more verdicts than rollouts: lower k_min or raise group_size",
            )
        if self.truncated == "penalize" and self.overlong_band > self.max_new_tokens:
            yield (
                ("rollout.overlong_band", "rollout.max_new_tokens"),
                "the band ends at the budget and cannot be longer than it: lower "
                "overlong_band, or set it to 0",
            )
        yield from self._prune_contradictions(whole)
        if self.sizing != "fixed" and self.group_size_max < self.group_size:
            yield (
                ("rollout.group_size_max", "rollout.group_size"),
                "the most rollouts of a prompt cannot be fewer than group_size: raise "
                "group_size_max",
            )

    def _prune_contradictions(self, whole: Config) -> Contradictions:
        if self.prune == "none":
            if self.prune_weight != "none":
                yield (
                    ("rollout.prune_weight", "rollout.prune"),
                    "without pruning no rollout has a chance to weight by: set prune to "
                    "unlikely or to your own rule that draws, or prune_weight to none",
                )
            return
        if whole.agent.run:
            yield (
                ("rollout.prune", "agent.run"),
                "a rule cannot end an agent's episode, because its environment would be left "
                "half-way: set prune to none (agent.episode_s and agent.max_calls bound "
                "episodes)",
            )
        if self.prune_after >= self.max_new_tokens:
            yield (
                ("rollout.prune_after", "rollout.max_new_tokens"),
                "a response would be complete before prune decides: lower prune_after",
            )
        if self.k_min >= self.group_size and self.prune != "longest":
            yield (
                ("rollout.prune", "rollout.k_min", "rollout.group_size"),
                "the last k_min rollouts of a group are never ended, so prune could end none: "
                "lower k_min or raise group_size",
            )
        if self.prune_weight == "none":
            return
        if self.prune in ("balance", "converged", "longest"):
            yield (
                ("rollout.prune_weight", "rollout.prune"),
                f"{self.prune} ends rollouts without a draw, so no weight can make up for "
                "them: set prune to unlikely, or prune_weight to none",
            )
        if whole.train.advantage != "rloo" or whole.train.credit != "episode":
            yield (
                ("rollout.prune_weight", "train.advantage"),
                "the weights are unbiased only with leave-one-out rewards: set advantage to "
                "rloo and credit to episode, or prune_weight to none",
            )
        if self.filter != "none":
            yield (
                ("rollout.prune_weight", "rollout.filter"),
                "a filter judges only the rollouts that continued, so it would drop the ended "
                "ones that they stand for: set filter to none, or prune_weight to none",
            )
        if whole.train.keep != "all":
            yield (
                ("rollout.prune_weight", "train.keep"),
                "a choice among the rollouts that continued changes the chance that they are "
                "weighted by: set keep to all, or prune_weight to none",
            )
