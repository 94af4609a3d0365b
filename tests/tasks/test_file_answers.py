"""Foreign answers of a file: texts and ids, told by their prompts, and refused in one sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from asyncrl.bundled.bundled_model import write_tokenizer
from asyncrl.config import Config, ConfigError, load
from asyncrl.config.schema import TaskConfig
from asyncrl.launch.foreign_checks import check_foreign
from asyncrl.tasks import TaskError
from asyncrl.tasks.file_answers import FileAnswers
from asyncrl.tasks.shared_groups import SharedAnswer, SharedGroup, write_group
from asyncrl.tasks.shared_places import SharedFolder
from asyncrl.tasks.template import render
from asyncrl.tasks.text import Tokenizer


def config_of(path: Path, *settings: str) -> Config:
    return load(
        None,
        ["foreign.source=file", f"foreign.path={path}", "rollout.max_new_tokens=6", *settings],
        {},
    )


@pytest.fixture
def tokenizer(tmp_path: Path) -> Tokenizer:
    folder = tmp_path / "model"
    folder.mkdir()
    write_tokenizer(folder, ["{}"])
    return Tokenizer(folder)


def written(folder: Path, *rows: dict[str, Any]) -> Path:
    path = folder / "answers.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def ids_of(ids: list[int]) -> bytes:
    return np.array(ids, np.int32).tobytes()


def asked(tokenizer: Tokenizer, question: str) -> bytes:
    """A question as the task asks it."""
    return ids_of(tokenizer.encode(render(TaskConfig(), question)))


def test_texts_are_told_by_their_prompts_and_end_as_the_models_do(
    tmp_path: Path, tokenizer: Tokenizer
) -> None:
    path = written(
        tmp_path,
        {"prompt": "1 + 1 =", "answer": "2"},
        {"prompt": "3 + 4 =", "answer": "7"},
        {"prompt": "1 + 1 =", "answer": "11"},
    )
    answers = FileAnswers(config_of(path), tokenizer)
    prompt = asked(tokenizer, "1 + 1 =")
    found = answers.of(prompt)
    assert [tokenizer.decode(list(np.frombuffer(a.ids, np.int32))[:-1]) for a in found] == [
        "2",
        "11",
    ]
    assert all(np.frombuffer(a.ids, np.int32)[-1] == tokenizer.end_id for a in found)
    assert {(a.source, a.behaviour, a.finish, a.version) for a in found} == {
        ("file", b"", "stop", 0)
    }
    assert len(answers) == 3 and not answers.of(asked(tokenizer, "9 + 9 ="))
    assert not answers.unknown([prompt, asked(tokenizer, "3 + 4 =")])
    assert answers.unknown([prompt]).endswith("answers.jsonl, line 2")


def test_ids_come_with_their_log_probabilities(tmp_path: Path, tokenizer: Tokenizer) -> None:
    row = {"prompt_ids": [50, 51], "ids": [52, 53], "tokenizer": tokenizer.digest}
    path = written(tmp_path, row | {"logprobs": [-0.5, 0.0]}, row)
    one, other = FileAnswers(config_of(path), tokenizer).of(ids_of([50, 51]))
    assert one.ids == other.ids == ids_of([52, 53]) and one.finish == "length"
    assert one.behaviour == np.array([-0.5, 0.0], np.float32).tobytes() and not other.behaviour


ROW = {"prompt_ids": [50], "ids": [52, 53], "tokenizer": ""}


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (ROW | {"tokenizer": "other"}, "line 1 is of the tokenizer 'other', and the model's is"),
        (ROW | {"ids": [52, 53, -1]}, "has an id outside of 0 to"),
        (ROW | {"ids": [52, 10**6]}, "has an id outside of 0 to"),
        (ROW | {"ids": [10**400]}, "has an id outside of 0 to"),
        (ROW | {"ids": "52"}, "is no row of prompt_ids, ids and tokenizer"),
        ({"prompt_ids": [50], "ids": [52]}, "is no row of prompt_ids, ids and tokenizer"),
        (ROW | {"ids": []}, "has no token in its prompt or its answer"),
        (ROW | {"prompt_ids": []}, "has no token in its prompt or its answer"),
        (ROW | {"ids": [52] * 7}, "7 tokens, and rollout.max_new_tokens is 6"),
        (ROW | {"logprobs": [-1.0]}, "has 2 ids and 1 logprobs"),
        (ROW | {"logprobs": [-1.0, 0.5]}, "give one for each, from -3.4e+38 to 0, or none"),
        (ROW | {"logprobs": [-1.0, -1e300]}, "give one for each, from -3.4e+38 to 0, or none"),
        ({"prompt": "1 + 1 =", "answer": "2" * 7}, "tokens, and rollout.max_new_tokens is 6"),
        ({"prompt": "1 + 1 =", "answer": " "}, "line 1"),
        ({"question?": "1"}, "line 1"),
    ],
)
def test_a_row_that_cannot_be_used_is_one_sentence_with_its_place(
    tmp_path: Path, tokenizer: Tokenizer, row: dict[str, Any], said: str
) -> None:
    if row.get("tokenizer") == "":
        row = row | {"tokenizer": tokenizer.digest}
    with pytest.raises(TaskError, match="foreign answers: ") as caught:
        FileAnswers(config_of(written(tmp_path, row)), tokenizer)
    text = str(caught.value)
    assert said in text and len(text.splitlines()) == 1 and text.isprintable()


def test_a_file_that_is_not_there_is_named_by_its_setting(
    tmp_path: Path, tokenizer: Tokenizer
) -> None:
    with pytest.raises(TaskError, match=r"foreign answers: .*foreign"):
        FileAnswers(config_of(tmp_path / "missing.jsonl"), tokenizer)


class Prompts:
    """A task of two training prompts."""

    frame = ("{}",)

    def size(self, split: str) -> int:
        return 2

    def prompt(self, split: str, prompt_index: int) -> str:
        return render(TaskConfig(), ("1 + 1 =", "3 + 4 =")[prompt_index])


def test_check_says_of_a_file_what_the_run_would(
    tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    task: Any = Prompts()
    right = {"prompt": "1 + 1 =", "answer": "2"}
    model = f"model.path={tmp_path / 'model'}"
    (note,) = check_foreign(config_of(written(tmp_path, right), model), task)
    assert note.meaning.startswith("foreign answers: 1; at most 1 join a group"), note
    path = written(tmp_path, right, {"prompt": "9 + 9 =", "answer": "8"})
    with pytest.raises(ConfigError, match=r"line 2 answers a prompt that the task does not train"):
        check_foreign(config_of(path, model), task)
    with pytest.raises(ConfigError, match="run's own directory"):
        check_foreign(config_of(path, model, f"run.dir={tmp_path}"), task)
    assert check_foreign(load(None, [], {}), task) == []


def test_check_refuses_folders_that_runs_cannot_share(tmp_path: Path, tokenizer: Tokenizer) -> None:
    task: Any = Prompts()
    shared, model = tmp_path / "shared", f"model.path={tmp_path / 'model'}"

    def config(*settings: str) -> Config:
        given = ["foreign.source=runs", f"foreign.path={shared}", f"share.path={shared}", model]
        return load(None, [*given, *settings], {})

    with pytest.raises(ConfigError, match=r"foreign.path is .*, which is no folder .* read"):
        check_foreign(config(), task)
    shared.mkdir()
    assert check_foreign(config(), task) == []
    with pytest.raises(ConfigError, match=r"share.path is .*, which is no folder .* write to"):
        check_foreign(config(f"share.path={tmp_path / 'none'}"), task)
    with pytest.raises(ConfigError, match=r"share.path is 'ftp://h/groups', and it begins with no"):
        check_foreign(config("share.path=ftp://h/groups"), task)
    with pytest.raises(ConfigError, match=r"'s3://bucket/groups', and credentials .* environment"):
        check_foreign(config("share.path=s3://key:secret@bucket/groups"), task)
    with pytest.raises(ConfigError, match="the run's own directory"):
        check_foreign(config(f"run.dir={tmp_path}", f"share.path={shared.as_uri()}"), task)
    with pytest.raises(ConfigError, match="the run's own directory"):
        check_foreign(config(f"run.dir={tmp_path}"), task)
    answers = [SharedAnswer([52], [-1.0], "stop")]
    group = SharedGroup("b" * 16, 0, 0, tokenizer.digest, [50], answers)
    write_group(SharedFolder(shared), group)
    assert check_foreign(config(), task) == []
    write_group(SharedFolder(tmp_path / "other"), msgspec.structs.replace(group, tokenizer="other"))
    with pytest.raises(ConfigError, match=r"other.*this group was made with another tokenizer"):
        check_foreign(config(f"foreign.path={tmp_path / 'other'}"), task)
