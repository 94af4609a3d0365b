"""JSONL files: checked in full before anything starts, held-out prompts never trained, and data
never chooses code."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from asyncrl.config import ConfigError
from asyncrl.config.schema import TaskConfig
from asyncrl.tasks import NoReward, Several, TaskError, open_task
from asyncrl.tasks.answer import Answer
from asyncrl.tasks.data.data_task import DataTask
from asyncrl.tasks.judge_request import JudgeRequest

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(*lines: Any, name: str = "data.jsonl") -> Path:
        path = tmp_path / name
        path.write_text(
            "".join(
                (line if isinstance(line, str) else json.dumps(line, ensure_ascii=False)) + "\n"
                for line in lines
            )
        )
        return path

    return write


JUDGING = """
from os import system
number = 4
def half(answer, entry): return entry['worth'] if answer == entry['answer'] else 0.0
def quarter(answer, entry): return 0.25
def _cleanup(answer, entry): raise SystemExit
def run(answer, entry): return eval(answer)
run.executes = True
class Helper:
    def __init__(self, answer, entry): raise SystemExit
VERIFIERS = {"quarter": quarter, "run": run, "class": Helper}
"""


@pytest.fixture
def judging(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module of verifiers on the Python path."""
    name = f"judging_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(JUDGING)
    monkeypatch.syspath_prepend(str(tmp_path))
    return name


def config(path: Path, **more: Any) -> TaskConfig:
    return TaskConfig(**{"name": "data", "path": str(path), "eval_size": 2, **more})


def test_the_last_lines_are_held_out(write: Write) -> None:
    path = write(
        *({"prompt": f"ü{i}", "answer": i} for i in range(4)), "", {"prompt": "z", "answer": "ö"}
    )
    task = open_task(config(path), 0)
    assert [task.prompt("train", i) for i in range(task.size("train"))] == ["ü0\n", "ü1\n", "ü2\n"]
    assert [task.prompt("evaluation", i) for i in range(task.size("evaluation"))] == ["ü3\n", "z\n"]
    assert [task.answer("evaluation", i) for i in range(2)] == ["3", "ö"]
    assert task.verify("evaluation", 1, " ö\n") == 1.0
    assert task.verify("train", 2, "3") == 0.0
    with pytest.raises(IndexError):
        task.prompt("train", 3)


@pytest.mark.parametrize(
    ("verifier", "answers", "right", "wrong"),
    [
        ("exact", ["four", 4, True], ["four", "4 ", "True"], ["five", "four4", ""]),
        ("number", ["4", 5.5], ["4.0", "5.50"], ["6", "four"]),
        ("boxed", ["\\frac{1}{2}", "2"], ["\\boxed{1/2}", "\\boxed{2}"], ["2", "\\boxed{3}"]),
    ],
)
def test_any_of_several_answers_is_right(
    write: Write, verifier: str, answers: list[Any], right: list[str], wrong: list[str]
) -> None:
    path = write(*({"prompt": f"{n}?", "answer": answers} for n in range(4)))
    task = open_task(config(path, verifier=verifier), 0)
    assert [task.verify("train", 1, text) for text in right] == [1.0] * len(right)
    assert [task.verify("evaluation", 0, text) for text in wrong] == [0.0] * len(wrong)
    assert task.answer("train", 0) == str(answers[0])


def test_a_function_gets_several_answers_as_they_are(write: Write, judging: str) -> None:
    path = write(*({"prompt": f"{n}?", "answer": ["a", "b"], "worth": 0.5} for n in range(4)))
    task = open_task(config(path, verifier=f"{judging}:half"), 0)
    assert task.verify("train", 0, "a") == 0.0
    assert task.entry("train", 0)["answer"] == ["a", "b"]


def test_a_judge_reads_several_answers(write: Write) -> None:
    path = write(*({"prompt": f"{n}?", "answer": ["a", 2]} for n in range(4)))
    request = open_task(config(path, verifier="judge"), 0).verify("train", 0, "c")
    assert isinstance(request, JudgeRequest) and request.expected == "a or 2"


