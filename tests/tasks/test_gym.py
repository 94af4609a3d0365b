"""reasoning-gym: deterministic, disjoint by construction, and wrong settings said in a sentence."""

from __future__ import annotations

import subprocess
import sys

import pytest

from asyncrl.config.schema import TaskConfig
from asyncrl.tasks import Task, TaskError, open_task
from asyncrl.tasks.gym import held_out
from asyncrl.tasks.gym_library import create_dataset

FEW = {
    "min_terms": 2,
    "max_terms": 2,
    "max_digits": 1,
    "operators": ["+"],
    "allow_negation": False,
    "allow_parentheses": False,
}


def questions(task: Task, split: str) -> list[str]:
    return [task.prompt(split, prompt_index) for prompt_index in range(task.size(split))]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "name",
    ["spell_backward", "chain_sum", "word_sorting", "gcd", "caesar_cipher", "letter_counting"],
)
def test_a_task_is_a_function_of_its_configuration_and_seed(name: str) -> None:
    config = TaskConfig(name=name, train_size=40, eval_size=10)
    one, other, differently = open_task(config, 3), open_task(config, 3), open_task(config, 4)
    assert [one.size("train"), one.size("evaluation")] == [40, 10]
    assert questions(one, "train") == questions(other, "train") != questions(differently, "train")
    for prompt_index in range(10):
        answer = one.answer("evaluation", prompt_index)
        assert answer == other.answer("evaluation", prompt_index)
        assert answer is not None
        assert one.verify("evaluation", prompt_index, answer) == 1.0
        assert one.verify("evaluation", prompt_index, "~" + answer[1:]) < 1.0


def test_neighbouring_seeds_share_hardly_a_prompt() -> None:
    config = TaskConfig(train_size=500, eval_size=10)
    assert (
        len(
            {*questions(open_task(config, 0), "train")}
            & {*questions(open_task(config, 1), "train")}
        )
        < 25
    )


@pytest.mark.parametrize("params", [FEW, FEW | {"max_digits": 2}])
def test_no_held_out_prompt_is_trained(params: dict[str, object]) -> None:
    """Eighty-one questions drawn four hundred times: without the rule every held-out one would be
    trained."""
    task = open_task(
        TaskConfig(name="basic_arithmetic", params=params, train_size=400, eval_size=64), 0
    )
    train, evaluation = {*questions(task, "train")}, {*questions(task, "evaluation")}
    assert len(evaluation) > 10
    assert not train & evaluation


def test_about_a_quarter_of_the_questions_is_held_out_whoever_asks() -> None:
    """The rule is the text's alone, so another seed or another size holds out the same
    questions."""
    data = create_dataset("spell_backward", seed=7, size=4000)
    assert 0.22 < sum(held_out(data[i]["question"]) for i in range(4000)) / 4000 < 0.28
    for seed in range(3):
        task = open_task(
            TaskConfig(train_size=50 + seed, eval_size=20 + seed, template="{question}"), seed
        )
        assert all(map(held_out, questions(task, "evaluation")))
        assert not any(map(held_out, questions(task, "train")))


def test_without_evaluation_every_question_may_be_trained() -> None:
    task = open_task(TaskConfig(train_size=100, eval_size=0, template="{question}"), 0)
    assert task.size("evaluation") == 0
    assert any(map(held_out, questions(task, "train")))


def test_the_template_surrounds_the_question_and_a_chat_model_gets_it_bare() -> None:
    asked = open_task(TaskConfig(template="{question}"), 0).prompt("train", 0)
    assert (
        open_task(TaskConfig(template="Q: {question}\nA {x}:"), 0).prompt("train", 0)
        == f"Q: {asked}\nA {{x}}:"
    )
    assert open_task(TaskConfig(template="Q: {question}", chat=True), 0).prompt("train", 0) == asked


def test_a_marked_answer_is_what_is_judged() -> None:
    task = open_task(TaskConfig(), 0)
    answer = task.answer("train", 5)
    assert (
        task.verify("train", 5, f"well, <answer>no</answer>, rather <answer>{answer}</answer>.")
        == 1.0
    )
    # also an empty one, and not the text around it
    assert task.verify("train", 5, f"<answer></answer>{answer}") < 1.0
    assert task.verify("train", 5, f"{answer}") == 1.0


