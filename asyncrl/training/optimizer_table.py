"""The optimizers that `train.optimizer` may name. Without torch, as `asyncrl check` looks here."""

from __future__ import annotations

from asyncrl.config.errors import ConfigError
from asyncrl.config.plugins import Registry, derived_from, in_folder
from asyncrl.config.schema import TrainConfig
from asyncrl.training.optimizers import OptimizerRule

OPTIMIZERS: Registry[type[OptimizerRule]] = Registry(
    "optimizer",
    in_folder("asyncrl.training.optimizers", OptimizerRule),
    derived_from(OptimizerRule),
)


def optimizer_rule_of(train: TrainConfig) -> OptimizerRule:
    """The optimizer that the settings name. Raises ConfigError."""
    return OPTIMIZERS.find(train.optimizer)()


def check_optimizer(train: TrainConfig) -> None:
    """Raise ConfigError for an optimizer that does not run on the trainer's device.

    >>> check_optimizer(TrainConfig(optimizer="adamw_offloaded"))
    Traceback (most recent call last):
    asyncrl.config.errors.ConfigError: train.optimizer 'adamw_offloaded' is for cuda, and \
train.device is cpu: set optimizer to adamw, or device to cuda.
    """
    devices = optimizer_rule_of(train).devices
    if train.device not in devices:
        raise ConfigError(
            f"train.optimizer {train.optimizer!r} is for {' and '.join(devices)}, and train.device "
            f"is {train.device}: set optimizer to adamw, or device to {devices[0]}."
        )
