"""Settings of examples that are learned beside what is rewarded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from msgspec import Meta

from asyncrl.config.schema.section import PATH, Contradictions, Section

if TYPE_CHECKING:
    from asyncrl.config.schema.run_toml import Config


class SupervisedConfig(Section, frozen=True):
    """Examples that are learned beside what is rewarded (docs/policies.md)."""

    coefficient: Annotated[
        float, Meta(ge=0, description="weight of the loss of the examples; 0: there is none")
    ] = 0.0
    path: Annotated[
        str, PATH, Meta(description="JSONL file; each line has a prompt and a response")
    ] = ""
    batch: Annotated[int, Meta(ge=1, description="examples drawn for each update")] = 16

    def contradictions(self, whole: Config) -> Contradictions:
        if bool(self.coefficient) != bool(self.path):
            yield (
                ("supervised.coefficient", "supervised.path"),
                "examples need both: set coefficient and path, or neither",
            )
