"""Any input gives a Config or a ConfigError of one sentence; sources have their order; write and
read are inverse."""

from __future__ import annotations

import contextlib
import os
import string
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
import tomli_w
from hypothesis import example, given
from hypothesis import strategies as st

from asyncrl.config import VARIABLES, Config, ConfigError, load, read, render, write
from asyncrl.config.fields import FIELDS, SECTIONS, lookup
from asyncrl.config.pages import pages
from asyncrl.config.schema import TaskConfig
from asyncrl.config.schema.section import EVERY

KEYS = sorted(FIELDS)
SCALAR_KEYS = [key for key in KEYS if not FIELDS[key].is_table]


def refusal(path: Path | None = None, *sets: str, **environ: str) -> str:
    """The one sentence that this input is refused with."""
    with pytest.raises(ConfigError) as caught:
        load(path, sets, environ)
    return sentence(caught.value)


def sentence(error: ConfigError) -> str:
    text = str(error)
    assert text.endswith(".") and text.isprintable()
    return text


@pytest.fixture
def toml(tmp_path: Path) -> Any:
    def put(text: str | bytes) -> Path:
        path = tmp_path / "run.toml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return put


# ----------------------------------------------------------------------------------------- sources


def test_a_path_may_start_at_home(toml: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """No shell expands `--set task.path=~/x`, nor run.toml."""
    monkeypatch.setenv("HOME", "/home/ann")
    task = "name = 'jsonl'\npath = '~/data.jsonl'\ntemplate = '~/{question}'\n"
    path = toml(f"[task]\n{task}[agent]\npaths = ['~', 'x']\n")
    config = load(path, ["model.path=~/m", "run.copy=s3://bucket//run"], {})
    assert (config.task.path, config.task.template) == ("/home/ann/data.jsonl", "~/{question}")
    assert (config.model.path, config.agent.paths) == ("/home/ann/m", ("/home/ann", "x"))
    assert config.run.copy == "s3://bucket//run"
    assert TaskConfig(eval_path="~/held").eval_path == "/home/ann/held"


def test_nothing_said_is_the_defaults() -> None:
    assert load(None, (), {"HOME": "/", "XASYNCRL_DEPTH": "3"}) == Config()


def test_set_wins_over_variable_over_file_over_default(toml: Any) -> None:
    path = toml("[staleness]\nmax_lag = 6\ndepth = 2\n[run]\nlog = 'error'\n")
    config = load(path, ["staleness.max_lag=8"], {"ASYNCRL_MAX_LAG": "7", "ASYNCRL_DEPTH": "3"})
    assert (config.staleness.max_lag, config.staleness.depth, config.run.log, config.run.seed) == (
        8,
        3,
        "error",
        0,
    )


def test_the_last_of_two_sets_wins() -> None:
    assert load(None, ["train.steps=3", "train.steps=4"], {}).train.steps == 4


@pytest.mark.parametrize("variable", VARIABLES)
def test_every_variable_sets_its_setting(variable: str) -> None:
    field = FIELDS[VARIABLES[variable]]
    other = {
        "ASYNCRL_ENGINE": "scripted",
        "ASYNCRL_MAX_LAG": 9,
        "ASYNCRL_DEPTH": 2,
        "ASYNCRL_LEASE_S": 1.5,
        "ASYNCRL_JOURNAL_MS": 7,
        "ASYNCRL_WINDOW": 5,
        "ASYNCRL_OVERPROVISION": 1.5,
        "ASYNCRL_METRICS_PORT": 9100,
        "ASYNCRL_CORRECTION": "none",
    }
    value = other.get(variable) or (field.choices[-1] if field.choices else "some/where")
    assert value != lookup(Config(), field.key)
    assert lookup(load(None, (), {variable: str(value)}), field.key) == (
        () if value == "none" else value
    )


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ("train.lr=1", "train.lr", 1.0),
        ("train.lr=1e-5", "train.lr", 1e-5),
        (" train.steps = 5 ", "train.steps", 5),
        ("task.chat=true", "task.chat", True),
        ("task.name=leg_counting", "task.name", "leg_counting"),
        ("run.dir=2024", "run.dir", "2024"),
        ("run.dir=true", "run.dir", "true"),
        ('run.dir="a b"', "run.dir", "a b"),
        ("run.dir=a=b", "run.dir", "a=b"),
        ("run.dir=", "run.dir", ""),
        ("staleness.on_stale=drop", "staleness.on_stale", "drop"),
        ("task.params.n=3", "task.params", {"n": 3}),
        ("task.params.word=hello", "task.params", {"word": "hello"}),
        ("task.params.list=[1, 2]", "task.params", {"list": [1, 2]}),
        ("task.params.a.b=0.5", "task.params", {"a": {"b": 0.5}}),
        ("task.params={x = 1}", "task.params", {"x": 1}),
    ],
)
def test_set_takes_toml_values_and_bare_strings(text: str, key: str, value: object) -> None:
    config = load(None, [text, "model.path=/m"] if "chat" in text else [text], {})
    assert lookup(config, key) == value and type(lookup(config, key)) is type(value)


