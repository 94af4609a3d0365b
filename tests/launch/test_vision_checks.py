"""Settings that were not tried with images are refused by name, before anything starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from asyncrl.bundled.buttons import write_buttons
from asyncrl.bundled.small_vision import write_vision_model
from asyncrl.config import Config, ConfigError
from asyncrl.config.load import load
from asyncrl.config.vision import unseen, unseen_of_agents
from asyncrl.launch.prompt_checks import _of_agents_images, check_prompts
from asyncrl.tasks import open_task

UNSEEN = {
    "engine.kind=scripted": "engine.kind",
    "engine.compile=true": "engine.compile",
    "train.ranks=2": "train.ranks",
    "train.device=cuda": "train.device",
    "model.lora.rank=4": "lora.rank",
    "model.dtype=bfloat16": "model.dtype",
    "model.rounding=fp8": "model.rounding",
    "train.ema=0.9": "train.ema",
    "run.copy=s3://bucket/run": "run.copy",
    "staleness.proximal=boundary": "staleness.proximal",
    "reference.coefficient=0.1": "reference.coefficient",
}


def config(*sets: str) -> Config:
    return load(None, sets, {})


@pytest.mark.parametrize("setting", UNSEEN)
def test_what_was_not_tried_is_named(setting: str) -> None:
    assert UNSEEN[setting] in unseen(config(setting))
    assert UNSEEN[setting] in unseen_of_agents(config(setting, 'agent.run="a:b"'))


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
    played = ('agent.run="a:b"', "model.dtype=bfloat16", "task.path=rows.jsonl")
    (note,) = _of_agents_images(config(*own, *played))
    assert "agents' calls with images are refused" in str(note) and "model.dtype" in str(note)
    assert not [*_of_agents_images(config(*own, "model.path=", *played))]
    with pytest.raises(ConfigError, match="this model reads text alone"):
        check_prompts(config(*own, "model.path="), task)
    (tmp_path / "screens" / "0.png").write_bytes(b"nothing")
    with pytest.raises(ConfigError, match="cannot be decoded"):
        check_prompts(settings, task)
