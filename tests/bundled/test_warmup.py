"""The warm-up: learns answers and only answers, is a function of its settings, and is computed
once."""

from __future__ import annotations

import json
import os
import random
from itertools import islice, permutations
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from asyncrl.bundled import bundled_model, warmup
from asyncrl.config import read
from asyncrl.config.schema import Config, ModelConfig, RolloutConfig, RunConfig, TaskConfig
from asyncrl.tasks import TaskError, open_task
from asyncrl.tasks.text import Tokenizer
from asyncrl.training.models import load_model

ROOT = Path(__file__).parents[2]
TASK = TaskConfig(
    name="spell_backward",
    params={"min_word_len": 3, "max_word_len": 4},
    train_size=128,
    eval_size=8,
)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def config(*, steps: int = 3, enough: float = 1.0, seed: int = 0, **task: Any) -> Config:
    changed = msgspec.structs.replace(TASK, **task)
    return Config(
        task=changed,
        model=ModelConfig(warmup_steps=steps, warmup_accuracy=enough),
        run=RunConfig(seed=seed),
        rollout=RolloutConfig(needs=("near",)),
    )


def weights(path: Path) -> dict[str, torch.Tensor]:
    return load_model(path).state_dict()


def test_the_loss_is_of_the_answers_tokens_alone(tmp_path: Path) -> None:
    """Against a loop over answers, one at a time, without padding."""
    bundled_model.write_tokenizer(tmp_path)
    tokenizer, task, model = Tokenizer(tmp_path), open_task(TASK, 0), bundled_model.new_model(0)
    total, count = 0.0, 0
    for item in range(warmup.BATCH):
        prompt = list(task.prompt("train", item).encode())
        answer = [*str(task.answer("train", item)).encode(), bundled_model.END_ID]
        with torch.no_grad():
            logits = model(torch.tensor([prompt + answer])).logits[0, len(prompt) - 1 : -1]
        total -= torch.log_softmax(logits, -1)[range(len(answer)), answer].sum().item()
        count += len(answer)
    loss, _, nats = warmup.answer_losses(model, *next(warmup._batches(tokenizer, task))[0])
    assert nats.sum().item() == pytest.approx(total, rel=1e-5)
    assert loss.item() == pytest.approx(total / count, rel=1e-5)


@pytest.mark.explore
def test_it_learns_stops_where_told_and_says_what_greedy_decoding_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warmup, "BATCH", 6)  # each example once
    bundled_model.write_tokenizer(tmp_path)
    tokenizer, task, model = (
        Tokenizer(tmp_path),
        open_task(msgspec.structs.replace(TASK, train_size=6), 0),
        bundled_model.new_model(0),
    )
    lessons = [*warmup.teach(model, tokenizer, task, steps=200, enough=0.7)]
    enough = [lesson.accuracy >= 0.7 and lesson.sampled >= 0.7 for lesson in lessons]
    assert enough == [False] * (len(lessons) - 1) + [True]
    assert [lesson.step for lesson in lessons] == list(range(1, len(lessons) + 1))
    assert lessons[-1].nats < lessons[0].nats and lessons[0].seconds < lessons[-1].seconds
    _, right, _ = warmup.answer_losses(model, *next(warmup._batches(tokenizer, task))[0])
    for item in range(6):
        prompt = tokenizer.encode(task.prompt("train", item))
        end = {"max_new_tokens": 8, "do_sample": False, "eos_token_id": bundled_model.END_ID}
        given = model.generate(torch.tensor([prompt]), **end)[0, len(prompt) :].tolist()  # type: ignore[operator]
        assert right[item].item() == (
            given[-1] == bundled_model.END_ID
            and tokenizer.decode(given) == task.answer("train", item)
        )


@pytest.mark.explore
def test_it_goes_on_until_samples_are_right_and_not_greedy_answers_alone(tmp_path: Path) -> None:
    """Letters to sort: after 25 steps one greedy answer in four is right, and no sample."""
    letters = [*permutations("abcdefgh", 5)]
    random.Random(0).shuffle(letters)
    lines = [
        json.dumps({"prompt": f"sort {''.join(word)}:", "answer": "".join(sorted(word))})
        for word in letters[:1200]
    ]
    (tmp_path / "prompts.jsonl").write_text("\n".join(lines))
    jsonl = TaskConfig(name="jsonl", path=str(tmp_path / "prompts.jsonl"))
    task = open_task(jsonl, 0)
    bundled_model.write_tokenizer(tmp_path, bundled_model.task_frame(task))
    tokenizer, model = Tokenizer(tmp_path), bundled_model.new_model(0)
    lessons = [*warmup.teach(model, tokenizer, task, steps=200, enough=0.2)]
    greedy = next(lesson for lesson in lessons if lesson.accuracy >= 0.2)
    assert greedy.sampled < 0.02 and greedy.step < lessons[-1].step < 100
    _, _, nats = warmup.answer_losses(model, *next(warmup._batches(tokenizer, task))[0])
    assert torch.exp(-nats).mean() >= 0.5 * 0.1 * 0.2


