"""The list of corrections is typed wherever it is said and survives being written; a loss that its
formulas do not define is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from without_rules import without_rules

from asyncrl.config import Config, ConfigError, load, read, render, write
from asyncrl.config.derived import derived
from asyncrl.config.loss_names import CORRECTIONS
from asyncrl.config.losses import designed, loss_mean
from asyncrl.config.schema import RunConfig, StalenessConfig
from asyncrl.staleness.corrections import (
    K3,
    AgeDecay,
    Dppo,
    GeometricTis,
    IcePop,
    Mis,
    TokenTis,
)

KINDS = list(CORRECTIONS.all().values())
DECAYED = (IcePop(lo=0.5, hi=2.0), AgeDecay())


def refusal(*sets: str, path: Path | None = None, **environ: str) -> str:
    """The one sentence that this input is refused with."""
    with pytest.raises(ConfigError) as caught:
        load(path, sets, environ)
    text = str(caught.value)
    assert text.endswith(".") and text.isprintable()
    return text


def correction(*sets: str, path: Path | None = None, **environ: str) -> tuple[Any, ...]:
    return load(path, sets, environ).staleness.correction


# -------------------------------------------------------------------------------- where it is said


def test_the_default_is_icepop() -> None:
    assert correction() == (IcePop(lo=0.5, hi=5.0),)


@pytest.mark.parametrize(
    "text",
    [
        "[staleness]\ncorrection = [{kind = 'icepop', lo = 0.5, hi = 2}, {kind = 'age_decay'}]\n",
        "[[staleness.correction]]\nkind = 'icepop'\nlo = 0.5\nhi = "
        "2.0\n[[staleness.correction]]\nkind = 'age_decay'\n",
        "[staleness]\ncorrection = [{kind = 'icepop', lo = 0.5, hi = 2}, 'age_decay']\n",
    ],
)
def test_a_file_has_a_list_of_tables(text: str, tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(text)
    assert correction(path=path) == DECAYED


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("icepop", (IcePop(),)),
        ("none", ()),
        ("[]", ()),
        (" icepop , age_decay", (IcePop(), AgeDecay())),
        ("age_decay,icepop", (AgeDecay(), IcePop())),
        ("'dppo'", (Dppo(),)),
        ("['k3', 'mis']", (K3(), Mis())),
        ("[{kind = 'icepop', lo = 0.5, hi = 2.0}, {kind = 'age_decay'}]", DECAYED),
    ],
)
def test_a_variable_and_a_set_take_names_or_the_list(text: str, expected: tuple[Any, ...]) -> None:
    assert (
        correction(ASYNCRL_CORRECTION=text)
        == correction(f"staleness.correction={text}")
        == expected
    )


def test_a_file_may_name_them_in_one_string(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text("[staleness]\ncorrection = 'k3, age_decay'\n")
    assert correction(path=path) == (K3(), AgeDecay())
    assert correction(path=path, ASYNCRL_CORRECTION="none") == ()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("icepopp", "has the kind 'icepopp', which does not exist; the nearest is icepop."),
        ("icepop,", "has the kind ''"),
        ("", "has the kind ''"),
        ("icepop,none", "has none beside others"),
        ("3", "is 3, and must be a list of tables with a kind each, or of kinds alone: "),
        ("[3]", "has 3 in it, and must be a list"),
        ("[{lo = 0.5}]", "has {'lo': 0.5} in it, and must be a list"),
        ("{kind = 'icepop'}", "is {'kind': 'icepop'}, and must be a list"),
        ("[{kind = 3}]", "has {'kind': 3} in it"),
        (
            "[{kind = 'icepop', low = 0.5}]",
            "has a icepop with 'low', which it does not take; it takes lo, hi, and the nearest "
            "is lo.",
        ),
        ("[{kind = 'k3', lo = 0.5}]", "it takes hi, and the nearest is hi."),
        (
            "[{kind = 'icepop', lo = 5.0, hi = 0.2}]",
            "staleness.correction.icepop.lo is 5.0, and must be a number above 0 and at most 1",
        ),
        (
            "[{kind = 'icepop', hi = 0.9}]",
            "staleness.correction.icepop.hi is 0.9, and must be a number at least 1",
        ),
        ("[{kind = 'icepop', lo = 0}]", "staleness.correction.icepop.lo is 0, and"),
        ("[{kind = 'icepop', hi = inf}]", "staleness.correction.icepop.hi is inf"),
        ("[{kind = 'icepop', lo = nan}]", "staleness.correction.icepop.lo is nan"),
        ("[{kind = 'icepop', lo = '0.5'}]", "staleness.correction.icepop.lo is '0.5'"),
        ("[{kind = 'age_decay', gamma = 1.5}]", "staleness.correction.age_decay.gamma is 1.5"),
        ("[{kind = 'age_decay', gamma = 0}]", "staleness.correction.age_decay.gamma is 0, and"),
        ("[{kind = 'icepop'", "must be a list of tables"),
    ],
)
def test_what_is_no_list_of_corrections_is_refused_with_its_place(text: str, said: str) -> None:
    assert said in (by_variable := refusal(ASYNCRL_CORRECTION=text)) and by_variable.startswith(
        "ASYNCRL_CORRECTION: staleness.correction"
    )
    assert said in (by_set := refusal(f"staleness.correction={text}")) and by_set.startswith(
        "--set staleness.correction="
    )


def test_bounds_have_a_place_in_a_table_and_nowhere_else() -> None:
    assert "there is no setting staleness.lo" in refusal("staleness.lo=0.5")
    assert "holds no further settings" in refusal("staleness.correction.lo=0.5")


@pytest.mark.parametrize("kind", KINDS)
def test_bounds_outside_their_range_are_refused(kind: Any) -> None:
    """The ranges as msgspec's own schema gives them."""
    name = kind.kind
    properties = msgspec.json.schema(kind)["$defs"][kind.__name__]["properties"]
    bounds = {key: node for key, node in properties.items() if key != "kind"}
    assert bounds
    for key, node in bounds.items():
        outside = [
            node["minimum"] - 0.5 if "minimum" in node else None,
            node["maximum"] + 0.5 if "maximum" in node else None,
            float(node["exclusiveMinimum"]) if "exclusiveMinimum" in node else None,
        ]
        for value in (found for found in outside if found is not None):
            said = refusal(f"staleness.correction=[{{kind = '{name}', {key} = {value!r}}}]")
            assert f"staleness.correction.{name}.{key} is {value!r}" in said


