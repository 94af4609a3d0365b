"""Settings of the journal."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from asyncrl.config.schema.section import EVERY, Section


class JournalConfig(Section, frozen=True):
    """The journal of events on disk."""

    resumable = EVERY

    commit_ms: Annotated[
        int,
        Meta(
            ge=0,
            description=(
                "milliseconds between commits of the journal; 0: commit each event at once"
            ),
        ),
    ] = 100
