"""Old names of settings: each is refused with the new one, wherever it is written."""

from __future__ import annotations

from pathlib import Path

import pytest

from asyncrl.cli import main
from asyncrl.config import Config, ConfigError, load, read
from asyncrl.config.fields import FIELDS, SECTIONS
from asyncrl.config.renamed import FIXED, GONE, MOVED, VALUES

OLD_KEYS = [key for key in (*MOVED, *GONE, *FIXED) if "." in key]
OLD_VALUES = [(key, old, new) for key, values in VALUES.items() for old, new in values.items()]


def refusal(path: Path | None, *sets: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(path, sets, {})
    return str(caught.value)


def test_new_names_exist_and_old_ones_do_not() -> None:
    known = {*FIELDS, *SECTIONS}
    assert set(MOVED.values()) <= known
    assert not {*MOVED, *GONE, *FIXED} & known
    assert all(new in FIELDS[key].choices for key, _, new in OLD_VALUES)
    assert not any(old in FIELDS[key].choices for key, old, _ in OLD_VALUES)


@pytest.mark.parametrize("key", OLD_KEYS)
def test_an_old_name_is_refused_with_the_new_one(key: str, tmp_path: Path) -> None:
    if key in FIXED:
        said = f"{key} is gone: it is {FIXED[key]:g} in every run; remove it."
    else:
        said = f"{key} is called {MOVED[key]} now." if key in MOVED else f"{key} {GONE[key]}."
    assert refusal(None, f"{key}=1") == f"--set {key}=1: {said}"
    section, name = key.split(".")
    file = tmp_path / "run.toml"
    file.write_text(f"[{section}]\n{name} = 1\n")
    assert refusal(file) == f"{file}: {said}"


@pytest.mark.parametrize("key", FIXED)
def test_the_run_toml_of_an_earlier_run_may_have_what_is_a_constant_now(
    key: str, tmp_path: Path
) -> None:
    section, name = key.split(".")
    file = tmp_path / "run.toml"
    file.write_text(f"[{section}]\n{name} = {FIXED[key]}\n")
    assert read(file) == Config()


@pytest.mark.parametrize("text", ["[door]\n", "[door]\nhost = 'here'\n"])
def test_an_old_section_is_refused_with_the_new_one(text: str, tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text(text)
    assert refusal(file).startswith(f"{file}: door is gone: agents play episodes, which are")


@pytest.mark.parametrize(("key", "old", "new"), OLD_VALUES)
def test_an_old_value_is_refused_with_the_new_one(key: str, old: str, new: str) -> None:
    said = refusal(None, f"{key}={old}")
    assert said.startswith(f"--set {key}={old}: {key} is '{old}', and must be one of ")
    assert said.endswith(f"; {old} is called {new} now.")


def test_check_ends_with_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    for old in ("door.port=1", "rollout.top_p=0.9", "staleness.on_stale=recycle"):
        assert main(["check", "--set", old]) == 2
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 3 and "door is gone: agents play" in told[0]
