"""The experts of a model in training: their balance, and the replay of routers. Invariant: the
balance depends on the updates alone, and on all tokens of each, so that a resumed run goes on as an
uninterrupted one.

The auxiliary loss of an update takes each expert's share of the tokens from the update before
(`asyncrl.algorithms.routing.balance`), and the biases of a router move after an update.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from asyncrl.algorithms.routing.balance import RoutedTokens, RoutingSums, bias_of, move_biases
from asyncrl.algorithms.routing.records import decoded
from asyncrl.algorithms.routing.routers import replay, routers, watch
from asyncrl.config.schema import TrainConfig
from asyncrl.training.batch import Batch
from asyncrl.training.models import ModelError
from asyncrl.training.packing import with_recorded

_SHARES = "shares"


class ExpertBalance:
    """The balance of the experts of `model`, whose routers it watches. Raises ModelError where the
    settings ask for what the model does not have."""

    def __init__(self, model: nn.Module, train: TrainConfig) -> None:
        watch(model)
        if train.router_replay:
            replay(model)
        self._model, self._train = model, train
        self._shares: Tensor | None = None
        refuse(model, train)

    def tokens(self) -> RoutedTokens:
        """For the tokens of a forward pass with a gradient."""
        return RoutedTokens(self._shares if self._train.router_aux else None)

    def recorded(self, batch: Batch) -> Batch:
        """The batch with the experts that its tokens were sampled with, if they are replayed.
        Raises ValueError where they are not this model's."""
        if not self._train.router_replay or not batch.routing:
            return batch
        experts = decoded(batch.routing, len(batch.behaviour), self._model)
        return batch._replace(packed=[with_recorded(packed, experts) for packed in batch.packed])

    def updated(self, routed: RoutingSums) -> None:
        """Go on after an update that changed the weights, with the tokens of all ranks."""
        if routed.counts is None:
            return
        if self._train.router_aux:
            self._shares = routed.shares
        if self._train.router_bias_rate:
            move_biases(self._model, routed.counts, self._train.router_bias_rate)

    def tensors(self) -> dict[str, Tensor]:
        """Tensors of a checkpoint; biases are among the weights."""
        return {} if self._shares is None else {_SHARES: self._shares}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Go on from the result of `tensors`."""
        shares = tensors.get(_SHARES)
        self._shares = None if shares is None else shares.clone()


def refuse(model: nn.Module, train: TrainConfig) -> None:
    """Raise ModelError where the settings ask for what a model with watched routers, or without
    any, does not have."""
    found = routers(model)
    for name, off in (("router_aux", "0"), ("router_bias_rate", "0"), ("router_replay", "false")):
        if getattr(train, name) and not found:
            raise ModelError(
                f"train.{name} is set, but the model ({type(model).__name__}) has no experts that "
                f"a router chooses: set it to {off}"
            )
    if train.router_bias_rate and any(bias_of(model, router) is None for router in found):
        raise ModelError(
            f"train.router_bias_rate is set, but the routers of {type(model).__name__} choose "
            "without a bias: set it to 0, and train.router_aux instead"
        )
