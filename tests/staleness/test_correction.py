"""Each correction against its formula in float64, and what holds for all of them: masks, order,
gradients, the ends of the range."""

from __future__ import annotations

import math
from typing import ClassVar, NamedTuple

import correction_reference as reference
import pytest
import torch
from correction_reference import Reference, World, apart_from_rounding, worlds
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from some_values import drawn as examples
from some_values import some

from asyncrl.algorithms.tokens import Tokens
from asyncrl.config.loss_names import CORRECTIONS
from asyncrl.staleness.corrections import (
    Corrected,
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
    apply_corrections,
)
from asyncrl.staleness.corrections.correction import truncate


class Case(NamedTuple):
    """A correction, its reference, and bounds to draw from: asymmetric, so that one cannot stand
    for the other or for its inverse."""

    correction: type[Correction]
    reference: Reference
    bounds: dict[str, tuple[float, float]]


OF = CORRECTIONS.all()
CASES = {
    "token_tis": Case(OF["token_tis"], reference.token_tis, {"hi": (1, 3)}),
    "sequence_tis": Case(OF["sequence_tis"], reference.sequence_tis, {"hi": (1, 8)}),
    "geometric_tis": Case(
        OF["geometric_tis"],
        reference.geometric_tis,
        {"lo": (0.4, 0.95), "hi": (1.05, 3)},
    ),
    "age_decay": Case(OF["age_decay"], reference.age_decay, {"gamma": (0.1, 1)}),
    "icepop": Case(OF["icepop"], reference.icepop, {"lo": (0.3, 0.95), "hi": (1.05, 4)}),
    "kpop": Case(OF["kpop"], reference.kpop, {"hi": (0.01, 0.3)}),
    "mis": Case(OF["mis"], reference.mis, {"lo": (0.1, 0.95), "hi": (1.05, 8)}),
    "geometric_mask": Case(
        OF["geometric_mask"],
        reference.geometric_mask,
        {"lo": (0.4, 0.95), "hi": (1.05, 3)},
    ),
    "k3": Case(OF["k3"], reference.k3, {"hi": (0.01, 0.5)}),
    "dppo": Case(OF["dppo"], reference.dppo, {"lo": (0.02, 0.2), "hi": (0.1, 0.5)}),
    "opsm": Case(OF["opsm"], reference.opsm, {"hi": (0.01, 0.8)}),
    "m2po": Case(OF["m2po"], reference.m2po, {"hi": (0.01, 0.8)}),
    "top_entropy": Case(OF["top_entropy"], reference.top_entropy, {"share": (0.05, 0.95)}),
}
of_rollouts = pytest.mark.parametrize(
    "case",
    [case for case in CASES.values() if not case.correction.whole_step],
    ids=[name for name, case in CASES.items() if not case.correction.whole_step],
)
every = pytest.mark.parametrize("case", some(CASES.values()), ids=CASES)
rejecting = {
    name: CASES[name]
    for name in (
        "icepop",
        "kpop",
        "mis",
        "geometric_mask",
        "k3",
        "dppo",
        "opsm",
        "m2po",
    )
}


def drawn(data: st.DataObject, case: Case) -> dict[str, float]:
    return {
        name: data.draw(st.floats(low, high), label=name)
        for name, (low, high) in case.bounds.items()
    }


def run(case: Case, world: World, bounds: dict[str, float]) -> Corrected:
    tokens = world.tokens()
    return case.correction(**bounds).apply(tokens, tokens.mask)


def tied(world: World) -> bool:
    """True if two tokens have drifted equally far, so that M2PO may reject either."""
    drift = [round(abs(c - b), 5) for c, b in zip(world.current, world.behaviour, strict=True)]
    return len(set(drift)) < len(drift)


