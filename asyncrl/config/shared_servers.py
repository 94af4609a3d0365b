"""Servers that several policies of a game share: one base, and adapters for each policy.

Invariant: two policies name one server only if no weights are loaded into it.
"""

from __future__ import annotations

from collections.abc import Mapping

from asyncrl.config.errors import ConfigError
from asyncrl.config.schema import Config
from asyncrl.config.setting import quoted


def shares_servers(config: Config) -> bool:
    """True if other policies of the game may use the run's servers."""
    return bool(config.game.policy) and config.model.lora.alone and bool(urls_of(config))


def urls_of(config: Config) -> tuple[str, ...]:
    """The addresses of servers that run already."""
    return config.engine.servers.settings.urls if config.engine.servers is not None else ()


def refuse_one_server(policies: Mapping[str, Config]) -> None:
    """Check that policies with one server have adapters beside one base there. Raises
    ConfigError."""
    used = dict[str, str]()
    for name, config in policies.items():
        for url in urls_of(config) if not config.game.frozen else ():
            other = used.setdefault(url, name)
            if other == name:
                continue
            first = policies[other]
            if not (shares_servers(config) and shares_servers(first)):
                raise ConfigError(
                    f"the policies {other} and {name} have one server, {url}, and each would load "
                    "its weights there: give each its own, or set model.lora.rank and "
                    'model.lora.served = "adapters" for both.'
                )
            if first.model.path != config.model.path:
                raise ConfigError(
                    f"the policies {other} and {name} have one server, {url}, and other models "
                    f"({quoted(first.model.path)} and {quoted(config.model.path)}): a server has "
                    "one base; set model.path once, for both, or give each its own server."
                )
