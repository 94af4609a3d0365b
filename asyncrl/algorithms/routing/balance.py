"""Balance of experts: its measures, and what improves it. Invariant: all is a sum over tokens, so
that it does not depend on how a step was split.

The auxiliary loss of a layer (Switch Transformer, arXiv 2101.03961, equations 4 to 6; as
transformers computes it for one layer) is experts · Σ f_i · P_i: f_i is the number of tokens that
got expert i, over the tokens, and P_i the mean of the probabilities that its router gave it. A step
has the mean over its layers. transformers counts all layers together, where one layer could make up
for another. A gradient flows through P alone, so that with f given the loss is a sum over tokens.
f is that of the update before: the f of a micro-batch would be that of a few prompts, which use
few experts rightly (arXiv 2501.11873), and would differ with the split.

Without an auxiliary loss, DeepSeek-V3 (arXiv 2412.19437, section 2.1.2) adds a bias to the scores
by which experts are chosen, not to their gates, and lowers it for an expert that had more tokens
than the mean, by a fixed rate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from asyncrl.algorithms.routing.routers import Choice, Pass, routers

BIASES = ("e_score_correction_bias", "expert_bias")
"""Last parts of the names that families have for the bias."""
ENOUGH = 8
"""Choices for each expert, in the mean, without which their use says nothing."""


class RoutingSums(NamedTuple):
    """Sums over some `tokens` of what routers did. `counts`: those that each expert got, float64
    [routers, experts]; None without routers. The experts of `replayed` tokens were recorded, and
    given `given` times in all layers, `flipped` times in place of others.

    Four tokens chose two of three experts each; four more do the same:

    >>> some = RoutingSums(torch.tensor([[3.0, 4.0, 1.0]]), tokens=4)
    >>> some.merge(some).counts.tolist(), some.chosen
    ([[6.0, 8.0, 2.0]], 2)
    """

    counts: Tensor | None = None
    tokens: int = 0
    replayed: int = 0
    given: int = 0
    flipped: int = 0

    def merge(self, other: RoutingSums) -> RoutingSums:
        """The sum of both."""
        counts = [part.counts for part in (self, other) if part.counts is not None]
        whole = torch.stack(counts).sum(0) if counts else None
        return RoutingSums(whole, *(a + b for a, b in zip(self[1:], other[1:], strict=True)))

    @property
    def chosen(self) -> int:
        """The experts of a token."""
        given = 0.0 if self.counts is None else float(self.counts[0].sum())
        return round(given / max(1, self.tokens))

    @property
    def shares(self) -> Tensor | None:
        """f: the tokens of each expert over the tokens, [routers, experts].

        >>> RoutingSums(torch.tensor([[3.0, 4.0, 1.0]]), 4).shares.tolist()
        [[0.75, 1.0, 0.25]]
        """
        return None if self.counts is None else self.counts / max(1, self.tokens)

    def metrics(self) -> Mapping[str, float]:
        """Those of `use`."""
        return {} if self.counts is None else use(self.counts, self.chosen)

    def replay_metrics(self) -> dict[str, float]:
        """The share of the tokens whose experts were recorded (`router_replayed`), the number of
        the others, which have the trainer's own (`router_unknown`), and the share of the recorded
        choices that the trainer would have made otherwise (`router_flips`)."""
        return {
            "router_replayed": self.replayed / max(1, self.tokens),
            "router_unknown": float(self.tokens - self.replayed),
            "router_flips": self.flipped / max(1, self.given),
        }


class RoutedTokens:
    """The routers' choices for the tokens of one or more passes. `shares` are the f of the
    auxiliary loss, float64 [routers, experts]; None: no loss.

    Of two tokens the second is counted, which chose the last of three experts:

    >>> from asyncrl.algorithms.routing.routers import Choice
    >>> passed, routed = Pass(), RoutedTokens()
    >>> passed.choices[0] = Choice(torch.zeros(2, 3), False, torch.tensor([[0], [2]]), 0, 0)
    >>> routed.add(passed, torch.tensor([1]))
    >>> routed.sums.counts.tolist(), routed.sums.tokens
    ([[0.0, 0.0, 1.0]], 1)
    """

    def __init__(self, shares: Tensor | None = None) -> None:
        self.shares = shares
        self.sums = RoutingSums()
        self._losses = list[Tensor]()

    def add(self, passed: Pass, places: Tensor) -> None:
        """Add the tokens at these places of a pass, int64 [tokens]."""
        layers = [passed.choices[layer] for layer in sorted(passed.choices)]
        if not layers:
            return
        known = 0
        if passed.recorded is not None:
            known = int((passed.recorded[places.to(passed.recorded.device), 0, 0] >= 0).sum())
        self.sums = self.sums.merge(
            RoutingSums(
                torch.stack([_counts(choice, places) for choice in layers]).cpu(),
                len(places),
                known,
                sum(choice.replayed for choice in layers),
                sum(choice.flipped for choice in layers),
            )
        )
        if self.shares is not None:
            self._losses.append(losses(layers, places, self.shares))

    def reorder(self, order: Tensor) -> None:
        """Take the tokens in this order of those added, int64 [tokens]."""
        if self._losses:
            self._losses = [torch.cat(self._losses)[order]]

    @property
    def losses(self) -> Tensor | None:
        """The auxiliary loss of each token, float32 [tokens], with a gradient; None where there is
        none."""
        return torch.cat(self._losses) if self._losses else None


def losses(layers: Sequence[Choice], places: Tensor, shares: Tensor) -> Tensor:
    """The auxiliary loss of the tokens at these places, float32 [tokens], with a gradient. Its mean
    over tokens with the mean probabilities P is that of the step."""
    of_layers = [
        (probabilities(choice, places) * shares[number].to(places.device).float()).sum(-1)
        * choice.logits.shape[-1]
        for number, choice in enumerate(layers)
    ]
    return torch.stack(of_layers).mean(0)


def probabilities(choice: Choice, places: Tensor) -> Tensor:
    """The probabilities of a router's experts, which sum up to 1, float32 [tokens, experts]: of a
    router that scores each by itself, its scores over their sum."""
    logits = choice.logits.index_select(0, places).float()
    if not choice.sigmoid:
        return logits.softmax(-1)
    scores = logits.sigmoid()
    return scores / scores.sum(-1, keepdim=True)


@torch.no_grad()
def move_biases(model: nn.Module, counts: Tensor, rate: float) -> None:
    """Move the bias of each expert by `rate`: down where it had more tokens than the mean, up where
    it had fewer. Routers without a bias stay as they are."""
    for router, of_router in zip(routers(model), counts, strict=True):
        if (bias := bias_of(model, router)) is not None:
            step = rate * torch.sign(of_router.mean() - of_router)
            bias.add_(step.to(bias).view_as(bias))


def own_biases(model: nn.Module) -> None:
    """Make the biases of a model's routers parameters, in float32 and without a gradient. Some
    families have them as buffers, and what changes is stored and published as parameters are."""
    for module in model.modules():
        for name in BIASES:
            if (bias := module._buffers.get(name)) is not None:
                del module._buffers[name]
                value = bias.detach().float()
                module.register_parameter(name, nn.Parameter(value, requires_grad=False))


def bias_of(model: nn.Module, router: nn.Module) -> Tensor | None:
    """The bias by which a router's experts are chosen, its own or that of the layer around it; None
    where it has none."""
    names = {id(module): name for name, module in model.named_modules()}
    around = model.get_submodule(names[id(router)].rpartition(".")[0])
    for module in (router, around):
        for owner in module.modules() if module is router else (module,):
            for name, tensor in (*owner._parameters.items(), *owner._buffers.items()):
                if name in BIASES and tensor is not None:
                    return tensor.detach()
    return None


def use(counts: Tensor, chosen: int) -> Mapping[str, float]:
    """Measures of how evenly experts were used, of which a token got `chosen`; empty where there
    were too few tokens to tell. `expert_use` is from 0, the same experts for all tokens, to 1, all
    equally, in the layer where it is smallest, and `expert_use_mean` its mean over layers: with n
    the exponential of the entropy of an expert's share, (n - chosen) / (experts - chosen).
    `expert_max_load` is the largest load of an expert over the mean one.

    >>> even, same = torch.full((4,), 25.0), torch.tensor([50.0, 50.0, 0.0, 0.0])
    >>> of = use(torch.stack([even, same]), chosen=2)
    >>> {name: round(value, 6) for name, value in of.items()}
    {'expert_use': 0.0, 'expert_use_mean': 0.5, 'expert_max_load': 2.0}
    """
    experts = counts.shape[-1]
    if float(counts.sum(-1).min()) < ENOUGH * experts or experts <= chosen:
        return {}
    share = counts / counts.sum(-1, keepdim=True)
    entropy = -torch.special.xlogy(share, share).sum(-1)
    use = (entropy.exp() - chosen) / (experts - chosen)
    return {
        "expert_use": max(0.0, float(use.min())),
        "expert_use_mean": max(0.0, float(use.mean())),
        "expert_max_load": float(share.max()) * experts,
    }


def _counts(choice: Choice, places: Tensor) -> Tensor:
    experts = choice.experts.index_select(0, places).flatten()
    return torch.bincount(experts, minlength=choice.logits.shape[-1]).double()
