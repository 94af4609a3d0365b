"""The architecture of a model, as a process with torch tells one without."""

from __future__ import annotations

import msgspec


class Architecture(msgspec.Struct):
    """A family of transformers, the class of a model, and its number of parameters, tied ones once.
    `undecodable` is the reason why the embedded engine cannot decode it, if there is one."""

    family: str
    name: str
    parameters: int
    undecodable: str = ""
