"""Settings of rollouts and their groups."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from msgspec import Meta

from asyncrl.config.schema.section import BASIC, Contradictions, Section
from asyncrl.config.selection_names import FILTERS, SIZINGS

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
                "this many of actors, the last ones, have the trainer's devices: they decode while "
                "it waits"
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
    group_size: Annotated[int, BASIC, Meta(ge=1, description="rollouts of one prompt")] = 8
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
                "rollouts of a prompt: group_size, or up to group_size_max, at first or added when "
                "those that there are have been judged"
            )
        ),
    ] = "fixed"
    group_size_max: Annotated[
        int,
        Meta(ge=1, le=2**16, description="rollouts of a prompt at most, where sizing is not fixed"),
    ] = 16
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
        if self.sizing != "fixed" and self.group_size_max < self.group_size:
            yield (
                ("rollout.group_size_max", "rollout.group_size"),
                "a prompt would get fewer rollouts than the least: raise group_size_max",
            )