def test_a_free_table_grows_by_its_names(toml: Any) -> None:
    path = toml("[task.params]\na = 1\nb = 2\n[task.params.c]\nd = 3\n")
    config = load(path, ["task.params.b=7", "task.params.c.e=8"], {})
    assert config.task.params == {"a": 1, "b": 7, "c": {"d": 3, "e": 8}}


def test_another_task_does_not_inherit_params(toml: Any) -> None:
    path = toml("[task]\nname = 'spell_backward'\nparams = {min_word_len = 3}\n")
    assert load(path, ["task.name=chain_sum"], {}).task.params == {}
    assert load(path, ["task.params.max_terms=3", "task.name=chain_sum"], {}).task.params == {
        "max_terms": 3
    }
    assert load(path, ["task.name=spell_backward"], {}).task.params == {"min_word_len": 3}


# ---------------------------------------------------------------------------------------- refusals


def test_unknown_names_are_refused_with_the_nearest(toml: Any) -> None:
    assert "nearest is train.steps." in refusal(toml("[train]\nstesp = 3"))
    assert "nearest is train.steps." in refusal(toml("[trian]\nsteps = 3"))
    assert "nearest is train.steps." in refusal(toml("steps = 3"))
    assert "nearest is rollout.group_size." in refusal(None, "train.group_size=3")
    assert "nearest is staleness.max_lag." in refusal(None, "staleness.maxlag=3")
    assert (
        refusal(ASYNCRL_MAXLAG="3")
        == "ASYNCRL_MAXLAG: there is no such variable; the nearest is ASYNCRL_MAX_LAG."
    )
    assert "nearest is warning." in refusal(None, "run.log=warn")


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[train]\nsteps = 'x'", "must be a whole number at least 1"),
        ("[train]\nsteps = 1.5", "train.steps is 1.5"),
        ("[train]\nsteps = true", "train.steps is true"),
        ("[train]\nsteps = 0", "train.steps is 0"),
        ("[train]\nsteps = -1000", "train.steps is -1000"),
        ("[train]\nsteps = 99999999999999999999", "64 bits"),
        (f"[train]\nsteps = {10**400}", "train.steps does not fit in 64 bits, and must be a whole"),
        (
            f"[train]\nsteps = {'9' * 5000}",
            "not TOML that can be read: a number in it has too many digits.",
        ),
        (f"[train]\nsteps = 0x{'f' * 5000}", "train.steps does not fit in 64 bits"),
        (f"[train]\nlr = {10**400}", "which is too large to compute with, and must be a number"),
        (f"[train]\nlr = 0x{'f' * 5000}", "lr is a number of thousands of digits, which is too l"),
        (f"[task]\nname = {10**400}", "task.name is 1000000000"),
        (f"[run]\nlog = {10**400}", "run.log is 1000000000"),
        (f"[task]\nparams = {{a = [0x{'f' * 5000}]}}", "a number that does not fit in 64 bits"),
        (f"[engine.sglang]\nlaunch = [0x{'f' * 5000}]", "is a value with thousands of digits, and"),
        ("[rollout]\noverprovision = 1e308", "must be a number at least 1 and at most 1000"),
        ("[train]\nlr = nan", "train.lr is nan"),
        ("[train]\nlr = inf", "train.lr is inf"),
        ("[train]\nbeta1 = 1.0", "at least 0 and below 1"),
        ("[task]\nname = 3", "must be a string"),
        ('[task]\nname = "a\\u0000b"', "not text"),
        ("[task]\nparams = 3", "must be a table"),
        ("[task]\nparams = {a = 1979-05-27}", "a date"),
        ("[task]\nparams = {a = [nan]}", "nan at a"),
        ("train = 3", "write [train]"),
        ("[[train]]\nsteps = 3", "write [train]"),
        ("[train.steps]\nx = 3", "must be a whole number"),
    ],
)
def test_wrong_values_are_refused_with_what_is_allowed(toml: Any, text: str, named: str) -> None:
    said = refusal(path := toml(text))
    assert said.startswith(f"{path}: ") and named in said


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("[train]\n\nsteps 3", ":3: "),
        ("[train]\nsteps = 1\nsteps = 2\n", ":3: "),
        ("[train]\nsteps = [", ", at its end: "),
        (b"\xff\xfe", ": "),
        ("x = " + "[" * 5000, ": "),
        ("x = " + "1" * 5000, ": "),
    ],
)
def test_what_is_not_toml_is_refused_with_its_line(
    toml: Any, text: str | bytes, place: str
) -> None:
    path = toml(text)
    assert refusal(path).startswith(f"{path}{place}this is not TOML")


