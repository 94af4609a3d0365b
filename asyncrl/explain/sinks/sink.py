"""A sink: a place that takes a run's figures, what each asks for, and how it is opened."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol, get_args

from asyncrl.config import ConfigError
from asyncrl.config.errors import installs
from asyncrl.config.schema import SinkName


class Sink(Protocol):
    """Takes figures by version. Any call may raise what its library does."""

    @property
    def identity(self) -> str:
        """The name by which the sink knows the run, so that a resumed run goes on with it."""

    def add(self, version: int, at: float, figures: Mapping[str, float]) -> None:
        """Take the figures of a version; `at` is in seconds since 1970."""

    def close(self) -> None:
        """Send what is left."""


class OpenSink(Protocol):
    """Opens a sink for a run's directory, with its settings as run.toml has them; `identity` is
    empty, or what it had before."""

    def __call__(self, run: Path, settings: Mapping[str, Any], identity: str) -> Sink: ...


NAMES: tuple[SinkName, ...] = get_args(SinkName)
"""The sinks that there are. Each is called as its library, and as the extra that installs it."""


def opener(name: SinkName) -> OpenSink:
    """The function that opens a sink. Raises ImportError without its library."""
    match name:
        case "tensorboard":
            from asyncrl.explain.sinks.tensorboard_sink import open_sink as open_tensorboard

            return open_tensorboard
        case "wandb":
            from asyncrl.explain.sinks.wandb_sink import open_sink as open_wandb

            return open_wandb
        case "mlflow":
            from asyncrl.explain.sinks.mlflow_sink import open_sink as open_mlflow

            return open_mlflow


def refuse_unfit_sinks(names: tuple[SinkName, ...]) -> None:
    """Check that each sink exists, and can be had as this process's environment says. Raises
    ConfigError."""
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"run.sinks has {name!r} twice; once is enough.")
        if find_spec(name) is None:
            raise ConfigError(f"run.sinks has {name}, which is not installed: {installs(name)}.")
        if name == "wandb" and not _wandb_knows_a_key():
            raise ConfigError(
                "run.sinks has wandb, and W&B knows no key here: run `wandb login`, set "
                "WANDB_API_KEY, or set WANDB_MODE=offline to send the run later."
            )
        if name == "mlflow" and not os.environ.get("MLFLOW_TRACKING_URI"):
            raise ConfigError(
                "run.sinks has mlflow, and MLFLOW_TRACKING_URI is not set: give the address of "
                "your server, or sqlite:////path/of/mlflow.db for a file."
            )


def _wandb_knows_a_key() -> bool:
    """True if there is what W&B looks for a key in, or it is told to stay offline."""
    environment = os.environ
    if environment.get("WANDB_MODE") in ("offline", "disabled", "dryrun"):
        return True
    if environment.get("WANDB_API_KEY") or environment.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    folder = Path(environment.get("WANDB_CONFIG_DIR", Path.home() / ".config" / "wandb"))
    netrc = Path(environment.get("NETRC", Path.home() / ".netrc"))
    known = netrc, folder / "settings", Path("wandb/settings")
    return any(os.path.isfile(path) for path in known)  # noqa: PTH113  # also in a closed folder
