"""Objects that `asyncrl.train` is given: each ends as one setting, by a module's name or by a file
of the run's own, which runs again only if the session wrote it, or names it."""

from __future__ import annotations

import importlib
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from cells import Cells
from look_support import make_run

import asyncrl as rl
from asyncrl.algorithms.advantages.grpo import Rloo
from asyncrl.cli import main
from asyncrl.config import ConfigError, read
from asyncrl.launch.copied_code import code_files
from asyncrl.library.kept_code import SETTINGS
from asyncrl.library.own_code import own_code
from asyncrl.staleness.corrections import IcePop
from asyncrl.tasks import open_task

REWARD = "def reward(answer, line):\n    return float(len(answer))"
ADVANTAGE = (
    "import asyncrl as rl\n"
    "class Mine(rl.GroupAdvantage):\n"
    "    def of_group(self, rewards):\n"
    "        return [one - min(rewards) for one in rewards]"
)
CORRECTION = (
    "from asyncrl.staleness.corrections import Corrected, Correction\n"
    "class Own(Correction, frozen=True):\n"
    "    hi: float = 2.0\n"
    "    def apply(self, tokens, mask):\n"
    "        return Corrected(mask.float(), mask, {})"
)


@pytest.fixture
def cells(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Cells:
    session = Cells()
    monkeypatch.setitem(sys.modules, "__main__", session.module)
    monkeypatch.chdir(tmp_path)
    return session


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[rl.Config]]:
    """The configurations that were launched: no process is started."""
    configs, launcher = list[rl.Config](), ModuleType("asyncrl.launch.launcher")

    def launch(config: rl.Config, *, resume: Path | None, console: Any) -> int:
        configs.append(config)
        return 0

    launcher.launch = launch  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "asyncrl.launch.launcher", launcher)
    yield configs


def config(folder: Path, **more: Any) -> rl.Config:
    lines = [f'{{"prompt": "{n} + {n} =", "answer": {2 * n}}}\n' for n in range(40)]
    (folder / "sums.jsonl").write_text("".join(lines))
    task = {"name": "jsonl", "path": str(folder / "sums.jsonl"), "eval_size": 4}
    return rl.Config(**{"task": task, **more})


def test_objects_of_cells_become_files_that_settings_name(
    cells: Cells, launched: list[rl.Config], tmp_path: Path
) -> None:
    for text in (REWARD, ADVANTAGE, CORRECTION):
        cells.run(text)
    run = rl.train(
        config(tmp_path),
        reward=cells["reward"],
        advantage=cells["Mine"],
        correction=[IcePop(hi=3.0), cells["Own"](hi=5.0)],
    )
    code = run.path / "code"
    assert sorted(path.name for path in code.iterdir()) == [
        *("advantage.py", "correction_2.py", "reward.py")
    ]
    assert code.stat().st_mode & 0o077 == 0
    made = read(run.path / "run.toml")
    assert made == launched[0] == run.config
    assert made.task.verifier == f"{code}/reward.py:reward"
    assert made.train.advantage == f"{code}/advantage.py:Mine"
    pop, own = made.staleness.correction
    assert pop == IcePop(hi=3.0) and own.hi == 5.0  # type: ignore[attr-defined]
    assert own.table()["kind"] == f"{code}/correction_2.py:Own"


def test_an_object_of_a_module_is_named_and_not_copied(
    cells: Cells, launched: list[rl.Config], tmp_path: Path
) -> None:
    run = rl.train(config(tmp_path), advantage=Rloo, correction=IcePop)
    assert run.config.train.advantage == "asyncrl.algorithms.advantages.grpo:Rloo"
    assert run.config.staleness.correction == (IcePop(),)
    assert not (run.path / "code").exists()


