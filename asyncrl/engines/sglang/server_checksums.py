"""A server's own checksums of its weights. Invariant: a tensor once seen to hold exactly
the trainer's bytes is never taken for right again when it does not.

A server gives one hash for each of its tensors and ranks. On a CPU it is the beginning of SHA-256
over the tensor's bytes, so what it must be is known as soon as the layout is: whole or fused with
others, cut between ranks, padded. Layouts are not asked for but found, at the first publication, by
trying each. What fits none (another hash on a GPU, weights that are quantized or rearranged) must
at least change when what it is made of does, and only then. The canary has the last word.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from torch import Tensor

_FUSED = {
    "q_proj": ("qkv_proj", 0),
    "k_proj": ("qkv_proj", 1),
    "v_proj": ("qkv_proj", 2),
    "gate_proj": ("gate_up_proj", 0),
    "up_proj": ("gate_up_proj", 1),
}
"""Parameters that SGLang's models fuse: the tensor made of them, and the place in it."""

_VOCABULARY_ROWS = 64
"""SGLang fills a vocabulary up to a multiple of this, with zeros."""


class UnknownName(Exception):
    """The server's model has no place for a tensor; it would take it without a word, and serve its
    old weights."""


class WrongWeights(Exception):
    """A checksum is not what it must be; one sentence."""


def sources(ours: Iterable[str], theirs: Collection[str]) -> dict[str, tuple[str, ...]]:
    """For each tensor of the server that is made of ours, the names of its parts, in order. Raises
    UnknownName for one of ours without a place."""
    found: dict[str, dict[int, str]] = {}
    for name in ours:
        target, place = name, 0
        if name not in theirs:
            module, _, leaf = name.rpartition(".")
            parent, _, own = module.rpartition(".")
            fused, place = _FUSED.get(own, ("", 0))
            target = f"{parent}.{fused}.{leaf}"
        if target not in theirs:
            raise UnknownName(f"its model has no parameter for {name}")
        found.setdefault(target, {})[place] = name
    return {
        target: tuple(parts[place] for place in sorted(parts)) for target, parts in found.items()
    }


# ----------------------------------------------------------------------------------------- layouts

Layout = Callable[["Sequence[Tensor]", int, int], "Sequence[Tensor]"]
"""(parts, rank, ranks) to the pieces that follow one another in the rank's tensor."""


def _whole(parts: Sequence[Tensor], rank: int, ranks: int) -> Sequence[Tensor]:
    return parts


def _rows(parts: Sequence[Tensor], rank: int, ranks: int) -> Sequence[Tensor]:
    return [part.tensor_split(ranks)[rank] for part in parts]


def _columns(parts: Sequence[Tensor], rank: int, ranks: int) -> Sequence[Tensor]:
    return [part.tensor_split(ranks, dim=-1)[rank] for part in parts]


def _padded(parts: Sequence[Tensor], rank: int, ranks: int) -> Sequence[Tensor]:
    part = parts[0]
    rows = (len(part) + -len(part) % _VOCABULARY_ROWS) // ranks
    own = part[rank * rows : (rank + 1) * rows]
    return [own, part.new_zeros((rows - len(own), *part.shape[1:]))]


_LAYOUTS: tuple[Layout, ...] = (_whole, _rows, _columns, _padded)


