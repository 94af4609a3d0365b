"""A supervised loss mixed in: its gradient beside that of the rewards, against a loop of float64;
its draws; and files that are none of examples."""

from __future__ import annotations

import copy
import json
from datetime import datetime
from pathlib import Path

import msgspec
import pytest
import torch
from training_world import build, micro_batch, rollouts

from asyncrl.bundled import bundled_model
from asyncrl.config import Config, ConfigError, load
from asyncrl.config.schema import StalenessConfig, TrainConfig
from asyncrl.launch import preflight
from asyncrl.tasks import TaskError
from asyncrl.tasks.supervised_examples import ExampleIds, SupervisedExamples
from asyncrl.tasks.text import Tokenizer
from asyncrl.training.checkpoint_io import restore, save
from asyncrl.training.learner import Learner
from asyncrl.training.models import load_model
from asyncrl.training.supervised import SupervisedLoss

TRAIN = TrainConfig(grad_clip=1e9, lr_warmup_steps=0, lr=1e-2)
EXAMPLES = [
    ExampleIds([1, 2], [3]),
    ExampleIds([4], [5, 6, 7, 8]),
    ExampleIds([9, 10, 11], [12, 13]),
    ExampleIds([1, 2], [14, 15, 16]),
]
T = 0.7


def learner(supervised: SupervisedLoss | None, train: TrainConfig = TRAIN) -> Learner:
    return Learner(build("qwen3"), train, StalenessConfig(), T, supervised=supervised)


def train(it: Learner, steps: int = 1) -> tuple[list[dict[str, torch.Tensor]], dict[str, float]]:
    """The gradient of each update, and the last step's metrics."""
    found: list[dict[str, torch.Tensor]] = []
    handle = it.optimizer.register_step_pre_hook(
        lambda *_: found.append(
            {n: p.grad.clone() for n, p in it.master_weights.named() if p.grad is not None}
        )
    )
    metrics = dict[str, float]()
    for _ in range(steps):
        every = rollouts(build("qwen3"), seed=it.version, temperature=T)
        it.accumulate(*micro_batch(every, every, it.version))
        metrics = it.step()
    handle.remove()
    return found, metrics


def looped(examples: list[ExampleIds]) -> tuple[dict[str, torch.Tensor], float]:
    """The mean negative log-likelihood of the responses' tokens, one at a time, and its gradient:
    at temperature 1."""
    model, losses = copy.deepcopy(build("qwen3")).double(), list[torch.Tensor]()
    for example in examples:
        ids = [*example.prompt, *example.response]
        logits = model(input_ids=torch.tensor([ids])).logits[0]
        for place in range(len(example.prompt), len(ids)):
            losses.append(-logits[place - 1].log_softmax(-1)[ids[place]])
    mean = torch.stack(losses).mean()
    mean.backward()  # type: ignore[no-untyped-call]
    return {n: p.grad for n, p in model.named_parameters() if p.grad is not None}, mean.item()


def test_its_gradient_is_added_with_a_divisor_of_its_own() -> None:
    loss = SupervisedLoss(EXAMPLES, 0.3, 3, seed=5)
    (plain,), metrics = train(learner(None))
    (mixed,), mixed_metrics = train(learner(loss))
    expected, mean = looped(loss.drawn(0, 0))
    for name, gradient in expected.items():
        torch.testing.assert_close(
            (mixed[name] - plain[name]).double(), 0.3 * gradient, atol=2e-5, rtol=1e-3
        )
    assert mixed_metrics["supervised_loss"] == pytest.approx(mean, rel=1e-5)
    assert "supervised_loss" not in metrics


def test_each_update_draws_its_own_and_a_resumed_run_the_same(tmp_path: Path) -> None:
    loss = SupervisedLoss(EXAMPLES, 0.3, 2, seed=5)
    draws = [tuple(map(str, loss.drawn(v, u))) for v in range(8) for u in range(2)]
    assert len(set(draws)) > 4 and all(len(set(one)) == 2 for one in draws)
    it = learner(loss)
    train(it, 2)
    path = save(tmp_path, it, 0, tmp_path)
    resumed = Learner(load_model(path), TRAIN, StalenessConfig(), T, supervised=loss)
    restore(path, resumed)
    for one in (it, resumed):
        train(one, 2)
    for name, master in it.master_weights.named():
        assert torch.equal(dict(resumed.master_weights.named())[name], master)


def test_several_updates_of_a_step_have_examples_each() -> None:
    loss = SupervisedLoss(EXAMPLES, 50.0, 1, seed=1)
    twice = msgspec.structs.replace(TRAIN, passes=2)
    found, _ = train(learner(loss, twice))
    plain, _ = train(learner(None, twice))
    assert len(found) == len(plain) == 2
    assert all(
        any(not torch.allclose(one[n], other[n], atol=1e-2) for n in one)
        for one, other in zip(found, plain, strict=True)
    )


# ------------------------------------------------------------------------------------------- files


