"""Settings of the teacher."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from msgspec import Meta

from asyncrl.config.schema.policy_section import PolicyConfig
from asyncrl.config.schema.section import Contradictions

if TYPE_CHECKING:
    from asyncrl.config.schema.run_toml import Config


class TeacherConfig(PolicyConfig, frozen=True):
    """The teacher of on-policy distillation, which rewards likely tokens (docs/policies.md)."""

    coefficient: Annotated[
        float,
        Meta(
            ge=0,
            description=(
                "weight of log(teacher / current), added to each token's advantage; 0: no teacher"
            ),
        ),
    ] = 0.0

    def contradictions(self, whole: Config) -> Contradictions:
        yield from super().contradictions(whole)
        if self.coefficient and not self.path:
            yield (
                ("teacher.coefficient", "teacher.path"),
                "there is no teacher: name its model directory in teacher.path (for a teacher "
                "on a server, the directory of its tokenizer)",
            )