def test_a_held_out_prompt_is_not_trained(write: Write) -> None:
    train = write(*({"prompt": str(i % 5), "answer": "a"} for i in range(20)))
    held_out = write(
        {"prompt": "3", "answer": "a"},
        {"prompt": "4", "answer": "a"},
        {"prompt": "5", "answer": "a"},
        name="eval.jsonl",
    )
    task = open_task(config(train, eval_path=str(held_out), template="{question}"), 0)
    assert task.size("evaluation") == 2
    assert {task.prompt("train", i) for i in range(task.size("train"))} == {"0", "1", "2"}
    with pytest.raises(
        TaskError, match="of its 20 rows 5 are held out, and 15 have the prompt of a held-out one"
    ):
        open_task(config(train, eval_size=5), 0)


def test_lines_with_a_held_out_prompt_are_counted(write: Write) -> None:
    path = write(*({"prompt": str(i % 8), "answer": "a"} for i in range(20)))
    task = DataTask(config(path, eval_size=2))
    assert task.size("train") == 14
    assert task.notes == [
        "4 rows have the prompt of a held-out one and do not train: 14 are left",
        "8 rows have the prompt of an earlier row; each trains as a prompt of its own",
    ]
    again = write(*({"prompt": "1", "answer": answer} for answer in "ab"), name="again.jsonl")
    (note,) = DataTask(config(again, eval_size=0)).notes
    assert note.startswith("1 row has the prompt of an earlier row;")
    path = write(*({"prompt": str(i), "answer": "a"} for i in range(4)), name="other.jsonl")
    assert DataTask(config(path)).notes == []
    mix = TaskConfig(mix={"a": {"name": "data", "path": str(path)}}, eval_size=0)
    assert open_task(mix, 0).notes == []


def test_an_empty_answer_is_noted_where_a_response_without_text_gets_it_right(
    write: Write, judging: str
) -> None:
    lines = [{"prompt": str(n), "answer": " " * n, "worth": 1} for n in range(3)]
    path = write(*lines, {"prompt": "x", "answer": "x"})
    mix = TaskConfig(mix={"a": {"name": "data", "path": str(path)}}, eval_size=1)
    assert open_task(mix, 0).notes == [
        "a: 3 rows have an empty answer, which a response without text gets right"
    ]
    assert open_task(config(path, verifier=f"{judging}:half"), 0).notes == []


def test_a_column_of_images_without_an_image_is_noted(write: Write) -> None:
    odd = [7, {"width": 3}, ["screen 7"], "Screen 7", {"url": None}, None, [], "python:3.12"]
    lines = [{"prompt": str(n), "answer": "a", "image": one} for n, one in enumerate(odd)]
    (note,) = DataTask(config(write(*lines), eval_size=1)).notes
    assert note.startswith("5 rows have something like an image that is not shown")


@pytest.mark.parametrize("prompt", ["", " \n"])
def test_an_empty_prompt_is_refused_by_its_line(write: Write, prompt: str) -> None:
    path = write({"prompt": "a", "answer": 1}, {"prompt": prompt, "answer": 2})
    with pytest.raises(TaskError, match="line 2: its prompt is empty"):
        open_task(config(path, eval_size=0), 0)


@pytest.mark.parametrize(
    ("function", "says"),
    [
        ("def f(a, b): return 1.0", "nothing says what 'a' is"),
        ("def f(prompt, label): return 1.0", "and no answer"),
        ("def f(): return 1.0", "and no answer"),
        ("def f(completions, colour, **rest): return [1.0]", "line 1: its function reads 'colour'"),
        ("async def f(answer, line): return 1.0\nf.executes = True", "is async, and executes"),
        (
            "class F:\n    async def __call__(self, answer, line): return 1.0\n"
            "f = F()\nf.executes = True\nf.__module__ = __name__",
            "is async, and executes",
        ),
        ("def f(answer, strictness): return 1.0", "the forms .answer, line., .completion, answer."),
    ],
)
def test_a_function_that_is_called_otherwise_is_no_verifier(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str, says: str
) -> None:
    """Half a thousand groups had no verdict each."""
    name = f"called_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(function + "\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    path = write({"prompt": "a", "answer": 1}, {"prompt": "b", "answer": 2})
    with pytest.raises(TaskError, match=says):
        open_task(config(path, verifier=f"{name}:f", eval_size=0), 0)


