"""Settings of flow and of the loss that contradict each other: `asyncrl check` refuses them in one
sentence, and starts nothing; what only does nothing, or bounds nothing, is advice.
"""

from __future__ import annotations

from itertools import chain
from pathlib import Path

import pytest

from asyncrl.cli import main
from asyncrl.config import VARIABLES, Config, load
from asyncrl.config.advice import advice
from asyncrl.config.derived import derived
from asyncrl.config.fields import FIELDS
from asyncrl.config.flow import admission_policy, max_group_size
from asyncrl.staleness.admission import AdmissionSettings, LiveGroups

FIRST_K = ("train.unit=rollout", "train.advantage=first_k")
DROP = "staleness.on_stale=drop"
ONE_FORWARD = "train.objective=one_forward"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", *VARIABLES):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def set_to(*sets: str) -> list[str]:
    return list(chain.from_iterable(("--set", text) for text in sets))


# ----------------------------------------------------------------------------------------- refused

REFUSED: dict[str, tuple[list[str], list[str], str]] = {
    "bounds in the wrong order": (
        ["staleness.correction=[{kind = 'icepop', lo = 5.0, hi = 0.2}]"],
        ["staleness.correction.icepop.lo"],
        "is 5.0, and must be a number above 0 and at most 1",
    ),
    "a band without anything in it": (
        ["staleness.correction=[{kind = 'mis', lo = 1.0, hi = 1.0}]"],
        ["staleness.correction"],
        "the band [lo, hi] of mis is empty: lower lo or raise hi",
    ),
    "a bound outside its range": (
        ["staleness.correction=[{kind = 'dppo', hi = 1.5}]"],
        ["staleness.correction.dppo.hi"],
        "is 1.5, and must be a number above 0 and at most 1",
    ),
    "a weight on top of the objective's own": (
        ["staleness.correction=token_tis", "staleness.proximal=behaviour"],
        ["staleness.proximal", "staleness.correction", "train.objective"],
        "token_tis would weight by it again",
    ),
    "more verdicts than rollouts": (
        ["rollout.k_min=9"],
        ["rollout.k_min", "rollout.group_size"],
        "a group cannot have more verdicts than rollouts: lower k_min or raise group_size",
    ),
    "more others than there are": (
        [*FIRST_K, "rollout.k_min=8"],
        ["train.unit", "rollout.k_min", "rollout.group_size"],
        "a rollout has group_size - 1 others",
    ),
    "a window that would drop what waits": (
        [DROP, "staleness.window=50"],
        ["staleness.window", "staleness.max_lag", "staleness.on_stale"],
        "set window to 49 or less, or set max_lag to 5",
    ),
    "a window where even none would do": (
        [DROP, "staleness.window=1", "staleness.depth=4", "rollout.overprovision=2"],
        ["staleness.window", "staleness.max_lag", "staleness.on_stale"],
        "lower depth or overprovision, or set max_lag to 5",
    ),
    "surplus at max_lag 0": (
        ["staleness.max_lag=0", "staleness.depth=0", "rollout.overprovision=1.5"],
        ["rollout.overprovision", "staleness.max_lag"],
        "would be too old for the next: set overprovision to 1, or raise max_lag",
    ),
    "further ahead than tokens may be old": (
        ["staleness.depth=5"],
        ["staleness.depth", "staleness.max_lag"],
        "generation that far ahead is too old before it is trained",
    ),
    "rollouts alone without a baseline of the others": (
        ["train.unit=rollout"],
        ["train.unit", "train.advantage"],
        "set advantage to first_k, or unit to group",
    ),
    "rollouts alone, and prompts that start again": (
        [*FIRST_K, "staleness.on_stale=restart"],
        ["train.unit", "staleness.on_stale"],
        "a prompt cannot restart while its rollouts are trained: set unit to group, or "
        "on_stale to mask or drop",
    ),
    "fewer rollouts for harder prompts": (
        ["rollout.sizing=difficulty", "rollout.group_size_max=7"],
        ["rollout.group_size_max", "rollout.group_size"],
        "the most rollouts of a prompt cannot be fewer than group_size: raise group_size_max",
    ),
    "one forward pass, and nothing that bounds its ratio": (
        [ONE_FORWARD, "staleness.correction=opsm,kpop,geometric_mask,age_decay"],
        ["train.objective", "staleness.correction"],
        "does not bound its ratio, and no listed correction does: list icepop, mis, k3, dppo or "
        "m2po, or set objective to clip",
    ),
    "one forward pass, and bounds on another ratio": (
        [ONE_FORWARD, "staleness.proximal=snapshot"],
        ["train.objective", "staleness.proximal"],
        "corrections bound another one, of proximal to behaviour policy: set proximal to "
        "behaviour, or objective to clip",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_check_refuses_it_in_a_sentence(
    name: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sets, keys, said = REFUSED[name]
    assert main(["check", *set_to(*sets)]) == 2
    out, err = capsys.readouterr()
    assert (
        out == "" and err.startswith("asyncrl: ") and err.endswith(".\n") and err.count("\n") == 1
    )
    assert said in err and all(f"{key} is " in err for key in keys)
    assert list(here.iterdir()) == []


@pytest.mark.parametrize(
    "sets",
    [
        [DROP, "staleness.window=49"],
        [DROP, "staleness.window=50", "staleness.max_lag=5"],
        ["staleness.window=50"],
        ["staleness.max_lag=0", "staleness.depth=0"],
        [
            "staleness.max_lag=0",
            "staleness.depth=0",
            "rollout.overprovision=1.5",
            "staleness.on_stale=train",
        ],
        [*FIRST_K, "staleness.on_stale=drop"],
        ["rollout.sizing=difficulty", "rollout.group_size_max=8"],
        ["rollout.group_size_max=1"],
        [ONE_FORWARD],
        [ONE_FORWARD, "staleness.correction=mis"],
        [ONE_FORWARD, "staleness.correction=dppo,k3"],
        [ONE_FORWARD, "staleness.correction=none", "staleness.proximal=recompute"],
    ],
)
def test_what_is_just_within_is_not_refused(sets: list[str]) -> None:
    load(None, sets, {})


@pytest.mark.parametrize("overprovision", [1, 1.3, 2])
@pytest.mark.parametrize("depth", [0, 1, 3])
def test_the_window_that_the_sentence_names_is_the_widest_that_passes(
    depth: int, overprovision: float, capsys: pytest.CaptureFixture[str]
) -> None:
    sets = [
        DROP,
        f"staleness.depth={depth}",
        f"rollout.overprovision={overprovision}",
        "train.batch_groups=7",
    ]
    if LiveGroups(AdmissionSettings(depth, 7, overprovision, window=1000)).worst_lag == 0:
        load(
            None, [*sets, "staleness.window=1000"], {}
        )  # a step needs every live group: none can be overtaken for long
        return
    assert main(["check", *set_to(*sets, "staleness.window=1000")]) == 2
    words = capsys.readouterr().err.split()
    widest = int(words[words.index("window", words.index("set")) + 2])
    load(None, [*sets, f"staleness.window={widest}"], {})
    assert main(["check", *set_to(*sets, f"staleness.window={widest + 1}")]) == 2


# ------------------------------------------------------------------------------------------ advice


def advised(*sets: str) -> dict[str, str]:
    given = list(advice(load(None, sets, {})))
    assert all(key in FIELDS for key, _ in given) and len({key for key, _ in given}) == len(given)
    return dict(given)


def test_the_defaults_and_the_main_job_need_no_advice() -> None:
    assert list(advice(Config())) == []
    assert list(advice(load(Path(__file__).parents[2] / "run.toml", [], {}))) == []


@pytest.mark.parametrize(
    ("sets", "key", "said"),
    [
        (["train.objective=gspo"], "train.objective", "hardly ever leaves [0.8, 1.28]"),
        (
            ["train.dual_clip=2"],
            "train.dual_clip",
            "does nothing: train.objective is not dual_clip",
        ),
        (
            ["train.prior_visits=1"],
            "train.prior_visits",
            "does nothing: train.advantage is not first_k",
        ),
        (
            ["train.objective=cispo", "train.clip_lo=0.1"],
            "train.clip_lo",
            "does nothing: cispo has no such bound",
        ),
        (
            ["train.objective=topr", "train.clip_hi=0.1"],
            "train.clip_hi",
            "does nothing: topr has no such bound",
        ),
        (
            ["rollout.group_size_max=20"],
            "rollout.group_size_max",
            "does nothing: rollout.sizing is fixed",
        ),
        (
            ["rollout.filter=none", "rollout.accept_floor=0.5"],
            "rollout.accept_floor",
            "does nothing: rollout.filter is none",
        ),
        (
            ["model.dtype=bfloat16", "publication.dtype=bfloat16"],
            "publication.dtype",
            "does nothing: the weights are bfloat16 anyhow",
        ),
        (
            ['engine.sglang.urls=["http://a:1"]'],
            "engine.sglang.urls",
            "does nothing: engine.kind is not sglang",
        ),
        (["train.advantage=gdpo"], "train.advantage", "this task's verifier gives one reward"),
        (
            ["train.advantage=gdpo", "task.name=jsonl", "task.path=x", "task.verifier=number"],
            "train.advantage",
            "this task's verifier gives one reward",
        ),
        (
            ["train.advantage=gdpo", "task.name=jsonl", "task.path=x", "task.verifier=mine:judge"],
            "rollout.filter",
            "groups whose rewards differ but whose sums do not are left out",
        ),
        (
            ["staleness.max_lag=0", "staleness.depth=0", "train.replay_groups=2"],
            "train.replay_groups",
            "older by the next step",
        ),
        (
            ["staleness.max_lag=0", "staleness.depth=0", "staleness.correction=icepop,age_decay"],
            "staleness.correction",
            "no trained token has a lag",
        ),
        (
            ["staleness.max_lag=0", "staleness.depth=0", "staleness.proximal=boundary"],
            "staleness.proximal",
            "clips nothing",
        ),
        (
            ["train.objective=reinforce", "staleness.correction=none"],
            "train.objective",
            "token_tis would",
        ),
        (
            ["staleness.correction=none"],
            "staleness.correction",
            "icepop or objective dual_clip would",
        ),
        (
            ["staleness.correction=dppo,age_decay"],
            "staleness.correction",
            "icepop or objective dual_clip would",
        ),
    ],
)
def test_what_does_nothing_or_bounds_nothing_is_said(sets: list[str], key: str, said: str) -> None:
    assert said in advised(*sets)[key]


@pytest.mark.parametrize(
    "sets",
    [
        ["train.objective=gspo", "train.clip_lo=3e-4", "train.clip_hi=4e-4"],
        ["train.objective=gspo", "train.clip_lo=3e-4"],
        ["train.objective=dual_clip", "train.dual_clip=2", "staleness.correction=none"],
        [*FIRST_K, "train.prior_visits=1"],
        ["train.clip_lo=0.1", "train.clip_hi=0.1"],
        ["rollout.sizing=difficulty", "rollout.group_size_max=20"],
        [
            "train.advantage=gdpo",
            "task.name=jsonl",
            "task.path=x",
            "task.verifier=mine:judge",
            "rollout.filter=none",
        ],
        ["train.replay_groups=2", "staleness.correction=icepop,age_decay"],
        ["staleness.max_lag=0", "staleness.depth=0"],
        ["staleness.proximal=boundary", "staleness.correction=none"],
        ["train.objective=reinforce"],
        [
            "staleness.max_lag=0",
            "staleness.depth=0",
            "train.objective=reinforce",
            "staleness.correction=none",
        ],
    ],
)
def test_what_is_chosen_with_what_it_is_for_needs_no_advice(sets: list[str]) -> None:
    assert advised(*sets) == {}


# --------------------------------------------------------------------------------------- the table


def test_check_shows_advice_below_what_follows_and_goes_on(
    capsys: pytest.CaptureFixture[str],
) -> None:
    sets = ["task.train_size=20", "task.eval_size=4", "train.objective=gspo", "train.dual_clip=2"]
    assert main(["check", *set_to(*sets)]) == 0
    out = capsys.readouterr().out
    assert out.index("Prometheus") < out.index("note") and "hardly ever leaves" in " ".join(
        out.split()
    )
    assert out.endswith("This configuration can run.\n")


@pytest.mark.parametrize(
    ("sets", "name", "value", "meaning"),
    [
        ([], "loss", "clip", "ratio clipped to [0.8, 1.28]; advantage grpo, by group"),
        (
            ["train.objective=dual_clip"],
            "loss",
            "dual_clip",
            "and at 3 where the advantage is negative; advantage grpo",
        ),
        (
            ["train.objective=cispo", *FIRST_K],
            "loss",
            "cispo",
            "weight ≤ 1.28; advantage first_k, by rollout",
        ),
        ([], "correction", "icepop", "selects tokens; the objective's own ratio weights them"),
        (
            ["staleness.correction=k3,age_decay"],
            "correction",
            "k3, age_decay",
            "selects tokens; the objective's own ratio weights them",
        ),
        (
            ["staleness.correction=none"],
            "correction",
            "none",
            "no token is left out or weighs less",
        ),
        (["staleness.correction=age_decay"], "correction", "age_decay", "weighs by age"),
        (
            ["staleness.proximal=boundary"],
            "correction",
            "icepop",
            "kept tokens are weighted by their ratio",
        ),
        (["train.step_tokens=5000"], "rollouts per step", "by their tokens", "groups of 8"),
        (
            ["train.keep=roc", "rollout.group_size=16"],
            "rollouts trained",
            "≤ 128",
            "8 of each group, chosen by roc",
        ),
        (
            ["train.keep=top", "train.keep_members=5"],
            "rollouts trained",
            "≤ 80",
            "5 of each group, chosen by top",
        ),
        (
            ["train.keep=top", "rollout.sizing=difficulty"],
            "rollouts trained",
            "≤ 128",
            "4 to 8 of each group, chosen by top",
        ),
        (["task.curriculum=difficulty"], "curriculum", "difficulty", "chooses the next prompt"),
        (
            ["train.step_tokens=5000"],
            "response tokens per step",
            "≥ 5,000",
            "they close a step, instead of batch_groups",
        ),
        (
            ["rollout.sizing=difficulty"],
            "rollouts per step",
            "≤ 256",
            "16 groups of 8 to 16, as difficulty says",
        ),
        (["rollout.sizing=difficulty"], "response tokens per step", "≤ 8,192", "32 a rollout"),
        (
            [],
            "lag, worst",
            "4",
            "older tokens are left out of the loss; no window: the oldest finished first",
        ),
        (
            [DROP, "staleness.window=49"],
            "lag, worst",
            "4",
            "group of older tokens is dropped; with this window none is older than 4",
        ),
        (
            ["rollout.filter=none", "staleness.window=17"],
            "lag, worst",
            "2",
            "with this window none is older than 2",
        ),
        (
            ["staleness.window=17"],
            "lag, worst",
            "4",
            "with this window none is older than 4",
        ),  # where a filter has more groups started
        (
            ["staleness.window=50", "rollout.filter=none"],
            "lag, worst",
            "4",
            "with this window some may be 5 old",
        ),
        (
            ["rollout.filter=none", "train.step_tokens=4096", "staleness.window=1"],
            "lag, worst",
            "1",
            "none is older than 1",
        ),
        (
            ["rollout.filter=none", "train.step_tokens=2048", "staleness.window=1"],
            "lag, worst",
            "3",
            "none is older than 3",
        ),
        (
            ["staleness.on_stale=train"],
            "lag, worst",
            "no bound",
            "old tokens are trained; no window",
        ),
        (
            ["staleness.on_stale=train", "staleness.window=1", "rollout.filter=none"],
            "lag, worst",
            "1",
            "with this window none is older than 1",
        ),
        (
            ["staleness.on_stale=restart"],
            "lag, worst",
            "4",
            "the prompt of older tokens restarts",
        ),
    ],
)
def test_the_table_says_what_is_minimized_and_what_a_step_has(
    sets: list[str], name: str, value: str, meaning: str
) -> None:
    rows = {row.name: row for row in derived(load(None, sets, {}), available=2)}
    assert rows[name].value == value and meaning in rows[name].meaning


@pytest.mark.parametrize(("step_tokens", "most"), [(0, 80), (4096, 80), (2048, 40), (1, 32)])
def test_no_more_groups_are_started_for_filtered_ones_than_small_steps_train_in_time(
    step_tokens: int, most: int
) -> None:
    """Within a max_lag of 4: five steps, which have 16 groups, or as few as their tokens need of
    the longest (8 * 32 tokens)."""
    config = load(None, [f"train.step_tokens={step_tokens}"], {})
    assert admission_policy(config).max_live_filtered == most


def test_rollouts_that_live_are_counted_at_their_most() -> None:
    config = load(None, ["rollout.sizing=difficulty"], {})
    rows = {row.name: row for row in derived(config, available=2)}
    assert max_group_size(config) == 16
    live = admission_policy(config).max_live * 16
    assert f"; {live:,} rollouts" in rows["groups live"].meaning
