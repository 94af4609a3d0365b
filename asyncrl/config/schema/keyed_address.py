"""Addresses of APIs that may require a key: a judge's, and those of other models.

Invariant: no setting holds a key, and no error message quotes one that was put in the wrong place.
"""

from __future__ import annotations

import re

from asyncrl.config.errors import ConfigError
from asyncrl.config.schema.section import Contradictions
from asyncrl.messages.address import TcpAddress, url_parts

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def refuse_secrets(table: str, url: str, api_key_env: str, example: str) -> None:
    """Refuse a key in a URL, or in place of the name of its variable (the error shows an `example`
    of a name). Raises ConfigError, which does not quote what may be a secret."""
    if api_key_env and not _VARIABLE.fullmatch(api_key_env):
        raise ConfigError(
            f"{table}.api_key_env must be the name of an environment variable, such as "
            f"{example} (its value is not shown here, as it may be a key): export the key "
            "under a name, and set that name."
        )
    parts = url_parts(url)
    if parts.username or parts.password or parts.query or parts.fragment:
        raise ConfigError(
            f"{table}.url has a user, a password, or something after ? or # (it is not shown "
            f"here, as it may hold a key): give the key by {table}.api_key_env or "
            f"{table}.api_key_file."
        )


def address_contradictions(
    table: str, url: str, api_key_env: str, api_key_file: str
) -> Contradictions:
    """Yield contradictions between an address and the key that its server requires."""
    parts = url_parts(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        yield (f"{table}.url",), "an address is http://host:port/v1, or https"
    elif (
        parts.scheme == "http"
        and (api_key_env or api_key_file)
        and not TcpAddress(parts.hostname, 0).loopback
    ):
        yield (
            (f"{table}.url", f"{table}.api_key_env" if api_key_env else f"{table}.api_key_file"),
            "the key would cross the network unencrypted: give an https address, or one of "
            "this machine (127.0.0.1)",
        )
    if api_key_env and api_key_file:
        yield (
            (f"{table}.api_key_env", f"{table}.api_key_file"),
            "a server has one key: set only one of them",
        )
