"""Other models that agents may call (`agent.models`), with their keys."""

from __future__ import annotations

from asyncrl.config.api_keys import read_key
from asyncrl.config.schema import AgentConfig
from asyncrl.config.schema.other_models import OtherModel, other_models


def keyed_models(agent: AgentConfig) -> dict[str, tuple[OtherModel, str]]:
    """The other models that agents may call, by name, each with its key; the models are asked
    nothing. Raises ConfigError."""
    return {
        name: (other, read_key(f"agent.models.{name}", other.api_key_env, other.api_key_file))
        for name, other in other_models(agent.models).items()
    }
