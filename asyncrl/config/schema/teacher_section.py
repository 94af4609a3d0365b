"""Settings of the teacher."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from asyncrl.config.schema.section import Section


class TeacherConfig(Section, frozen=True):
    """The teacher of on-policy distillation: what it finds likely is good (docs/policies.md)."""

    coefficient: Annotated[
        float,
        Meta(
            ge=0,
            description=(
                "of log(teacher / current) of each token, added to its advantage; 0: no teacher"
            ),
        ),
    ] = 0.0
    path: Annotated[str, Meta(description="its model directory")] = ""
    server: Annotated[
        str,
        Meta(description="http://host:port of an SGLang that scores with it, instead; empty: none"),
    ] = ""
    api_key_file: Annotated[
        str,
        Meta(description="file with the key that this server asks for; empty: it asks for none"),
    ] = ""
