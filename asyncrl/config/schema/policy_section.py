"""Settings shared by reference and teacher: policies that score tokens and do not learn."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from msgspec import Meta

from asyncrl.config.schema.section import PATH, Contradictions, Section, table_of
from asyncrl.messages.address import url_parts

if TYPE_CHECKING:
    from asyncrl.config.schema.run_toml import Config


class PolicyConfig(Section, frozen=True):
    """A policy that scores tokens, beside the one that learns."""

    coefficient: float = 0.0
    """Each section describes its own weight."""
    path: Annotated[str, PATH, Meta(description="its model directory, or its name on the hub")] = ""
    server: Annotated[
        str,
        Meta(
            description=(
                "http://host:port of an SGLang server that scores with it, instead; empty: none"
            )
        ),
    ] = ""
    api_key_file: Annotated[
        str,
        PATH,
        Meta(description="file with that server's key; empty: it requires none"),
    ] = ""

    def contradictions(self, whole: Config) -> Contradictions:
        name = table_of(type(self))
        if not self.coefficient and (self.path or self.server):
            yield (
                (f"{name}.coefficient", f"{name}.path", f"{name}.server"),
                f"with coefficient 0 the {name} does nothing: set coefficient, or remove path "
                "and server",
            )
        if self.api_key_file and not self.server:
            yield (
                (f"{name}.api_key_file", f"{name}.server"),
                "a key is for a server: set server, or remove api_key_file",
            )
        if not self.server:
            return
        url = url_parts(self.server)
        if url.scheme not in ("http", "https") or not url.hostname:
            yield (f"{name}.server",), "an address is http://host:port"
        if whole.rollout.temperature != 1:
            yield (
                (f"{name}.server", "rollout.temperature"),
                "a server scores tokens at temperature 1, but the divergence needs the "
                "sampling temperature: set temperature to 1, or give the model in path instead",
            )