def test_a_module_beside_the_notebook_is_found_by_its_file(
    cells: Cells, launched: list[rl.Config], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder of a script is on its own path, and not on that of the run's processes."""
    (tmp_path / "mine_beside.py").write_text(f"{REWARD}\n\nLIMITS = {{'most': 3}}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    cells.run("import mine_beside\nfrom mine_beside import reward as theirs")
    cells.run(
        "def mine(answer, line):\n"
        "    return theirs(answer, line) + mine_beside.reward(answer, line)"
    )
    run = rl.train(config(tmp_path), reward=cells["theirs"])
    assert run.config.task.verifier == f"{tmp_path}/mine_beside.py:reward"
    run = rl.train(config(tmp_path), reward=cells["mine"])
    monkeypatch.undo()
    sys.modules.pop("mine_beside")
    from asyncrl.config.plugins import load_named

    assert load_named(run.config.task.verifier, "verifier")("abc", {}) == 6.0
    package = tmp_path / "mine_package"
    package.mkdir()
    (package / "__init__.py").write_text(REWARD)
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    with pytest.raises(ConfigError, match=rf"put {tmp_path} on PYTHONPATH before Python starts"):
        rl.train(config(tmp_path), reward=importlib.import_module("mine_package").reward)


def test_lines_in_memory_go_with_their_verifier(
    cells: Cells, launched: list[rl.Config], tmp_path: Path
) -> None:
    cells.run("LIMIT = 3\ndef brief(answer, line):\n    return float(len(answer) < LIMIT)")
    lines = [{"prompt": f"Say {n}: ", "answer": str(n)} for n in range(20)]
    task = rl.ListTask(lines, cells["brief"], evaluation=[{"prompt": "Say 99: "}])
    run = rl.train(rl.Config(), task=task)
    assert run.path.name.startswith("ListedLines-")
    again = open_task(run.config.task, 0)
    assert (again.size("train"), again.size("evaluation")) == (20, 1)
    assert again.prompt("train", 4) == "Say 4: \n" and again.answer("train", 4) == "4"
    assert [again.verify("train", 0, text) for text in ("12", "123")] == [1.0, 0.0]
    for bad, said in (
        (rl.ListTask([{"prompt": "a", "x": {1}}], cells["brief"]), "not JSON"),
        (rl.ListTask(lines, lambda answer, line: 1.0), "the verifier of the task is a lambda"),
    ):
        with pytest.raises(ConfigError, match=said):
            rl.train(rl.Config(), task=bad)


def test_what_is_given_twice_or_as_a_text_is_refused_and_leaves_nothing(
    cells: Cells, launched: list[rl.Config], tmp_path: Path
) -> None:
    cells.run(REWARD)
    reward = cells["reward"]
    lines = {"name": "jsonl", "path": str(tmp_path / "sums.jsonl"), "eval_size": 4}
    config(tmp_path)
    for given, settings, said in (
        (
            {"reward": reward},
            {"task": {**lines, "verifier": "number"}},
            "reward is given, and task.verifier is 'number' in the configuration: give one",
        ),
        ({"advantage": Rloo}, {"train": {"advantage": "rloo"}}, "train.advantage is 'rloo' in the"),
        ({"correction": IcePop}, {"staleness": {"correction": []}}, "staleness.correction is []"),
        ({"advantage": "rloo"}, {}, "is the text 'rloo', and takes an object"),
        ({"advantage": reward}, {"task": lines}, "is no advantage: derive a class from"),
        ({"reward": reward}, {}, "have verifiers of their own"),
        ({"task": rl.Run}, {}, "derive a class from asyncrl.Task"),
        ({"reward": reward}, {"task": lines, "model": {"path": "/nowhere"}}, "/nowhere"),
    ):
        before = {*tmp_path.rglob("*")}
        with pytest.raises(ConfigError) as refused:
            rl.train(rl.Config(**settings), **given)  # type: ignore[arg-type]
        assert said in str(refused.value), str(refused.value)
        assert {*tmp_path.rglob("*")} == before and not launched


def test_each_keyword_is_of_train_and_of_one_setting() -> None:
    import inspect

    keywords = set(inspect.signature(rl.train).parameters)
    assert keywords - {*SETTINGS} == {"config", "resume", "console", "models"}
    assert {*SETTINGS} < keywords and len({*SETTINGS.values()}) == len(SETTINGS)
    none = own_code(rl.Config(), dict.fromkeys(SETTINGS))
    assert none.files == {} and none.settings == {}


def test_a_resume_runs_what_the_session_wrote_or_names_again(
    cells: Cells, launched: list[rl.Config], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cells.run(REWARD)
    run = rl.train(config(tmp_path), reward=cells["reward"])
    again = run.resume()
    assert again.config == run.config and len(launched) == 2
    other = rl.open_run(run.path)
    for ask in (lambda: other.config, other.resume, lambda: other.resume(advantage=Rloo)):
        with pytest.raises(
            ConfigError, match=r"which is run only if you name it: read .*reward.py"
        ):
            ask()
    assert main(["train", "--resume", str(run.path)]) == 2
    (sentence,) = capsys.readouterr().err.splitlines()
    assert f"--set 'task.verifier={run.path}/code/reward.py:reward'" in sentence
    named = f"task.verifier={run.path}/code/reward.py:reward"
    assert main(["train", "--resume", str(run.path), "--set", named]) == 0
    capsys.readouterr()
    cells.run("def reward(answer, line):\n    return 0.5")
    assert other.resume(reward=cells["reward"]).ok
    assert "code/reward.py is not what this run had" in capsys.readouterr().out
    assert "return 0.5" in (run.path / "code" / "reward.py").read_text()
    (run.path / "code" / "reward.py").write_text("raise RuntimeError\n")
    with pytest.raises(ConfigError, match=r"which is run only if you name it"):
        run.resume()  # it is not what the session wrote
    with pytest.raises(ConfigError, match=r"prize is no kind of code; the kinds are reward"):
        run.resume(prize=cells["reward"])


def test_a_copy_has_the_code_and_runs_it_when_it_is_named_there(
    cells: Cells,
    launched: list[rl.Config],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A fetched directory may be anybody's: its code goes with it, and is imported by nothing
    before somebody names it."""
    cells.run(f"{REWARD}\n{ADVANTAGE}")
    run = rl.train(config(tmp_path), reward=cells["reward"], advantage=cells["Mine"])
    assert 'verifier = "./code/reward.py:reward"' in (run.path / "run.toml").read_text()
    (run.path / "code" / "__pycache__").mkdir()
    assert code_files(run.path) == ["advantage.py", "reward.py"]
    there = tmp_path / "elsewhere" / "fetched"
    shutil.copytree(run.path, there)
    shutil.rmtree(run.path)
    ran = there / "ran"
    with (there / "code" / "reward.py").open("a") as file:
        file.write(f"\n\nopen({str(ran)!r}, 'w')\n")
    with pytest.raises(ConfigError, match=r"read .*fetched/code/.*, then give it again"):
        rl.open_run(there).resume()
    assert main(["train", "--resume", str(there)]) == 2 and not ran.exists()
    assert rl.open_run(there).settings["task.verifier"] == "./code/reward.py:reward"
    monkeypatch.setattr("asyncrl.launch.stored_copy.fetch", lambda *of: None)
    capsys.readouterr()
    assert main(["fetch", "file:///copy", str(there)]) == 0 and not ran.exists()
    said = capsys.readouterr().out
    assert f"was not run: read {there}/code/reward.py" in said
    command = shlex.split(said.splitlines()[-1].partition("Go on with: asyncrl ")[2])
    assert main(command) == 0 and ran.exists()
    assert launched[-1].task.verifier == f"{there}/code/reward.py:reward"
    assert launched[-1].train.advantage == f"{there}/code/advantage.py:Mine"


def test_a_refused_resume_leaves_the_code_as_it_was(
    cells: Cells, launched: list[rl.Config], tmp_path: Path
) -> None:
    cells.run(ADVANTAGE)
    run = rl.train(config(tmp_path), advantage=cells["Mine"])
    before = (run.path / "code" / "advantage.py").read_text()
    cells.run("class Mine:\n    pass")
    with pytest.raises(ConfigError, match=r"is no advantage"):
        run.resume(advantage=cells["Mine"])
    assert (run.path / "code" / "advantage.py").read_text() == before


def test_a_module_of_a_setting_that_trains_is_refused(tmp_path: Path) -> None:
    """A script without `if __name__ == "__main__"` would start a run in each process of a run."""
    script = tmp_path / "script.py"
    script.write_text(f"import asyncrl as rl\n{REWARD}\nrl.train(rl.Config(), reward=reward)\n")
    settings = {"task": {"name": "jsonl", "path": str(tmp_path / "sums.jsonl"), "eval_size": 0}}
    (tmp_path / "sums.jsonl").write_text('{"prompt": "1", "answer": 1}\n')
    settings["task"]["verifier"] = f"{script}:reward"
    with pytest.raises(ConfigError, match=r"put the call below `if __name__ == .__main__.:`"):
        rl.train(rl.Config(**settings))  # type: ignore[arg-type]


def test_a_learner_takes_classes_of_cells(cells: Cells, tmp_path: Path) -> None:
    cells.run(ADVANTAGE)
    cells.run(CORRECTION)
    small = rl.Config(model={"warmup_steps": 0}, train={"lr": 1e-3, "lr_warmup_steps": 0})  # type: ignore[arg-type]
    model = rl.starting_model(small)
    learner = rl.Learner(model, small, advantage=cells["Mine"], correction=cells["Own"](hi=3.0))
    learner.add(
        rl.Sequence([65, 66 + n], [-5.5], prompt_tokens=1, reward=float(n)) for n in range(2)
    )
    figures = learner.step()
    assert figures.trained == 2 and figures.metrics["grad_norm"] > 0
    assert learner.config.train.advantage.endswith("code/advantage.py:Mine")


def test_code_in_another_users_directory_is_not_imported_by_a_look_at_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`why`, `rollouts` and the columns of a run import nothing of it."""
    path = make_run(tmp_path / "r", [])
    (path / "code").mkdir()
    (path / "code" / "trap.py").write_text(f"open({str(tmp_path / 'sprung')!r}, 'w')")
    text = (path / "run.toml").read_text()
    (path / "run.toml").write_text(
        text.replace("correction = [", f'correction = [{{kind = "{path}/code/trap.py:T"}}, ', 1)
        if "correction = [" in text
        else f'{text}\n[staleness]\ncorrection = [{{kind = "{path}/code/trap.py:T"}}]\n'
    )
    run = rl.open_run(path)
    assert run.settings and run.columns() and run.state
    for ask in (lambda: run.config, run.resume):
        with pytest.raises(ConfigError, match=r"staleness.correction names code"):
            ask()
    for argv in (["--resume", str(path)], [str(path / "run.toml"), "--resume", str(path)]):
        assert main(["train", *argv]) == 2
    assert main(["train", f"--set=run.dir={path}"]) == 2
    assert 'staleness.correction=[{kind="' in capsys.readouterr().err
    assert not (tmp_path / "sprung").exists()
