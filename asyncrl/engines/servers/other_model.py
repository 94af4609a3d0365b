"""Check that a server serves the run's model. Invariant: a server whose description does not fit
the run is a named error before it is sent anything."""

from __future__ import annotations

from typing import NamedTuple

from asyncrl.engines.servers.errors import ServerError
from asyncrl.engines.servers.server_types import ModelInfo, ServerInfo

SERVED_AS = {"Olmo3ForCausalLM": "Olmo2ForCausalLM"}
"""Classes of models that SGLang serves as another one, which has their layers too."""


NO_ROUTING = (
    "it does not return the experts of tokens, which train.router_replay needs: start it with "
    "--enable-return-routed-experts"
)
"""The reason why a server of a mixture is not taken."""


SERVES_ADAPTERS = (
    "it serves adapters, and this run sends it whole weights: start it without --enable-lora, or "
    'set model.lora.served = "adapters" for a run with adapters'
)
"""The reason why a server with room for adapters is not taken by a run that sends whole weights,
whose names it does not know."""


class Incompatible(ServerError):
    """The server is of another kind than the run needs."""


class Needs(NamedTuple):
    """Requirements of a run: servers with a model of `architecture` (a class's name) that compute
    in `dtype`, have room for `slots` rollouts of at most `context_tokens` tokens at a time, and
    return the experts of tokens where `routing` is true. They get adapters of the rank `adapters`,
    or, where that is 0, whole weights."""

    architecture: str
    dtype: str
    context_tokens: int
    slots: int
    routing: bool = False
    adapters: int = 0


def refuse_other_model(
    model: ModelInfo, server: ServerInfo, *, architecture: str, dtype: str
) -> None:
    """Raise ValueError where the server reports another model than `architecture` (a class's name),
    or another `dtype`."""
    if not model.is_generation:
        raise ValueError(f"its model {model.model_path} does not generate text")
    names = {architecture, SERVED_AS.get(architecture, architecture)}
    if model.architectures is not None and names.isdisjoint(model.architectures):
        raise ValueError(
            f"it serves {', '.join(model.architectures)} ({model.model_path}), and the run's "
            f"model is {architecture}"
        )
    if server.dtype not in ("", "auto", "half", dtype):
        raise ValueError(
            f"it computes in {server.dtype}, and this run's servers in {dtype}: start it with "
            f"--dtype {dtype}"
        )