@every
class TestEvery:
    @given(worlds(), st.data())
    def test_is_the_formula(self, case: Case, world: World, data: st.DataObject) -> None:
        if case.correction is M2po:
            assume(not tied(world))
        bounds = drawn(data, case)
        weight, kept = apart_from_rounding(case.reference, world, **bounds)
        result = run(case, world, bounds)
        assert result.kept.tolist() == kept
        assert result.weight.tolist() == pytest.approx(weight, rel=2e-5, abs=1e-7)

    @settings(max_examples=examples(20))
    @given(worlds(), st.data())
    def test_weighs_what_it_keeps_and_nothing_else_in_float32_without_gradient(
        self, case: Case, world: World, data: st.DataObject
    ) -> None:
        tokens = world.tokens()
        tokens = tokens._replace(
            mismatch=tokens.mismatch.requires_grad_(), current=tokens.current.requires_grad_()
        )
        one = case.correction(**drawn(data, case))
        weight, kept, _, diagnostics = apply_corrections([one], tokens, weighted=True)
        assert weight.dtype == torch.float32 and kept.dtype == torch.bool
        assert not weight.requires_grad and not any(
            value.requires_grad for value in diagnostics.values()
        )
        assert not (kept & ~tokens.mask).any()
        assert torch.equal(weight != 0, kept)

    @settings(max_examples=examples(20))
    @given(worlds(), st.data())
    def test_what_is_outside_of_the_mask_does_not_matter(
        self, case: Case, world: World, data: st.DataObject
    ) -> None:
        """Trap 4: also not for the other tokens of its rollout."""
        bounds, clean = drawn(data, case), world.tokens()
        outside = ~clean.mask
        dirty = clean._replace(
            mismatch=torch.where(outside, 50.0, clean.mismatch),
            behaviour=torch.where(outside, math.nan, clean.behaviour),
            current=torch.where(outside, -math.inf, clean.current),
            advantage=torch.where(outside, -9.0, clean.advantage),
        )
        expected, got = (
            case.correction(**bounds).apply(clean, clean.mask),
            case.correction(**bounds).apply(dirty, clean.mask),
        )
        assert torch.equal(expected.kept, got.kept) and torch.equal(expected.weight, got.weight)
        assert {
            name: float(value) for name, value in expected.diagnostics.items()
        } == pytest.approx({name: float(value) for name, value in got.diagnostics.items()})

    @settings(max_examples=examples(20))
    @given(worlds(), st.data())
    def test_knows_a_rollout_by_its_number_and_not_by_its_place(
        self, case: Case, world: World, data: st.DataObject
    ) -> None:
        """Trap 5: uneven rollouts, mixed with each other."""
        if case.correction is M2po:
            assume(not tied(world))
        bounds = drawn(data, case)
        apart_from_rounding(case.reference, world, **bounds)
        order = data.draw(st.permutations(range(len(world.sample_index))))
        names = data.draw(st.permutations(range(10)))
        other = world.only(order)
        other = other._replace(sample_index=[names[o] for o in other.sample_index])
        expected, got = run(case, world, bounds), run(case, other, bounds)
        assert got.kept.tolist() == expected.kept[order].tolist()
        assert got.weight.tolist() == pytest.approx(expected.weight[order].tolist(), rel=1e-6)

    @settings(max_examples=examples(20))
    @given(worlds(), st.data())
    def test_reads_what_it_says_and_nothing_else(
        self, case: Case, world: World, data: st.DataObject
    ) -> None:
        """A field that it does not read may be anything."""
        tokens, one = world.tokens(), case.correction(**drawn(data, case))
        free = set(Tokens._fields) - one.reads - {"mask", "sample_index"}
        other = tokens._replace(**{name: getattr(tokens, name).float() * 3 + 7 for name in free})
        assert torch.equal(
            one.apply(tokens, tokens.mask).weight, one.apply(other, tokens.mask).weight
        )

    @pytest.mark.parametrize("log", [1e4, -1e4])
    def test_a_huge_ratio_is_not_nan(self, case: Case, log: float) -> None:
        """Trap 2: what is rejected is replaced before `exp`, and what is not is clamped."""
        world = World(
            [log] * 3, [True] * 3, [0, 0, 1], [1.0, 1.0, -1.0], [-1.0] * 3, [-1.0] * 3, [5000] * 3
        )
        weight, _, _ = run(case, world, {name: high for name, (_, high) in case.bounds.items()})
        assert torch.isfinite(weight).all()

    def test_of_no_token_there_is_nothing_to_say(self, case: Case) -> None:
        world = World([], [], [], [], [], [], [])
        weight, kept, _ = run(case, world, {name: high for name, (_, high) in case.bounds.items()})
        assert weight.shape == kept.shape == (0,)

    def test_of_a_mask_without_a_token_nothing_is_kept(self, case: Case) -> None:
        world = World([0.1, 0.2], [False] * 2, [0, 3], [1.0, 1.0], [-1.0] * 2, [-0.9] * 2, [1, 2])
        weight, kept, diagnostics = run(
            case, world, {name: high for name, (_, high) in case.bounds.items()}
        )
        assert not kept.any() and not weight.any()
        assert not any(value.any() for value in diagnostics.values())


