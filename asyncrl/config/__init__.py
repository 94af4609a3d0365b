"""One frozen, typed configuration for a run, checked whenever it is created."""

from asyncrl.config import rules as rules  # what every Config obeys
from asyncrl.config.errors import ConfigError
from asyncrl.config.load import load, read, render, write
from asyncrl.config.schema import VARIABLES, Config

__all__ = ["VARIABLES", "Config", "ConfigError", "load", "read", "render", "write"]
