"""Rows of a supervised run: what is read, what is left out, and which step trains what."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncrl.bundled.bundled_model import write_tokenizer
from asyncrl.config import Config, ConfigError
from asyncrl.config.sft import supervised_run
from asyncrl.tasks import TaskError
from asyncrl.tasks.conversations import LearnedIds
from asyncrl.tasks.sft_data import (
    KEPT,
    SftData,
    SftSplit,
    UsedRows,
    as_sequence,
    open_sft_data,
)
from asyncrl.tasks.text import Tokenizer

ASKED = [{"role": "user", "content": "1 + 1?"}]
SHAREGPT = [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]
SHORT = {"rollout": {"max_new_tokens": 2}}
ANSWERED = [*ASKED, {"role": "assistant", "content": "2"}]


def opened(folder: Path, lines: list[Any], **tables: Any) -> SftData:
    write_tokenizer(folder / "model")
    if not tables.pop("template", True):
        (folder / "model" / "chat_template.jinja").unlink()
    path = folder / "rows.jsonl"
    path.write_text(
        "".join(f"{each if isinstance(each, str) else json.dumps(each)}\n" for each in lines)
    )
    task = {"name": "data", "path": str(path), "eval_size": 0} | tables.pop("task", {})
    config = supervised_run(Config(task=task, **tables))
    return open_sft_data(config, Tokenizer(folder / "model", chat=config.task.chat))


def texts(split: SftSplit) -> list[str]:
    return [
        "".join(chr(i) if i < 256 else "." for i in memoryview(one.ids).cast("i"))
        for row in split.rows
        for one in row
    ]


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([{"messages": ANSWERED}], ["1 + 1?\n2."]),
        ([{"conversations": SHAREGPT}], ["a\nb."]),
        ([{"prompt": "1 =", "answer": 3}, {"prompt": "a", "answer": "b"}], ["1 =\n3.", "a\nb."]),
        ([{"question": "1 + 3?", "answer": "It is 4.\n#### 4"}], ["1 + 3?\nIt is 4.\n#### 4."]),
        ([{"prompt": "a", "completion": "b", "other": None}], ["a\nb."]),
        ([{"prompt": ASKED, "answer": "5"}], ["1 + 1?\n5."]),
        ([{"prompt": [65, 66], "answer": "5"}], ["AB5."]),
    ],
)
def test_rows_are_read_in_any_form_of_data(
    tmp_path: Path, lines: list[Any], expected: list[str]
) -> None:
    data = opened(tmp_path, lines)
    assert texts(data.train) == expected and not data.held_out.rows
    answers = [text.removeprefix("AB").partition("\n")[2] or "5." for text in expected]
    assert data.train.learned == sum(map(len, answers))


def test_a_row_may_have_its_system_message_at_a_key_of_its_own(tmp_path: Path) -> None:
    data = opened(tmp_path, [{"conversations": SHAREGPT, "system": "S"}])
    assert texts(data.train) == ["S\na\nb."] and data.train.learned == 2


def test_a_model_without_a_template_gets_a_conversation_as_text(tmp_path: Path) -> None:
    messages = [*ANSWERED, *ASKED, {"role": "assistant", "content": "3"}]
    data = opened(tmp_path, [{"messages": messages}], template=False)
    assert texts(data.train) == ["User: 1 + 1?\nAssistant: 2\nUser: 1 + 1?\nAssistant:\n3."]
    assert data.train.learned == 2


def test_held_out_rows_do_not_train(tmp_path: Path) -> None:
    lines = [{"prompt": f"{n % 18} =", "answer": n % 18} for n in range(20)]
    data = opened(tmp_path, lines, task={"eval_size": 2})
    assert texts(data.held_out) == ["0 =\n0.", "1 =\n1."] and data.train.held_out == 2
    assert not set(texts(data.held_out)) & set(texts(data.train)) and len(data.train.rows) == 16
    apart = tmp_path / "apart.jsonl"
    apart.write_text('{"prompt": "a", "answer": "b"}\n' * 3)
    data = opened(tmp_path, lines, task={"eval_size": 2, "eval_path": str(apart)})
    assert len(data.train.rows) == 20 and texts(data.held_out) == ["a\nb."] * 2
    with pytest.raises(TaskError, match="leaves no row to train on: all 20 are held out"):
        opened(tmp_path, lines, task={"eval_size": 20})


def test_long_rows_are_dropped_or_cut(tmp_path: Path) -> None:
    lines = [{"prompt": "1 =", "answer": "1"}, {"prompt": "2 =", "answer": "2" * 9}]
    lines.append({"prompt": "3" * 9, "answer": "3"})
    dropped = opened(tmp_path, lines, engine={"context_tokens": 8}, **SHORT)
    assert texts(dropped.train) == ["1 =\n1."] and dropped.train.too_long == 2
    cut = opened(tmp_path, lines, engine={"context_tokens": 8}, **SHORT, sft={"too_long": "cut"})
    assert texts(cut.train) == ["1 =\n1.", "2 =\n2222"] and cut.train.too_long == 2


def test_what_a_long_conversation_costs_does_not_grow_with_its_square(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of 2,000 turns took a minute: each answer renders all that is before it."""
    rendered, render = list[int](), Tokenizer._rendered

    def counted(self: Tokenizer, written: int, messages: Any, tools: Any) -> str:
        rendered.append(len(messages))
        return render(self, written, messages, tools)

    monkeypatch.setattr(Tokenizer, "_rendered", counted)
    turns = [{"messages": [*ANSWERED] * 200}, {"messages": [*ANSWERED] * 3}]
    context = {"engine": {"context_tokens": 40}, **SHORT}
    dropped = opened(tmp_path, turns, **context)
    assert dropped.train.too_long == 1 and texts(dropped.train) == ["1 + 1?\n2." * 3]
    assert sum(rendered) < 4 * 400
    rendered.clear()
    cut = opened(tmp_path, turns, **context, sft={"too_long": "cut"})
    assert texts(cut.train) == [("1 + 1?\n2." * 5)[:40], "1 + 1?\n2." * 3]
    assert cut.train.too_long == 1 and sum(rendered) < 4 * 400


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ([], "has no rows"),
        (["{"], "line 1"),
        (["[1]"], "row 1: it is a number"),
        ([{"prompt": "a"}], "line 1.* has no answer"),
        ([{"messages": ANSWERED}, {"messages": ASKED}], "line 2.* no answer of the assistant"),
        ([{"foo": "a", "bar": "b"}], "foo"),
        ([{"messages": ["hi"]}], "messages"),
        ([{"messages": [*ANSWERED, {"role": "boss", "content": "no"}]}], "the role 'boss'"),
        ([{"prompt": "a", "answer": ""}], "line 1.* has no answer"),
        ([{"prompt": "a" * 400, "answer": "b"}], "no row is left.*context_tokens = 256"),
    ],
)
def test_rows_that_cannot_be_learned_are_one_sentence(
    tmp_path: Path, lines: list[Any], says: str
) -> None:
    with pytest.raises(TaskError, match=says):
        opened(tmp_path, lines)


