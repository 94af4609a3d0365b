"""The list of corrections: what each rejects of what is left, how weights multiply, and a loss that
no bad number reaches."""

from __future__ import annotations

import math
import subprocess
import sys

import correction_reference as reference
import msgspec
import pytest
import torch
from correction_reference import World, apart_from_rounding, worlds
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from some_values import drawn

from asyncrl.algorithms.objectives import ClipBounds, token_loss
from asyncrl.algorithms.tokens import Tokens
from asyncrl.config.loss_names import CORRECTIONS, OBJECTIVES
from asyncrl.staleness.corrections import (
    K3,
    AgeDecay,
    Correction,
    Dppo,
    GeometricMask,
    GeometricTis,
    IcePop,
    KPop,
    M2po,
    Mis,
    Opsm,
    SequenceTis,
    TokenTis,
    TopEntropy,
    apply_corrections,
)
from asyncrl.staleness.proximal import log_ratios

ALL: list[Correction] = [
    IcePop(lo=0.5, hi=3.0),
    KPop(hi=0.2),
    Mis(lo=0.3, hi=4.0),
    GeometricMask(lo=0.6, hi=2.0),
    K3(hi=0.3),
    Dppo(lo=0.1, hi=0.3),
    Opsm(hi=0.2),
    M2po(hi=0.3),
    TopEntropy(share=0.4),
    TokenTis(hi=1.5),
    SequenceTis(hi=4.0),
    GeometricTis(lo=0.8, hi=1.5),
    AgeDecay(gamma=0.9),
]
SPARE_THE_GOOD = {"opsm"}
"""Corrections that reject rollouts with a negative advantage alone."""
MASKS = {"kpop", "icepop", "mis", "geometric_mask", "k3", "dppo", "opsm", "m2po", "top_entropy"}
RATIOS = {"token_tis", "sequence_tis", "geometric_tis", "icepop", "mis", "kpop"}

lists = st.lists(st.sampled_from(ALL), max_size=4)


def bounds(correction: Correction) -> dict[str, float]:
    return {name: getattr(correction, name) for name in correction.__struct_fields__}


@settings(max_examples=drawn(100))
@given(worlds(), lists, st.booleans())
def test_each_sees_what_is_left_and_weights_multiply(
    world: World, corrections: list[Correction], weighted: bool
) -> None:
    drift = [round(abs(c - b), 5) for c, b in zip(world.current, world.behaviour, strict=True)]
    assume(len(set(drift)) == len(drift) or not any(e.kind == "m2po" for e in corrections))
    if not weighted:
        corrections = [e for e in corrections if e.kind in MASKS | {"age_decay"}]
    left, weight, by = world, [float(m) for m in world.mask], [-1] * len(world.mask)
    for place, correction in enumerate(corrections):
        own, kept = apart_from_rounding(
            getattr(reference, correction.kind), left, **bounds(correction)
        )
        by = [
            place if was and not is_now else b
            for was, is_now, b in zip(left.mask, kept, by, strict=True)
        ]
        if not weighted and correction.kind in RATIOS:
            own = [float(k) for k in kept]
        weight = [w * o for w, o in zip(weight, own, strict=True)]
        left = left.with_mask(kept)
    result = apply_corrections(corrections, world.tokens(), weighted=weighted)
    assert result.kept.tolist() == left.mask
    assert result.rejected_by.tolist() == by
    assert result.weight.tolist() == pytest.approx(weight, rel=1e-4, abs=1e-7)
    assert result.weight.dtype == torch.float32
    assert float(result.diagnostics["weight"]) == pytest.approx(sum(weight), rel=1e-4, abs=1e-7)


def plain(*logs: float, lag: int = 0) -> Tokens:
    n = len(logs)
    return World(
        list(logs),
        [True] * n,
        list(range(n)),
        [1.0] * n,
        [-2.0] * n,
        [-2.0 + log for log in logs],
        [lag] * n,
    ).tokens()


def test_order_decides_who_rejects_and_what_a_rollout_is() -> None:
    """The token of ratio 3 is icepop's, and without it the rollout is inside of the band of its
    product."""
    tokens = World(
        [math.log(3), 0.0], [True] * 2, [0, 0], [1.0] * 2, [-2.0] * 2, [-2.0] * 2, [0] * 2
    ).tokens()
    token, rollout = IcePop(lo=0.5, hi=2.0), Mis(lo=0.5, hi=2.0)
    assert apply_corrections([token, rollout], tokens, weighted=True).rejected_by.tolist() == [
        0,
        -1,
    ]
    assert apply_corrections([rollout, token], tokens, weighted=True).rejected_by.tolist() == [0, 0]


