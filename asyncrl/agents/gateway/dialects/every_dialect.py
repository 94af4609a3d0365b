"""All dialects, found by the names of their files."""

from __future__ import annotations

import pkgutil
import re
from functools import cache
from importlib import import_module

import asyncrl.agents.gateway.dialects as room
from asyncrl.agents.gateway.errors import GatewayError
from asyncrl.agents.gateway.inner_call import Dialect


@cache
def every_dialect() -> tuple[Dialect, ...]:
    """The `DIALECT` of each file, by its name."""
    names = [f"{room.__name__}.{found.name}" for found in pkgutil.iter_modules(room.__path__)]
    modules = [import_module(name) for name in names]
    return tuple(module.DIALECT for module in modules if hasattr(module, "DIALECT"))


def error_body(path: str, error: GatewayError) -> bytes:
    """An error in the form of the dialect that is spoken at a path, in any version of it, or above
    it (its batches), or in OpenAI's."""
    for dialect in every_dialect():
        if re.search(rf"/v[0-9]+{dialect.path}/", f"{path}/"):
            return dialect.error(error)
    return error.body()