@pytest.mark.parametrize("count", [40, 150, 20_000])
@pytest.mark.parametrize("key", ["task.params.x", "task.mix", "train.steps"])
def test_names_within_names_have_an_end(toml: Any, key: str, count: int) -> None:
    """They were followed until Python had no more room for it, and read in quadratic time."""
    began, names = time.process_time(), ".a" * count
    inside = "{a=" * 40 + "1" + "}" * 40
    texts = (f"{key}{names}=1", f"[{key}{names}]\nx=1", f"{key} = {inside}")
    for said in (*map(refusal, map(toml, texts)), refusal(None, f"{key}{names}=1")):
        assert "more than 32" in said or "has no end" in said or "no further settings" in said
    assert time.process_time() - began < 5


def test_a_long_name_is_compared_in_no_time(toml: Any) -> None:
    began, name = time.process_time(), "x" * 2**19
    for text in (f"{name}=1", f"[task]\n{name}=1", f"[engine]\nkind='{name}'"):
        assert "the nearest is " in refusal(toml(text))
    assert time.process_time() - began < 5


def test_what_an_editor_or_a_quoted_name_does_to_a_file_is_said(toml: Any) -> None:
    assert load(toml(b"\xef\xbb\xbf[train]\nsteps = 3\n"), [], {}).train.steps == 3
    said = refusal(toml('"task.name" = "gcd"\n'))
    assert "'task.name' is one name in quotes: write task.name without them" in said
    assert "there is no section ''" in refusal(toml('[""]\nsteps = 3\n'))


def test_a_file_without_an_end_is_not_read(tmp_path: Path) -> None:
    """It was read until memory was gone."""
    with (tmp_path / "run.toml").open("wb") as file:
        file.truncate(2**42)
    assert "cannot be read (larger than" in refusal(tmp_path / "run.toml")


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    assert "cannot be read (No such file or directory)" in refusal(tmp_path / "none.toml")
    assert "cannot be read (Is a directory)" in refusal(tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        "train.steps",
        "train",
        "train=3",
        "",
        "=",
        ".=1",
        "steps=3",
        "train.steps=",
        "train.steps=1\n[run]\nseed=2",
        "train.steps.x=1",
        "task.params.=1",
        "task.params.a..b=1",
    ],
)
def test_malformed_sets_are_refused(text: str) -> None:
    assert refusal(None, text).startswith("--set ")


