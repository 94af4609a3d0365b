"""Settings of reward actors."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from asyncrl.config.schema.section import EVERY, Section


class RewardConfig(Section, frozen=True):
    """Reward actors, which judge answers."""

    resumable = EVERY

    actors: Annotated[int, Meta(ge=1, description="reward processes")] = 1
    concurrency: Annotated[
        int, Meta(ge=1, description="answers that each reward actor judges at a time")
    ] = 16
