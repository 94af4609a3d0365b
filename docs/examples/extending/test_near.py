import json
from pathlib import Path

from asyncrl.config.schema import TaskConfig
from asyncrl.tasks import open_task
from asyncrl.tasks.answer import Answer


def test_a_near_answer_is_worth_half(tmp_path: Path) -> None:
    file = tmp_path / "sums.jsonl"
    lines = [json.dumps({"prompt": f"{n} + {n} =", "answer": 2 * n}) for n in range(4)]
    file.write_text("\n".join(lines))
    config = TaskConfig(name="data", path=str(file), eval_size=1, verifier="near:near")
    task = open_task(config, seed=0)
    assert [task.verify("train", 1, answer) for answer in ("2", "3", "7")] == [1.0, 0.5, 0.0]
    assert task.verify("train", 1, Answer("2", finish="length", tokens=1)) == 0.0
