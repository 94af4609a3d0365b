"""Settings of answers that the policy did not sample."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from msgspec import Meta

from asyncrl.config.schema.section import PATH, Contradictions, Section
from asyncrl.messages import Source

if TYPE_CHECKING:
    from asyncrl.config.schema.run_toml import Config


class ForeignConfig(Section, frozen=True):
    """Answers that the policy did not sample, as members of groups (docs/policies.md)."""

    source: Annotated[
        Literal["none", "file", "pool", "runs"],
        Meta(
            description=(
                "source of foreign answers: a file or folder, the run's old successes (if all "
                "own answers of a group fail), or other runs' groups"
            )
        ),
    ] = "none"
    path: Annotated[
        str,
        PATH,
        Meta(
            description=(
                "answers to training prompts: a data set in any form that task.path reads, or rows "
                "of ids with the tokenizer that they are of; of runs: the folder or the s3://, "
                "gs:// or az:// that they share"
            )
        ),
    ] = ""
    prompt_key: Annotated[
        str, Meta(description="key of the prompt, as task.prompt_key; empty: as the rows are")
    ] = ""
    answer_key: Annotated[
        str, Meta(description="key of the answer, as task.answer_key; empty: as the rows are")
    ] = ""
    members: Annotated[
        int, Meta(ge=1, description="foreign answers that join a group, at most")
    ] = 1
    max_age: Annotated[
        int,
        Meta(ge=0, description="versions that a foreign token may be old when it is trained"),
    ] = 8

    @property
    def most(self) -> int:
        """Foreign answers that may join a group; 0 without a source."""
        return 0 if self.source == "none" else self.members

    @property
    def imported(self) -> Source:
        """The source of what joins groups; `own` without one."""
        return {"none": "own", "file": "file", "pool": "pool", "runs": "run"}[self.source]  # type: ignore[return-value]

    def contradictions(self, whole: Config) -> Contradictions:
        if (self.source in ("file", "runs")) != bool(self.path):
            yield (
                ("foreign.source", "foreign.path"),
                "foreign answers of a file or of runs need both: set source and path, or neither",
            )
        if not self.most:
            return
        if self.members > whole.rollout.group_size:
            yield (
                ("foreign.members", "rollout.group_size"),
                "foreign answers would outnumber those of the policy itself: lower members, or "
                "raise group_size",
            )
        if whole.train.unit == "rollout":
            yield (
                ("foreign.source", "train.unit"),
                "foreign answers join whole groups: set unit to group",
            )
        if whole.agent.run:
            yield (
                ("foreign.source", "agent.run"),
                "a foreign answer is one response, and no episode: set source to none",
            )
        if whole.judge.together:
            yield (
                ("foreign.source", "judge.members"),
                "a group is judged before foreign answers join it: set members to alone",
            )
        if whole.staleness.proximal not in ("behaviour", "recompute"):
            yield (
                ("foreign.source", "staleness.proximal"),
                "no version of this run has sampled a foreign token: set proximal to behaviour or "
                "recompute",
            )
