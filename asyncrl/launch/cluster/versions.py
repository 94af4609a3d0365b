"""The versions that the machines of a run must have in common, because they exchange messages,
weights and checksums."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib.metadata import version


def own_versions() -> dict[str, str]:
    """Versions on this machine, by name; for Python the first two numbers."""
    return {
        "asyncrl": version("asyncrl"),
        "torch": version("torch"),
        "Python": f"{sys.version_info.major}.{sys.version_info.minor}",
    }


def differing(theirs: Mapping[str, str], own: Mapping[str, str]) -> str:
    """The first difference, in words; empty if there is none.

    >>> differing({"torch": "2.12.0"}, {"torch": "2.13.0"})
    'torch 2.12.0, and the launcher torch 2.13.0'
    """
    for name, wanted in own.items():
        if (version := theirs.get(name, "of no version")) != wanted:
            return f"{name} {version}, and the launcher {name} {wanted}"
    return ""
