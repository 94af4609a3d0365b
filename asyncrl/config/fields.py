"""The catalogue of settings, read off the schema."""

from __future__ import annotations

from operator import attrgetter
from typing import Any, get_type_hints

from asyncrl.config.schema import Config, Section
from asyncrl.config.setting import Field, field_of


def _sections(cls: type[Section], within: str = "") -> dict[str, type[Section]]:
    """The sections in a section, each before its own subsections."""
    sections: dict[str, type[Section]] = {}
    for name, hint in get_type_hints(cls).items():
        if isinstance(hint, type) and issubclass(hint, Section):
            sections |= {within + name: hint, **_sections(hint, f"{within}{name}.")}
    return sections


SECTIONS: dict[str, type[Section]] = _sections(Config)
FIELDS: dict[str, Field] = {
    f"{section}.{name}": field_of(section, name, hint)
    for section, cls in SECTIONS.items()
    for name, hint in get_type_hints(cls, include_extras=True).items()
    if f"{section}.{name}" not in SECTIONS
}
"""Every setting by its key, in the schema's order."""


def lookup(config: Config, key: str) -> Any:
    """The value of `section.name`."""
    return attrgetter(key)(config)
