"""Functions of other libraries as verifiers."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from asyncrl.tasks import Figures, NoReward
from asyncrl.tasks.answer import Answer
from asyncrl.tasks.reward_forms import OwnVerifier, as_verifier
from asyncrl.tasks.verifiers import NoAnswer, rewarded

LINE = {"prompt": "2 + 2 =", "answer": 4, "solution": "4", "level": 3, "extra_info": {"index": 7}}
ANSWER = Answer(" 4", finish="stop", tokens=2, ids=[5, 6])


def judged(function: Callable[..., Any], line: dict[str, Any] | None = None) -> Any:
    """The reward of a function for the answer, as a run reads it."""
    line = LINE if line is None else line
    verifier = as_verifier(function)
    if isinstance(verifier, OwnVerifier):
        verifier.check(line)
    return rewarded(verifier, verifier(ANSWER, line))


def ours(answer: Answer, line: dict[str, Any]) -> float:
    return float(answer.strip() == str(line["answer"]) and answer.finish == "stop")


def entry_first(entry: dict[str, Any], answer: Answer) -> float:
    return ours(answer, entry)


def unnamed(a: Answer, line: dict[str, Any]) -> float:
    return ours(a, line)


def pair(completion: str, answer: str) -> float:
    return float(completion.strip() == answer)


def labelled(response: str, label: str, strict: bool = True) -> bool:
    return response.strip() == label and strict


def with_prompt(prompt: str, response: str, ground_truth: str) -> int:
    return int(response.strip() == ground_truth and prompt == "2 + 2 =")


def bare(answer: str) -> float:
    return float("4" in answer)


def positional(response: str, label: str, /) -> float:
    return float(response.strip() == label)


def compute_score(
    data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None
) -> float:
    assert extra_info == {"index": 7}
    return float(solution_str.strip() == ground_truth and data_source == "")


def compute_details(
    data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None, **rest: Any
) -> dict[str, Any]:
    assert not rest
    return {"score": float(solution_str.strip() == ground_truth), "acc": True, "pred": "4"}


def trl_columns(completions: list[str], solution: list[str], **columns: Any) -> list[float]:
    assert columns["prompts"] == ["2 + 2 ="] and columns["completion_ids"] == [[5, 6]]
    assert columns["level"] == [3] and "prompt" not in columns and "completions" not in columns
    return [float(text.strip() == right) for text, right in zip(completions, solution, strict=True)]


def trl_plain(prompts: list[str], completions: list[str]) -> list[int]:
    return [len(text.strip()) for text in completions]


def trl_optional(
    completions: list[str], prompts: Any = None, level: Any = None, missing: Any = None
) -> list[float]:
    assert prompts == ["2 + 2 ="] and level == [3] and missing is None
    return [1.0 for _ in completions]


def trl_ids(completions: list[str], completion_ids: list[list[int]], trainer_state: Any) -> Any:
    assert trainer_state is None
    return tuple(len(ids) / 2 for ids in completion_ids)


def verl_batch(
    data_sources: list[str], solution_strs: list[str], ground_truths: list[str], extra_infos: Any
) -> list[dict[str, float]]:
    pairs = zip(solution_strs, ground_truths, strict=True)
    return [{"score": float(text.strip() == right)} for text, right in pairs]


class Instance:
    def __call__(self, completions: list[str], **columns: Any) -> list[float]:
        return [1.0]

    def method(self, response: str, target: str) -> float:
        return float(response.strip() == target)


FORMS = [
    *(ours, unnamed, entry_first, pair, labelled, with_prompt, bare, positional, compute_score),
    *(compute_details, trl_columns, trl_plain, trl_optional, trl_ids, verl_batch),
    *(Instance(), Instance().method),
]


@pytest.mark.parametrize("function", FORMS, ids=lambda one: getattr(one, "__name__", "instance"))
def test_a_function_in_a_usual_form_is_called_in_it(function: Callable[..., Any]) -> None:
    assert judged(function) == 1.0


def test_a_function_of_this_project_is_itself() -> None:
    assert as_verifier(ours) is ours


def test_a_completion_of_a_conversation_is_a_message() -> None:
    """As TRL gives it; a text where the prompt is one (test above)."""
    talk = [{"role": "user", "content": "2 + 2 ="}]

    def content(completions: Any, prompts: Any, **columns: Any) -> list[float]:
        assert prompts == [talk]
        return [float(one[0] == {"role": "assistant", "content": " 4"}) for one in completions]

    assert judged(content, LINE | {"prompt": talk}) == 1.0


def test_a_ground_truth_of_the_line_comes_before_its_answer() -> None:
    line = {"prompt": "", "answer": "worked: 4", "ground_truth": {"target": [4]}}

    def score(solution_str: str, ground_truth: Any) -> float:
        return float(ground_truth == {"target": [4]})

    assert judged(score, line) == 1.0


def test_rewards_by_name_and_execution_are_declared_as_ever() -> None:
    def both(completions: Any, **columns: Any) -> Any:
        return [{"right": 1.0, "brief": 0.5}]

    both.rewards, both.executes = ("right", "brief"), True  # type: ignore[attr-defined]
    reward = judged(both)
    assert float(reward) == 1.5 and reward.parts == {"right": 1.0, "brief": 0.5}
    assert getattr(as_verifier(both), "executes", None) is True


@pytest.mark.parametrize(
    ("returned", "says"),
    [
        ([], "not a number: a list of 0 rewards"),
        ([1.0, 2.0], "not a number: a list of 2 rewards"),
        (1.0, "not a number: float, where a list"),
        (None, "not a number: NoneType"),
    ],
)
def test_a_batch_of_one_returns_one_reward(returned: Any, says: str) -> None:
    def batch(completions: Any) -> Any:
        return returned

    with pytest.raises(NoReward, match=re.escape(says)):
        judged(batch)


def test_other_numbers_of_a_score_are_figures() -> None:
    logged = judged(compute_details)
    assert float(logged) == logged.reward == 1.0 and logged.figures == {"acc": 1.0}


def test_figures_stand_beside_a_reward_of_any_form() -> None:
    def both(answer: str, line: Any) -> Figures:
        return Figures({"right": 1.0, "brief": 0.5}, {"words": len(answer.split())})

    both.rewards = ("right", "brief")  # type: ignore[attr-defined]
    logged = judged(both)
    assert logged.reward.parts == {"right": 1.0, "brief": 0.5} and logged.figures == {"words": 1.0}
    assert float(logged) == 1.5


@pytest.mark.parametrize(
    ("figures", "says"),
    [
        ({"a": float("nan")}, "figures: a is not finite"),
        ({"a": "1"}, "not a number: str, as a"),
        ({"a b": 1.0}, "figures: the name 'a b'"),
        ({"a" * 41: 1.0}, "figures: the name"),
        ({str(n): 0.0 for n in range(17)}, "figures: 17 of them"),
    ],
)
def test_other_figures_are_no_verdict(figures: Any, says: str) -> None:
    with pytest.raises(NoReward, match=says):
        judged(lambda answer, line: Figures(1.0, figures))


def test_a_mapping_without_a_score_is_no_reward() -> None:
    def details(solution_str: str, ground_truth: str) -> dict[str, float]:
        return {"acc": 1.0}

    with pytest.raises(NoReward, match="unnamed rewards"):
        judged(details)


async def later(answer: Any, line: Any) -> float:
    return 1.0


REFUSED: list[tuple[Callable[..., Any], str]] = [
    (lambda a, b: 1.0, "nothing says what 'a' is"),
    (lambda answer, weight: 1.0, "nothing says what 'weight' is"),
    (lambda prompt, label: 1.0, "and no answer"),
    (lambda: 1.0, "and no answer"),
    (lambda **columns: 1.0, "and no answer"),
    (later, "is async"),
]


@pytest.mark.parametrize(("function", "says"), REFUSED)
def test_what_cannot_be_told_is_refused_with_the_forms(
    function: Callable[..., Any], says: str
) -> None:
    with pytest.raises(LookupError, match=says) as refused:
        as_verifier(function)
    assert "async" in says or "TRL's (completions, **columns)" in str(refused.value)


def test_a_key_that_the_line_lacks_is_named_with_the_nearest() -> None:
    def wants(completions: Any, solutoin: Any) -> Any:
        return [1.0]

    with pytest.raises(LookupError, match=r"reads 'solutoin'.*nearest is 'solution'"):
        judged(wants)
    with pytest.raises(NoAnswer, match="required field `answer`"):
        judged(pair, {"prompt": ""})
    assert judged(bare, {"prompt": ""}) == 1.0, "it reads no answer of the line"
