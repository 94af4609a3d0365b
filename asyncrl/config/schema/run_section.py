"""Settings of one run as a whole: its directory, seed, logs, page and sinks."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from asyncrl.config.schema.section import BASIC, PATH, Section

SinkName = Literal["tensorboard", "wandb", "mlflow"]
"""An experiment tracker."""


class RunConfig(Section, frozen=True):
    """One run: its directory, its seed, its logs, its page, its sinks."""

    resumable = ("dir", "copy", "copy_s", "images_gb", "log", "sinks", "page_port", "page_host")

    dir: Annotated[
        str, BASIC, PATH, Meta(description="the run's own directory; empty: runs/<task>-<time>")
    ] = ""
    copy: Annotated[
        str,
        PATH,
        Meta(
            description=(
                "target of a copy of the run: a directory on another disk, or s3://, gs:// or "
                "az:// and a path in an object store; empty: none"
            )
        ),
    ] = ""
    copy_s: Annotated[float, Meta(gt=0, description="seconds between copies")] = 30.0
    images_gb: Annotated[
        float,
        Meta(
            gt=0,
            le=1e6,
            description="gigabytes that the images of prompts may take in the run directory; a "
            "prompt whose images do not fit is dropped",
        ),
    ] = 64.0
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1, description="seed of everything random")] = 0
    log: Annotated[
        Literal["debug", "info", "warning", "error"], Meta(description="level of the logs")
    ] = "info"
    sinks: Annotated[
        tuple[SinkName, ...],
        Meta(description="trackers that get its figures besides its own files"),
    ] = ()
    page_port: Annotated[
        int, BASIC, Meta(ge=0, le=65535, description="port of the page that shows the run; 0: off")
    ] = 0
    page_host: Annotated[
        str,
        Meta(
            description="address of this machine for that page; off loopback it has a key, page.key"
        ),
    ] = "127.0.0.1"
