"""Settings of supervised examples beside rewarded rollouts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from msgspec import Meta

from asyncrl.config.schema.section import PATH, Contradictions, Section

if TYPE_CHECKING:
    from asyncrl.config.schema.run_toml import Config


class SupervisedConfig(Section, frozen=True):
    """Supervised examples beside rewarded rollouts (docs/policies.md)."""

    coefficient: Annotated[
        float, Meta(ge=0, description="weight of the examples' loss; 0: no examples")
    ] = 0.0
    path: Annotated[
        str,
        PATH,
        Meta(description="data set of prompts with responses, in any form that task.path reads"),
    ] = ""
    prompt_key: Annotated[
        str, Meta(description="key of the prompt, as task.prompt_key; empty: as the rows are")
    ] = ""
    answer_key: Annotated[
        str, Meta(description="key of the response, as task.answer_key; empty: as the rows are")
    ] = ""
    batch: Annotated[int, Meta(ge=1, description="examples drawn per update")] = 16

    def contradictions(self, whole: Config) -> Contradictions:
        if bool(self.coefficient) != bool(self.path):
            yield (
                ("supervised.coefficient", "supervised.path"),
                "examples need both: set coefficient and path, or neither",
            )
