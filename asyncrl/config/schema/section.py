"""A table of `run.toml`, and ranges that several settings have."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

Count = Annotated[int, Meta(ge=1)]
Whole = Annotated[int, Meta(ge=0)]
Seconds = Annotated[float, Meta(gt=0)]
Positive = Annotated[float, Meta(gt=0)]
NonNegative = Annotated[float, Meta(ge=0)]
Share = Annotated[float, Meta(ge=0, le=1)]


EVERY = ("*",)
"""All settings of a section, as its `resumable`."""


class Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A table of run.toml. A resume may change its `resumable` settings: they change how the run
    goes on, and not what its journal and weights mean."""

    resumable = tuple[str, ...]()
