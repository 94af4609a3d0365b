"""Settings of metrics."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from asyncrl.config.schema.section import BASIC, EVERY, Section


class MetricsConfig(Section, frozen=True):
    """Metrics for Prometheus."""

    resumable = EVERY

    port: Annotated[
        int, BASIC, Meta(ge=0, le=65535, description="port of metrics for Prometheus; 0: off")
    ] = 0
    host: Annotated[
        str, Meta(description="address of this machine on which that port is open; 0.0.0.0: all")
    ] = "127.0.0.1"