def bounds(kind: Any) -> st.SearchStrategy[Any]:
    """Any entry of a kind."""
    ranges = {
        "lo": st.floats(0.01, 0.99),
        "hi": st.floats(0.01, 1.0) if kind is Dppo else st.floats(1.01, 1e6),
    }
    properties = msgspec.json.schema(kind)["$defs"][kind.__name__]["properties"]
    return st.builds(
        kind,
        **{
            name: ranges[name] if name in ranges else within(properties[name])
            for name in kind.__struct_fields__
        },
    )


def within(node: dict[str, float]) -> st.SearchStrategy[float]:
    """Any number that a schema allows, up to a million."""
    least = node.get("minimum", node.get("exclusiveMinimum", 0.0) + 0.01)
    return st.floats(least, node.get("maximum", node.get("exclusiveMaximum", 1e6) - 0.01))


@given(
    entries=st.lists(st.sampled_from(KINDS), max_size=6, unique=True).flatmap(
        lambda kinds: st.tuples(*map(bounds, kinds))
    )
)
def test_any_list_is_read_as_it_was_written(
    entries: tuple[Any, ...], tmp_path_factory: pytest.TempPathFactory
) -> None:
    with without_rules():
        config = Config(
            staleness=StalenessConfig(correction=entries, proximal="boundary"),
            run=RunConfig(dir="somewhere"),
        )
    path = tmp_path_factory.getbasetemp() / "corrections.toml"
    write(config, path)
    try:
        assert read(path) == config
    except ConfigError as error:
        assert (
            "weight by the ratio" in str(error)
            and sum(entry.weighs_by_ratio for entry in entries) > 1
        )


def test_the_written_list_names_its_kinds() -> None:
    lines = render(Config()).splitlines()
    place = lines.index("correction = [")
    assert lines[place + 1] == '    { kind = "icepop", lo = 0.5, hi = 5.0 },'
    assert all(kind.kind in lines[place - 1] for kind in KINDS)


# ------------------------------------------------------------------------------------------- rules

BELOW = ["agent.run=a:b", "train.credit=below", "train.advantage=rloo"]
FIRST_K = ("train.unit=rollout", "train.advantage=first_k")
EMPTY = "staleness.correction=[{kind = 'icepop', lo = 1, hi = 1}]"
TWICE = "staleness.correction=icepop,icepop"


