"""Settings of the publication of weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from msgspec import Meta

from asyncrl.config.engines import capabilities
from asyncrl.config.schema.model_section import ModelConfig
from asyncrl.config.schema.section import Contradictions, Section

if TYPE_CHECKING:
    from asyncrl.config.schema.run_toml import Config


class PublicationConfig(Section, frozen=True):
    """Publication of weights to engines."""

    resumable = ("path", "bucket_bytes", "full_every", "deadline_s", "host")

    path: Annotated[
        Literal["staged", "direct"],
        Meta(
            description=(
                "how weights reach an engine: staged in separate memory while it decodes, or "
                "direct into its own while it is paused, without a second copy"
            )
        ),
    ] = "staged"
    bucket_bytes: Annotated[
        int,
        Meta(
            ge=1024,
            description=(
                "bytes per broadcast; to servers at least 1/32 of the weights, up to 1 GiB"
            ),
        ),
    ] = 32 * 2**20
    full_every: Annotated[
        int,
        Meta(
            ge=1,
            description=(
                "one in this many publications sends all bytes, the others only changed ones; "
                "worth it in bfloat16, and costs each side another copy of the weights"
            ),
        ),
    ] = 1
    dtype: Annotated[
        Literal["model", "bfloat16", "fp8"],
        Meta(
            description=(
                "type in which weights are sent; bfloat16 for a float32 model: half the bytes, "
                "rounded; fp8: linear layers rounded as by model.rounding"
            )
        ),
    ] = "model"
    deadline_s: Annotated[
        float,
        Meta(
            gt=0,
            description=(
                "seconds for each phase, plus one for each 80 MB of weights; an engine that "
                "misses a phase is replaced"
            ),
        ),
    ] = 60.0
    host: Annotated[
        str,
        Meta(
            description=(
                "address at which engines meet the trainer to receive weights; loopback: they "
                "meet in a file"
            )
        ),
    ] = "127.0.0.1"

    def sent_dtype(self, model: ModelConfig) -> str:
        """Return the type in which weights are sent; with fp8, that of weights outside linear
        layers.

        >>> from asyncrl.config.schema import ModelConfig
        >>> PublicationConfig(dtype="bfloat16").sent_dtype(ModelConfig())
        'bfloat16'
        """
        return "bfloat16" if self.dtype == "bfloat16" else model.dtype

    def rounds(self, model: ModelConfig) -> bool:
        """True if weights are sent in a coarser type than the trainer computes with."""
        if self.dtype == "fp8":
            return model.rounding != "fp8"
        return self.sent_dtype(model) != model.dtype

    def contradictions(self, whole: Config) -> Contradictions:
        servers = whole.engine.servers
        if self.dtype == "fp8" and servers is not None and not servers.settings.urls:
            yield (
                ("publication.dtype", f"{servers.table}.urls"),
                "servers that the run starts load the run's model, which is not quantized: "
                "start servers with an fp8 copy of it (blocks of 128 by 128) and list them in "
                "urls, or set dtype to model, which with model.rounding = fp8 sends the same "
                "values",
            )
        if self.path != "direct":
            return
        if not capabilities(whole.engine.kind).direct_transport:
            yield (
                ("publication.path", "engine.kind"),
                "this engine does not support direct publications: set path to staged, or "
                "kind to embedded",
            )
        if self.full_every > 1:
            yield (
                ("publication.path", "publication.full_every"),
                "to find changes the trainer compares with the weights that it sent last, and "
                "a direct publication keeps no copy of them: set path to staged, or full_every "
                "to 1",
            )
        if whole.evaluation.weights == "ema":
            yield (
                ("publication.path", "evaluation.weights"),
                "a direct publication cannot store an average beside the weights: set path to "
                "staged, or weights to current",
            )
