"""A server's own checksums of its weights. Invariant: a tensor once seen to hold exactly
the trainer's bytes is never taken for right again when it does not.

A server gives one hash for each of its tensors and ranks (`server_hashes`), of its bytes in its own
layout: whole or fused with others, cut between ranks, padded. Layouts are found by trial:
what a tensor's hashes would be in each is computed for the first publication, before the server is
paused, and compared once. What fits none (weights that are quantized or rearranged) must at least
change when what it is made of does, and only then. The canary has the last word.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from asyncrl.weightsync.servers.server_hashes import Hash
from asyncrl.weightsync.servers.server_names import sources

if TYPE_CHECKING:
    from torch import Tensor

_VOCABULARY_ROWS = 64
"""SGLang fills a vocabulary up to a multiple of this, with zeros."""


class WrongWeights(Exception):
    """A checksum is not what it must be; one sentence."""


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


def _transposed(parts: Sequence[Tensor], rank: int, ranks: int) -> Sequence[Tensor]:
    return [parts[0].mT]


def _transposed_rows(parts: Sequence[Tensor], rank: int, ranks: int) -> Sequence[Tensor]:
    return [parts[0].mT.tensor_split(ranks, dim=-2)[rank]]


def _transposed_columns(parts: Sequence[Tensor], rank: int, ranks: int) -> Sequence[Tensor]:
    return [parts[0].mT.tensor_split(ranks, dim=-1)[rank]]


def _widened(parts: Sequence[Tensor], rank: int, ranks: int) -> Sequence[Tensor]:
    return [part.float() for part in parts]


def _widened_rows(parts: Sequence[Tensor], rank: int, ranks: int) -> Sequence[Tensor]:
    return [part.float().tensor_split(ranks)[rank] for part in parts]


_WHOLE = "whole"
_LAYOUTS: dict[str, Layout] = {
    _WHOLE: _whole,
    "rows": _rows,
    "columns": _columns,
    "padded": _padded,
    "transposed": _transposed,
    "transposed rows": _transposed_rows,
    "transposed columns": _transposed_columns,
    "widened": _widened,
    "widened rows": _widened_rows,
}


def _fitting(tensors: Sequence[Tensor], ranks: int) -> tuple[str, ...]:
    """Layouts that such tensors can have, whole first, none of which is another one anyway. A stack
    of all experts may be transposed; a vector, which is small, may be held in float32."""
    rows, dimensions = len(tensors[0]) if tensors[0].dim() else 0, tensors[0].dim()
    cut = ranks > 1 and dimensions > 0
    stack = len(tensors) == 1 and dimensions == 3 and 1 not in tensors[0].shape[1:]
    short = dimensions == 1 and tensors[0].dtype.itemsize < 4
    fits = {
        _WHOLE: True,
        "rows": cut,
        "columns": cut and dimensions > 1,
        "padded": len(tensors) == 1 and dimensions == 2 and bool(rows % _VOCABULARY_ROWS),
        "transposed": stack,
        "transposed rows": stack and cut,
        "transposed columns": stack and cut,
        "widened": short,
        "widened rows": short and cut,
    }
    return tuple(layout for layout, fit in fits.items() if fit)


# ------------------------------------------------------------------------------------------ checks

Expected = dict[str, dict[str, list[str]]]
"""Hashes that a version must have: for each tensor of the server, and each layout that it may have,
its hash on each rank."""


class WantedHashes(msgspec.Struct, frozen=True):
    """The hashes that a server's are compared with: for each of its tensors the names of its parts,
    and the layouts that it may have. The process with the weights computes them (`expected`)."""

    ranks: int
    tensors: dict[str, tuple[tuple[str, ...], tuple[str, ...]]]


def expected(
    wanted: Sequence[tuple[WantedHashes, Hash]], weights: Iterable[tuple[str, Tensor]]
) -> list[Expected]:
    """The hashes for each of these servers, when one that hashes so holds `weights`; for a worker
    thread. The weights may arrive one after another: each is kept until the last tensor of a server
    that it is a part of is hashed."""
    found = [dict[str, dict[str, list[str]]]() for _ in wanted]
    users = defaultdict[str, list[tuple[int, str]]](list)
    held: dict[str, Tensor] = {}
    for place, (server, _) in enumerate(wanted):
        for name, (parts, _) in server.tensors.items():
            for part in dict.fromkeys(parts):
                users[part].append((place, name))
    for arrived, tensor in weights:
        held[arrived] = tensor
        for place, name in users[arrived]:
            server, hash_of = wanted[place]
            parts, layouts = server.tensors[name]
            if all(part in held for part in parts):
                tensors = [held[part] for part in parts]
                found[place][name] = {
                    layout: _hashes(layout, tensors, server.ranks, hash_of) for layout in layouts
                }
                del tensors
        # what nobody waits for any more
        for part in [*held]:
            if all(name in found[place] for place, name in users[part]):
                del held[part]
        del tensor
    for (server, _), of_one in zip(wanted, found, strict=True):
        if missing := server.tensors.keys() - of_one.keys():
            raise KeyError(min(missing))
    return found


def _hashes(layout: str, tensors: Sequence[Tensor], ranks: int, hash_of: Hash) -> list[str]:
    """The hash on each rank."""
    if layout == _WHOLE:
        return [hash_of(tensors)] * ranks
    laid_out = _LAYOUTS[layout]
    return [hash_of(laid_out(tensors, rank, ranks)) for rank in range(ranks)]


class Checks:
    """Knowledge of one server, a rank for each of `found` (its checksums), about the tensors called
    and shaped as `ours`. `hash_of` is the server's. Raises UnknownName."""

    def __init__(
        self, ours: Mapping[str, Tensor], hashes: Sequence[Mapping[str, str]], hash_of: Hash
    ) -> None:
        self._hash, self._ranks = hash_of, len(hashes)
        self._sources = sources(ours, hashes[0].keys())
        self._derived = sorted(hashes[0].keys() - self._sources.keys())
        self._layouts = {
            name: _fitting([ours[part] for part in parts], self._ranks)
            for name, parts in self._sources.items()
        }
        self._exact = set[str]()  # tensors whose layout was found
        self._last: dict[str, tuple[str, list[str]]] | None = None
        # of the others, of the version before: the hash of the parts, and the server's

    @property
    def exact(self) -> int:
        """Number of the server's tensors that are compared byte by byte."""
        return len(self._exact)

    @property
    def inexact(self) -> list[str]:
        """Tensors that have none of the layouts, in the server's names."""
        return sorted(self._sources.keys() - self._exact) if self._last is not None else []

    @property
    def derived(self) -> list[str]:
        """Tensors that the server makes by itself, or of nothing that is sent, in its names: scales
        and caches. They are not compared."""
        return self._derived

    def expect(self, weights: Mapping[str, Tensor]) -> Expected:
        """The checksums when the server holds `weights`: hashing, for a worker thread, before the
        server is paused."""
        (found,) = expected([(self.wanted, self._hash)], weights.items())
        return found

    @property
    def wanted(self) -> WantedHashes:
        """The hashes that the next `verify` needs."""
        return WantedHashes(
            self._ranks,
            {name: (self._sources[name], layouts) for name, layouts in self._layouts.items()},
        )

    def verify(self, hashes_of: Expected, ranks: Sequence[Mapping[str, str]]) -> None:
        """Compare, and remember what was found out. Raises WrongWeights."""
        if len(ranks) != self._ranks or any(
            name not in rank for rank in ranks for name in self._sources
        ):
            raise WrongWeights(
                f"checksums came of {len(ranks)} ranks, or not of all tensors; {self._ranks} "
                f"ranks had {len(self._sources)}"
            )
        wrong: dict[str, str] = {}
        now: dict[str, tuple[str, list[str]]] = {}
        for name, hashes in hashes_of.items():
            theirs = [rank[name] for rank in ranks]
            fault: str | None
            if name in self._exact:
                right = theirs == hashes[self._layouts[name][0]]
                fault = "" if right else "holds bytes that differ from those sent"
            elif (fault := self._found(name, hashes, theirs)) is None:
                now[name] = hashes[_WHOLE][0], theirs
                fault = self._moved(name, *now[name])
            if fault:
                wrong[name] = fault
        if wrong:
            name, fault = next(iter(wrong.items()))
            raise WrongWeights(
                f"{name} {fault}"
                + (f", and so on: {len(wrong)} tensors are wrong" if len(wrong) > 1 else "")
            )
        self._last = now
        for name in now:
            self._layouts[name] = (_WHOLE,)  # which is that of its parts: nothing is looked for

    def _found(self, name: str, hashes: Mapping[str, list[str]], theirs: list[str]) -> str | None:
        """Look for the layout of a tensor: its fault, empty where there is none, None where the
        layout is none that we know."""
        for layout, ours in hashes.items():
            equal = [one == other for one, other in zip(ours, theirs, strict=True)]
            if all(equal):
                self._layouts[name] = (layout,)
                self._exact.add(name)
                return ""
            if any(equal):
                return f"is right on rank {equal.index(True)} and not on rank {equal.index(False)}"
        return None

    def _moved(self, name: str, parts: str, theirs: list[str]) -> str:
        """The fault of a tensor in an unknown layout, next to the version before; empty where there
        is none."""
        parts_before, theirs_before = (self._last or {}).get(name, (parts, theirs))
        if (parts_before != parts) == (theirs_before != theirs):
            return ""
        return (
            "was sent with changes and did not change"
            if theirs_before == theirs
            else "changed and was sent as it was"
        )