def test_an_empty_list_keeps_the_mask() -> None:
    tokens = plain(0.1, 5.0)._replace(mask=torch.tensor([True, False]))
    result = apply_corrections([], tokens, weighted=True)
    assert result.kept.tolist() == [True, False] and result.weight.tolist() == [1.0, 0.0]


def test_one_kind_twice_adds_up() -> None:
    result = apply_corrections(
        [IcePop(lo=0.5, hi=2.0), IcePop(lo=0.9, hi=1.1)], plain(-2.0, 0.0, 0.3, 2.0), weighted=False
    )
    assert result.rejected_by.tolist() == [0, -1, 1, 0]
    assert (
        int(result.diagnostics["icepop_above"]) == 2
        and int(result.diagnostics["icepop_below"]) == 1
    )


class TestWithoutWeights:
    """Cases in which the objective's ratio is the weight already."""

    @pytest.mark.parametrize(
        "correction", [e for e in ALL if e.kind in MASKS], ids=lambda e: e.kind
    )
    def test_what_a_mask_keeps_weighs_1(self, correction: Correction) -> None:
        result = apply_corrections([correction], plain(0.01, -0.02, lag=3), weighted=False)
        assert result.weight.tolist() == [1.0, 1.0]

    def test_age_weighs(self) -> None:
        assert apply_corrections(
            [AgeDecay(gamma=0.5)], plain(0.3, lag=3), weighted=False
        ).weight.tolist() == [0.125]

    @pytest.mark.parametrize(
        "correction", [TokenTis(), SequenceTis(), GeometricTis()], ids=lambda e: e.kind
    )
    def test_a_weight_on_top_is_refused(self, correction: Correction) -> None:
        with pytest.raises(ValueError, match=f"{correction.kind} weighs by a ratio"):
            apply_corrections([correction], plain(0.1), weighted=False)


@pytest.mark.parametrize("correction", ALL, ids=lambda e: e.kind)
def test_what_a_kind_says_of_itself_is_so(correction: Correction) -> None:
    """`rejects`: something leaves the mask. `measures`: a ratio of 1.01, which all keep, is its
    weight. `weights`: it measures alone."""
    worst = World(
        [4.0, -4.0], [True] * 2, [0, 1], [1.0, -1.0], [-4.5, -0.5], [-0.5, -4.5], [1] * 2
    ).tokens()
    assert (
        correction.rejects
        == (not apply_corrections([correction], worst, weighted=True).kept.all())
        == (correction.kind in MASKS)
    )
    weight = apply_corrections([correction], plain(0.01), weighted=True).weight.item()
    assert (
        correction.weighs_by_ratio
        == (weight == pytest.approx(math.exp(0.01)))
        == (correction.kind in RATIOS)
    )
    assert correction.only_weighs == (correction.weighs_by_ratio and not correction.rejects)


