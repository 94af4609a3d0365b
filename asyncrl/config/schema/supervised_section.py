"""Settings of examples that are learned beside what is rewarded."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from asyncrl.config.schema.section import Section


class SupervisedConfig(Section, frozen=True):
    """Examples that are learned beside what is rewarded (docs/policies.md)."""

    coefficient: Annotated[
        float, Meta(ge=0, description="weight of the loss of the examples; 0: there is none")
    ] = 0.0
    path: Annotated[str, Meta(description="JSONL file; each line has a prompt and a response")] = ""
    batch: Annotated[int, Meta(ge=1, description="examples drawn for each update")] = 16