def test_an_item_outside_the_split_is_an_error() -> None:
    task = open_task(TaskConfig(train_size=3, eval_size=2), 0)
    for split, prompt_index in [("train", 3), ("train", -1), ("evaluation", 2)]:
        with pytest.raises(IndexError, match=f"prompt {prompt_index} is outside the {split} split"):
            task.prompt(split, prompt_index)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (TaskConfig(name="spell_backwards"), "did you mean 'spell_backward'"),
        (TaskConfig(name="dataa"), "did you mean 'data'"),
        (
            TaskConfig(name="spell_backward", params={"max_word_length": 3}),
            "did you mean 'max_word_len'",
        ),
        (
            TaskConfig(name="spell_backward", params={"zzz": 3}),
            "it has data_file, max_word_len, min_word_len",
        ),
        (TaskConfig(name="spell_backward", params={"seed": 3}), "set run.seed"),
        (
            TaskConfig(name="spell_backward", params={"min_word_len": 0}),
            "min_word_len must be positive",
        ),
        (TaskConfig(name="spell_backward", params={"min_word_len": "four"}), "refuses task.params"),
        (
            TaskConfig(name="spell_backward", params={"min_word_len": 40, "max_word_len": 40}),
            "cannot make a question",
        ),
    ],
)
def test_a_wrong_setting_is_said_in_a_sentence(config: TaskConfig, said: str) -> None:
    with pytest.raises(TaskError) as error:
        open_task(config, 0)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_a_data_set_of_one_question_cannot_hold_any_out() -> None:
    with pytest.raises(TaskError, match=r"too few different questions.*task.eval_size = 0"):
        open_task(TaskConfig(name="count_primes", params={"min_n": 5, "max_n": 5}), 0)


WITHOUT = """
import sys
sys.modules.update(dict.fromkeys({missing!r}))  # None: an import of it fails
from asyncrl.config.schema import TaskConfig
from asyncrl.tasks import TaskError, open_task
"""
"""A Python in which some packages are not installed."""

SOURCE_ONLY = ("cellpylib", "pycosat", "zss")

REFUSED = """
for name in ("game_of_life", "game_of_life_halting", "zebra_puzzles", "codeio"):
    try:
        open_task(TaskConfig(name=name, train_size=8, eval_size=0), 0)
    except TaskError as error:
        print(error)
print([name for name in sys.modules if name in {missing!r} and sys.modules[name] is not None])
"""

THE_REST = """
from asyncrl.tasks.gym_library import DATASETS, create_dataset, lacking
for name in DATASETS:
    if not lacking(name) and name != "composite":
        data = create_dataset(name, seed=1, size=4)
        data.score_answer(str(data[0]["answer"]), data[0])
print()
print(len(DATASETS) - len(list(filter(lacking, DATASETS))))
"""


def said_without(missing: tuple[str, ...], code: str) -> list[str]:
    """The lines that a Python prints in which these packages are not installed."""
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT.format(missing=missing) + code.format(missing=missing)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert not done.returncode, done.stderr
    return done.stdout.splitlines()


def test_data_sets_that_need_what_is_not_installed_are_refused_in_a_sentence() -> None:
    *sentences, left = said_without(SOURCE_ONLY, REFUSED)
    assert [" ".join(each.split()[2:5]) for each in sentences] == [
        "'game_of_life' needs cellpylib,",
        "'game_of_life_halting' needs cellpylib,",
        "'zebra_puzzles' needs pycosat,",
        "'codeio' needs zss,",
    ]
    assert all("make gym-source" in each for each in sentences)
    assert left == "[]"


@pytest.mark.explore
def test_every_other_data_set_asks_and_scores_without_them() -> None:
    assert int(said_without(SOURCE_ONLY, THE_REST)[-1]) > 90


def test_without_reasoning_gym_a_task_of_it_says_what_to_install() -> None:
    code = "try: open_task(TaskConfig(), 0)\nexcept TaskError as error: print(error)"
    (said,) = said_without(("reasoning_gym",), code)
    assert "reasoning_gym is not installed: run `make extras` in a clone, or" in said
    assert "pip install 'asyncrl[gym]'" in said