@of_rollouts
@settings(max_examples=examples(20))
@given(worlds(), st.data())
def test_is_the_same_however_rollouts_are_split_into_calls(
    case: Case, world: World, data: st.DataObject
) -> None:
    bounds = drawn(data, case)
    apart_from_rounding(case.reference, world, **bounds)
    whole = run(case, world, bounds)
    totals: dict[str, float] = dict.fromkeys(whole.diagnostics, 0.0)
    for sample_index in set(world.sample_index):
        places = [t for t, o in enumerate(world.sample_index) if o == sample_index]
        part = run(case, world.only(places), bounds)
        assert part.kept.tolist() == whole.kept[places].tolist()
        assert part.weight.tolist() == pytest.approx(whole.weight[places].tolist(), rel=1e-6)
        totals = {name: total + float(part.diagnostics[name]) for name, total in totals.items()}
    assert totals == pytest.approx(
        {name: float(value) for name, value in whole.diagnostics.items()}
    )


@pytest.mark.parametrize("case", rejecting.values(), ids=rejecting)
def test_all_of_it_may_be_rejected(case: Case) -> None:
    """Trap 3, with rollouts of one token and of two."""
    worst = World([3.0] * 3, [True] * 3, [2, 0, 2], [-1.0] * 3, [-0.1] * 3, [-4.0] * 3, [0] * 3)
    weight, kept, _ = run(case, worst, {name: low for name, (low, _) in case.bounds.items()})
    assert not kept.any()
    assert weight.tolist() == [0.0] * 3


def line(*ratios: float, sample_index: list[int] | None = None) -> Tokens:
    """Tokens of these ratios, each a rollout of its own unless said."""
    n = len(ratios)
    behaviour = [-3.0] * n
    logs = [math.log(r) for r in ratios]
    return World(
        logs,
        [True] * n,
        sample_index or list(range(n)),
        [1.0] * n,
        behaviour,
        [b + log for b, log in zip(behaviour, logs, strict=True)],
        [0] * n,
    ).tokens()


class TestBounds:
    """Trap 1: a band is [lo, hi] and not [1/hi, 1/lo]."""

    ratios = (0.3, 0.49, 0.51, 1.0, 3.0, 4.9, 5.1)
    inside: ClassVar = [False, False, True, True, True, True, False]

    def test_icepop(self) -> None:
        tokens = line(*self.ratios)
        result = IcePop(lo=0.5, hi=5.0).apply(tokens, tokens.mask)
        assert result.kept.tolist() == self.inside
        assert (int(result.diagnostics["below"]), int(result.diagnostics["above"])) == (2, 1)

    def test_mis(self) -> None:
        tokens = line(*self.ratios)
        result = Mis(lo=0.5, hi=5.0).apply(tokens, tokens.mask)
        assert result.kept.tolist() == self.inside
        assert int(result.diagnostics["rollouts"]) == 3

    def test_geometric(self) -> None:
        tokens = line(*self.ratios)
        assert GeometricMask(lo=0.5, hi=5.0).apply(tokens, tokens.mask).kept.tolist() == self.inside
        expected = [0.5, 0.5, 0.51, 1.0, 3.0, 4.9, 5.0]
        assert GeometricTis(lo=0.5, hi=5.0).apply(
            tokens, tokens.mask
        ).weight.tolist() == pytest.approx(expected)

    def test_dppo(self) -> None:
        """`lo` is of what falls, `hi` of what rises, and each of the advantage that pushes
        there."""
        before = [0.5] * 6
        after = [0.72, 0.68, 0.35, 0.45, 0.05, 0.95]
        advantage = [1.0, 1.0, -1.0, -1.0, 1.0, -1.0]
        tokens = World(
            [0.0] * 6,
            [True] * 6,
            [0] * 6,
            advantage,
            [math.log(p) for p in before],
            [math.log(p) for p in after],
            [0] * 6,
        ).tokens()
        result = Dppo(lo=0.1, hi=0.2).apply(tokens, tokens.mask)
        assert result.kept.tolist() == [False, True, False, True, True, True]
        assert (int(result.diagnostics["risen"]), int(result.diagnostics["fallen"])) == (1, 1)

    @pytest.mark.parametrize("log", [0.0, -1e-6, 1e-6])
    def test_belong_to_the_band(self, log: float) -> None:
        tokens = line(math.exp(log))
        for correction in (IcePop, Mis, GeometricMask):
            kept = correction(lo=1.0, hi=1.0).apply(tokens, tokens.mask).kept
            assert kept.item() is (log == 0)


