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
                "path of weights: staged beside the engine's own while it decodes, or direct into "
                "them while it is paused, without a second copy"
            )
        ),
    ] = "staged"
    bucket_bytes: Annotated[
        int,
        Meta(
            ge=1024,
            description=(
                "bytes broadcast at a time; to servers at least a 32nd of the weights, up to 1 GiB"
            ),
        ),
    ] = 32 * 2**20
    full_every: Annotated[
        int,
        Meta(
            ge=1,
            description=(
                "one of this many publications sends all bytes, the others only changed ones; pays "
                "in bfloat16, for one more copy of the weights in the trainer"
            ),
        ),
    ] = 1
    dtype: Annotated[
        Literal["model", "bfloat16", "fp8"],
        Meta(
            description=(
                "type of the weights that engines are sent; bfloat16 for a float32 model: half the "
                "bytes, rounded; fp8: linear layers as model.rounding has them"
            )
        ),
    ] = "model"
    deadline_s: Annotated[
        float,
        Meta(
            gt=0,
            description=(
                "seconds for each phase, and one more for each 80 MB of weights; an engine that "
                "misses one is replaced"
            ),
        ),
    ] = 60.0
    host: Annotated[
        str,
        Meta(
            description=(
                "address at which the trainer meets engines for weights; loopback: in a file"
            )
        ),
    ] = "127.0.0.1"

    def sent_dtype(self, model: ModelConfig) -> str:
        """Return the type of the weights that are sent; with fp8, of those of no linear layer.

        >>> from asyncrl.config.schema import ModelConfig
        >>> PublicationConfig(dtype="bfloat16").sent_dtype(ModelConfig())
        'bfloat16'
        """
        return "bfloat16" if self.dtype == "bfloat16" else model.dtype

    def rounds(self, model: ModelConfig) -> bool:
        """True if engines are sent coarser weights than the trainer computes with."""
        if self.dtype == "fp8":
            return model.rounding != "fp8"
        return self.sent_dtype(model) != model.dtype

    def contradictions(self, whole: Config) -> Contradictions:
        servers = whole.engine.servers
        if self.dtype == "fp8" and servers is not None and not servers.settings.urls:
            yield (
                ("publication.dtype", f"{servers.table}.urls"),
                "servers of a run begin with the run's own model, which is not quantized: start "
                "servers with an fp8 copy of it (blocks of 128 by 128) and name them in urls, or "
                "set dtype to model, which with model.rounding = fp8 sends the same values",
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
                "changes are found by a copy of the last weights sent, which a direct publication "
                "does not keep: set path to staged, or full_every to 1",
            )
        if whole.evaluation.weights == "ema":
            yield (
                ("publication.path", "evaluation.weights"),
                "a direct publication cannot store an average beside the weights: set path to "
                "staged, or weights to current",
            )