def test_a_line_longer_than_a_block_is_read_whole(write: Write) -> None:
    path = write(
        {"prompt": "x" * 50_000, "answer": "a"},
        {"prompt": "y" * 5000, "answer": "b"},
        {"prompt": "z", "answer": "c"},
    )
    task = open_task(config(path, eval_size=1), 0)
    assert [len(task.prompt("train", i)) for i in range(2)] == [50_001, 5001]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "begins one JSON object of several lines"),
        ("[1]", "it is a list, and each row is an object"),
        ('{"prompt": "x", "answer": 1e400}', "is too large to be read: write it as text, in quot"),
        ('{"prompt": "x", "answer": 1, "y": [%s]}' % ("9" * 5000), "write it as text, in quotes"),
        ({"prompt": "x"}, "answer is missing: it has prompt"),
        ({"prompt": 3, "answer": "x"}, "its prompt is a number, and must be a text"),
        ({"prompt": "x", "answer": None}, "its answer is null"),
        ({"prompt": "x", "answer": "x", "verifier": "exakt"}, "did you mean 'exact'"),
        (
            {"prompt": "x", "answer": "ten", "verifier": "number"},
            "its verifier is `number` and its answer 'ten' is not a number",
        ),
        (
            {"prompt": "x", "answer": "x", "verifier": "os:getcwd"},
            "names a module that run.toml does not",
        ),
    ],
)
def test_a_bad_line_is_named_by_file_and_number(write: Write, line: Any, said: str) -> None:
    path = write({"prompt": "a", "answer": "b"}, "", line, {"prompt": "a", "answer": "b"})
    with pytest.raises(TaskError) as error:
        open_task(config(path), 0)
    assert f"{path}, line 3: " in str(error.value)
    assert any(part in str(error.value) for part in said.split("|"))