def test_it_is_a_function_of_its_settings_and_computed_once(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warmup, "BATCH", 8)
    first = warmup.prepare_model(config())
    assert first.is_relative_to(home / "asyncrl")
    before = (first / "model.safetensors").stat()
    assert warmup.prepare_model(config()) == first
    assert (first / "model.safetensors").stat() == before
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "another"))
    second = warmup.prepare_model(config())
    assert second != first
    assert second.name == first.name
    for name, weight in weights(first).items():
        assert torch.equal(weight, weights(second)[name])
    assert [path.name for path in second.parent.iterdir()] == [second.name]


LETTERS = {"name": "letter_counting"}
OTHER: dict[str, dict[str, dict[str, Any]]] = {
    "gym": {
        "name": LETTERS | {"params": {}},
        "params": {"params": {"min_word_len": 3, "max_word_len": 5}},
        "reward": {"reward": "exact"},
        "sandbox": {"sandbox": "process"},
        "template": {"template": "Please: {question}"},
        "train_size": {"train_size": 127},
        "train_size, more": {"train_size": 5_000},
        "train_size, enough": {"train_size": 200},
        "eval_size": {"eval_size": 64},
        "eval_size, none": {"eval_size": 0},
        "eval_size, many": {"eval_size": 5_000},
        "curriculum": {"curriculum": "unsolved"},
        "prefers": {"prefers": "near"},
        "epochs": {"epochs": 3},
        "verdict_s": {"verdict_s": 5.0},
        "mix": {"mix": {"one": {}, "two": LETTERS}, "weights": {"one": 1.0}},
        "mix, of one": {"mix": {"one": {}}, "weights": {"one": 1.0}},
    },
    "jsonl": {
        "path": {"path": "other.jsonl"},
        "path, the same lines": {"path": "copy.jsonl"},
        "path, more lines": {"path": "longer.jsonl"},
        "eval_path": {"eval_path": "other.jsonl"},
        "prompt_key": {"prompt_key": "else"},
        "answer_key": {"answer_key": "else"},
        "eval_size": {"eval_size": 1},
        "eval_size, none": {"eval_size": 0},
        "verifier": {"verifier": "number"},
        "reward": {"reward": "exact"},
        "template": {"template": "Please: {question}"},
        "train_size": {"train_size": 5},
        "image_hosts": {"image_hosts": ("example.org",)},
    },
    "mix": {
        "mix, other labels": {"mix": {"b": {}, "a": LETTERS}, "weights": {"b": 1.0}},
        "mix, other order": {"mix": {"two": LETTERS, "one": {}}},
        "weights": {"weights": {"two": 1.0}},
        "stages": {"stages": (5,), "weights": {"one": [1.0, 0.5], "two": [0.0, 0.5]}},
        "eval_size": {"eval_size": 9},
        "params": {"params": {}},
    },
}
"""Other values of each setting of [task], for a task of each kind."""


def lessons(settings: Config, folder: Path) -> list[object]:
    """The tokenizer and each batch, of which the weights are a function, beside the seed."""
    bundled_model.write_tokenizer(
        folder, bundled_model.task_frame(task := open_task(settings.task, settings.run.seed))
    )
    batches = islice(warmup._batches(Tokenizer(folder), task), settings.model.warmup_steps)
    return [
        (folder / "tokenizer.json").read_text(),
        *([ids.tolist(), labels.tolist()] for batch in batches for ids, labels in batch),
    ]