def test_a_tasks_own_answers_are_rows(tmp_path: Path) -> None:
    task = {"name": "chain_sum", "path": "", "train_size": 50, "eval_size": 3}
    data = opened(tmp_path, [], task=task, train={"steps": 2, "batch_groups": 4})
    assert len(data.train.rows) == 8 and len(data.held_out.rows) == 3


def made(learned: list[int], **tables: Any) -> SftData:
    rows = [(as_sequence(LearnedIds([0] * (n + 1), bytes([0] + [1] * n))),) for n in learned]
    return SftData(SftSplit.of(rows), SftSplit.of([]), supervised_run(Config(**tables)))


@given(
    learned=st.lists(st.integers(1, 9), min_size=1, max_size=12),
    batch=st.integers(1, 5),
    step_tokens=st.sampled_from([0, 1, 7, 30]),
    epochs=st.integers(1, 3),
    seed=st.integers(0, 3),
)
@settings(max_examples=80, deadline=None)
def test_each_epoch_has_each_row_once(
    learned: list[int], batch: int, step_tokens: int, epochs: int, seed: int
) -> None:
    train = {"batch_groups": batch, "step_tokens": step_tokens}
    data = made(learned, train=train, task={"epochs": epochs}, run={"seed": seed})
    steps = list(data.step_rows())
    order = [row for step in steps for row in step]
    assert data.steps == len(steps) and all(steps)
    for epoch in range(epochs):
        part = order[epoch * len(learned) : (epoch + 1) * len(learned)]
        assert sorted(part) == list(range(len(learned)))
    for step in steps[:-1]:
        if step_tokens:
            tokens = sum(learned[row] for row in step)
            assert tokens >= step_tokens > tokens - learned[step[-1]]
        else:
            assert len(step) == batch
    assert (
        steps
        == list(islice(made(learned, train=train, run={"seed": seed}).step_rows(), len(steps) - 1))
        + steps[-1:]
    )


def test_the_order_is_of_the_seed() -> None:
    orders = {
        tuple(next(made([1] * 9, run={"seed": seed}, train={"batch_groups": 9}).step_rows()))
        for seed in range(6)
    }
    assert len(orders) > 3


def test_steps_follow_from_epochs() -> None:
    for steps in (200, 8, 500):
        data = made([1] * 10, train={"steps": steps, "batch_groups": 4}, task={"epochs": 3})
        assert data.steps == 8
    assert made([1] * 10, train={"steps": 7}).steps == 7
    with pytest.raises(
        ConfigError, match=r"train.steps = 7 would end .*epochs = 3, which take 8 steps"
    ):
        _ = made([1] * 10, train={"steps": 7, "batch_groups": 4}, task={"epochs": 3}).steps
    many = {"epochs": 10**12}
    assert made([1] * 10, train={"batch_groups": 4}, task=many).steps == 25 * 10**11
    with pytest.raises(ConfigError, match=r"task\.epochs = 1000000000000 .*lower task\.epochs"):
        _ = made([1] * 10, train={"step_tokens": 4}, task=many).steps


