"""Settings of sandboxes as they go to an agent's process, which has nothing of the schema."""

from __future__ import annotations

from typing import Any

import msgspec


class BoxSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The table `[sandbox]` of run.toml (`asyncrl.config.schema.sandbox_section` says what each
    is)."""

    kind: str
    image: str
    image_key: str
    hosts: tuple[str, ...]
    memory_gb: float
    processes: int
    start_s: float
    lasts_s: float
    pulls: int
    pull_s: float
    images_gb: float
    api_key_file: str
    url: str
    box_url: str

    @classmethod
    def of(cls, section: Any) -> BoxSettings:
        """The settings of that table."""
        return msgspec.convert(section, cls, from_attributes=True)