@pytest.mark.parametrize("kind", OTHER)
def test_a_setting_is_in_the_key_exactly_if_it_changes_what_is_taught(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    lines = [
        json.dumps({"prompt": f"{n} + {n} =", "answer": 2 * n, "else": str(n)}) for n in range(200)
    ]
    for name, text in (
        ("lines", lines[:70]),
        ("copy", lines[:70]),
        ("other", lines[100:170]),
        ("longer", lines),
    ):
        Path(f"{name}.jsonl").write_text("\n".join(text))
    own: dict[str, dict[str, Any]] = {
        "gym": {},
        "jsonl": {"name": "jsonl", "path": "lines.jsonl", "params": {}},
        "mix": {"mix": {"one": {}, "two": LETTERS}, "weights": {"one": 1.0}},
    }
    settings = config(steps=1 if kind == "jsonl" else 2, **own[kind])
    key, taught = warmup.recipe(settings), lessons(settings, tmp_path / "first")
    tried = {name.partition(",")[0] for names in OTHER.values() for name in names}
    assert tried == {*TaskConfig.__struct_fields__} - {"chat"}  # the bundled model has none
    found = {}
    for name, changes in OTHER[kind].items():
        other = msgspec.structs.replace(
            settings, task=msgspec.structs.replace(settings.task, **changes)
        )
        in_key = warmup.recipe(other) != key
        found[name] = in_key, lessons(other, tmp_path / "other") != taught
    assert found == {name: (changed, changed) for name, (_, changed) in found.items()}
    assert {in_key for in_key, _ in found.values()} == {True, False}


def test_the_key_has_the_seed_and_when_the_warm_up_stops_and_no_more_of_the_model() -> None:
    for other in ({"steps": 4}, {"enough": 0.1}, {"seed": 1}):
        assert warmup.recipe(config(**other)) != warmup.recipe(config())
    random_one = config(steps=0)
    assert warmup.recipe(random_one) == warmup.recipe(config(steps=0, enough=0.1))
    rest = {"path", "warmup_steps", "warmup_accuracy"}
    assert {*ModelConfig.__struct_fields__} > rest
    for field in msgspec.structs.fields(ModelConfig):
        if field.name not in rest:
            model = msgspec.structs.force_setattr  # a setting of the trainer, whatever its value
            changed = msgspec.structs.replace(config().model)
            model(changed, field.name, "another")
            other = msgspec.structs.replace(config())
            model(other, "model", changed)
            assert warmup.recipe(other) == warmup.recipe(config()), field.name


def test_other_contents_of_a_file_are_another_model_also_at_the_same_time(tmp_path: Path) -> None:
    """As in an image whose files all have one time."""
    path, names = tmp_path / "prompts.jsonl", set[str]()
    for text in ("a", "b"):
        path.write_text(json.dumps({"prompt": text, "answer": text}))
        os.utime(path, (1, 1))
        task = TaskConfig(name="jsonl", path=str(path), eval_size=0)
        names.add(warmup.recipe(msgspec.structs.replace(config(), task=task)))
    assert len(names) == 2


def test_settings_of_the_run_are_the_same_model() -> None:
    one = config()
    assert warmup.recipe(one) == warmup.recipe(
        msgspec.structs.replace(
            one, run=RunConfig(dir="elsewhere"), rollout=RolloutConfig(lease_s=5)
        )
    )


def test_the_main_job_finds_its_model_in_the_package(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is of the settings of run.toml, and as good as the warm-up left it: right on about one
    prompt in five, so that there is something to reinforce and something to learn."""
    main = read(ROOT / "run.toml")
    monkeypatch.setattr(warmup, "teach", None)
    path = warmup.prepare_model(main)
    assert path.parent == warmup.PREWARMED
    assert {each.name for each in path.parent.iterdir()} == {
        warmup.prepare_model(each).name for each in warmup.shipped(ROOT / "run.toml")
    }, "run .venv/bin/python -m asyncrl.bundled.warmup run.toml"
    assert not list(home.iterdir())
    task, tokenizer = open_task(main.task, main.run.seed), Tokenizer(path)
    ids, labels = next(warmup._batches(tokenizer, task))[0]
    with torch.no_grad():
        _, right, _ = warmup.answer_losses(load_model(path), ids, labels)
    assert 0.1 <= right.float().mean() <= 0.5
    other = msgspec.structs.replace(main, run=RunConfig(seed=1))
    with pytest.raises(TypeError):
        warmup.prepare_model(other)


def test_the_model_given_is_the_model() -> None:
    assert warmup.prepare_model(Config(model=ModelConfig(path="/some/where"))) == Path(
        "/some/where"
    )


def test_what_is_kept_is_whole_or_not_there(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object, **kwargs: object) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(warmup, "teach", fail)
        with pytest.raises(KeyboardInterrupt):
            warmup.prepare_model(config())
    assert not list((home / "asyncrl").iterdir())
    name = f"spell_backward-{warmup.recipe(config())}-{torch.__version__}"
    (home / "asyncrl" / name).mkdir()  # as an interrupted copy of the cache would leave it
    assert set(weights(warmup.prepare_model(config())))


def test_a_quicker_run_keeps_its_model(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make, made = warmup._make, []

    def slow(settings: Config, directory: Path, heard: Any) -> None:
        make(settings, directory, heard)
        if not made:
            made.append(directory)
            made.append(warmup.prepare_model(settings))
            (made[-1] / "mark").touch()

    monkeypatch.setattr(warmup, "_make", slow)
    path = warmup.prepare_model(config(steps=0))
    assert path == made[-1]
    assert (path / "mark").exists()
    assert [found.name for found in (home / "asyncrl").iterdir()] == [path.name]


def test_a_task_without_answers_cannot_warm_up() -> None:
    with pytest.raises(TaskError, match=r"has no answers.*model\.path"):
        warmup.prepare_model(config(name="rush_hour", params={}))


def test_without_steps_the_model_is_random() -> None:
    torch.testing.assert_close(
        weights(warmup.prepare_model(config(steps=0))), bundled_model.new_model(0).state_dict()
    )