class TestRollouts:
    def test_a_product_is_of_the_rollout_and_a_mean_of_its_tokens(self) -> None:
        """Rollouts of 1, 2 and 3 tokens, mixed."""
        tokens = line(1.5, 2.0, 2.0, 1.1, 0.9, 1.2, sample_index=[7, 2, 4, 4, 4, 2])
        product = [1.5, 2.4, 2.0 * 1.1 * 0.9, 2.0 * 1.1 * 0.9, 2.0 * 1.1 * 0.9, 2.4]
        lengths = [1, 2, 3, 3, 3, 2]
        assert SequenceTis(hi=8.0).apply(tokens, tokens.mask).weight.tolist() == pytest.approx(
            product
        )
        means = [p ** (1 / n) for p, n in zip(product, lengths, strict=True)]
        assert GeometricTis(lo=0.1, hi=8.0).apply(
            tokens, tokens.mask
        ).weight.tolist() == pytest.approx(means)
        kept = Mis(lo=0.5, hi=2.0).apply(tokens, tokens.mask).kept
        assert kept.tolist() == [True, False, True, True, True, False]

    def test_the_masked_geometric_ratio_is_a_mask_and_then_a_weight(self) -> None:
        tokens = line(1.02, 1.004, 0.998, 0.95, sample_index=[0, 1, 1, 2])
        kept = GeometricMask(lo=0.99, hi=1.01).apply(tokens, tokens.mask).kept
        weight = GeometricTis(lo=0.99, hi=1.01).apply(tokens, kept).weight
        mean = math.sqrt(1.004 * 0.998)
        assert weight.tolist() == pytest.approx([0, mean, mean, 0])

    def test_opsm_spares_rollouts_that_did_well(self) -> None:
        world = World(
            [0.0] * 4,
            [True] * 4,
            [0, 0, 1, 1],
            [-1.0, -1.0, 1.0, 1.0],
            [-1.0] * 4,
            [-1.5] * 4,
            [0] * 4,
        )
        tokens = world.tokens()
        result = Opsm(hi=1e-4).apply(tokens, tokens.mask)
        assert result.kept.tolist() == [False, False, True, True]
        assert int(result.diagnostics["rollouts"]) == 1


class TestKPop:
    def test_is_wider_in_ratio_for_rare_tokens_both_ways(self) -> None:
        rare = World(
            [math.log(3)] * 2, [True] * 2, [0, 1], [1.0] * 2, [-9.0, -1.5], [0.0] * 2, [0] * 2
        ).tokens()
        assert KPop(hi=0.1).apply(rare, rare.mask).kept.tolist() == [True, False]

    @pytest.mark.parametrize("hi, kept", [(0.1, False), (0.13, False), (0.16, True)])
    @pytest.mark.parametrize("before, after", [(0.1, 0.3), (0.3, 0.1)])
    def test_is_of_the_larger_divergence(
        self, before: float, after: float, hi: float, kept: bool
    ) -> None:
        """From 0.1 to 0.3 and back: 0.154 one way and 0.116 the other."""
        tokens = World(
            [math.log(after / before)], [True], [0], [1.0], [math.log(before)], [0.0], [0]
        ).tokens()
        assert KPop(hi=hi).apply(tokens, tokens.mask).kept.item() is kept

    def test_a_token_that_is_all_but_certain_is_kept(self) -> None:
        """Rounding takes the probability of such a token to 1, from where every divergence is
        infinite, and past 1 where it is a number no more."""
        sure = World(
            [0.0, -1e-7, 1e-7], [True] * 3, [0] * 3, [1.0] * 3, [0.0, 0.0, 1e-7], [0.0] * 3, [0] * 3
        ).tokens()
        assert KPop(hi=0.01).apply(sure, sure.mask).kept.all()

    def test_a_certain_token_that_became_unlikely_is_not(self) -> None:
        lost = World([-3.0], [True], [0], [1.0], [0.0], [-3.0], [0]).tokens()
        assert not KPop(hi=0.1).apply(lost, lost.mask).kept.any()