def test_an_agent_has_room_unless_a_size_is_set(tmp_path: Path) -> None:
    """Also the agents of a game; and what is written is read back."""
    agent = "agent.run=http"
    for sets, sizes in (
        ([agent], (2048, 512)),
        ([], (256, 32)),
        ([agent, "engine.context_tokens=96"], (96, 32)),
        ([agent, "rollout.max_new_tokens=64"], (256, 64)),
    ):
        config = load(None, sets, {})
        assert (config.engine.context_tokens, config.rollout.max_new_tokens) == sizes
        write(config, tmp_path / "run.toml")
        assert read(tmp_path / "run.toml") == config
    said = refusal(None, agent, "train.micro_tokens=512")
    assert "engine.context_tokens is 2048 (the default with an agent)" in said


@pytest.mark.parametrize(
    ("sets", "steps"),
    [([], 0), (["model.warmup_steps=5", "model.path=org/name"], 5), (["model.path=org/name"], 600)],
)
def test_seeds_have_no_answers_to_learn_from(sets: list[str], steps: int) -> None:
    """So the bundled model starts untrained, unless that is asked for, which is refused."""
    seeds = ["task.name=seeds", "agent.run=mine:solve"]
    assert load(None, [*seeds, *sets], {}).model.warmup_steps == steps
    with pytest.raises(ConfigError, match="no answers to learn from"):
        load(None, [*seeds, "model.warmup_steps=5"], {})


def test_a_free_value_is_no_table() -> None:
    assert "task.params.a is 1" in refusal(None, "task.params.a=1", "task.params.a.b=2")


def test_an_environment_that_is_not_utf8() -> None:
    assert refusal(ASYNCRL_RUN_DIR="runs/\udcff").startswith("ASYNCRL_RUN_DIR: run.dir is ")


@pytest.mark.parametrize(
    ("sets", "keys"),
    [
        (["rollout.k_min=9"], ("rollout.k_min", "rollout.group_size")),
        (["rollout.group_size=1", "rollout.k_min=1"], ("rollout.filter", "rollout.group_size")),
        (["rollout.max_new_tokens=256"], ("engine.context_tokens", "rollout.max_new_tokens")),
        (
            ["rollout.truncated=penalize", "rollout.overlong_band=33"],
            ("rollout.overlong_band", "rollout.max_new_tokens"),
        ),
        (["train.micro_tokens=255"], ("train.micro_tokens", "engine.context_tokens")),
        (["staleness.depth=5"], ("staleness.depth", "staleness.max_lag")),
        (["staleness.max_lag=0"], ("staleness.depth", "staleness.max_lag")),
        (
            ["machine.cores=2", "machine.trainer_cores=2"],
            ("machine.trainer_cores", "machine.cores"),
        ),
        (["supervision.stall_s=10"], ("supervision.stall_s", "task.verdict_s")),
        (["task.name=jsonl"], ("task.name", "task.path")),
        (["task.name=jsonl", "task.path=x", "task.params.a=1"], ("task.name", "task.params")),
        (["task.path=x"], ("task.name", "task.path")),
        (["task.eval_path=x"], ("task.name", "task.eval_path")),
        (["task.verifier=number"], ("task.name", "task.verifier")),
        (["task.verifier=mine:judge"], ("task.name", "task.verifier")),
        (["task.chat=true"], ("task.chat", "model.path")),
        (["task.template=Say it."], ("task.template",)),
        (["evaluation.pass_at=[1]"], ("evaluation.pass_at", "evaluation.samples")),
        (
            ["evaluation.samples=4", "evaluation.pass_at=[2, 5]"],
            ("evaluation.pass_at", "evaluation.samples"),
        ),
        (["evaluation.samples=4", "task.eval_size=0"], ("evaluation.samples", "task.eval_size")),
    ],
)
def test_impossible_combinations_name_both_settings(sets: list[str], keys: tuple[str, ...]) -> None:
    said = refusal(None, *sets)
    assert all(key in said for key in keys)
    assert "--set " in said