def test_bytes_that_are_no_text_are_a_bad_line(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    path.write_bytes(b'{"prompt": "a", "answer": "b"}\n{"prompt": "\xff", "answer": "b"}\n')
    with pytest.raises(TaskError, match="line 2: "):
        open_task(config(path), 0)


def test_a_missing_or_empty_file_is_said(write: Write, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    for path, said in [
        (tmp_path / "no.jsonl", "cannot be read"),
        (write("", ""), "has no rows"),
        (tmp_path / "run", "a folder without files of rows"),
        (Path("/proc/self/mem"), "cannot be read: Input/output error"),  # it opens, and fails then
    ]:
        with pytest.raises(TaskError, match=said):
            open_task(config(path), 0)
    with pytest.raises(TaskError, match=r"needs task\.path"):
        open_task(TaskConfig(name="data"), 0)


# answers, and expected answers, as they are in JSON: right by `exact`, right by `number`; None: the
# line is refused
JUDGED: list[tuple[str, Any, bool, bool | None]] = [
    ("1000", "1000", True, True),
    (" 1000\n", "1000 ", True, True),
    ("1000", "1,000", False, True),
    ("1,000", 1000, False, True),
    (" 1e3\n", 1000, False, True),
    ("1000.0", 1000, False, True),
    ("1000.", 1000, False, True),
    ("+1000", 1000, False, True),
    ("1.234e3", "1,234", False, True),
    ("1001", 1000, False, False),
    ("about 1000", 1000, False, False),
    ("", 0, False, False),
    # a comma is a thousands separator between groups of three digits, and nothing else
    ("1,2", 12, False, False),
    ("1,2", "1,2", True, None),
    ("1,23", 123, False, False),
    ("1,23,456", 123456, False, False),
    ("1234,567", 1234567, False, False),
    ("0,123", 123, False, False),
    (",123", 123, False, False),
    ("1,234,", 1234, False, False),
    ("1.5,000", "1.5", False, False),
    ("12,345,678.50", 12345678.5, True, True),
    # signs and currencies
    ("\N{MINUS SIGN}5", -5, False, True),
    ("\N{MINUS SIGN}5", -5.0, True, True),
    ("-5", "\N{MINUS SIGN}5", False, True),
    ("$1,234.50", 1234.5, True, True),
    ("-$5", -5, False, True),
    ("$-5", -5, False, True),
    ("-$-5", 5, False, False),
    ("5", "$5", False, True),
    ("$5", "\N{EURO SIGN}5", False, False),
    # what may mean another number
    ("1/2", 0.5, False, False),
    ("50%", 0.5, False, False),
    ("50%", "50%", True, None),
    ("1_000", 1000, False, False),
    ("1 000", 1000, False, False),
    ("1.234,5", 1234.5, False, False),
    ("12 apples", 12, False, False),
    ("nan", 1, False, False),
    ("inf", 1e308, False, False),
    ("1e400", 1e308, False, False),
    ("1e99999999999999999999", 1, False, False),
    # JSON numbers: an integer has digits, and any other a value
    ("4", 4, True, True),
    ("4.0", 4, False, True),
    ("04", 4, False, True),
    ("4", 4.0, True, True),
    ("4.0", 4.0, True, True),
    ("four", 4.0, False, False),
    ("0", -0.0, True, True),
    ("1e21", 1e21, True, True),
    ("1" + 21 * "0", 1e21, True, True),
    ("0.1", 0.1, True, True),
    ("3.14159265358979323846", 3.141592653589793, True, True),
    ("9007199254740993", 9007199254740993, True, True),
    ("9007199254740992", 9007199254740993, False, False),
    ("123456789012345678901234567890", 123456789012345678901234567890, True, True),
    ("007", "007", True, True),
    ("7", "007", False, True),
    # Unicode: equivalent forms are one text
    ("caf\N{LATIN SMALL LETTER E WITH ACUTE}", "cafe\N{COMBINING ACUTE ACCENT}", True, None),
    ("\N{FULLWIDTH DIGIT THREE}", 3, False, True),
    ("a  b", "a b", False, None),
]


@pytest.mark.parametrize(("answer", "expected", "exact", "number"), JUDGED)
def test_answers_of_each_kind_of_json_are_judged_as_documented(
    write: Write, answer: str, expected: object, exact: bool, number: bool | None
) -> None:
    path = write({"prompt": "a", "answer": expected})
    assert open_task(config(path, eval_size=0), 0).verify("train", 0, answer) == float(exact)
    judged = config(path, verifier="number", eval_size=0)
    if number is None:
        with pytest.raises(TaskError, match=r"is not a number, as .* are: write it as one"):
            open_task(judged, 0)
        return
    task = open_task(judged, 0)
    assert task.verify("train", 0, answer) == float(number)
    assert task.verify("train", 0, task.answer("train", 0) or "") == 1.0


def test_a_function_of_the_users_judges(write: Write, judging: str) -> None:
    lines = [
        {"prompt": "a", "answer": "b", "worth": 0.5},
        {"prompt": "c", "answer": "d", "verifier": "exact"},
        {"prompt": "z", "answer": "z"},
    ]
    task = open_task(config(write(*lines), verifier=f"{judging}:half", eval_size=1), 0)
    assert [task.verify("train", 0, "b"), task.verify("train", 1, "d")] == [0.5, 1.0]
    with pytest.raises(KeyError):
        task.verify("evaluation", 0, "z")


@pytest.mark.parametrize("name", ["_cleanup", "Helper", "system", "number", "VERIFIERS", "class"])
def test_a_line_may_name_only_functions_that_the_module_offers(
    write: Write, judging: str, name: str
) -> None:
    line = {"prompt": "a", "answer": "b", "worth": 1}
    path = write(line, line | {"prompt": "c", "verifier": f"{judging}:{name}"})
    with pytest.raises(TaskError, match=r"line 2: .*(does not offer|defines no function)"):
        open_task(config(path, verifier=f"{judging}:half"), 0)


def test_a_line_may_name_what_the_module_offers_and_what_run_toml_names(
    write: Write, judging: str
) -> None:
    line = {"prompt": "a", "answer": "b", "worth": 1}
    names = (f"{judging}:quarter", f"{judging}:half", "exact", "")
    path = write(*(line | {"prompt": f"{name}?", "verifier": name} for name in names))
    task = open_task(config(path, verifier=f"{judging}:half", eval_size=0), 0)
    assert [task.verify("train", n, "b") for n in range(4)] == [0.25, 1.0, 1.0, 1.0]


def test_a_task_that_executes_answers_says_so(write: Write, judging: str) -> None:
    line = {"prompt": "a", "answer": "b", "worth": 1}
    plain, running = (
        write(line, line | {"prompt": "c", "verifier": name}, name=f"{n}.jsonl")
        for n, name in enumerate(("", f"{judging}:run"))
    )
    for path, verifier, executes in (
        (plain, "half", False),
        (plain, "run", True),
        (running, "half", True),
    ):
        task = open_task(config(path, verifier=f"{judging}:{verifier}", eval_size=0), 0)
        assert task.executes is executes


RAISING = """
from collections.abc import Mapping
class Odd(Exception):
    def __str__(self): raise self
class Raising:
    rewards = executes = property(lambda self: 1 / 0)
    __module__ = __name__
    def __call__(self, answer, line): return 1.0
class Offered(Mapping):
    __len__ = __getitem__ = None
    def __iter__(self): raise Odd
judge = Raising()
def plain(answer, line): return 1.0
def __getattr__(name):
    if name == "VERIFIERS": return Offered()
    raise Odd
"""


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("judge", "its function cannot be looked at \\(ZeroDivisionError"),
        ("plain", "VERIFIERS of 'raising' cannot be read \\(Odd\\)"),
        ("nothing", "cannot be imported \\(Odd\\)"),
    ],
)
def test_attributes_of_the_users_objects_are_code_that_may_raise(
    write: Write, tmp_path: Path, judging: str, name: str, said: str
) -> None:
    """Each was a traceback of check."""
    (tmp_path / "raising.py").write_text(RAISING)
    with pytest.raises(TaskError, match=said):
        open_task(config(write({"prompt": "a", "answer": "b"}), verifier=f"raising:{name}"), 0)


