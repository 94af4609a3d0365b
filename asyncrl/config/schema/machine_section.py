"""Settings of this machine."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from asyncrl.config.schema.section import EVERY, Section


class MachineConfig(Section, frozen=True):
    """The part of this machine that a run may use."""

    resumable = EVERY

    cores: Annotated[int, Meta(ge=0, description="cores to use; 0: all this process may use")] = 0
    trainer_cores: Annotated[int, Meta(ge=0, description="of those, the trainer's; 0: half")] = 0