@pytest.mark.parametrize(
    ("sets", "keys", "said"),
    [
        (
            ["train.objective=dual_clip", "train.dual_clip=1.28"],
            ["train.dual_clip", "train.clip_hi"],
            "larger than 1 + clip_hi",
        ),
        (
            [EMPTY],
            ["staleness.correction"],
            "the band [lo, hi] of icepop is empty: lower lo or raise hi",
        ),
        ([TWICE], ["staleness.correction"], "icepop is listed twice"),
        (
            ["staleness.correction=icepop,token_tis"],
            ["staleness.proximal", "staleness.correction", "train.objective"],
            "token_tis would weight by it again: remove token_tis",
        ),
        (
            ["staleness.correction=sequence_tis", "train.objective=gspo"],
            ["staleness.proximal", "train.objective"],
            "sequence_tis would weigh",
        ),
        (
            ["staleness.correction=geometric_tis", "train.objective=topr"],
            ["staleness.proximal"],
            "geometric_tis would weigh",
        ),
        (
            ["staleness.correction=icepop,token_tis", "staleness.proximal=boundary"],
            ["staleness.correction", "staleness.proximal"],
            "both icepop and token_tis weight by the ratio",
        ),
        (
            ["staleness.correction=mis,kpop", "train.objective=reinforce"],
            ["train.objective"],
            "both mis and kpop weight by the ratio",
        ),
        (
            ["train.objective=gspo", "train.loss_mean=token"],
            ["train.objective", "train.loss_mean"],
            "long ones would count more: set loss_mean to auto or rollout",
        ),
        (
            ["train.objective=gspo", "train.loss_mean=constant"],
            ["train.objective", "train.loss_mean"],
            "set loss_mean to auto or rollout",
        ),
        (
            ["train.unit=rollout"],
            ["train.unit", "train.advantage"],
            "set advantage to first_k, or unit to group",
        ),
        (
            ["train.unit=rollout", "train.advantage=min_variance"],
            ["train.unit", "train.advantage"],
            "set advantage to first_k",
        ),
        (
            ["train.minibatches=17"],
            ["train.minibatches", "train.batch_groups"],
            "lower minibatches to 16, or raise batch_groups",
        ),
        (
            ["train.objective=luffy"],
            ["train.objective", "foreign.source"],
            "there are none: set source, or objective to clip",
        ),
        (
            ["train.minibatch_by=seeupo"],
            ["train.minibatch_by", "agent.run"],
            "there is one turn: set agent.run, or minibatch_by to group",
        ),
        (
            ["train.minibatch_by=seeupo", "agent.run=a:b", "agent.max_calls=1"],
            ["train.minibatch_by", "agent.max_calls"],
            "there is one turn: raise max_calls",
        ),
        (
            ["train.minibatch_by=seeupo", "agent.run=a:b", "train.passes=2"],
            ["train.minibatch_by", "train.passes"],
            "makes one update of each turn: set passes to 1",
        ),
        (
            ["train.minibatch_by=seeupo", "agent.run=a:b", "train.minibatches=17"],
            ["train.minibatch_by", "train.minibatches"],
            "set minibatches to 1, or minibatch_by to group",
        ),
        (
            ["train.advantage=mc_grpo"],
            ["train.advantage", "rollout.group_size"],
            "set group_size to 9",
        ),
        (
            ["train.advantage=mc_grpo", "rollout.group_size=7", "rollout.sizing=difficulty"],
            ["train.advantage", "rollout.group_size_max"],
            "set group_size to 7, and sizing to fixed",
        ),
        (
            ["train.unit=rollout", "train.advantage=reinforce_pp"],
            ["train.unit", "train.advantage"],
            "set advantage to first_k",
        ),
        (
            ["train.advantage=first_k"],
            ["train.unit", "train.advantage"],
            "set unit to rollout, or advantage to rloo",
        ),
        (
            ["train.branches=branch", "train.loss_mean=constant"],
            ["train.branches", "train.loss_mean"],
            "set loss_mean to token",
        ),
        (
            ["train.branches=branch", "train.objective=gspo"],
            ["train.branches", "train.objective"],
            "or branches to token",
        ),
        (
            ["train.credit=to_go"],
            ["train.credit", "train.advantage"],
            "grpo cannot compare returns turn by turn without a bias: set advantage to rloo",
        ),
        (
            ["train.credit=to_go", *FIRST_K],
            ["train.credit", "train.advantage"],
            "set advantage to rloo or dr_grpo (and unit to group), or credit to episode",
        ),
        (
            ["train.credit=to_go", "train.advantage=gdpo"],
            ["train.credit", "train.advantage"],
            "set advantage to rloo",
        ),
        (
            ["train.credit=below", "train.advantage=rloo"],
            ["train.credit", "agent.run"],
            "below is for agents that call twice from one context: set agent.run, or credit to",
        ),
        (
            [*BELOW, "agent.max_calls=1"],
            ["train.credit", "agent.max_calls"],
            "raise max_calls, or credit to episode",
        ),
        (
            [*BELOW, "train.branches=branch"],
            ["train.credit", "train.branches"],
            "set branches to token",
        ),
        (
            ["agent.run=a:b", "train.credit=below"],
            ["train.credit", "train.advantage"],
            "set advantage to rloo",
        ),
        (
            [*FIRST_K, "train.replay_groups=1"],
            ["train.unit", "train.replay_groups"],
            "only whole groups are trained again",
        ),
        (
            [*FIRST_K, "rollout.k_min=8"],
            ["train.unit", "rollout.k_min", "rollout.group_size"],
            "group_size - 1 others",
        ),
        (
            ["train.advantage=min_variance", "train.micro_tokens=2047"],
            [
                "train.advantage",
                "train.micro_tokens",
                "rollout.group_size",
                "engine.context_tokens",
            ],
            "raise micro_tokens to 2048",
        ),
        (
            [
                "train.advantage=min_variance_logits",
                "rollout.sizing=difficulty",
                "rollout.group_size_max=33",
            ],
            ["train.micro_tokens", "rollout.group_size_max"],
            "raise micro_tokens to 8448",
        ),
        (
            [*FIRST_K, "train.keep=roc"],
            ["train.keep", "train.unit"],
            "set unit to group, or keep to all",
        ),
        (
            ["train.keep_members=4"],
            ["train.keep_members", "train.keep"],
            "set keep to the rule that chooses, or keep_members to 0",
        ),
        (
            ["train.keep=top", "train.keep_members=8"],
            ["train.keep_members", "rollout.group_size"],
            "every member would be kept: lower keep_members",
        ),
        (
            ["train.keep=roc", "rollout.sizing=difficulty", "train.keep_members=16"],
            ["train.keep_members", "rollout.group_size_max"],
            "every member would be kept: lower keep_members",
        ),
        (
            ["train.keep=top_bottom", "train.keep_members=1"],
            ["train.keep", "train.keep_members", "rollout.filter"],
            "one reward never varies",
        ),
        (
            ["train.keep=top_bottom", "rollout.group_size=2"],
            ["train.keep", "train.keep_members", "rollout.filter"],
            "raise keep_members, or set filter to none",
        ),
        (
            ["train.keep=roc", "train.advantage=mc_grpo", "train.keep_members=4"],
            ["train.advantage", "train.keep_members"],
            "set keep_members to an odd number",
        ),
    ],
)
def test_a_loss_that_is_not_defined_is_refused(sets: list[str], keys: list[str], said: str) -> None:
    text = refusal(*sets)
    assert said in text and all(f"{key} is " in text for key in keys)


