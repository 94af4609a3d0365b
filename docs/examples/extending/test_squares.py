from asyncrl.config.schema import TaskConfig
from asyncrl.tasks import open_task


def test_its_last_rows_are_held_out() -> None:
    task = open_task(TaskConfig(name="squares:Squares", eval_size=10), seed=0)
    assert task.size("train") == 90 and task.prompt("evaluation", 0) == "90 * 90 =\n"
    assert task.verify("evaluation", 0, "8100") == 1.0
