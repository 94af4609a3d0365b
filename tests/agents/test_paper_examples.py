"""The files of docs/examples/papers, one for each paper: each does what the paper says, and what is
wrong with it as published is a number here."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import combinations, pairwise
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest
from box_support import RUN, settings
from fake_gateway import FakeGateway, fake_gateway
from program_support import needs_programs

from asyncrl.agents.closing import Closing
from asyncrl.agents.endings import AgentEnd, AgentEnded, AgentFailed, played
from asyncrl.agents.load_agent import load_agent
from asyncrl.algorithms.advantages import GroupAdvantage, Rloo
from asyncrl.algorithms.selection.curriculum import PromptOrder
from asyncrl.algorithms.selection.prompt_history import History
from asyncrl.bundled.bundled_model import write_tokenizer
from asyncrl.config.schema import TaskConfig
from asyncrl.sandbox.boxes.open_boxes import BoxOrigin
from asyncrl.tasks import open_task
from asyncrl.tasks.text import Tokenizer

PAPERS = Path(__file__).parents[2] / "docs/examples/papers"


@pytest.fixture(autouse=True)
def papers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(PAPERS))
    import sql_tool  # type: ignore[import-not-found]

    monkeypatch.setattr(sql_tool, "HEAP", 0)  # else it would be the limit of this process's SQLite


@pytest.fixture
def gateway() -> Iterator[FakeGateway]:
    with fake_gateway() as served:
        yield served


class Server:
    """A server whose answers are `replies`, one after another."""

    def __init__(self, replies: list[Any]) -> None:
        self.asked: list[Any] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                size = int(self.headers["content-length"])
                outer.asked.append(json.loads(self.rfile.read(size)))
                body = json.dumps(replies.pop(0)).encode()
                self.send_response(200)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *words: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/"
        self._thread = Thread(target=self._server.serve_forever, args=(0.05,))

    def __enter__(self) -> Server:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def end_of(gateway: FakeGateway, run: str, **changes: Any) -> AgentEnd:
    return asyncio.run(played(load_agent(run), gateway.facts(**changes), Closing()))


LINES: dict[str, dict[str, Any]] = {
    "accepted": {"prompt": "x", "answer": "a", "accepted": {"b": 0.5}},
    "fapo": {"prompt": "x", "answer": 4},
    "otr": {"prompt": "a", "answer": "b"},
    "sql_tool": {"prompt": "x", "schema": "CREATE TABLE t (a INT);", "answer": "SELECT a FROM t"},
    "sage": {"prompt": "x", "answer": "", "tasks": [{"prompt": "p", "check": "assert 1"}]},
    "repair": {"prompt": "x", "answer": "", "tests": {"t.sh": "exit 0"}, "command": ["sh", "t.sh"]},
}


@pytest.mark.parametrize("name", LINES)
def test_a_line_as_the_file_says_it_is_one_of_a_task(name: str, tmp_path: Path) -> None:
    said = (PAPERS / f"{name}.py").read_text()
    assert all(f'"{key}"' in said or f'["{key}"]' in said for key in LINES[name])
    (tmp_path / "data.jsonl").write_text(json.dumps(LINES[name]) + "\n")
    verifies = name in ("accepted", "fapo", "otr")
    config = TaskConfig(
        name="jsonl",
        path=str(tmp_path / "data.jsonl"),
        eval_size=0,
        verifier=f"{name}:{name}" if verifies else "exact",
        sandbox="process",
    )
    task = open_task(config, 0)
    assert task.size("train") == 1
    if name == "accepted":
        assert [task.verify("train", 0, answer) for answer in "abc"] == [1.0, 0.5, 0.0]


# ------------------------------------------------------------------------------------- verifiers


def test_kat_each_accepted_answer_has_its_reward() -> None:
    from accepted import accepted  # type: ignore[import-not-found]

    line = {"answer": "a = 1", "accepted": {"a = 1;": 0.5}}
    said = ["a  =\n1", "a = 1;", "a = 2", ""]
    assert [accepted(answer, line) for answer in said] == [1.0, 0.5, 0.0, 0.0]


def test_fapo_judges_right_answers_alone_and_a_flawed_one_is_worth_0(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import fapo  # type: ignore[import-not-found]

    def says(text: str) -> dict[str, Any]:
        return {"choices": [{"message": {"content": text}}]}

    line, right = {"prompt": "2 + 2?", "answer": 4}, "So 2 + 2.\n\nIt is \\boxed{4}."
    judged = [r"First \boxed{0}, no: \boxed{-1}", r"\boxed{1}", "fine", r"\boxed{2}"]
    with Server([says(text) for text in judged]) as judge:
        monkeypatch.setattr(fapo, "JUDGE", judge.url)
        assert fapo.fapo("It is \\boxed{5}.", line) == fapo.fapo("4", line) == -1.0
        assert not judge.asked, "a wrong answer needs no judge"
        assert [fapo.fapo(right, line) for _ in range(2)] == [1.0, 0.0]
        for _ in range(2):  # no number, and one that no paragraph has
            with pytest.raises(ValueError, match="the judge names no paragraph"):
                fapo.fapo(right, line)
    shown = judge.asked[0]["messages"][0]["content"]
    assert "<paragraph_0>So 2 + 2." in shown and "<paragraph_1>It is" in shown


# ------------------------------------------------------------------------------------------- OTR


def test_otr_has_a_line_for_each_token_whose_text_before_is_tokenized_alike(
    tmp_path: Path,
) -> None:
    from otr import lines, otr  # type: ignore[import-not-found]

    write_tokenizer(tmp_path)
    found = list(lines("añb", Tokenizer(tmp_path)))
    assert [(line["prompt"], line["answer"]) for line in found] == [("añ", "b")], "ñ is two bytes"
    found = list(lines("abc", Tokenizer(tmp_path)))
    assert found == [{"prompt": "a", "answer": "b"}, {"prompt": "ab", "answer": "c"}]
    assert otr("c", found[1]) == 1.0 and otr("d", found[1]) == -0.1


@pytest.mark.parametrize("draws", [2, 3])
def test_otr_is_supervised_learning_weighed_by_the_chance_of_the_token(draws: int) -> None:
    """Summed over every group: (1 - OTHER) p times the gradient of log p, with the reward as the
    advantage and with a baseline, whose variance is larger in groups as small as these."""
    from otr import OTHER, Raw

    chances, given = np.array([0.2, 0.5, 0.3]), 0
    scores = np.eye(3) - chances
    variances = []
    for advantage in (Raw(), Rloo()):
        assert isinstance(advantage, GroupAdvantage)
        mean, square = np.zeros(3), 0.0
        for group in np.ndindex(*(3,) * draws):
            chance = math.prod(chances[token] for token in group)
            values = advantage.of_group([1.0 if token == given else OTHER for token in group])
            estimate = sum(v * scores[t] for v, t in zip(values, group, strict=True)) / draws
            mean += chance * estimate
            square += chance * float(estimate @ estimate)
        assert mean == pytest.approx((1 - OTHER) * chances[given] * scores[given], abs=1e-12)
        variances.append(square - float(mean @ mean))
    assert variances[1] > 1.3 * variances[0]


# ------------------------------------------------------------------------------------ curriculum


def test_d3s_trains_the_half_of_a_step_whose_advantages_vary_most() -> None:
    """No other choice of as many varies more; hits of hard prompts and misses of easy ones stay."""
    from d3s import D3s, most_varied  # type: ignore[import-not-found]

    found = D3s().of_members({4: [1.0, 0, 0, 0], 7: [1.0, 1, 1, 0], 9: [1.0] * 4}, {}, {})
    assert found[4][0] == 1.5 and found[7][3] == -1.5
    assert sum(value is not None for values in found.values() for value in values) == 6
    given = sorted(np.random.default_rng(5).normal(size=9).tolist())
    for count in (2, 4, 7):
        best = most_varied(given, count)
        chosen = given[: count - best] + given[9 - best :]
        largest = max(np.var(each) for each in combinations(given, count))
        assert np.var(chosen) == pytest.approx(largest)


def test_drive_keeps_the_hardest_third_after_each_epoch() -> None:
    from drive import FEWEST, Hardest  # type: ignore[import-not-found]

    curriculum, history = Hardest(PromptOrder(90, seed=3, epochs=4)), History()
    epochs: list[set[int]] = [set() for _ in range(4)]
    while (found := curriculum.next(history, live=set())) is not None:
        epochs[(found.cursor - 1) // 90].add(found.prompt_index)
        history.admit(found.prompt_index, found.cursor)
        solved = found.prompt_index % 30 // 3  # of 10
        history.record(found.prompt_index, [1.0] * solved + [0.0] * (10 - solved), 10)
    assert [len(epoch) for epoch in epochs] == [90, 30, 10, FEWEST]
    assert all(n % 30 // 3 <= 3 for n in epochs[1]), "the third that is solved least"
    assert all(later <= earlier for earlier, later in pairwise(epochs))


# ---------------------------------------------------------------------------------------- agents

SHOP = {
    "prompt": "Which towns have two shops?",
    "schema": "CREATE TABLE shop (town TEXT, edit INT); INSERT INTO shop VALUES ('A', 1), ('A', 2),"
    " ('B', 3), ('C', 4), ('C', 5);",
    "answer": "SELECT town FROM shop GROUP BY town HAVING COUNT(*) = 2",
}


def test_reex_sql_executes_queries_while_the_model_writes(gateway: FakeGateway) -> None:
    right = (
        "<answer>SELECT town FROM shop GROUP BY 1 HAVING COUNT(edit) > 1 ORDER BY 1 DESC</answer>"
    )
    gateway.replies = [
        "<sql>SELECT edit FROM shop WHERE town = 'A'</sql>",
        "<sql>SELECT x</sql>",
        right,
    ]
    assert end_of(gateway, "sql_tool:Sql", entry=SHOP) == AgentEnded(1.0)
    told = [message["content"] for message in gateway.asked[-1] if message["role"] == "user"]
    assert told[1:] == ["(1,)\n(2,)", "error: no such column: x"]
    assert gateway.failed == [("sql", -1)]


@pytest.mark.parametrize(
    ("reply", "reward"),
    [
        ("<answer>SELECT 'C' UNION SELECT 'A'</answer>", 1.0),
        ("<answer>SELECT 'A' UNION ALL SELECT 'A' UNION ALL SELECT 'C'</answer>", 0.0),
        ("<answer>SELECT 'A'</answer>", 0.0),
        ("<answer></answer>", 0.0),
        ("<answer>\ud800</answer>", 0.0),
        ("I do not know.", 0.0),
    ],
)
def test_reex_sql_compares_rows_with_their_repetitions(reply: str, reward: float) -> None:
    from sql_tool import Sql  # type: ignore[import-not-found]

    played_by = Sql()
    played_by.reset(SHOP, 0)
    step = played_by.step(reply)
    assert step.done and step.reward == reward


@pytest.mark.parametrize(
    "query",
    [
        "DROP TABLE shop",
        "INSERT INTO shop VALUES ('D', 1)",
        "ATTACH 'stolen.db' AS other",
        "PRAGMA hard_heap_limit = 0",
        "SELECT load_extension('x')",
        "SELECT zeroblob(1000000000)",
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT MAX(i) FROM n",
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 99999) "
        "SELECT printf('%.4000c', i) AS w FROM n ORDER BY w",
        "SELECT 1; SELECT 2",
    ],
)
def test_reex_sql_reads_and_nothing_else(query: str, tmp_path: Path) -> None:
    from sql_tool import TRIES, Sql

    played_by = Sql()
    played_by.reset(SHOP, 0)
    step = played_by.step(f"<sql>{query}</sql>")
    assert step.text.startswith("error: ") and step.failed == "sql"
    assert played_by.step(f"<answer>{SHOP['answer']}</answer>").reward == 1.0, "and it goes on"
    assert not Path("stolen.db").exists() and TRIES > 2


@needs_programs
@pytest.mark.processes
def test_sage_pays_who_wrote_a_skill_when_a_later_task_uses_it(gateway: FakeGateway) -> None:
    tasks = [
        {"prompt": "Double a number: twice(n).", "check": "assert twice(3) == 6"},
        {"prompt": "Four times: four(n).", "check": "assert four(3) == 12"},
        {"prompt": "Eight times: eight(n).", "check": "assert eight(1) == 8"},
        {"prompt": "Three times: three(n).", "check": "assert three(1) == 3"},
    ]
    gateway.replies = [
        "```python\ndef twice(n): return 2 * n\n```",
        "By the library:\n```\ndef four(n): return twice(twice(n))\n```",
        "```\ndef twice(n): return n\ndef eight(n): return four(twice(n))\n```",  # wrong
        "```\ndef three(n): return twice(n) + n\n```",
    ]
    end = end_of(gateway, "sage:solve", entry={"prompt": "Write functions.", "tasks": tasks})
    # the first is paid once for its skill, however often it is used
    assert gateway.rewards == [(1.0, 0), (0.5, 0), (1.5, 1), (1.5, 3)]
    assert end == AgentEnded(4.5)
    shown = [asked[0]["content"] for asked in gateway.asked]
    assert "def twice" not in shown[0] and "return 2 * n" in shown[1]
    assert "def eight" not in shown[3] and "return n\n" not in shown[3], "what fails is not kept"


@pytest.mark.parametrize(("bonus", "rewards"), [(0.0, [0.25, 0.5, 0.25]), (0.5, [0.75, 0.5, 0.75])])
def test_spa_gives_each_turn_the_scorers_share(
    gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch, bonus: float, rewards: list[float]
) -> None:
    import spa  # type: ignore[import-not-found]

    monkeypatch.setattr(spa, "EXECUTABLE", bonus)
    gateway.replies = ["8", "none", "11"]
    with Server([{"shares": [0.25, 0.5, 0.25]}]) as scorer:
        monkeypatch.setattr(spa, "SCORER", scorer.url)
        end = end_of(gateway, "spa:solve", entry={"prompt": "Guess.", "answer": 11})
    assert end == AgentEnded(sum(rewards))
    assert gateway.rewards == [(reward, turn) for turn, reward in enumerate(rewards)]
    assert scorer.asked == [{"prompt": "Guess.", "turns": ["8", "none", "11"], "reward": 1.0}]


def test_spa_without_a_share_for_each_turn_has_failed(
    gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    import spa

    gateway.replies = ["11"]
    with Server([{"shares": []}]) as scorer:
        monkeypatch.setattr(spa, "SCORER", scorer.url)
        end = end_of(gateway, "spa:solve", entry={"prompt": "Guess.", "answer": 11})
    assert isinstance(end, AgentFailed) and "0 shares of 1 turns" in str(end)


@needs_programs
@pytest.mark.processes
def test_rstar2_executes_the_models_code_and_marks_what_fails(gateway: FakeGateway) -> None:
    def calling(arguments: str) -> dict[str, Any]:
        function = {"name": "python", "arguments": arguments}
        call = {"id": "c", "type": "function", "function": function}
        return {"role": "assistant", "content": None, "tool_calls": [call]}

    codes = ["print(6 * 7)", "1 / 0"]
    gateway.replies = [
        *(calling(json.dumps({"code": code})) for code in codes),
        calling("[]"),
        "42",
    ]
    assert end_of(gateway, "code_tool:solve") == AgentEnded(None)
    told = [message["content"] for message in gateway.asked[-1] if message["role"] == "tool"]
    assert told[0] == "42\n" and "ZeroDivisionError" in told[1] and "no JSON object" in told[2]
    assert gateway.failed == [("python", -1)] * 2


REPOSITORY = """
git init -q . && git config user.name a && git config user.email a@b
echo broken >a && git add a && git commit -qm task
echo mended >a && git commit -qam "the fix" && git checkout -q HEAD~1
"""


@pytest.mark.parametrize(
    ("commands", "reward"),
    [
        (["cat a", "echo mended >a"], 1.0),
        (["git log --all --format=%s", "git show main:a master:a"], 0.0),
        (
            ["echo exit 0 >test.sh; git add -A; git -c user.name=m -c user.email=m commit -qm m"],
            0.0,
        ),
    ],
    ids=["mends", "looks for the fix", "writes its own judge"],
)
def test_swe_a_repository_is_mended_in_a_sandbox_and_judged_by_hidden_tests(
    commands: list[str], reward: float, gateway: FakeGateway, tmp_path: Path
) -> None:
    def calling(command: str) -> dict[str, Any]:
        function = {"name": "shell", "arguments": json.dumps({"command": command})}
        call = {"id": "c", "type": "function", "function": function}
        return {"role": "assistant", "content": None, "tool_calls": [call]}

    gateway.replies = [*map(calling, commands), "done"]
    entry = {
        "prompt": "Mend it.",
        "setup": REPOSITORY,
        "tests": {"test.sh": "grep -q mended a"},
        "command": ["sh", "test.sh"],
    }
    boxes = BoxOrigin(settings(kind="directory", hosts=("*",)), RUN, str(tmp_path))
    assert end_of(gateway, "repair:solve", entry=entry, boxes=boxes) == AgentEnded(reward)
    told = [message["content"] for message in gateway.asked[-1] if message["role"] == "tool"]
    assert not any("the fix" in said or "mended" in said for said in told)
    assert not list(tmp_path.iterdir())
