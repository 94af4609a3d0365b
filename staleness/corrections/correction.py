"""The protocol of a correction: its settings, what it reads, and what it does to tokens.

A correction is one struct in one file. Its fields are the settings of its table in
`staleness.correction`, its class variables say what the rules of the configuration need to know,
and `apply` is the formula. No torch here: the configuration imports this.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import msgspec

from asyncrl.algorithms.ratios import ratio
from asyncrl.algorithms.tensors import Tensor
from asyncrl.algorithms.tokens import Tokens, count_rollouts


class Corrected(NamedTuple):
    """Result of one correction: `weight`, float32 [tokens], without a gradient, 0 where not kept;
    `kept`, bool [tokens], a subset of the mask given; `diagnostics`, sums over the call as scalar
    tensors, which are added up over calls.

    >>> import torch
    >>> kept = torch.tensor([True, False])
    >>> Corrected(kept.float(), kept, {"above": (~kept).sum()}).weight.tolist()
    [1.0, 0.0]
    """

    weight: Tensor
    kept: Tensor
    diagnostics: dict[str, Tensor]


class Correction(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One entry of the list `staleness.correction`.

    `kind` is its name in run.toml, and the reason that its rejected tokens are discarded for; of a
    user's own it is `module:name`, or `file.py:name`. `reads`: the fields of `Tokens` that it looks
    at, beside `mask` and `sample_index`; all of them but `entropy`, `turn` and `own` unless it says
    otherwise. `weighs_by_ratio`: where weights apply, its weight is a ratio of policies; two of
    these in one list would count the ratio twice. `rejects`: it may leave tokens out of the loss.
    `band`: its fields `lo` and `hi` are numbers, the two ends of one band. `bounds_ratio`: it keeps
    no token, or no rollout, of a ratio far above 1. `trust_region`: it rejects what an update would
    take too far from the behaviour policy, whatever the ratio is, so that an objective without a
    bound may rely on it. `whole_step`: it compares tokens of different rollouts, so it is given all
    those that are updated with together. `by_design`: tokens that it rejects are no sign of a
    fault, and raise no alarm. `by_rollout`: it judges a rollout by all of its tokens together.

    >>> from asyncrl.staleness.corrections import IcePop
    >>> IcePop(hi=2.0).kind, IcePop.rejects, sorted(IcePop.reads)
    ('icepop', True, ['mismatch'])
    """

    kind: ClassVar[str] = ""
    reads: ClassVar[frozenset[str]] = frozenset(Tokens._fields) - {
        "mask",
        "sample_index",
        "entropy",
        "turn",
        "own",
    }
    weighs_by_ratio: ClassVar[bool] = False
    rejects: ClassVar[bool] = True
    band: ClassVar[bool] = False
    bounds_ratio: ClassVar[bool] = False
    trust_region: ClassVar[bool] = False
    whole_step: ClassVar[bool] = False
    by_design: ClassVar[bool] = False
    by_rollout: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "kind" not in cls.__dict__:
            cls.kind = f"{cls.__module__.rpartition('/')[2]}:{cls.__qualname__}"

    @property
    def only_weighs(self) -> bool:
        """True if it only weighs by a ratio: it has no effect where the objective's ratio is the
        weight already."""
        return self.weighs_by_ratio and not self.rejects

    @property
    def is_empty(self) -> bool:
        """True if it has a band that is empty."""
        ends = msgspec.structs.asdict(self)
        return self.band and ends["lo"] >= ends["hi"]

    def table(self) -> dict[str, object]:
        """Its table in run.toml; a user's own file is named by its whole path."""
        module, name = type(self).__module__, type(self).__qualname__
        kind = f"{module}:{name}" if "/" in module else self.kind
        return {"kind": kind, **msgspec.structs.asdict(self)}

    def apply(self, tokens: Tokens, mask: Tensor) -> Corrected:
        """Correct the tokens of `mask`, bool [tokens], which the corrections before this one left.
        Tokens come without a gradient. A token outside of the mask has no part in the result."""
        raise NotImplementedError


def keep(kept: Tensor, diagnostics: dict[str, Tensor]) -> Corrected:
    """Keep these tokens, with weight 1."""
    return Corrected(kept.float(), kept, diagnostics)


def keep_by_ratio(log: Tensor, kept: Tensor, diagnostics: dict[str, Tensor]) -> Corrected:
    """Keep these tokens, each with the weight `exp(log)`."""
    # Replaced before `exp`: what is rejected may be huge, and 0 * inf is NaN.
    return Corrected((ratio(log.where(kept, 0.0)) * kept).float(), kept, diagnostics)


def keep_rollouts(inside: Tensor, tokens: Tokens, mask: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """The mask without the rollouts that are not `inside` (bool [rollouts]), and the diagnostic
    `rollouts`: how many are left out."""
    kept = mask & inside[tokens.sample_index]
    return kept, {"rollouts": count_rollouts(mask & ~kept, tokens.sample_index)}


def truncate(raw: Tensor, mask: Tensor, lo: float, hi: float) -> Corrected:
    """Weigh each token of the mask by `raw`, truncated to [lo, hi]. The diagnostic `truncated`
    counts the tokens whose weight a bound has changed."""
    weight = raw.clamp(lo, hi).where(mask, 0.0)
    return Corrected(weight.float(), mask, {"truncated": (mask & ((raw < lo) | (raw > hi))).sum()})
