"""The routers of a model's experts. Invariant: a router computes in float32 at least, and chooses
as its family does, except for tokens whose choice was recorded.

A router multiplies a token's state with a matrix, and gives the token the experts of the largest
scores (`torch.topk`), with gates from these scores. That is true of every family whose router is a
module that transformers records logits of, so routers are found by structure. A watched router
runs its own code, in which two calls are changed: the product is made in float32, because half a
bit of bfloat16 decides between two experts; and `topk` returns the recorded experts where there are
any, with the router's own scores of them (router replay, R3, arXiv 2510.11370). So gates and their
gradients are the family's, whatever it normalizes or scales.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache, partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

_ROUTERS = "asyncrl_routers"
"""Attribute of a watched model: its routers, in the order of its layers."""
_LAYER = "asyncrl_layer"
"""Attribute of a watched router: its place among them."""
_PASS = "asyncrl_pass"
"""Attribute of a watched router within a forward pass: its `Pass`."""
_REPLAYS = "asyncrl_replays"
"""Attribute of a model whose routers choose what was recorded."""
SMALL = (torch.bfloat16, torch.float16)


class Choice(NamedTuple):
    """A router's choice for the tokens of a pass: its `logits` [tokens, experts] with their
    gradient, True where it scores each expert by itself (`sigmoid`) and not all of them together
    (softmax), and the `experts` that each token got, int64 [tokens, experts of a token]. `flipped`
    of the `replayed` tokens would have got others, by the router itself.

    >>> choice = Choice(torch.zeros(1, 4), False, torch.tensor([[2, 0]]), flipped=1, replayed=1)
    >>> choice.experts.tolist()
    [[2, 0]]
    """

    logits: Tensor
    sigmoid: bool
    experts: Tensor
    flipped: int
    replayed: int


class Pass:
    """One forward pass. `recorded` are the experts that its tokens got when they were sampled,
    int64 [tokens, routers, experts of a token], -1 where that is not known; None: nothing is. The
    pass adds the choices of its routers, by their places.

    >>> Pass().recorded is None, Pass().choices
    (True, {})
    """

    def __init__(self, recorded: Tensor | None = None) -> None:
        self.recorded = recorded
        self.choices: dict[int, Choice] = {}


class Watched(nn.Module):
    """A router whose choices are seen, and can be given.

    >>> class Router(nn.Linear):
    ...     def forward(self, hidden):
    ...         return super().forward(hidden).topk(1)[1]
    >>> class Model(nn.Module):
    ...     _can_record_outputs = {"router_logits": Router}  # as transformers has it
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.router = Router(2, 3)
    >>> model = Model()
    >>> watch(model), isinstance(model.router, Watched)
    (1, True)
    """

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        with _Calls(self.__dict__.get(_PASS), self.__dict__[_LAYER]):
            forward: Callable[..., Any] = super().forward
            return forward(*args, **kwargs)


def watch(model: nn.Module) -> int:
    """Watch the routers of a model from now on, and return their number. They change their class in
    place, so that copies of the model are watched, too; parameters and names stay the same."""
    routers: list[nn.Module] = getattr(model, _ROUTERS, [])
    if not routers and (routers := list(found_routers(model))):
        for layer, router in enumerate(routers):
            # a class is hashable
            router.__class__ = _watched(type(router))  # type: ignore[arg-type]
            router.__dict__[_LAYER] = layer
        setattr(model, _ROUTERS, routers)
    return len(routers)


def replay(model: nn.Module) -> None:
    """Let the routers of a watched model choose what was recorded, from now on. So do copies of
    it."""
    setattr(model, _REPLAYS, True)


def routers(model: nn.Module) -> list[nn.Module]:
    """The watched routers of a model, in the order of its layers; none for a model without."""
    found: list[nn.Module] = getattr(model, _ROUTERS, [])
    return found


@contextmanager
def passing(model: nn.Module, recorded: Tensor | None = None) -> Iterator[Pass | None]:
    """See what a model's routers do in the forward pass within the block; with the `recorded`
    experts (`Pass`), if the model replays them. None for a model without routers."""
    watched = routers(model)
    if not watched:
        yield None
        return
    current = Pass(recorded if getattr(model, _REPLAYS, False) else None)
    with _installed(watched, current):
        yield current


def same_pass(module: nn.Module) -> Callable[[], AbstractContextManager[None]]:
    """A block in which the routers of `module` have the pass that they have now: a layer that is
    computed again must route as the first time."""
    watched = [router for router in module.modules() if isinstance(router, Watched)]
    current = next((router.__dict__.get(_PASS) for router in watched), None)
    return partial(_installed, watched, current) if current else nullcontext


@contextmanager
def _installed(watched: Sequence[nn.Module], current: Pass) -> Iterator[None]:
    before = [router.__dict__.get(_PASS) for router in watched]
    for router in watched:
        router.__dict__[_PASS] = current
    try:
        yield
    finally:
        for router, old in zip(watched, before, strict=True):
            if old is None:
                del router.__dict__[_PASS]
            else:
                router.__dict__[_PASS] = old


class _Calls(TorchFunctionMode):
    """Changes the calls of torch in one call of a router."""

    def __init__(self, current: Pass | None, layer: int) -> None:
        super().__init__()
        self._pass, self._layer = current, layer
        self._logits: Tensor | None = None
        self._sigmoid = False

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is F.linear:
            self._logits = _float32(*args, **kwargs)
            return self._logits
        result = func(*args, **kwargs)
        name = getattr(func, "__name__", "")
        self._sigmoid |= name == "sigmoid"
        logits = self._logits
        if (
            self._pass is None
            or logits is None
            or name != "topk"
            or args[0].dim() != 2  # of groups of experts
            or args[0].shape[-1] != logits.shape[-1]
        ):
            return result
        flipped = replayed = 0
        if self._pass.recorded is not None:
            result, flipped, replayed = _given(
                args[0], result, self._pass.recorded[:, self._layer].to(args[0].device)
            )
        if self._layer not in self._pass.choices:  # it may be computed again
            self._pass.choices[self._layer] = Choice(
                logits.view(-1, logits.shape[-1]), self._sigmoid, result[1], flipped, replayed
            )
        return result


def _float32(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    if input.dtype in SMALL:
        input, weight = input.float(), weight.float()
        bias = None if bias is None else bias.float()
    return F.linear(input, weight, bias)


def _given(scores: Tensor, own: Any, recorded: Tensor) -> tuple[Any, int, int]:
    """The result of `topk` with the recorded experts, and how many of its tokens would have had
    others, of those that have recorded ones. Raises ValueError where they are of another model."""
    if recorded.shape != own[1].shape or int(recorded.max()) >= scores.shape[-1]:
        raise ValueError(
            f"the recorded experts {list(recorded.shape)} are not those of this model, whose "
            f"router chooses {list(own[1].shape)} of {scores.shape[-1]}"
        )
    known = recorded[:, :1] >= 0
    experts = torch.where(known, recorded, own[1])
    differ = (experts.sort(-1).values != own[1].sort(-1).values).any(-1)
    made: Any = torch.return_types.topk  # typed as one that cannot be made
    return made((scores.gather(1, experts), experts)), int(differ.sum()), int(known.sum())


@cache
def _watched(kind: type[nn.Module]) -> type[nn.Module]:
    return type(kind.__name__, (Watched, kind), {"__module__": kind.__module__})


def found_routers(model: nn.Module) -> Iterator[nn.Module]:
    """The routers of a model, in the order of its layers."""
    kinds = tuple(_recorded(model))
    for module in model.modules():
        if isinstance(module, kinds) and _is_router(module):
            yield module


def _recorded(model: nn.Module) -> Iterator[type[nn.Module]]:
    """The classes of modules that transformers records router logits of."""
    for module in model.modules():
        known = getattr(module, "_can_record_outputs", None) or {}
        recorders = known.get("router_logits", ())
        for recorder in recorders if isinstance(recorders, list | tuple) else (recorders,):
            kind: Any = getattr(recorder, "target_class", recorder)
            yield kind


def _is_router(module: nn.Module) -> bool:
    """True for a router alone, which has one matrix, and False for a layer with its experts."""
    matrices = [p for p in module.parameters() if p.dim() > 1 and min(p.shape) > 1]
    return len(matrices) == 1 and matrices[0].dim() == 2
