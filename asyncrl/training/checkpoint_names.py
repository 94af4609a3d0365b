"""A model's weights under the names of its checkpoint, which servers load.

transformers keeps some tensors of a checkpoint as one parameter: the experts of a layer are one
stack, with the gates and the ups of each side by side. Servers take the checkpoint's tensors,
expert by expert. The names and the cuts are not listed here: they are transformers' own conversion,
reversed, as `save_pretrained` applies it.

    model.layers.0.mlp.experts.gate_up_proj   [4, 48, 32]
    → model.layers.0.mlp.experts.0.gate_proj.weight   [24, 32], and so on: 8 tensors
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import (
    Chunk,
    PrefixChange,
    WeightConverter,
    WeightRenaming,
    WeightTransform,
    apply_converters,
    apply_renamings,
)


class CheckpointNames:
    """The conversion of `model`'s parameters, whose values are not read, to tensors of its
    checkpoint."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model
        reversed_ = [transform.reverse_transform() for transform in _transforms(model)[::-1]]
        self._renamings = [each for each in reversed_ if isinstance(each, WeightRenaming)]
        self._converters = [
            _of_views(each) for each in reversed_ if isinstance(each, WeightConverter)
        ]
        self._by_pattern = {
            pattern: converter
            for converter in self._converters
            for pattern in converter.source_patterns
        }
        self._groups = self._grouped()

    def tensors(self, weights: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
        """(checkpoint's name, tensor) of all of `weights`, in the order of the architecture. The
        tensors are views of the weights where the conversion only cuts them, and need not be
        contiguous; others are made one parameter at a time."""
        for place in range(len(self._groups)):
            yield from self.of_group(place, weights)

    def streamed(self, arriving: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        """As `tensors`, of weights that arrive one after another, in whatever order: one is kept
        until all are there that its tensors are made of. Raises ValueError where some are
        missing."""
        waiting, coming = dict[str, Tensor](), iter(arriving)
        for place, names in enumerate(self.groups):
            while missing := [name for name in names if name not in waiting]:
                came = next(coming, None)
                if came is None:
                    raise ValueError(f"{missing[0]} did not come")
                waiting[came[0]] = came[1]
                del came
            yield from self.of_group(place, {name: waiting.pop(name) for name in names})
        for _ in coming:  # so that who hands them over comes to the end
            pass

    def names_of(self, parameters: Collection[str]) -> frozenset[str]:
        """The names in the checkpoint of the tensors that these parameters make."""
        empty = {name: p.detach().to("meta") for name, p in self._model.named_parameters()}
        return frozenset(
            name
            for group in self._groups
            if any(own in parameters for own, _ in group)
            for name, _ in self._converted(group, empty)
        )

    @property
    def groups(self) -> list[tuple[str, ...]]:
        """The parameters that make tensors together, most of them alone, in the order of the
        architecture."""
        return [tuple(name for name, _ in group) for group in self._groups]

    def of_group(self, place: int, weights: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
        """(checkpoint's name, tensor) of those that one of `groups` makes, as in `tensors`."""
        yield from self._converted(self._groups[place], weights)

    def renamed(self, name: str) -> str:
        """The checkpoint's name of a buffer."""
        return str(apply_renamings(name, self._renamings))

    def layout(self) -> Iterator[tuple[str, str, Tensor]]:
        """(parameter, checkpoint's name, view) of each tensor of the checkpoint: the view is of the
        parameter, on no device, and says where the tensor's numbers lie in it. Raises ValueError,
        with the parameter's name, where the conversion does more than cut."""
        shapes = {
            name: torch.empty_like(parameter, device="meta")
            for name, parameter in self._model.named_parameters()
        }
        for group in self._groups:
            parameter = group[0][0]
            storage = shapes[parameter].untyped_storage()._cdata
            for name, view in self._converted(group, shapes):
                if len(group) > 1 or view.untyped_storage()._cdata != storage:
                    raise ValueError(parameter)
                yield parameter, name, view

    def _grouped(self) -> list[list[tuple[str, str | None]]]:
        """Parameters that are converted together, each with the pattern of its converter; most are
        alone."""
        groups: dict[str, list[tuple[str, str | None]]] = {}
        for name, _ in self._model.named_parameters():
            target, pattern = apply_converters(name, self._converters)
            groups.setdefault(target, []).append((name, pattern))
        return list(groups.values())

    def _converted(
        self, group: list[tuple[str, str | None]], weights: Mapping[str, Tensor]
    ) -> Iterator[tuple[str, Tensor]]:
        name, pattern = group[0]
        if pattern is None:
            yield apply_renamings(name, self._renamings), weights[name]
            return
        converter = deepcopy(self._by_pattern[pattern])
        target, _ = apply_converters(name, self._converters)
        for name, pattern in group:
            assert pattern is not None
            converter.add_tensor(target, name, pattern, weights[name])
        made: dict[str, Any] = converter.convert(
            target, model=self._model, config=self._model.config
        )
        for own, tensor in made.items():
            yield (
                apply_renamings(own, self._renamings),
                tensor[0] if isinstance(tensor, list) else tensor,
            )


def _transforms(model: PreTrainedModel) -> list[WeightTransform]:
    """The conversion that loading the model applies, whether this one was loaded or made. A prefix
    of all names depends on the file that was loaded, which a model that was made has not seen; the
    files of a run have none."""
    return [
        transform
        for transform in get_model_conversion_mapping(model, add_legacy=False) or []
        if not isinstance(transform, PrefixChange)
    ]


class _Views(Chunk):  # type: ignore[misc]
    """A cut whose pieces are views: transformers copies each piece, so that a layer's experts would
    exist twice."""

    @torch.no_grad()
    def convert(
        self,
        input_dict: dict[str, Any],
        source_patterns: list[str],
        target_patterns: list[str],
        **kwargs: Any,
    ) -> dict[str, Tensor]:
        (tensors,) = input_dict.values()
        tensor = tensors[0] if isinstance(tensors, list) else tensors
        targets = self.get_target_patterns(target_patterns, **kwargs)
        return dict(zip(targets, tensor.chunk(len(targets), dim=self.dim), strict=True))


def _of_views(converter: WeightConverter) -> WeightConverter:
    converter.operations = [
        _Views(each.dim, each.num_shards_attribute) if type(each) is Chunk else each
        for each in converter.operations
    ]
    return converter