@pytest.mark.parametrize(
    ("tables", "says"),
    [
        (
            {"task": {"mix": {"a": {"name": "chain_sum"}}, "weights": {"a": 1.0}}},
            "task.mix",
        ),
        ({"cluster": {"kind": "agents"}}, "cluster.kind"),
    ],
)
def test_what_a_supervised_run_cannot_do_is_refused(tables: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        supervised_run(Config(**tables))


def test_the_settings_of_rollouts_are_left_out() -> None:
    of_rl = Config(
        train={"advantage": "rloo", "passes": 2, "lr": 0.1},  # type: ignore[arg-type]
        staleness={"proximal": "boundary", "max_lag": 2},  # type: ignore[arg-type]
    )
    run = supervised_run(of_rl)
    assert run.train.lr == 0.1 and run.train.passes == 1 and run.staleness.correction == ()
    assert run.staleness.proximal == "behaviour" and run.train.loss_mean == "auto"
    assert supervised_run(run) == run


def test_rows_are_made_when_they_are_asked_for_and_few_are_kept(tmp_path: Path) -> None:
    """Memory holds numbers alone: what is read again is what was read at first."""
    lines = [{"prompt": f"{n} + 1 =", "answer": str(n + 1)} for n in range(60)]
    data = opened(tmp_path, [*lines[:7], {"prompt": "x" * 400, "answer": "y"}, *lines[7:]])
    assert texts(data.train) == texts(data.train) and len(data.train.rows) == 60
    again = SftSplit.of(data.train.rows)
    assert again[1:4] == (list(data.train.each), data.train.tokens, data.train.longest)
    reads = list[int]()
    few = UsedRows(range(0, 3 * KEPT, 3), lambda number: (reads.append(number), ())[1])
    assert len(few) == KEPT and not reads
    assert few[5] == () and few[-1] == () and few[5] == ()
    assert reads == [15, 3 * KEPT - 3]
    wide = UsedRows(range(2 * KEPT), lambda number: (reads.append(number), ())[1])
    assert len([wide[at] for _ in range(2) for at in range(2 * KEPT)]) == 4 * KEPT
    assert len(reads) == 2 + 4 * KEPT, "the last ones are kept, and no others"


def test_images_of_rows_are_shown_and_no_part_is_learned(tmp_path: Path) -> None:
    """As an engine sees the prompt; the same image twice is one, and is kept once."""
    Image = pytest.importorskip("PIL.Image", reason="images need Pillow (the extra vision)")
    from asyncrl.bundled.small_vision import START_ID, STOP_ID, write_vision_model

    write_vision_model(tmp_path / "model", seed=3)
    Image.new("RGB", (56, 56), "red").save(tmp_path / "a.png")
    part = {"type": "image", "image": "a.png"}
    asked = {"role": "user", "content": [part, {"type": "text", "text": "Which?"}, part]}
    again = {"role": "user", "content": "And?"}
    said = [{"role": "assistant", "content": one} for one in "BC"]
    lines = [
        {"messages": [asked, said[0], again, said[1]], "answer": None, "images": None},
        {"messages": [{"role": "user", "content": "<image>?"}, said[0]], "images": ["a.png"]},
    ]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    task = {"name": "data", "path": str(path), "eval_size": 0}
    kept = list[bytes]()

    def keep(png: bytes) -> str:
        kept.append(png)
        return "ab" * 32

    tokenizer = Tokenizer(tmp_path / "model", chat=True)
    for loss_on, learned in (("assistant", 4), ("last", 2), ("all", 19)):
        config = supervised_run(Config(task=task, sft={"loss_on": loss_on}))
        [[first], [second]] = open_sft_data(config, tokenizer, keep=keep).train.rows
        image = [START_ID, -1, -1, -1, -1, STOP_ID]
        shown = [*image, *b"Which?", *image, *b"\n", *b"B", 256, *b"And?\n", *b"C", 256]
        assert memoryview(first.ids).cast("i").tolist() == shown
        assert first.trained == learned and first.images == second.images == ("ab" * 32,)
        assert not any(m for i, m in zip(shown, first.mask, strict=True) if i < 0)
    assert len(set(kept)) == 1
    bad = supervised_run(
        Config(task=task, model={"train_vision": True, "lora": {"rank": 4}, "path": "m"})
    )
    with pytest.raises(TaskError, match="line 1 has an image, and images are read by a tower"):
        open_sft_data(bad, tokenizer)
    template = tmp_path / "model" / "chat_template.jinja"
    template.write_text(template.read_text().replace("part.type == 'image'", "false"))
    why = "line 1 cannot be learned: the chat template leaves out 2 of its 2 images"
    with pytest.raises(TaskError, match=why):
        open_sft_data(config, Tokenizer(tmp_path / "model", chat=True))
    (tmp_path / "a.png").unlink()
    with pytest.raises(TaskError, match=r"line 1 cannot be learned: its image .*a\.png cannot be"):
        open_sft_data(config, tokenizer)