def _digest(pieces: Iterable[Tensor]) -> str:
    import torch

    hashed = hashlib.sha256()
    for piece in pieces:
        hashed.update(piece.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return hashed.hexdigest()[:16]


# ------------------------------------------------------------------------------------------ checks


class Expected(msgspec.Struct, frozen=True):
    """Hashes that a version must have: for each tensor in a known layout its hash on each rank; for
    each other the hash of its parts."""

    exact: dict[str, list[str]]
    parts: dict[str, str]


class Checks:
    """Knowledge of one server, a rank for each of `found` (its checksums), about the tensors called
    `ours`. Raises UnknownName."""

    def __init__(self, ours: Iterable[str], found: Sequence[Mapping[str, str]]) -> None:
        self._sources = sources(ours, found[0].keys())
        self._ranks = len(found)
        self._layouts: dict[str, Layout] = {}
        self._last: dict[str, tuple[str, list[str]]] = {}  # the hash of the parts, and the server's

    @property
    def exact(self) -> int:
        """Number of the server's tensors that are compared byte by byte."""
        return len(self._layouts)

    def expect(self, weights: Mapping[str, Tensor]) -> Expected:
        """The checksums when the server holds `weights`: hashing, for a worker thread, before the
        server is paused."""
        exact, parts = {}, {}
        for name in self._sources:
            tensors = self._tensors(name, weights)
            if (layout := self._layouts.get(name)) is not None:
                exact[name] = self._hashes(layout, tensors)
            else:
                parts[name] = _digest(tensors)
        return Expected(exact, parts)

    def verify(
        self, expected: Expected, weights: Mapping[str, Tensor], found: Sequence[Mapping[str, str]]
    ) -> None:
        """Compare, and remember what was found out. For a worker thread. Raises WrongWeights."""
        if len(found) != self._ranks or any(
            name not in rank for rank in found for name in self._sources
        ):
            raise WrongWeights(
                f"checksums came of {len(found)} ranks, or not of all tensors; {self._ranks} "
                f"ranks had {len(self._sources)}"
            )
        wrong: dict[str, str] = {}
        now: dict[str, tuple[str, list[str]]] = {}
        for name in self._sources:
            theirs = [rank[name] for rank in found]
            fault: str | None
            if name in expected.exact:
                fault = "" if theirs == expected.exact[name] else "holds other bytes than were sent"
            elif (fault := self._found(name, self._tensors(name, weights), theirs)) is None:
                now[name] = expected.parts[name], theirs
                fault = self._moved(name, *now[name])
            if fault:
                wrong[name] = fault
        if not wrong:
            self._last = now
        else:
            name, fault = next(iter(wrong.items()))
            raise WrongWeights(
                f"{name} {fault}"
                + (f", and so on: {len(wrong)} tensors are wrong" if len(wrong) > 1 else "")
            )

    def _found(self, name: str, tensors: Sequence[Tensor], theirs: list[str]) -> str | None:
        """Look for the layout of a tensor: its fault, empty where there is none, None where the
        layout is none that we know."""
        for layout in _LAYOUTS:
            if _fits(layout, tensors, self._ranks):
                equal = [
                    ours == their
                    for ours, their in zip(self._hashes(layout, tensors), theirs, strict=True)
                ]
                if all(equal):
                    self._layouts[name] = layout
                    return ""
                if any(equal):
                    return (
                        f"is right on rank {equal.index(True)} and not on rank {equal.index(False)}"
                    )
        return None

    def _moved(self, name: str, parts: str, theirs: list[str]) -> str:
        """The fault of a tensor in an unknown layout, next to the version before; empty where there
        is none."""
        parts_before, theirs_before = self._last.get(name, (parts, theirs))
        if (parts_before != parts) == (theirs_before != theirs):
            return ""
        return (
            "was sent anew and did not change"
            if theirs_before == theirs
            else "changed and was sent as it was"
        )

    def _tensors(self, name: str, weights: Mapping[str, Tensor]) -> list[Tensor]:
        return [weights[part] for part in self._sources[name]]

    def _hashes(self, layout: Layout, tensors: Sequence[Tensor]) -> list[str]:
        return [_digest(layout(tensors, rank, self._ranks)) for rank in range(self._ranks)]


def _fits(layout: Layout, tensors: Sequence[Tensor], ranks: int) -> bool:
    """True if such tensors can be laid out so, and otherwise than whole."""
    if layout is _whole:
        return True
    if layout is _padded:
        return len(tensors) == 1 and tensors[0].dim() == 2
    return ranks > 1 and all(tensor.dim() > (layout is _columns) for tensor in tensors)
