"""Settings of this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from msgspec import Meta

from asyncrl.config.schema.section import EVERY, Contradictions, Section

if TYPE_CHECKING:
    from asyncrl.config.schema.run_toml import Config


class MachineConfig(Section, frozen=True):
    """The part of this machine that a run may use."""

    resumable = EVERY

    cores: Annotated[
        int, Meta(ge=0, description="cores to use; 0: all that this process may use")
    ] = 0
    trainer_cores: Annotated[
        int, Meta(ge=0, description="how many of those cores the trainer uses; 0: half")
    ] = 0

    def contradictions(self, whole: Config) -> Contradictions:
        if self.cores > 1 and self.trainer_cores >= self.cores:
            yield (
                ("machine.trainer_cores", "machine.cores"),
                "the trainer would leave no core for generation: lower trainer_cores",
            )