def test_what_a_module_offers_is_a_mapping(write: Write, tmp_path: Path, judging: str) -> None:
    (tmp_path / "listing.py").write_text("def f(answer, line): return 1\nVERIFIERS = [f]\n")
    line = {"prompt": "a", "answer": "b"}
    with pytest.raises(TaskError, match="must be a mapping of names to functions, and is a list"):
        open_task(config(write(line), verifier="listing:f", eval_size=0), 0)


def test_a_line_may_name_functions_of_the_module_that_run_toml_names_and_of_no_other(
    write: Write, judging: str
) -> None:
    line = {"prompt": "a", "answer": "b", "worth": 1, "verifier": f"{judging}:half"}
    path = write(line, line | {"prompt": "c"}, line | {"prompt": "d"})
    assert open_task(config(path, verifier=f"{judging}:half"), 0).verify("train", 0, "b") == 1
    with pytest.raises(TaskError, match=r"names a module that run\.toml does not"):
        open_task(config(path), 0)
    path = write({"prompt": "a", "answer": "b", "verifier": ": half"})
    with pytest.raises(TaskError, match="give both"):
        open_task(config(path), 0)


@pytest.mark.parametrize(
    ("verifier", "said"),
    [
        ("{}:third", "has no third"),
        ("{}:number", "defines no"),
        ("{}:system", "takes"),
        ("{}:Helper", "defines no"),
        ("no_such_module:f", "PYTHONPATH"),
    ],
)
def test_a_wrong_verifier_is_said(write: Write, judging: str, verifier: str, said: str) -> None:
    path = write({"prompt": "a", "answer": "b"}, {"prompt": "c", "answer": "d"})
    with pytest.raises(TaskError, match=said) as error:
        open_task(config(path, verifier=verifier.format(judging)), 0)
    assert str(error.value).startswith("task.verifier: ")


