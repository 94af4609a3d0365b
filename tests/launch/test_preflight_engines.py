"""Failures of servers and GPUs that can be known before anything starts."""

from __future__ import annotations

import os
import sys
from datetime import datetime
from pathlib import Path

import pytest

from asyncrl.config import Config, ConfigError, load
from asyncrl.launch import preflight

SGLANG = "engine.kind=sglang"


def config(*sets: str) -> Config:
    return preflight.resolved(
        load(None, ["task.train_size=20", "task.eval_size=4", *sets], {}),
        None,
        datetime(2026, 1, 2),
    )


def refusal(checked: Config) -> str:
    with pytest.raises(ConfigError) as caught:
        preflight.check(checked, None, 2)
    return str(caught.value)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_program_that_starts_servers_is_found_from_anywhere(here: Path) -> None:
    """Its path becomes absolute, and stays the link that it is: the Python of a virtual environment
    knows its place by it."""
    (here / "bin").mkdir()
    (here / "bin/python").symlink_to(sys.executable)
    checked = config(SGLANG, 'engine.sglang.launch=["bin/python", "-X", "dev"]')
    assert checked.engine.sglang.launch == (str(here / "bin/python"), "-X", "dev")
    said = refusal(checked)  # it was found: its packages were looked at
    assert str(here / "bin/python") in said and "whose environment has no SGLang" in said
    other = refusal(config(SGLANG, 'engine.sglang.launch=["env", "python3"]'))
    assert "'env', whose environment has no SGLang" in other


def test_a_program_that_is_not_there_is_refused(here: Path) -> None:
    said = refusal(config(SGLANG, 'engine.sglang.launch=["bin/python"]'))
    assert str(here / "bin/python") in said and "make sglang-cpu" in said


def test_a_key_that_cannot_be_read_is_refused(here: Path) -> None:
    urls = 'engine.sglang.urls=["http://127.0.0.1:1"]'
    assert "cannot be read" in refusal(config(SGLANG, urls, "engine.sglang.api_key_file=key"))
    (here / "key").write_text("secret\n")
    preflight.check(config(SGLANG, urls, "engine.sglang.api_key_file=key"), None, 2)


@pytest.mark.parametrize(
    "text", [b"", b"[]", b"\xff", b"{}", b"[" * 99_999, b'{"architectures": 1}']
)
def test_a_model_that_does_not_say_what_it_is_is_refused(text: bytes, here: Path) -> None:
    (here / "model").mkdir()
    (here / "model" / "config.json").write_bytes(text)
    said = refusal(config(SGLANG, 'engine.sglang.urls=["http://127.0.0.1:1"]', "model.path=model"))
    assert "does not say its architecture" in said


def test_a_config_that_is_no_file_is_refused_and_not_waited_for(here: Path) -> None:
    (here / "model").mkdir()
    os.mkfifo(here / "model" / "config.json")
    said = refusal(config(SGLANG, 'engine.sglang.urls=["http://127.0.0.1:1"]', "model.path=model"))
    assert "does not say its architecture" in said


@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="this machine has a GPU")
def test_a_gpu_that_is_not_there_is_refused() -> None:
    assert "(trainer 0), and this machine has no GPU" in refusal(config("train.device=cuda"))
    launch = 'engine.sglang.launch=["env", "python3"]'
    launched = (SGLANG, launch, "engine.sglang.device=cuda", "model.dtype=bfloat16")
    assert "(server-0 0), and this machine has no GPU" in refusal(config(*launched))
