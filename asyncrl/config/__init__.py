"""One frozen, typed configuration for a run."""

from asyncrl.config.schema import VARIABLES, Config

__all__ = ["VARIABLES", "Config"]