@pytest.mark.parametrize("verifier", ["numbr", ":f", "module:"])
def test_a_verifier_without_a_name_is_no_setting(verifier: str) -> None:
    with pytest.raises(
        ConfigError, match=r"task\.verifier is .*, and must be one of boxed, choice, exact"
    ):
        TaskConfig(name="data", verifier=verifier)


# ---------------------------------------------------------------------- the answer and its reward

ENDED = """
import math
def ended(answer, line):
    return float(answer.strip() == line["answer"] and answer.finish == "stop") - answer.tokens / 10
def odd(answer, line):
    return {"nan": math.nan, "text": "1", "half": 0.5, "one": True}[answer]
def both(answer, line):
    return {"right": 1.0, "brief": 0.5}
both.rewards = ("right", "brief")
VERIFIERS = {"both": both}
"""


@pytest.fixture
def ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = f"ended_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(ENDED)
    monkeypatch.syspath_prepend(str(tmp_path))
    return name


def test_a_verifier_is_told_how_the_answer_ended_and_its_length(write: Write, ended: str) -> None:
    path = write({"prompt": "a", "answer": "b"})
    task = open_task(config(path, verifier=f"{ended}:ended", eval_size=0), 0)
    assert task.verify("train", 0, Answer(" b", finish="stop", tokens=2)) == 0.8
    assert task.verify("train", 0, Answer(" b", finish="length", tokens=2)) == -0.2
    assert task.verify("train", 0, "b") == 0.0, "of a bare text it is not known"


def test_an_exact_reward_is_1_or_0_and_hides_no_wrong_reward(write: Write, ended: str) -> None:
    path = write({"prompt": "a", "answer": "b"})
    given = config(path, verifier=f"{ended}:odd", eval_size=0)
    exact = open_task(msgspec.structs.replace(given, reward="exact"), 0)
    score = open_task(given, 0)
    assert [exact.verify("train", 0, text) for text in ("half", "one")] == [0.0, 1.0]
    assert [score.verify("train", 0, text) for text in ("half", "one")] == [0.5, True]
    assert math.isnan(exact.verify("train", 0, "nan")) and exact.verify("train", 0, "text") == "1"


@pytest.mark.parametrize("line", [{}, {"verifier": "{}:both"}])
def test_several_rewards_are_not_exact(write: Write, ended: str, line: dict[str, str]) -> None:
    """By the setting's name, or by a line's."""
    line = {key: value.format(ended) for key, value in line.items()}
    path = write({"prompt": "a", "answer": "b"} | line)
    verifier = f"{ended}:{'ended' if line else 'both'}"
    with pytest.raises(TaskError, match=r"gives several rewards by name: set task\.reward"):
        open_task(config(path, verifier=verifier, eval_size=0, reward="exact"), 0)
    assert open_task(config(path, verifier=verifier, eval_size=0), 0).verify("train", 0, "b") == 1.5


# --------------------------------------------------------------------------------- several rewards

