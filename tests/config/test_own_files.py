"""Code in a file that a setting names: `./rewards.py:judge`."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.config import Config, ConfigError, load, read, write
from asyncrl.config.own_files import absolute, located, split
from asyncrl.config.plugins import load_named
from asyncrl.config.schema import TaskConfig
from asyncrl.config.strategies import StrategyError, blamed
from asyncrl.tasks import TaskError, open_task

Put = Callable[[str, str], Path]

JUDGE = "def judge(answer, line):\n    return 0.5\n"


@pytest.fixture
def put(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Put]:
    """Writes a file below a folder that is not the current one."""
    before = set(sys.modules)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")

    def write_file(name: str, text: str) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    yield write_file
    for name in set(sys.modules) - before:
        if name.startswith(str(tmp_path)):
            del sys.modules[name]


def refusal(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_named(text, "verifier")
    said = str(caught.value)
    assert said.isprintable()
    return said


@pytest.mark.parametrize(
    ("key", "table"),
    [
        ("task.verifier", '[task]\nname = "jsonl"\npath = "a"\nverifier = "{}"'),
        ("task.curriculum", '[task]\ncurriculum = "{}"'),
        ("rollout.sizing", '[rollout]\nsizing = "{}"'),
        ("agent.run", '[agent]\nrun = "{}"'),
        (
            "task.mix",
            '[task.mix.a]\nname = "jsonl"\npath = "a"\nverifier = "{}"\n[task.weights]\na = 1',
        ),
    ],
)
def test_a_file_of_run_toml_is_found_from_its_folder_and_another_from_here(
    put: Put, tmp_path: Path, key: str, table: str
) -> None:
    toml = put("mine/run.toml", table.replace("{}", "./code/own.py:Name"))
    expected = str(tmp_path / "mine/code/own.py:Name")
    config = load(toml, (), {})
    assert expected in repr(value(config, key))
    write(config, tmp_path / "copy.toml")
    assert value(read(tmp_path / "copy.toml"), key) == value(config, key), "as a resume reads it"
    if key != "task.mix":
        config = load(toml, [f"{key}=../up.py:Other"], {})
        assert value(config, key) == str(tmp_path / "up.py:Other")
        config = load(toml, [f"{key}=./up.py:Other"], {})
        assert value(config, key) == str(tmp_path / "here/up.py:Other")


def value(config: Config, key: str) -> Any:
    section, _, name = key.partition(".")
    return getattr(getattr(config, section), name)


def test_settings_of_python_are_found_from_the_current_directory(put: Put, tmp_path: Path) -> None:
    assert TaskConfig(verifier="./a.py:f").verifier == str(tmp_path / "here/a.py:f")
    mixed = TaskConfig(mix={"a": {"verifier": "../a.py:f"}}, weights={"a": 1.0})
    assert mixed.mix["a"]["verifier"] == str(tmp_path / "a.py:f")


def test_a_correction_of_a_file_is_one(put: Put, tmp_path: Path) -> None:
    put(
        "mine/own.py",
        "from asyncrl.staleness.corrections import Correction, Corrected\n"
        "class Own(Correction, frozen=True):\n"
        "    hi: float = 2.0\n"
        "    def apply(self, tokens, mask):\n"
        "        return Corrected(mask.float(), mask, {})\n",
    )
    toml = put("mine/run.toml", '[staleness]\ncorrection = [{ kind = "./own.py:Own", hi = 3.0 }]\n')
    config = load(toml, (), {})
    assert config.staleness.correction[0].table() == {
        "kind": str(tmp_path / "mine/own.py:Own"),
        "hi": 3.0,
    }
    assert config.staleness.correction[0].kind == "own.py:Own", "reasons and metrics have no path"
    write(config, tmp_path / "copy.toml")
    assert read(tmp_path / "copy.toml").staleness == config.staleness
    listed = load(None, ["staleness.correction=../mine/own.py:Own, icepop"], {})
    assert [type(one).__name__ for one in listed.staleness.correction] == ["Own", "IcePop"]


def test_two_files_of_one_name_are_two_modules_and_so_are_those_beside_them(put: Put) -> None:
    for name in "ab":
        put(f"{name}/helper.py", f"WHERE = {name!r}")
        put(f"{name}/parts/__init__.py", f"from . import inner\nHERE = {name!r}")
        put(f"{name}/parts/inner.py", f"DEEP = {name!r}")
        put(
            f"{name}/rewards.py",
            "import helper\nimport parts.inner\nfrom parts import HERE, inner\n"
            "from helper import WHERE\nimport os.path\n"
            "def judge(answer, line):\n"
            "    import helper as late\n"
            "    return [WHERE, helper.WHERE, late.WHERE, parts.inner.DEEP, inner.DEEP, HERE]\n",
        )
    for name in "ab":
        judge = load_named(absolute(f"../{name}/rewards.py:judge"), "verifier")
        assert judge("", {}) == [name] * 6
        assert load_named(absolute(f"../{name}/rewards.py:judge"), "verifier") is judge
    assert "helper" not in sys.modules and "parts" not in sys.modules


def test_a_folder_is_seen_by_its_own_file_alone_and_hides_nothing_of_python(put: Put) -> None:
    put("mine/json.py", "1 / 0")
    put("mine/asyncrl.py", "1 / 0")
    put("mine/notes_of_mine/data.txt", "no package")
    put(
        "mine/own.py",
        "import json\nimport asyncrl\ntry:\n    import notes_of_mine\nexcept ImportError:\n"
        "    seen = json.dumps(False)\n",
    )
    assert load_named(absolute("../mine/own.py:seen"), "verifier") == "false"
    assert str(absolute("../mine/own.py").rpartition("/")[0]) not in sys.path


def test_what_is_no_file_of_code_is_a_sentence(put: Put, tmp_path: Path) -> None:
    path = put("mine/rewards.py", f"import math\n{JUDGE}")
    (tmp_path / "mine/folder.py").mkdir()
    os.mkfifo(tmp_path / "mine/pipe.py")
    put("mine/broken.py", "def judge(answer, line)\n    return 1\n")
    put("mine/raises.py", "\n\n1 / 0\n")
    put("mine/needs.py", "import no_such_package\n")
    put("mine/bytes.py", "")
    (tmp_path / "mine/bytes.py").write_bytes(b"a = '\xff'\n")
    folder = path.parent
    assert "the nearest is rewards.py" in refusal(f"{folder}/reward.py:judge")
    assert "no regular file" in refusal(f"{folder}/folder.py:judge")
    assert "no regular file" in refusal(f"{folder}/pipe.py:judge")
    assert "broken.py, line 1" in refusal(f"{folder}/broken.py:judge")
    assert "line 3: ZeroDivisionError" in refusal(f"{folder}/raises.py:judge")
    assert "no_such_package" in refusal(f"{folder}/needs.py:judge")
    assert "SyntaxError" in refusal(f"{folder}/bytes.py:judge")
    assert "did you mean judge?" in refusal(f"{folder}/rewards.py:jugde")
    put("mine/raises.py", JUDGE)
    assert load_named(f"{folder}/raises.py:judge", "verifier")("", {}) == 0.5, "it is read again"


@pytest.mark.parametrize("text", ["rewards:judge", "rewards.py:judge"])
def test_a_module_whose_file_lies_beside_run_toml_is_told_how_to_be_named(
    put: Put, text: str
) -> None:
    put("mine/rewards.py", JUDGE)
    for table in (
        f'[task]\nname = "jsonl"\nverifier = "{text}"',
        f'[task.mix.a]\nname = "jsonl"\nverifier = "{text}"',
        f'[agent]\nrun = "{text}"',
        f'[staleness]\ncorrection = [{{ kind = "{text}" }}]',
    ):
        with pytest.raises(ConfigError, match=r"beside run\.toml, write \./rewards\.py:judge\."):
            load(put("mine/run.toml", table), (), {})
    put("here/rewards.py", JUDGE)
    with pytest.raises(ConfigError, match=r"lies here, write \./rewards\.py:judge\."):
        load(None, [f"task.verifier={text}"], {})


def test_a_run_judges_by_a_file_and_a_line_names_no_other(put: Put, tmp_path: Path) -> None:
    put("mine/rewards.py", f"{JUDGE}VERIFIERS = {{'half': judge}}\n")
    put("mine/other.py", JUDGE)

    def judged(verifier: str) -> float:
        line = f'{{"prompt": "a", "answer": "b", "verifier": "{verifier}"}}\n'
        data = put("mine/data.jsonl", line + line.replace('"a"', '"c"'))
        toml = put(
            "mine/run.toml",
            f'[task]\nname = "jsonl"\npath = "{data}"\nverifier = "./rewards.py:judge"\n'
            "eval_size = 1\n",
        )
        return open_task(load(toml, (), {}).task, 0).verify("train", 0, "z")

    for named in ("", "rewards.py:half", "./rewards.py:half", f"{tmp_path}/mine/rewards.py:half"):
        assert judged(named) == 0.5
    for foreign in ("./other.py:judge", "/etc/rewards.py:half", "../rewards.py:half"):
        with pytest.raises(TaskError, match=r"line 1: .*run\.toml does not"):
            judged(foreign)
    with pytest.raises(TaskError, match=r"line 1: .*does not offer"):
        judged("./rewards.py:judg")
    assert str(tmp_path / "mine/other.py") not in sys.modules


def test_a_strategy_of_a_file_is_blamed_with_its_line(put: Put) -> None:
    path = put("mine/sizes.py", "def size():\n    return 1 / 0\n")
    size = load_named(f"{path}:size", "sizing")
    with (
        pytest.raises(StrategyError, match=r"in sizes\.py, line 2 \(ZeroDivision"),
        blamed("sizing", f"{path}:size"),
    ):
        size()
    with pytest.raises(StrategyError, match=r"line 2"), blamed("correction", "sizes.py:size"):
        size()


def test_another_process_has_the_same_module(put: Put) -> None:
    path = put("mine/own.py", "class Own:\n    pass\n")
    script = (
        "from asyncrl.config.plugins import load_named; "
        f"print(load_named({f'{path}:Own'!r}, 'agent').__module__)"
    )
    root = Path(__file__).parents[2]
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=root)
    assert said.stdout.strip() == str(path) == load_named(f"{path}:Own", "agent").__module__


@given(st.text() | st.from_regex(r"[./a-z:]*\.py:[a-z:]*", fullmatch=True))
def test_any_text_stays_or_becomes_a_whole_path_once(text: str) -> None:
    found = absolute(text, Path("/runs"))
    assert located([text], Path("/runs")) in ([found], [text])
    if split(text) is None:
        assert found == text
    else:
        assert split(found) is not None and found.startswith("/")
        assert absolute(found, Path("/other")) == found
