"""Settings that were not tried with images are refused by name, before anything starts."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pytest

from asyncrl.bundled.bundled_model import write_tokenizer
from asyncrl.bundled.buttons import write_buttons
from asyncrl.bundled.small_vision import write_vision_model
from asyncrl.config import Config, ConfigError
from asyncrl.config.load import load
from asyncrl.config.vision import unseen
from asyncrl.launch.first_run import write_first_run
from asyncrl.launch.prompt_checks import _of_agents_images, check_prompts
from asyncrl.tasks import open_task

UNSEEN = {
    "engine.kind=scripted": "engine.kind",
    'engine.kind=vllm engine.vllm.launch=["python"]': "engine.kind",
    'engine.kind=sglang engine.sglang.launch=["python"] model.train_vision=true': "train_vision",
    'engine.kind=sglang engine.sglang.launch=["python"] model.lora.rank=4 '
    "model.lora.served=adapters": "model.lora.served",
    "cluster.kind=agents cluster.trainer_agents=1 train.ranks=2": "cluster.trainer_agents",
    "engine.compile=true": "engine.compile",
    "reference.coefficient=0.1 reference.server=http://127.0.0.1:1/v1": "reference.path",
    "model.train_vision=true model.lora.rank=4": "train_vision",
}


def config(*sets: str) -> Config:
    return load(None, sets, {})


@pytest.mark.parametrize("setting", UNSEEN)
def test_what_was_not_tried_is_named(setting: str) -> None:
    assert UNSEEN[setting] in unseen(config(*setting.split()))


def test_a_teacher_of_texts_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("PIL", reason="images need Pillow (the extra vision)")
    write_buttons(tmp_path, rows=4)
    write_vision_model(tmp_path / "model", seed=3)
    write_tokenizer(tmp_path / "text")
    own = (
        "task.name=data", f"task.path={tmp_path / 'rows.jsonl'}", "task.eval_size=1",
        f"model.path={tmp_path / 'model'}", "teacher.coefficient=0.1",
    )  # fmt: skip
    for teacher, refused in (("model", False), ("text", True)):
        settings = config(*own, f"teacher.path={tmp_path / teacher}", "rollout.max_new_tokens=4")
        with (
            pytest.raises(ConfigError, match=r"teacher\.path does not read")
            if refused
            else nullcontext()
        ):
            check_prompts(settings, open_task(settings.task, 0))


def test_a_first_run_with_images_wants_a_model_that_reads_them(tmp_path: Path) -> None:
    pytest.importorskip("PIL", reason="images need Pillow (the extra vision)")
    write_buttons(tmp_path, rows=8)
    rows, path = str(tmp_path / "rows.jsonl"), tmp_path / "run.toml"
    with pytest.raises(ConfigError, match=r"have images, .* --set model\.path=DIRECTORY"):
        write_first_run(rows, path)
    assert not path.exists()
    write_vision_model(tmp_path / "model", seed=3)
    write_first_run(rows, path, [f"model.path={tmp_path / 'model'}"])
    settings = load(path, [], {})
    assert 16 <= settings.engine.context_tokens - settings.rollout.max_new_tokens <= 64
    check_prompts(settings, open_task(settings.task, 0))


def test_prompts_with_images_are_checked_as_the_model_reads_them(tmp_path: Path) -> None:
    pytest.importorskip("PIL", reason="images need Pillow (the extra vision)")
    write_buttons(tmp_path, rows=4)
    write_vision_model(tmp_path / "model", seed=3)
    own = (
        "task.name=data", f"task.path={tmp_path / 'rows.jsonl'}", "task.eval_size=1",
        f"model.path={tmp_path / 'model'}", "rollout.max_new_tokens=4",
    )  # fmt: skip
    settings = config(*own)
    task = open_task(settings.task, 0)
    assert not [row for row in check_prompts(settings, task) if "images" in str(row)]
    with pytest.raises(ConfigError, match=r"^prompts have images, and images are read .*compile"):
        check_prompts(config(*own, "engine.compile=true"), task)
    played = ('agent.run="a:b"', "engine.compile=true", "task.path=rows.jsonl")
    (note,) = _of_agents_images(config(*own, *played))
    assert "agents' calls with images are refused" in str(note) and "engine.compile" in str(note)
    assert not [*_of_agents_images(config(*own, "model.path=", *played))]
    with pytest.raises(ConfigError, match="this model reads only text"):
        check_prompts(config(*own, "model.path="), task)
    (tmp_path / "screens" / "0.png").write_bytes(b"nothing")
    (note,) = [row for row in check_prompts(settings, task) if "cannot be read" in str(row)]
    assert "of 3 training prompts that were checked 1 cannot be read" in str(note)
    assert "screens/0.png cannot be decoded" in str(note) and "they are dropped" in str(note)
    for number in (1, 2):
        (tmp_path / "screens" / f"{number}.png").unlink()
    with pytest.raises(ConfigError, match="cannot be decoded"):
        check_prompts(settings, task)
