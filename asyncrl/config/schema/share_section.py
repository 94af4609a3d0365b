"""Settings of what a run shares with others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from msgspec import Meta

from asyncrl.config.schema.section import EVERY, PATH, Contradictions, Section

if TYPE_CHECKING:
    from asyncrl.config.schema.run_toml import Config


class ShareConfig(Section, frozen=True):
    """Groups that a run shares with others (docs/policies.md)."""

    resumable = EVERY

    path: Annotated[
        str,
        PATH,
        Meta(
            description=(
                "folder, or s3://, gs:// or az:// address, to which the run writes its judged "
                "groups for other runs (their foreign.source = runs); empty: it shares none"
            )
        ),
    ] = ""

    def contradictions(self, whole: Config) -> Contradictions:
        if self.path and whole.agent.run:
            yield (
                ("share.path", "agent.run"),
                "groups of episodes cannot be shared: remove path",
            )
