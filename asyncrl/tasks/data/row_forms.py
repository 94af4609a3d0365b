"""Forms of rows that are known: which keys have the prompt and the answer. Pure. A new form is one
entry of FORMS."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from asyncrl.tasks import TaskError
from asyncrl.tasks.row_keys import keys_of, listed, nearest_key, value_at

LAST = "the last message"
"""In place of an answer's key: what the assistant says last in the conversation."""


class RowForm(NamedTuple):
    """A form, by the `name` of its best known user. The prompt is at the keys `prompt`, which are
    joined if they are several, and its `kind` is a text, messages, or either. `answer` is a key,
    LAST, or empty. `choices` is the key of what can be chosen, which belongs to the prompt.

    >>> RowForm("own", ("prompt",), "answer").kind
    ''
    """

    name: str
    prompt: tuple[str, ...]
    answer: str
    kind: Literal["", "text", "messages"] = ""
    choices: str = ""

    @property
    def keys(self) -> str:
        """The keys in words."""
        parts = [*self.prompt, *filter(None, (self.choices, self.answer))]
        return ", ".join(parts)


FORMS = (
    RowForm("search-r1", ("prompt",), "reward_model.ground_truth.target"),
    RowForm("verl", ("prompt",), "reward_model.ground_truth"),
    RowForm("skyrl", ("prompt",), "reward_spec.ground_truth"),
    RowForm("verifiers", ("prompt",), "answer", "messages"),
    RowForm("mmlu", ("question",), "answer", choices="choices"),
    RowForm("arc", ("question",), "answerKey", choices="choices"),
    RowForm("hellaswag", ("ctx",), "label", choices="endings"),
    RowForm("asyncrl", ("prompt",), "answer"),
    RowForm("rlvr", ("messages",), "ground_truth", "messages"),
    RowForm("slime", ("prompt",), "label"),
    RowForm("trl", ("prompt",), "ground_truth"),
    RowForm("trl", ("prompt",), "solution"),
    RowForm("completions", ("prompt",), "completion"),
    RowForm("preferences", ("prompt",), "chosen"),
    RowForm("synthetic", ("prompt",), "verification_info.ground_truth"),
    RowForm("synthetic", ("prompt",), "gold_standard_solution"),
    RowForm("responses", ("prompt",), "response"),
    RowForm("openr1", ("problem",), "answer", "text"),
    RowForm("olympiad", ("problem",), "final_answer", "text"),
    RowForm("math", ("problem",), "solution", "text"),
    RowForm("squad", ("context", "question"), "answers.text", "text"),
    RowForm("triviaqa", ("question",), "answer.aliases", "text"),
    RowForm("gsm8k", ("question",), "answer", "text"),
    RowForm("olympiad", ("question",), "final_answer", "text"),
    RowForm("simplerl", ("question",), "gt_answer", "text"),
    RowForm("aqua", ("question",), "correct", choices="options"),
    RowForm("science", ("question",), "reference_answer", "text"),
    RowForm("sciq", ("question",), "correct_answer", "text"),
    RowForm("question", ("question",), "solution", "text"),
    RowForm("question", ("question",), "ground_truth", "text"),
    RowForm("alpaca", ("instruction", "input"), "output", "text"),
    RowForm("dolly", ("context", "instruction"), "response", "text"),
    RowForm("alpaca", ("instruction",), "output", "text"),
    RowForm("dolly", ("instruction",), "response", "text"),
    RowForm("metamath", ("query",), "response", "text"),
    RowForm("query", ("query",), "answer", "text"),
    RowForm("orca", ("question",), "response", "text"),
    RowForm("inputs", ("input",), "target", "text"),
    RowForm("inputs", ("input",), "output"),
    RowForm("inputs", ("input",), "answer"),
    RowForm("inputs", ("inputs",), "targets"),
    RowForm("chat", ("messages",), LAST, "messages"),
    RowForm("sharegpt", ("conversations",), LAST, "messages"),
    RowForm("sharegpt", ("conversation",), LAST, "messages"),
)
"""The first form fits whose keys are all there."""
SIMPLE = (
    *("prompt", "question", "problem", "query", "instruction", "input", "messages"),
    *("conversations", "text", "task", "q", "user", "question_content"),
)
"""Names of prompts that may go with any of ANSWERS, where no form fits."""
ANSWERS = (
    *("answer", "ground_truth", "label", "solution", "target", "final_answer", "gold", "expected"),
    *(
        "expected_answer",
        "correct_answer",
        "reference_answer",
        "gt_answer",
        "reference",
        "response",
    ),
    *("output", "completion", "result", "a", "reward_model.ground_truth"),
    *("answers.text", "answers"),
)
"""Names of answers, the likeliest first."""


