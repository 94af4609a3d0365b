"""A model for agents: its template reads the question alone, and its warm-up asks again."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment

from asyncrl.bundled import bundled_model, warmup
from asyncrl.bundled.further_turns import FurtherTurns
from asyncrl.bundled.question_template import question_template
from asyncrl.config.schema import AgentConfig, Config, ModelConfig, TaskConfig
from asyncrl.tasks import open_task
from asyncrl.tasks.text import Tokenizer

TASK = TaskConfig(name="spell_backward", train_size=64, eval_size=2)
PROMPTS = ["Spell it backward (a \u2192 'b'): cat\n", "Spell it backward (a \u2192 'b'): dog\n"]
ASKS = "Spell it backward (a \u2192 'b'): bird\n"
CALL = {"function": {"name": "f", "arguments": {"a": 1}}}


def rendered(template: str, *messages: tuple[str, str], calls: object = None) -> str:
    """Messages, by role and text, as `transformers` renders them; the last has the calls."""
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    shown: list[dict[str, object]] = [{"role": role, "content": text} for role, text in messages]
    if calls:
        shown[-1]["tool_calls"] = calls
    return environment.from_string(template).render(messages=shown, tools=[{"a": 1}])


@pytest.mark.parametrize(
    "text",
    [
        ASKS,
        ASKS.strip(),
        f"Question: {ASKS}",
        f'Here is a task:\n\n"{ASKS.strip()}"\n\nYour answer:',
        f"### Problem\n**{ASKS.strip()}**\n### Answer\n",
        f"{ASKS.strip()}\nWhat is the answer?",
    ],
)
def test_of_a_message_with_the_question_it_reads_the_question(text: str) -> None:
    template = question_template(PROMPTS)
    assert rendered(template, ("user", text)) == ASKS
    assert rendered(template, ("system", "Be brief."), ("user", text)) == ASKS


def test_the_question_comes_again_behind_later_messages() -> None:
    template = question_template(PROMPTS)
    first = ("user", f"Task: {ASKS}")
    said = rendered(template, first, ("assistant", "x"))
    assert said == f"{ASKS}x{bundled_model.END}"
    assert (
        rendered(template, first, ("assistant", "x"), ("user", "Sure?")) == f"{said}Sure?\n{ASKS}"
    )
    called = rendered(template, first, ("assistant", ""), calls=[CALL])
    plain = rendered(bundled_model.CHAT_TEMPLATE, ("user", ASKS), ("assistant", ""), calls=[CALL])
    assert called == plain.removeprefix('{"a": 1}\n')
    assert rendered(template, first, ("assistant", "y"), ("tool", "7")).endswith(f"7\n{ASKS}")


def test_without_the_question_it_is_the_template_of_other_runs() -> None:
    template = question_template(PROMPTS)
    talk = ("system", "Spell."), ("user", "Hi"), ("assistant", "Ho"), ("user", "So?")
    for count in range(1, 5):
        plain = rendered(bundled_model.CHAT_TEMPLATE, *talk[:count])
        assert rendered(template, *talk[:count]) == plain
    assert question_template(["1 + 1", "2 + 2", "Spell"]) == bundled_model.CHAT_TEMPLATE


def test_a_question_of_several_lines_is_read_to_its_end() -> None:
    template = question_template(["Turn this matrix:\n1 2\n3 4\n", "Turn this matrix:\n5 6\n7 8\n"])
    asks = "Turn this matrix:\n9 8\n7 6\n"
    assert rendered(template, ("user", f"Please help. {asks}\nAnswer:\n")) == asks


def test_an_agents_warm_up_is_another_model_and_the_same_for_every_agent(tmp_path: Path) -> None:
    plain = Config(task=TASK, model=ModelConfig(warmup_steps=0))
    keys = set[str]()
    for run in ("./a.py:solve", ("python", "b.py"), "http"):
        played = msgspec.structs.replace(plain, agent=AgentConfig(run=run))
        keys.add(warmup.recipe(played))
    assert len(keys) == 1 and keys != {warmup.recipe(plain)}
    warmup._make(played, tmp_path, lambda lesson: None)
    tokenizer, task = Tokenizer(tmp_path, chat=True), open_task(TASK, 0)
    asks = str(task.prompt("train", 0))
    within = [{"role": "user", "content": f"Please.\n{asks}\nNow."}]
    assert tokenizer.ids(tokenizer.render(within)) == tokenizer.encode(asks)


def test_prompts_come_again_after_earlier_turns(tmp_path: Path) -> None:
    task = open_task(TASK, 0)
    bundled_model.write_tokenizer(tmp_path, bundled_model.task_frame(task))
    tokenizer, turns = Tokenizer(tmp_path), FurtherTurns(0)
    drawn = [turns.before("Spell cat", "tac") for _ in range(1000)]
    assert all(text.startswith("Spell cat\n") and text.endswith("Spell cat\n") for text in drawn)
    assert 0.5 < drawn.count("Spell cat\n") / 1000 < 0.7
    assert max(map(len, drawn)) < 1000
    again = FurtherTurns(0)
    assert [again.before("Spell cat", "tac") for _ in range(1000)] == drawn
    pieces = next(warmup._batches(tokenizer, task, FurtherTurns(0)))
    assert sum(len(ids) for ids, _ in pieces) == warmup.BATCH
    [(_, labels)] = next(warmup._batches(tokenizer, task))
    found = [token for _, mask in pieces for token in mask[mask != warmup.IGNORED].tolist()]
    assert sorted(found) == sorted(labels[labels != warmup.IGNORED].tolist())
