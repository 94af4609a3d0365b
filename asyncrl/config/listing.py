"""The settings as text, for `asyncrl settings`."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator

from asyncrl.config.errors import ConfigError
from asyncrl.config.fields import FIELDS, SECTIONS, lookup
from asyncrl.config.schema import Config
from asyncrl.config.setting import Field, Tier, nearest, quoted

WIDTH = 100
INDENT = "      "


def overview() -> str:
    """Return the basic settings by their keys, each with its default and its meaning; then the
    names of all sections."""
    basic = "\n".join(
        textwrap.fill(
            f"{_assigned(field, field.key)}  # {field.description}",
            WIDTH,
            initial_indent="  ",
            subsequent_indent=INDENT,
            break_on_hyphens=False,
        )
        for field in _of_tier(FIELDS.values(), Tier.BASIC)
    )
    sections = textwrap.fill(
        ", ".join(SECTIONS),
        WIDTH,
        initial_indent="  ",
        subsequent_indent="  ",
        break_on_hyphens=False,
    )
    return (
        f"The basic settings, with their defaults:\n{basic}\n\n"
        f"All settings of a section: asyncrl settings SECTION, which is one of\n{sections}"
    )


def section_settings(name: str) -> str:
    """Return all settings of a section, the basic ones first, each with its default, its allowed
    values, its meaning and its unit. Raises ConfigError where there is no such section."""
    if name not in SECTIONS:
        raise ConfigError(
            f"settings: there is no section {quoted(name)}; the nearest is "
            f"{nearest(name, SECTIONS)}."
        )
    return "\n".join([f"[{name}] {(SECTIONS[name].__doc__ or '').strip()}", *_explained(name)])


def _explained(section: str) -> Iterator[str]:
    fields = [field for field in FIELDS.values() if field.section == section]
    for tier in Tier:
        chosen = list(_of_tier(fields, tier))
        if chosen:
            yield f"\n{tier.value}:"
        for field in chosen:
            yield f"  {_assigned(field, field.name)}"
            words = f": {', '.join(field.entries)}" if field.entries else ""
            yield textwrap.fill(
                f"{field.description} ({field.allowed}{words})",
                WIDTH,
                initial_indent=INDENT,
                subsequent_indent=INDENT,
                break_on_hyphens=False,
            )


def _of_tier(fields: Iterable[Field], tier: Tier) -> Iterator[Field]:
    return (field for field in fields if field.tier is tier)


def _assigned(field: Field, name: str) -> str:
    return f"{name} = {quoted(lookup(Config(), field.key))}"
