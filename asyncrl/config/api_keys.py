"""Keys of services outside. Invariant: a key comes from a variable or a file; no setting, message
or log holds it, and no sentence repeats it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from asyncrl.config.errors import ConfigError
from asyncrl.files import SMALL_BYTES, read_regular
from asyncrl.os_errors import to_read

HIDDEN = "[key]"


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
            f"{where}, and what is there is no key: it has more than one line or word."
        )
    return key


def hidden(text: str, key: str) -> str:
    """The text without the key.

    >>> hidden("Incorrect key: sk-1.", "sk-1")
    'Incorrect key: [key].'
    """
    return text.replace(key, HIDDEN) if key else text
