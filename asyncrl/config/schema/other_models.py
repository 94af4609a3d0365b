"""Models that agents call and that are not trained: a fixed opponent, a judge, a helper. Each has a
table under its name, `[agent.models.NAME]`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import msgspec
from msgspec import Meta

from asyncrl.config.errors import ConfigError
from asyncrl.config.schema.keyed_address import address_contradictions, refuse_secrets
from asyncrl.config.setting import Field, checked, field_of, nearest, quoted

TRAINED = "policy"
"""The name of the trained model; names that are not in the table mean it, too."""
MOST = 64
"""The most other models of a run."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@-]{0,127}")


class OtherModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model at an API of its own."""

    url: Annotated[str, Meta(description="address of its API, such as http://127.0.0.1:8000/v1")]
    model: Annotated[
        str, Meta(description="its name at that server; empty: the name that agents call")
    ] = ""
    api_key_env: Annotated[
        str, Meta(description="environment variable that holds its key; empty: it needs none")
    ] = ""
    api_key_file: Annotated[
        str, Meta(description="file that holds its key, instead; empty: it needs none")
    ] = ""
    timeout_s: Annotated[
        float,
        Meta(
            gt=0,
            le=3600,
            description=("timeout of a call in seconds, including the wait for its turn"),
        ),
    ] = 120.0
    concurrency: Annotated[
        int, Meta(ge=1, le=4096, description="most concurrent calls per agents actor")
    ] = 32


def other_models(models: Mapping[str, Any]) -> dict[str, OtherModel]:
    """The other models by the names that agents call. Raises ConfigError.

    >>> other_models({"gpt": {"url": "http://127.0.0.1:1/v1"}})["gpt"].timeout_s
    120.0
    """
    if len(models) > MOST:
        raise ConfigError(f"agent.models has {len(models)} tables, and at most {MOST} are allowed.")
    return {name: _other(name, table) for name, table in models.items()}


def with_key_files(models: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """The tables, each with its `api_key_file` from `folder` on.

    >>> with_key_files({"gpt": {"url": "http://a/v1", "api_key_file": "key"}}, Path("/run"))
    {'gpt': {'url': 'http://a/v1', 'api_key_file': '/run/key'}}
    """
    return {
        name: table | {"api_key_file": str(folder / Path(file).expanduser())}
        if (file := table.get("api_key_file"))
        else table
        for name, table in models.items()
    }


def _other(name: str, table: Any) -> OtherModel:
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"agent.models has the name {quoted(name)}: a name is 1 to 128 letters, digits and "
            "._:/@-, and begins with a letter or digit."
        )
    if name == TRAINED:
        raise ConfigError(
            f"agent.models has the name {TRAINED!r}, which is that of the trained model: give the "
            "other model another name."
        )
    where = f"agent.models.{name}"
    if not isinstance(table, Mapping):
        raise ConfigError(f"{where} is not a table: write [{where}], with its url.")
    fields = _fields()
    values: dict[str, Any] = {}
    for key, value in table.items():
        if key not in fields:
            raise ConfigError(
                f"{where} has no setting {quoted(key)}; the nearest is {nearest(key, fields)}."
            )
        values[key] = checked(fields[key], value, where)
    if not values.get("url"):
        raise ConfigError(f"{where} has no url: give the address of its API.")
    found = OtherModel(**values)
    refuse_secrets(where, found.url, found.api_key_env, "OPPONENT_KEY")
    for keys, remedy in address_contradictions(
        where, found.url, found.api_key_env, found.api_key_file
    ):
        raise ConfigError(f"{' and '.join(keys)}: {remedy}.")
    return found


@cache
def _fields() -> dict[str, Field]:
    hints = get_type_hints(OtherModel, include_extras=True)
    return {
        name: field_of("agent.models", name, hints[name]) for name in OtherModel.__struct_fields__
    }