SEVERAL = """
from ast import literal_eval
def judge(answer, line): return literal_eval(answer)
def plain(answer, line): return literal_eval(answer)
def other(answer, line): return {"good": 1.0}
judge.rewards = ("right", "brief")
other.rewards = ["good"]
def text(answer, line): return 1.0
def empty(answer, line): return 1.0
def twice(answer, line): return 1.0
def blank(answer, line): return 1.0
def count(answer, line): return 1.0
text.rewards, empty.rewards, twice.rewards = "right", (), ["a", "a"]
blank.rewards, count.rewards = ["a", " "], 2
VERIFIERS = {verifier.__name__: verifier for verifier in (other, text, empty, twice, blank, count)}
"""


@pytest.fixture
def several(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module of verifiers that say the names of their rewards, and give what the
    answer says."""
    name = f"several_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(SEVERAL)
    monkeypatch.syspath_prepend(str(tmp_path))
    return name


@pytest.mark.parametrize(
    "answer", ["{'right': 1, 'brief': 0.25}", "{'brief': 0.25, 'right': True}"]
)
def test_several_rewards_are_their_sum_and_have_the_order_of_their_names(
    write: Write, several: str, answer: str
) -> None:
    path = write(
        {"prompt": "a", "answer": "b"},
        {"prompt": "c", "answer": "d", "verifier": f"{several}:other"},
        {"prompt": "z", "answer": "z"},
    )
    task = open_task(config(path, verifier=f"{several}:judge", eval_size=1), 0)
    reward = task.verify("train", 0, answer)
    assert isinstance(reward, Several) and reward == 1.25
    assert list(reward.parts.items()) == [("right", 1.0), ("brief", 0.25)]
    assert isinstance(other := task.verify("train", 1, ""), Several) and other.parts == {
        "good": 1.0
    }


@pytest.mark.parametrize(
    ("function", "answer", "said"),
    [
        ("judge", "{'right': 1.0}", "other rewards: without ['brief']"),
        ("judge", "{}", "other rewards: without ['right', 'brief']"),
        (
            "judge",
            "{'right': 1.0, 'brief': 1.0, 'kind': 1.0}",
            "other rewards: ['kind'] among them, where ('right', 'brief') are its rewards",
        ),
        (
            "judge",
            "0.5",
            "other rewards: a float was returned, where ('right', 'brief') are its rewards",
        ),
        ("judge", "None", "other rewards: a NoneType was returned"),
        ("judge", "{'right': '1', 'brief': 0}", "not a number: str, as right"),
        ("judge", "{'right': 1, 'brief': None}", "not a number: NoneType, as brief"),
        ("judge", "{'right': 1, 'brief': 1" + 400 * "0" + "}", "too large: brief"),
        (
            "plain",
            "{'right': 1.0}",
            "unnamed rewards: a verifier that returns ['right'] must have these names as its "
            "rewards",
        ),
        ("plain", "{'" + 999 * "x" + "': 1.0}", "unnamed rewards: a verifier that returns ['xxx"),
    ],
)
def test_other_rewards_than_were_said_are_none(
    write: Write, several: str, function: str, answer: str, said: str
) -> None:
    path = write({"prompt": "a", "answer": "b"}, {"prompt": "z", "answer": "z"})
    task = open_task(config(path, verifier=f"{several}:{function}", eval_size=1), 0)
    with pytest.raises(NoReward) as error:
        task.verify("train", 0, answer)
    assert str(error.value).startswith(said) and len(str(error.value)) < 300


@pytest.mark.parametrize("function", ["text", "empty", "twice", "blank", "count"])
def test_names_that_are_none_are_refused_before_anything_starts(
    write: Write, several: str, function: str
) -> None:
    line = {"prompt": "a", "answer": "b"}
    with pytest.raises(
        TaskError,
        match=r"^task\.verifier: its function has rewards = .*, which must be different names",
    ):
        open_task(config(write(line, line), verifier=f"{several}:{function}"), 0)
    path = write(line, line | {"verifier": f"{several}:{function}"})
    with pytest.raises(TaskError, match="line 2: its function has rewards = "):
        open_task(config(path, verifier=f"{several}:plain"), 0)