def config(*sets: str) -> Config:
    made = load(None, ["task.train_size=20", "task.eval_size=4", *sets], {})
    return preflight.resolved(made, None, datetime(2026, 1, 2))


def write(path: Path, *lines: object) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def examples(file: Path, *sets: str) -> SupervisedExamples:
    own = "supervised.coefficient=1", f"supervised.path={file}"
    return SupervisedExamples(load(None, [*own, *sets], {}), Tokenizer(file.parent))


def test_a_row_of_any_form_becomes_its_ids_and_an_end(tmp_path: Path) -> None:
    """It reads what task.path reads: keys that are named, messages, whole solutions, tables."""
    bundled_model.write_tokenizer(tmp_path)
    due = ExampleIds([*b"<ab>"], [*b"c", bundled_model.END_ID])
    template = "task.template=<{question}>"
    file = write(tmp_path / "e.jsonl", {"prompt": "ab", "response": "c"})
    assert [*map(examples(file, template).__getitem__, range(1))] == [due]
    file = write(tmp_path / "own.jsonl", {"ask": {"text": "ab"}, "say": "c"})
    keys = "supervised.prompt_key=ask.text", "supervised.answer_key=say"
    assert examples(file, template, *keys)[0] == due
    with pytest.raises(TaskError, match=r"supervised.prompt_key is .x., and the rows"):
        examples(file, "supervised.prompt_key=x")
    (tmp_path / "e.csv").write_text("\ufeffQuestion;Answer\r\nab;c\r\n")
    assert examples(tmp_path / "e.csv", template)[0] == due
    solved = {"question": "ab", "answer": "1 + 1\n#### 2"}
    assert bytes(examples(write(tmp_path / "s.jsonl", solved))[0].response[:-1]) == b"1 + 1\n#### 2"
    talk = [
        {"role": "system", "content": "S"},
        {"role": "user", "content": "ab"},
        {"role": "assistant", "content": "c"},
    ]
    found = examples(write(tmp_path / "m.jsonl", {"messages": talk}))[0]
    assert bytes(found.prompt) == b"S\nab\n" and found.response == due.response


def test_an_example_of_large_data_that_cannot_be_learned_gives_its_place_to_another() -> None:
    class Large:
        def __len__(self) -> int:
            return 1000

        def __getitem__(self, index: int) -> ExampleIds:
            if index % 2:
                raise TaskError(f"row {index}")
            return ExampleIds([1], [index])

    loss = SupervisedLoss(Large(), 1.0, 6, seed=3)
    for version in range(20):
        drawn = loss.drawn(version, 0)
        assert drawn == loss.drawn(version, 0) and len({one.response[0] for one in drawn}) == 6

    class Bad(Large):
        def __getitem__(self, index: int) -> ExampleIds:
            raise TaskError(f"row {index}")

    with pytest.raises(TaskError, match="row"):
        SupervisedLoss(Bad(), 1.0, 6, seed=3).drawn(0, 0)


def test_an_example_with_a_token_that_has_no_row_is_refused(tmp_path: Path) -> None:
    """It ended the trainer in the embedding, after check had said that the run can begin."""
    bundled_model.write_tokenizer(tmp_path)
    lines = {"prompt": "ab", "response": "c"}, {"prompt": "a", "response": "b"}
    file = write(tmp_path / "e.jsonl", *lines)
    file.write_text(file.read_text().replace("\n", "\n\n"))
    rows = {"vocab_size": bundled_model.END_ID + 1}
    (tmp_path / "config.json").write_text(json.dumps(rows))
    examples(file).check()
    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": bundled_model.END_ID}))
    with pytest.raises(TaskError, match=r"line 1 .* has the token 256, and .* has 256 rows"):
        examples(file).check()


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([], "has no rows"),
        ([{"prompt": "a", "response": "b"}, {"prompt": "a"}], "line 2: it has no answer"),
        ([{"prompt": "a", "response": ""}], "line 1: it has no answer"),
        ([{"prompt": "a", "response": "b" * 400}], "engine.context_tokens is 256"),
        ([{"foo": "a", "bar": 3}], "name the key of the prompt in supervised.prompt_key"),
    ],
)
def test_what_is_no_example_is_refused_before_anything_starts(
    lines: list[object], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = write(tmp_path / "e.jsonl", *lines)
    with pytest.raises(ConfigError) as caught:
        preflight.check(config("supervised.coefficient=1", f"supervised.path={file}"), None, 2)
    assert said in str(caught.value) and str(caught.value).endswith(".")
    write(file, {"prompt": "a", "response": "b"})
    preflight.check(config("supervised.coefficient=1", f"supervised.path={file}"), None, 2)


def test_settings_go_together(tmp_path: Path) -> None:
    for sets in (["supervised.coefficient=1"], ["supervised.path=e"]):
        with pytest.raises(ConfigError, match="examples need both"):
            load(None, sets, {})
    with pytest.raises(ConfigError, match="cannot be read"):
        preflight.check(
            config("supervised.coefficient=1", f"supervised.path={tmp_path / 'no'}"), None, 2
        )