class TestTable:
    def test_is_the_kind_and_the_settings(self) -> None:
        for correction in (*ALL, *(kind() for kind in CORRECTIONS.all().values())):
            assert correction.table() == {"kind": correction.kind, **bounds(correction)}

    def test_has_the_defaults_of_the_field(self) -> None:
        """The table of docs/ and of the papers; each is asymmetric where it has two bounds of one
        kind."""
        assert [bounds(kind()) for kind in (IcePop, Mis, GeometricMask, GeometricTis, Dppo)] == [
            {"lo": 0.5, "hi": 5.0},
            {"lo": 0.5, "hi": 2.0},
            {"lo": 0.99, "hi": 1.01},
            {"lo": 0.99, "hi": 1.01},
            {"lo": 0.2, "hi": 0.2},
        ]
        assert [kind().hi for kind in (TokenTis, SequenceTis, KPop, K3, Opsm, M2po)] == [
            2.0,
            2.0,
            0.1,
            0.01,
            1e-4,
            0.04,
        ]

    @pytest.mark.parametrize(
        ("kind", "bound"),
        [
            ("icepop", {"lo": 1.5}),
            ("icepop", {"hi": 0.5}),
            ("mis", {"lo": 0.0}),
            ("token_tis", {"hi": 0.9}),
            ("token_tis", {"lo": 0.5}),
            ("dppo", {"hi": 1.5}),
            ("k3", {"hi": 0.0}),
            ("age_decay", {"gamma": 1.5}),
        ],
        ids=str,
    )
    def test_refuses_what_is_out_of_range(self, kind: str, bound: dict[str, float]) -> None:
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert(bound, CORRECTIONS.find(kind))

    def test_every_bound_has_a_line(self) -> None:
        for correction in (kind() for kind in CORRECTIONS.all().values()):
            schema = msgspec.json.schema(type(correction))["$defs"][type(correction).__name__]
            assert schema["description"]
            assert all(schema["properties"][name]["description"] for name in bounds(correction))

    def test_needs_no_torch(self) -> None:
        """Nor do objectives and advantages: settings and the coordinator import them."""
        modules = (
            "asyncrl.staleness.corrections, asyncrl.algorithms.objectives, "
            "asyncrl.algorithms.advantages"
        )
        code = f"import sys, {modules}, asyncrl.config; sys.exit('torch' in sys.modules)"
        assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    "kind", ["clip", "dual_clip", "gspo", "cispo", "topr", "reinforce", "one_forward"]
)
@pytest.mark.parametrize("correction", ALL, ids=lambda e: e.kind)
class TestToTheLoss:
    """From log-probabilities to the gradient, as a step has it."""

    def loss(
        self, correction: Correction, kind: str, current: torch.Tensor, behaviour: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Gradient of the summed loss, and which tokens are kept."""
        current.requires_grad_()
        proximal = torch.where(
            torch.isfinite(current.detach()), current.detach() - 0.01, current.detach()
        )
        logs = log_ratios(current, behaviour, proximal)
        n, advantage, sample_index = (
            len(current),
            torch.tensor([1.0, -1.0] * 8)[: len(current)],
            torch.arange(len(current)) // 2,
        )
        tokens = Tokens(
            log_ratio=logs.log_ratio,
            mismatch=logs.mismatch,
            current=current,
            behaviour=behaviour,
            advantage=advantage,
            lag=torch.ones(n, dtype=torch.int64),
            sample_index=sample_index,
            mask=logs.finite,
            entropy=torch.arange(n).float(),
        )
        fixed = apply_corrections([correction], tokens, weighted=True)
        of_kept = tokens._replace(mask=fixed.kept)
        losses = token_loss(OBJECTIVES.find(kind)(), of_kept, ClipBounds()).loss
        (fixed.weight * losses).sum().backward()
        assert current.grad is not None
        return current.grad, fixed.kept

    def test_what_is_no_number_is_masked_and_the_rest_is_as_without_it(
        self, correction: Correction, kind: str
    ) -> None:
        nan, inf = math.nan, math.inf
        current = torch.tensor([-1.0, nan, -1.0, -inf, -1.0, -1.0, inf, -inf, -1.0])
        behaviour = torch.tensor([-1.0, -1.0, nan, -1.0, -inf, -1.0, -1.0, -inf, -1.0])
        gradient, kept = self.loss(correction, kind, current, behaviour)
        good = torch.tensor([True, False, False, False, False, True, False, False, True])
        assert not (kept & ~good).any()
        assert torch.isfinite(gradient).all()
        assert (gradient[~good] == 0).all()
        clean, _ = self.loss(correction, kind, torch.full((9,), -1.0), torch.where(good, -1.0, nan))
        assert torch.equal(gradient, clean)

    def test_all_rejected_is_a_gradient_of_nothing(self, correction: Correction, kind: str) -> None:
        """Trap 3: all of them without a finite log-probability, whatever the list."""
        gradient, kept = self.loss(
            correction, kind, torch.full((3,), -math.inf), torch.full((3,), -1.0)
        )
        assert not kept.any()
        assert gradient.tolist() == [0.0] * 3


@pytest.mark.parametrize("kind", ["clip", "cispo", "reinforce", "one_forward"])
@pytest.mark.parametrize(
    "correction",
    [e for e in ALL if e.kind in MASKS and not e.by_design],  # whatever the ratio is
    ids=lambda e: e.kind,
)
def test_a_rejected_ratio_that_overflows_is_no_nan(correction: Correction, kind: str) -> None:
    """Trap 2: `0 * inf`. One token fell from certain to impossible, the other rose."""
    current = torch.tensor([-1000.0, -0.01], requires_grad=True)
    logs = log_ratios(current, torch.tensor([-0.01, -1000.0]), None)
    advantage, sample_index = torch.tensor([-1.0, 1.0]), torch.tensor([0, 1])
    tokens = Tokens(
        log_ratio=logs.log_ratio,
        mismatch=logs.mismatch,
        current=current,
        behaviour=torch.tensor([-0.01, -1000.0]),
        advantage=advantage,
        lag=torch.zeros(2, dtype=torch.int64),
        sample_index=sample_index,
        mask=logs.finite,
    )
    fixed = apply_corrections([correction], tokens, weighted=True)
    of_kept = tokens._replace(mask=fixed.kept)
    loss = (fixed.weight * token_loss(OBJECTIVES.find(kind)(), of_kept, ClipBounds()).loss).sum()
    loss.backward()
    assert fixed.kept.tolist() == [False, correction.kind in SPARE_THE_GOOD]
    assert torch.isfinite(loss)
    assert current.grad is not None and torch.isfinite(current.grad).all()
    assert (current.grad[~fixed.kept] == 0).all()
