"""The benchmark of strangers' inputs: some of each kind that is quick, and that it sees faults."""

from __future__ import annotations

import functools
import json
import os
import random
import subprocess
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import strangers
from stranger_kit import data, settings
from stranger_kit.attempt import RUNS, Case, Found, adopt, attempt, prepare
from stranger_kit.models import write_weights

from asyncrl import cli
from asyncrl.bundled.bundled_model import VOCABULARY, write_tokenizer

pytestmark = pytest.mark.processes


def alone(test: Callable[..., None]) -> Callable[..., None]:
    """The test in a process of its own, which may adopt and kill what attempts leave."""

    @functools.wraps(test)
    def forked(*args: Any, **kwargs: Any) -> None:
        reading, writing = os.pipe()
        if not (child := os.fork()):
            os.close(reading)
            try:
                adopt()
                test(*args, **kwargs)
            except BaseException:  # noqa: BLE001  # the parent raises it
                os.write(writing, traceback.format_exc().encode()[-4000:])
            finally:
                os._exit(0)
        os.close(writing)
        with os.fdopen(reading, "rb") as said:
            failure = said.read().decode()
        os.waitpid(child, 0)
        assert not failure, failure

    return forked


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model directory of which a check reads no more than this; the command is imported."""
    directory = tmp_path_factory.mktemp("strangers") / "model"
    write_tokenizer(directory)
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "head_dim": 4}
    sizes |= {"num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": VOCABULARY}
    config = {"model_type": "qwen3", "tie_word_embeddings": True} | sizes
    (directory / "config.json").write_text(json.dumps(config))
    write_weights(directory / "model.safetensors", {"model.embed_tokens.weight": (VOCABULARY, 8)})
    prepare(light=True)
    return directory


@pytest.mark.parametrize("kind", [pytest.param("data", marks=pytest.mark.explore), "settings"])
@alone
def test_inputs_of_a_kind_are_refused_or_run(kind: str, model: Path, tmp_path: Path) -> None:
    for one in strangers.inputs(1, [kind], 1, ""):
        found = strangers.tried(one, tmp_path / "case", model)
        assert found == Found([], [], [], [], []), one.seed


@alone
def test_inputs_by_chance_are_refused_or_run(model: Path, tmp_path: Path) -> None:
    (listed,) = strangers.by_chance(2, 30)
    for one, found in zip(
        listed, strangers.tried_together(listed, tmp_path / "cases", model), strict=True
    ):
        assert found == Found([], [], [], [], []), one.seed


def raises() -> int:
    raise ValueError("planted")


def lingers() -> int:
    time.sleep(100)
    return 0


def leaves_a_process() -> int:
    subprocess.Popen(["sleep", "100"], start_new_session=True)
    return 0


def leaves_a_file() -> int:
    Path("left").touch()
    return 0


def dies() -> int:
    os.kill(os.getpid(), 9)
    return 0


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (raises, "tracebacks"),
        (dies, "tracebacks"),
        (lingers, "hangs"),
        (lambda: 2, "differences"),
        (lambda: 1, "differences"),
        (leaves_a_process, "processes"),
        (leaves_a_file, "files"),
    ],
)
@alone
def test_each_kind_of_fault_is_seen(
    fault: Callable[[], int],
    kind: str,
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cli, "main", lambda argv: fault())
    monkeypatch.setattr("stranger_kit.attempt.LEFT_S", 0.2)
    found = attempt(Case(("check",), RUNS, seconds=1.0), tmp_path)[1]
    assert [name for name in Found._fields if getattr(found, name)] == [kind]


@alone
def test_a_number_that_is_not_true_is_seen(model: Path, tmp_path: Path) -> None:
    """A line more in the file than the command had read."""
    file = data.write(tmp_path / "d.jsonl", data.good(random.Random(1), 12))
    said, found = attempt(data.judged(file, model), tmp_path)
    assert not any(found)
    data.write(file, data.good(random.Random(1), 13))
    assert "11 lines train" in data.counted(said, file, 2)


def test_settings_out_of_their_range_are_many() -> None:
    """Else nothing of them is tried."""
    assert len(settings.RANGED) > 50