@pytest.mark.parametrize(
    "sets",
    [
        ["train.objective=dual_clip", "train.dual_clip=1.29"],
        ["train.dual_clip=1.01"],
        ["staleness.correction=none"],
        ["staleness.correction=mis,icepop,kpop,k3,dppo,opsm,m2po,geometric_mask,age_decay"],
        ["staleness.correction=token_tis", "train.objective=reinforce"],
        ["staleness.correction=token_tis,k3,dppo,age_decay", "staleness.proximal=loglinear"],
        FIRST_K,
        [*FIRST_K, "rollout.k_min=7"],
        ["train.advantage=gdpo"],
        ["train.advantage=min_variance", "train.micro_tokens=2048"],
        ["staleness.proximal=recompute"],
        ["train.objective=gspo"],
        ["train.minibatches=16", "train.passes=4"],
        ["train.minibatches=17", "train.step_tokens=1000"],
        ["train.objective=one_forward", "staleness.correction=dppo"],
        ["train.advantage=mc_grpo", "rollout.group_size=9"],
        ["train.advantage=reinforce_pp", "rollout.group_size=1", "rollout.k_min=1"],
        ["train.objective=gspo", "train.loss_mean=rollout"],
        ["train.keep=roc", "train.keep_members=7"],
        ["train.keep=top", "train.keep_members=1", "rollout.filter=none"],
        ["train.keep=bottom", "rollout.sizing=difficulty", "train.keep_members=15"],
        ["train.keep=roc", "train.advantage=mc_grpo", "train.keep_members=5"],
        ["train.keep=top_bottom", "train.advantage=reinforce_pp"],
    ],
)
def test_a_loss_at_the_edge_passes(sets: list[str]) -> None:
    load(None, sets, {})