def form_of(rows: Sequence[Mapping[str, Any]], prompt_key: str, answer_key: str) -> RowForm:
    """The form of the first rows of a data set, with the keys that settings name. Raises TaskError
    where one of these is not there, or no form fits."""
    row = _merged(rows)
    for setting, key in (("task.prompt_key", prompt_key), ("task.answer_key", answer_key)):
        if key and value_at(row, key) is None:
            raise TaskError(
                f"{setting} is {key!r}, and the rows have {listed(keys_of(row))}"
                f"{nearest_key(key, keys_of(row))}"
            )
    if prompt_key and answer_key:
        return RowForm("", (prompt_key,), answer_key)
    for form in _candidates(row, prompt_key, answer_key):
        if _fits(form, row):
            return form
    raise TaskError(_unknown(row, prompt_key, answer_key))


def _candidates(row: Mapping[str, Any], prompt_key: str, answer_key: str) -> Iterator[RowForm]:
    if prompt_key:
        forms = [form for form in FORMS if form.prompt == (prompt_key,)]
        yield from (form._replace(name="", kind="") for form in forms)
        for answer in [*_beside(row, prompt_key, ANSWERS), *_same(row, ANSWERS)]:
            if answer != prompt_key:
                yield RowForm("", (prompt_key,), answer)
        yield RowForm("", (prompt_key,), LAST, "messages")
        yield RowForm("", (prompt_key,), "")
        return
    if answer_key:
        prompts = dict.fromkeys([form.prompt for form in FORMS])
        several = [form for form in prompts if answer_key not in form]
        yield from (RowForm("", form, answer_key) for form in several)
        for name in [*_same(row, SIMPLE), *_beside(row, answer_key, SIMPLE)]:
            if name != answer_key:
                yield RowForm("", (name,), answer_key)
        return
    yield from FORMS
    names = _same(row, SIMPLE)
    yield from (RowForm("", (name,), key) for name in names for key in _same(row, ANSWERS))
    yield from (RowForm("", (name,), "") for name in names)


def _same(row: Mapping[str, Any], names: Sequence[str]) -> list[str]:
    """Keys of a row that are these names, up to case and marks."""
    plain = {_plain(key): key for key in reversed(list(row))}
    found = [plain.get(_plain(name), name) for name in names]
    return [name for name in found if value_at(row, name) is not None]


def _beside(row: Mapping[str, Any], key: str, names: Sequence[str]) -> list[str]:
    """These names in the object that a dotted key goes into, as dotted keys."""
    inside, dot, _ = key.rpartition(".")
    inner = value_at(row, inside) if dot else None
    found = _same(inner, names) if isinstance(inner, Mapping) else []
    return [f"{inside}.{name}" for name in found]


def _plain(name: str) -> str:
    return name.casefold().replace("_", "").replace("-", "").replace(" ", "")


def _merged(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The keys of all rows, each with its first value that is not null or empty."""
    merged = dict[str, Any]()
    for row in rows:
        for key, value in row.items():
            if merged.get(key) in (None, "", [], {}):
                merged[key] = value
    return merged


def _fits(form: RowForm, row: Mapping[str, Any]) -> bool:
    keys = [*form.prompt, *filter(None, (form.choices, form.answer))]
    if any(key != LAST and value_at(row, key) is None for key in keys):
        return False
    is_messages = bool(messages_in(value_at(row, form.prompt[0])))
    return not form.kind or (form.kind == "messages") == is_messages


def messages_in(value: Any) -> list[Any]:
    """The value as messages, if it is a list of objects or the JSON of one; else none.

    >>> messages_in('[{"role": "user", "content": "1 + 1?"}]')
    [{'role': 'user', 'content': '1 + 1?'}]
    """
    if isinstance(value, str):
        if value.lstrip()[:1] != "[":
            return []
        value = value_at({"json": f'{{"of": {value}}}'}, "json.of")
    good = isinstance(value, list) and value and all(isinstance(one, Mapping) for one in value)
    keys = ("role", "from")
    return list(value) if good and any(key in value[0] for key in keys) else []


def _unknown(row: Mapping[str, Any], prompt_key: str, answer_key: str) -> str:
    keys = keys_of(row)
    missing = [
        setting
        for setting, key in (("task.prompt_key", prompt_key), ("task.answer_key", answer_key))
        if not key
    ]
    near = "" if prompt_key or "prompt" in row else nearest_key("prompt", keys)
    return (
        f"the rows have {listed(keys)}, which is no form that is known: name the key of the "
        f"{'prompt' if not prompt_key else 'answer'} in {' and of the answer in '.join(missing)}"
        f"{near}"
    )