@pytest.mark.parametrize(
    "sets",
    [
        ["rollout.k_min=8"],
        ["rollout.group_size=1", "rollout.k_min=1", "rollout.filter=none"],
        ["rollout.max_new_tokens=255"],
        ["train.micro_tokens=256"],
        ["staleness.depth=4"],
        ["staleness.max_lag=0", "staleness.depth=0"],
        ["staleness.depth=9", "staleness.on_stale=train"],
        ["machine.cores=1", "machine.trainer_cores=1"],
        ["machine.cores=2", "machine.trainer_cores=1"],
        ["task.name=jsonl", "task.path=x", "task.eval_path=y"],
        ["task.chat=true", "model.path=x", "task.template="],
    ],
)
def test_possible_combinations_at_the_edge_pass(sets: list[str]) -> None:
    load(None, sets, {})


# -------------------------------------------------------------------------------------- properties

plain = st.recursive(
    st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=6,
)
anything = plain | st.floats() | st.integers() | st.datetimes() | st.dates() | st.times()


@given(key=st.sampled_from(KEYS), value=anything)
def test_any_value_of_any_setting_gives_a_config_or_one_sentence(
    key: str, value: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path, tree = tmp_path_factory.getbasetemp() / "any.toml", value
    for name in reversed(key.split(".")):
        tree = {name: tree}
    with contextlib.suppress(UnicodeEncodeError):  # TOML has no lone surrogates
        path.write_bytes(tomli_w.dumps(tree).encode())
        try:
            config = load(path, (), {})
        except ConfigError as error:
            sentence(error)
        else:
            assert lookup(config, key) == (tuple(value) if isinstance(value, list) else value)


@given(key=st.sampled_from(SCALAR_KEYS), data=st.data())
def test_a_value_of_the_wrong_type_is_always_refused(key: str, data: st.DataObject) -> None:
    kind = FIELDS[key].kind
    wrong = {
        int: ["x", "1.5", "true", "[1]"],
        float: ["x", "true", "[1.0]"],
        bool: ["1", "yes", "True"],
    }.get(kind, [])
    if FIELDS[key].choices:
        wrong = data.draw(
            st.lists(
                st.text(string.ascii_letters, min_size=10, max_size=12), min_size=1, max_size=1
            )
        )
    for text in wrong:
        assert key in refusal(None, f"{key}={text}")


@pytest.mark.parametrize("key", [key for key in SCALAR_KEYS if FIELDS[key].kind in (int, float)])
def test_values_outside_the_range_are_refused(key: str) -> None:
    """The bounds as msgspec's own schema gives them, not as our reading of them does."""
    node = msgspec.json.schema(FIELDS[key].hint)
    integer = node["type"] == "integer"
    outside = [
        node["minimum"] - 1 if "minimum" in node else None,
        node["maximum"] + 1 if "maximum" in node else None,
        node.get("exclusiveMinimum"),
        node.get("exclusiveMaximum"),
    ]
    found = [value for value in outside if value is not None]
    assert found, f"{key} has no range"
    for value in found:
        text = refusal(None, f"{key}={int(value) if integer else float(value)!r}")
        assert key in text and FIELDS[key].allowed in text


@given(
    key=st.sampled_from(KEYS),
    place=st.integers(0, 40),
    letter=st.sampled_from(string.ascii_lowercase + "_"),
)
@example(key="train.steps", place=0, letter="x")
def test_any_misspelled_key_is_refused_with_a_key_that_exists(
    key: str, place: int, letter: str
) -> None:
    section, _, name = key.rpartition(".")
    wrong = name[: place % len(name)] + letter + name[place % len(name) :]
    if f"{section}.{wrong}" not in FIELDS:
        said = refusal(None, f"{section}.{wrong}=1")
        assert said.removesuffix(".").rpartition(" ")[2] in FIELDS


@given(text=st.text(max_size=60))
def test_any_text_is_a_config_or_one_sentence(text: str) -> None:
    for sets, environ in (
        ([text], {}),
        ([f"task.params.{text}"], {}),
        ([], {f"ASYNCRL_{text}": text}),
        ([], {"ASYNCRL_MAX_LAG": text}),
    ):
        try:
            load(None, sets, environ)
        except ConfigError as error:
            sentence(error)


@given(raw=st.binary(max_size=60))
def test_any_bytes_are_a_config_or_one_sentence(
    raw: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "bytes.toml"
    path.write_bytes(raw)
    try:
        load(path, (), {})
    except ConfigError as error:
        sentence(error)


# ---------------------------------------------------------------------------------- write and read


@given(
    params=st.dictionaries(st.text(max_size=8), plain, max_size=3),
    template=st.text(max_size=20),
    lr=st.floats(1e-12, 1e12),
)
def test_read_is_the_inverse_of_write(
    params: dict[str, Any], template: str, lr: float, tmp_path_factory: pytest.TempPathFactory
) -> None:
    try:
        config = msgspec.structs.replace(
            Config(),
            task=msgspec.structs.replace(
                Config().task, params=params, template=template + "{question}"
            ),
            train=msgspec.structs.replace(Config().train, lr=lr),
        )
        path = tmp_path_factory.getbasetemp() / "written.toml"
        write(config, path)
        assert read(path) == config
    except (UnicodeEncodeError, ConfigError):
        assert (
            "\0" in template + repr(params)
            or "\\x00" in repr(params)
            or any("\ud800" <= c <= "\udfff" for c in template + str(params))
        )


def test_write_leaves_one_file_and_replaces(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    write(Config(), path)
    other = load(None, ["train.steps=3", "task.params.deep.er=1"], {})
    write(other, path)
    assert read(path) == other and list(tmp_path.iterdir()) == [path]


def test_a_file_has_its_name_when_all_of_it_is_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, forced = tmp_path / "run.toml", list[int]()

    def fsync(descriptor: int) -> None:
        assert not path.exists()
        forced.append(os.fstat(descriptor).st_size)

    monkeypatch.setattr(os, "fsync", fsync)
    # A text longer than a buffer would be on its way before it is flushed.
    monkeypatch.setattr(sys.modules[write.__module__], "render", lambda config, folder: "[run]\n")
    write(Config(), path)
    assert forced == [6] and path.read_text() == "[run]\n"


def test_the_written_file_explains_every_setting() -> None:
    lines = render(Config()).splitlines()
    for field in FIELDS.values():
        section = lines.index(f"[{field.section}]")
        place = next(
            i
            for i, line in enumerate(lines)
            if i > section and line.startswith((f"{field.name} = ", f"[{field.key}]"))
        )
        assert field.description and lines[place - 1].startswith(f"# {field.description}")


def test_the_pages_that_are_written_from_the_schema_are_as_it_says() -> None:
    for path, text in pages().items():
        assert path.read_text() == text, "run `make pages`"


def test_a_number_that_cannot_be_read_is_said_to_be_one() -> None:
    """It was called a text, and in a free table became one."""
    for key in ("train.steps", "train.lr", "task.params.a"):
        said = refusal(None, f"{key}={'1' * 5000}")
        assert ": a number in it has too many digits, and it must be " in said
    assert load(None, ["run.dir=" + "1" * 5000], {}).run.dir == "1" * 5000


def test_a_whole_number_may_be_any_float() -> None:
    """One beyond 64 bits was refused where a number is asked for."""
    assert load(None, [f"supervision.stall_s={10**20}"], {}).supervision.stall_s == 1e20
    assert "has a number" not in refusal(None, f"supervision.stall_s={-(10**20)}")


def test_whole_numbers_of_a_free_table_have_64_bits(toml: Any) -> None:
    path = toml("[task]\nname = 'spell_backward'\nparams = {a = [-9223372036854775808]}\n")
    assert load(path, [], {}).task.params == {"a": [-(2**63)]}
    assert "64 bits" in refusal(toml("[task]\nparams = {a = [9223372036854775808]}"))
    assert "64 bits" in refusal(toml("[task]\nparams = {a = [-9223372036854775809]}"))


def test_what_a_resume_may_change_are_settings():
    for name, section in SECTIONS.items():
        for setting in section.resumable:
            assert section.resumable == EVERY or f"{name}.{setting}" in FIELDS