def test_a_contradiction_shows_the_list_as_it_is_written() -> None:
    said = refusal("staleness.correction=[{kind = 'geometric_tis'}]")
    assert "staleness.correction is [{kind = 'geometric_tis', lo = 0.99, hi = 1.01}] (--set" in said
    assert correction("staleness.correction=token_tis", "train.objective=reinforce") == (
        TokenTis(hi=2.0),
    )
    assert GeometricTis().kind == "geometric_tis"


# ---------------------------------------------------------------------------- what follows from it


def test_what_is_left_out_by_design_raises_no_alarm() -> None:
    assert designed(load(None, ["staleness.correction=icepop,top_entropy"], {}).staleness) == {
        "top_entropy"
    }


@pytest.mark.parametrize(
    ("sets", "updates"),
    [
        ([], None),
        (["train.minibatches=4", "train.passes=2"], "8"),
        (["train.passes=3"], "3"),
        (["train.minibatch_by=seeupo", "agent.run=a:b"], "1 to 32"),
    ],
)
def test_the_table_says_how_often_a_step_updates(sets: list[str], updates: str | None) -> None:
    rows = {row.name: row for row in derived(load(None, sets, {}), available=2)}
    assert (rows["updates per step"].value if updates else None) == updates
    assert ("updates per step" in rows) == bool(updates)


@pytest.mark.parametrize(
    ("sets", "mean"),
    [
        ([], "token"),
        (["train.objective=gspo"], "rollout"),
        (["train.loss_mean=constant"], "constant"),
        (["train.objective=topr", "train.loss_mean=rollout"], "rollout"),
    ],
)
def test_the_mean_follows_the_objective_unless_it_is_said(sets: list[str], mean: str) -> None:
    config = load(None, sets, {})
    assert loss_mean(config.train) == mean
    rows = {row.name: row for row in derived(config, available=2)}
    assert rows["loss"].meaning.endswith(f"; mean by {mean}")


@pytest.mark.parametrize(
    ("sets", "said"),
    [
        ([], "the policy that the engine sampled from"),
        (["staleness.proximal=recompute"], "the ratio is 1, and clipping does nothing"),
        (["staleness.proximal=recompute", "train.objective=reinforce"], "of the step itself"),
        (["staleness.proximal=recompute", "train.passes=2"], "of the step itself"),
        (["staleness.proximal=loglinear"], "interpolated between behaviour and current"),
        (["staleness.proximal=snapshot", "staleness.max_lag=7"], "≤ 7 more copies of the weights"),
        (["staleness.proximal=boundary"], "≤ 4 and mostly 1, and ≤ 32.0 KiB of scores"),
    ],
)
def test_the_table_says_what_the_proximal_policy_is_and_costs(sets: list[str], said: str) -> None:
    """32 KiB: 4 bytes for each of 32 tokens of 8 rollouts of the 2 * 16 groups that may live."""
    rows = {row.name: row for row in derived(load(None, sets, {}), available=2)}
    assert rows["proximal policy"].meaning.endswith(said)


@pytest.mark.parametrize("advantage", ["rloo", "dr_grpo"])
@pytest.mark.parametrize(
    ("credit", "said"), [("to_go", "of rewards to go"), ("below", "of rewards below each turn")]
)
def test_returns_are_said_where_they_are_compared(advantage: str, credit: str, said: str) -> None:
    sets = ["agent.run=a:b", f"train.advantage={advantage}", f"train.credit={credit}"]
    (row,) = (row for row in derived(load(None, sets, {}), 2) if row[0] == "loss")
    assert f"advantage {advantage}, by group, {said}" in " ".join(row)


@pytest.mark.parametrize(
    ("sets", "said"),
    [
        ([], "advantage rloo, by group; mean by token"),
        (["train.group_weight=paced"], "by group, groups by paced; mean by token"),
        (
            ["agent.run=a:b", "train.credit=to_go", "train.group_weight=paced"],
            "by group, of rewards to go, groups by paced; mean by token",
        ),
    ],
)
def test_weights_of_groups_are_said(sets: list[str], said: str) -> None:
    config = load(None, ["train.advantage=rloo", *sets], {})
    (row,) = (row for row in derived(config, 2) if row.name == "loss")
    assert row.meaning.endswith(said)