@given(
    st.lists(st.tuples(st.floats(0.0, 9.0), st.booleans()), min_size=1, max_size=12),
    st.floats(0.0, 1.0),
    st.floats(1.0, 8.0),
)
def test_as_many_weights_are_called_truncated_as_a_bound_has_changed(
    drawn_weights: list[tuple[float, bool]], lo: float, hi: float
) -> None:
    """Those of the mask alone; weights that are at a bound by themselves are not changed."""
    drawn_weights = [*drawn_weights, (lo, True), (hi, True), (hi + 1, True), (hi + 2, False)]
    raw = torch.tensor([weight for weight, _ in drawn_weights], dtype=torch.float64)
    mask = torch.tensor([masked for _, masked in drawn_weights])
    weight, kept, diagnostics = truncate(raw, mask, lo, hi)
    due = [min(max(each, lo), hi) if masked else 0.0 for each, masked in drawn_weights]
    assert weight.tolist() == pytest.approx(due) and kept.equal(mask)
    changed = [each for each, masked in drawn_weights if masked and not lo <= each <= hi]
    assert int(diagnostics["truncated"]) == len(changed) > 0


class TestM2po:
    def test_rejects_the_furthest_first_and_only_where_the_advantage_pushes_on(self) -> None:
        """Squares 0.09, 0.04, 0.01 in the region: without the first the mean is 0.025. The last two
        have drifted further, back."""
        drift, advantage = [0.3, -0.2, 0.1, -0.9, 0.9], [1.0, -1.0, 1.0, 1.0, -1.0]
        tokens = World(
            [0.0] * 5,
            [True] * 5,
            [3] * 5,
            advantage,
            [-2.0] * 5,
            [-2.0 + d for d in drift],
            [0] * 5,
        ).tokens()
        result = M2po(hi=0.026).apply(tokens, tokens.mask)
        assert result.kept.tolist() == [False, True, True, True, True]
        assert int(result.diagnostics["region"]) == 3
        assert float(result.diagnostics["squares"]) == pytest.approx(0.05, rel=1e-5)

    @given(worlds(), st.floats(0.01, 0.8))
    def test_the_bound_is_of_all_tokens_together(self, world: World, hi: float) -> None:
        tokens = world.tokens()
        _, _, diagnostics = M2po(hi=hi).apply(tokens, tokens.mask)
        kept = [t for t, k in enumerate(reference.m2po(world, hi=hi)[1]) if k]
        drift = [(world.current[t] - world.behaviour[t], world.advantage[t]) for t in kept]
        squares = [d * d for d, a in drift if d * a > 0]
        assume(not tied(world))
        apart_from_rounding(reference.m2po, world, hi=hi)
        assert float(diagnostics["squares"]) == pytest.approx(sum(squares), rel=1e-5, abs=1e-7)
        assert sum(squares) <= hi * len(squares) * (1 + 1e-9)

    def test_one_rollout_far_off_is_spared_by_the_others(self) -> None:
        """Each rollout by itself would lose its furthest token: the first has a mean of 0.09."""
        tokens = World(
            [0.0] * 4,
            [True] * 4,
            [0, 1, 1, 1],
            [1.0] * 4,
            [-2.0] * 4,
            [-1.7, -1.99, -1.99, -1.99],
            [0] * 4,
        ).tokens()
        assert M2po(hi=0.04).apply(tokens, tokens.mask).kept.all()
