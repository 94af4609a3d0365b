"""Keys of services outside. Invariant: a key comes from a variable or a file; no setting, message
or log holds it, and no sentence repeats it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from asyncrl.config.errors import ConfigError
from asyncrl.files import SMALL_BYTES, read_regular
from asyncrl.os_errors import to_read

HIDDEN = "[key]"


def read_key(
    table: str,
    api_key_env: str,
    api_key_file: str,
    environment: Mapping[str, str] = os.environ,
) -> str:
    """The key of the server that a table of run.toml names; empty if it needs none. Raises
    ConfigError if it is not where the settings say.

    >>> read_key("judge", "JUDGE_KEY", "", {})
    Traceback (most recent call last):
    asyncrl.config.errors.ConfigError: judge.api_key_env is 'JUDGE_KEY', and that variable is not \
set: export it where the run, and each machine that asks this server for it, is started.
    """
    if api_key_env:
        where = f"{table}.api_key_env is {api_key_env!r}"
        if not (key := environment.get(api_key_env, "").strip()):
            raise ConfigError(
                f"{where}, and that variable is not set: export it where the run, and each machine "
                "that asks this server for it, is started."
            )
        return right_key(where, key)
    return key_of_file(f"{table}.api_key_file", api_key_file) if api_key_file else ""


def key_of_file(setting: str, file: str) -> str:
    """The key in the file that a setting names. Raises ConfigError."""
    where = f"{setting} is {file!r}"
    try:
        key = read_regular(Path(file), SMALL_BYTES).decode().strip()
    except UnicodeDecodeError:
        key = "\0"
    except OSError as error:
        raise ConfigError(
            f"{where}, which cannot be read ({error.strerror}); {to_read(error)}."
        ) from None
    if not key:
        raise ConfigError(f"{where}, which is empty: write the key into it.")
    return right_key(where, key)


def key_of_variable(name: str, environment: Mapping[str, str]) -> str:
    """The key in a variable; "" if that is not set. Raises ConfigError."""
    key = environment.get(name, "").strip()
    return right_key(f"the variable {name} is set", key) if key else ""


def right_key(where: str, key: str) -> str:
    """The key itself. Raises ConfigError for what can be none."""
    if not key.isascii() or not key.isprintable() or " " in key:
        raise ConfigError(
            f"{where}, and what it has is not a key: it is more than one line or word."
        )
    return key


def hidden(text: str, key: str) -> str:
    """The text without the key.

    >>> hidden("Incorrect key: sk-1.", "sk-1")
    'Incorrect key: [key].'
    """
    return text.replace(key, HIDDEN) if key else text
