"""Refusals before anything starts: each is said, and nothing is written meanwhile."""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import platform
import shlex
import shutil
import socket
import subprocess
import sys
from collections import namedtuple
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
import warm_process
from look_support import step
from rich.console import Console
from safetensors.numpy import save_file

from asyncrl.bundled.bundled_model import write_tokenizer
from asyncrl.config import Config, ConfigError, load, read, write
from asyncrl.config.derived import PROGRAMS, derived
from asyncrl.config.journal_size import steps
from asyncrl.config.schema import TaskConfig
from asyncrl.explain.curve import line_of
from asyncrl.explain.run_files import RunFiles
from asyncrl.launch import model_directories, preflight, torch_process
from asyncrl.launch.model_directories import check_architecture
from asyncrl.library import train
from asyncrl.runtime import waiting
from asyncrl.runtime.processes.machine import EPHEMERAL, LOWEST_PORT, available_cores, free_port
from asyncrl.sandbox.support import Support
from asyncrl.tasks import judge_checks

NOW = datetime(2026, 1, 2, 3, 4, 5)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def config(*sets: str, resume: Path | None = None) -> Config:
    return preflight.resolved(
        load(None, ["task.train_size=20", "task.eval_size=4", *sets], {}), resume, NOW
    )


def refusal(checked: Config, resume: Path | None = None, available: int = 2) -> str:
    before = sorted(Path().rglob("*"))
    with pytest.raises(ConfigError) as caught:
        preflight.check(checked, resume, available)
    assert sorted(Path().rglob("*")) == before
    assert str(caught.value).isprintable()
    return str(caught.value)


def test_a_verifier_whose_module_hangs_is_named_meanwhile(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`check` was silent as long as it hung."""
    (here / "hangs_long.py").write_text("import time\ntime.sleep(0.5)\nraise SystemExit\n")
    (here / "d.jsonl").write_text('{"prompt": "1", "answer": "1"}\n' * 2)
    monkeypatch.syspath_prepend(here)
    monkeypatch.setattr(waiting, "AFTER_S", 0.01)
    asked = config("task.name=jsonl", "task.path=d.jsonl", "task.verifier=hangs_long:judge")
    with pytest.raises(ConfigError, match="SystemExit"):
        train.checked(asked, None, Console(file=io.StringIO()), None)
    assert "asyncrl: importing hangs_long, and reading the data …\n" in capsys.readouterr().err


def test_a_good_configuration_passes_and_writes_nothing(here: Path) -> None:
    preflight.check(config(), None, 2)
    assert list(here.iterdir()) == []


# --------------------------------------------------------------------------------- run directories


def test_paths_become_absolute_and_the_run_gets_a_directory(here: Path) -> None:
    assert config().run.dir == str(here / "runs/spell_backward-20260102-030405")
    assert config("run.dir=a/b").run.dir == str(here / "a/b")
    assert config("run.dir=a", resume=Path("b")).run.dir == str(here / "b")
    assert config("model.path=m").model.path == str(here / "m") and config().model.path == ""
    assert config("task.name=jsonl", "task.path=p").task.path == str(here / "p")
    assert config("task.name=../x y").run.dir == str(here / "runs/-x-y-20260102-030405")


def test_two_runs_of_one_second_have_two_directories(here: Path) -> None:
    Path(config().run.dir).mkdir(parents=True)
    assert config().run.dir == str(here / "runs/spell_backward-20260102-030405-2")


def test_a_claimed_directory_holds_the_resolved_configuration() -> None:
    with preflight.claimed(mine := config("run.dir=r")) as run:
        assert read(run / "run.toml") == mine
        start = RunFiles(run).start
    assert start is not None and shlex.split(start.command)[1:] == sys.argv[1:]
    assert start.host == platform.node() and start.python == platform.python_version()


def test_a_disk_without_modes_is_refused_before_anything_starts(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys would be anyone's there."""
    opened = os.open

    def without_modes(*args: Any, **named: Any) -> int:
        descriptor = opened(*args, **named)
        os.fchmod(descriptor, 0o755)
        return descriptor

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", without_modes)
        with (
            pytest.raises(ConfigError, match="without modes"),
            preflight.claimed(config("run.dir=r")),
        ):
            pass
    assert not (here / "r/run.toml").exists()
    with preflight.claimed(config("run.dir=r")) as run:
        assert (run / "run.toml").exists()


def test_a_directory_of_another_configuration_is_refused_by_the_first_key_that_differs() -> None:
    with preflight.claimed(config("run.dir=r")):
        pass
    assert "rollout.group_size was 8 and is 4" in refusal(
        config("run.dir=r", "rollout.group_size=4", "train.lr=1")
    )
    assert "run.seed was 0 and is 1" in refusal(config("run.dir=r", "run.seed=1"))


def test_a_run_that_exists_is_resumed_or_left_alone(here: Path) -> None:
    with preflight.claimed(config("run.dir=r")):
        pass
    assert f"--resume {here / 'r'}" in refusal(config("run.dir=r"))
    preflight.check(config("run.dir=r"), Path("r"), 2)


def test_a_resumed_run_may_differ_in_how_it_goes_on_and_in_nothing_else() -> None:
    with preflight.claimed(config("run.dir=r")):
        pass
    preflight.check(
        config("train.steps=900", "run.log=debug", "staleness.max_lag=6", resume=Path("r")),
        Path("r"),
        2,
    )
    assert "train.lr was 0.0003 and is 0.1" in refusal(
        config("train.lr=0.1", resume=Path("r")), Path("r")
    )
    assert "run.seed" in refusal(config("run.seed=4", resume=Path("r")), Path("r"))


def test_a_moved_run_can_be_resumed() -> None:
    with preflight.claimed(config("run.dir=r")):
        pass
    shutil.move("r", "s")
    preflight.check(config(resume=Path("s")), Path("s"), 2)


def test_a_copy_without_its_journal_is_not_begun_again() -> None:
    """Its steps were made again from the first, and its curve was cut."""
    with preflight.claimed(config("run.dir=r")):
        pass
    resumed = config(resume=Path("r"))
    Path("r/metrics.jsonl").touch()
    preflight.check(resumed, Path("r"), 2)
    Path("r/metrics.jsonl").write_bytes(b"".join(line_of(step(n)) for n in (1, 2)) + b"{")
    said = refusal(resumed, Path("r"))
    assert "there are 2 steps in metrics.jsonl in it, but no journal.sqlite, which" in said


def test_there_is_nothing_to_resume() -> None:
    assert "no run to resume" in refusal(config(resume=Path("none")), Path("none"))


def test_a_directory_with_other_files_only_is_taken() -> None:
    Path("r").mkdir()
    Path("r/stdout.txt").touch()
    preflight.check(config("run.dir=r"), None, 2)


def test_a_broken_run_toml_is_refused() -> None:
    Path("r").mkdir()
    Path("r/run.toml").write_text("[train]\nstesp = 3")
    assert "train.stesp" in refusal(config("run.dir=r"))


def test_a_run_directory_that_is_a_file() -> None:
    Path("r").touch()
    assert "is a file" in refusal(config("run.dir=r"))
    assert "cannot be written" in refusal(config("run.dir=r/s"))


def test_a_directory_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch, here: Path) -> None:
    monkeypatch.setattr(
        os, "access", lambda path, mode: False
    )  # the tests may run as root, who may everything
    assert f"because {here} cannot; give this user the right" in refusal(config("run.dir=r"))
    read_only = SimpleNamespace(f_flag=os.ST_RDONLY)
    monkeypatch.setattr(os, "statvfs", lambda path: read_only)
    assert f"because {here} is read-only; mount its disk" in refusal(config("run.dir=r"))
    (here / "file").touch()
    assert "file is not a directory; move it away" in refusal(config("run.dir=file/r"))


def test_a_full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(
        shutil, "disk_usage", lambda path: usage(2**40, 2**40 - 5 * 2**20, 5 * 2**20)
    )
    assert "has 5 MiB free, and a run needs 100 at least" in refusal(config())


def test_one_process_at_a_time_has_a_directory_and_a_killed_one_gives_it_back() -> None:
    write(mine := config("run.dir=r"), Path("c.toml"))
    script = """
import sys; from pathlib import Path
from asyncrl.launch import preflight; from asyncrl.config import read
with preflight.claimed(read(Path("c.toml"))):
    print("claimed", flush=True); sys.stdin.read()
"""
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout and other.stdout.readline() == b"claimed\n"
        with (
            pytest.raises(ConfigError, match="another asyncrl is running"),
            preflight.claimed(mine),
        ):
            pass
        other.kill()
        other.wait()
    with preflight.claimed(mine):
        pass


def test_a_directory_that_fails_while_claimed_is_one_sentence(here: Path) -> None:
    Path("r/run.toml").mkdir(parents=True)
    with (
        pytest.raises(ConfigError, match="cannot be written"),
        preflight.claimed(config("run.dir=r")),
    ):
        pass
    Path("f").touch()
    with (
        pytest.raises(ConfigError, match="cannot be written"),
        preflight.claimed(config("run.dir=f/r")),
    ):
        pass


# ------------------------------------------------------------------------------------- the machine


def test_a_port_in_use() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        assert f"metrics.port is {port}, and that port is in use" in refusal(
            config(f"metrics.port={port}")
        )
        assert f"run.page_port is {port}, and that port is in use" in refusal(
            config(f"run.page_port={port}")
        )
    preflight.check(config(f"metrics.port={port}"), None, 2)
    assert "run.page_port and metrics.port are both" in refusal(
        config(f"metrics.port={port}", f"run.page_port={port}")
    )


def test_a_port_in_use_that_the_last_of_several_actors_needs() -> None:
    """A run began, whose agents actor could not listen."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        sets = ("agent.run=http", "agent.actors=2", f"agent.port={port - 1}")
        said = refusal(config(*sets))
    either = (
        f"agent.port gives an actor port {at}, and that port is in" for at in (port - 1, port)
    )
    assert any(sentence in said for sentence in either), "another program may have the first"


def test_a_port_for_agents_that_nobody_plays_is_not_looked_at() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        preflight.check(config(f"agent.port={other.getsockname()[1]}"), None, 2)


@pytest.mark.parametrize("host", ["240.0.0.1", "::1"])
def test_an_address_of_another_machine(host: str) -> None:
    assert f"metrics.host is '{host}', which is not an IPv4 address of this machine" in refusal(
        config(f"metrics.host={host}", "metrics.port=9100")
    )


@pytest.mark.parametrize(
    ("sets", "available", "named"),
    [
        (["machine.cores=3"], 2, "machine.cores is 3, but this process may use 2"),
        (["machine.trainer_cores=2"], 2, "machine.trainer_cores is 2 of 2"),
        (["machine.trainer_cores=2"], 1, "machine.trainer_cores is 2 of 1"),
        (["rollout.actors=1000000"], 2, "rollout.actors is 1,000,000, and there are 2 cores"),
        (["reward.actors=129"], 2, "set it to 128 or less"),
    ],
)
def test_cores_that_are_not_there(sets: list[str], available: int, named: str) -> None:
    assert named in refusal(config(*sets), available=available)


def test_one_core_is_shared() -> None:
    preflight.check(config("machine.trainer_cores=1"), None, 1)


@pytest.mark.parametrize(
    ("quota", "cores"),
    [("max 100000", 99), ("250000 100000", 2), ("50000 100000", 1), ("nonsense", 99)],
)
def test_a_containers_quota_counts(quota: str, cores: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(99)))
    Path("cpu.max").write_text(quota + "\n")
    assert available_cores(Path("cpu.max")) == cores
    assert available_cores(Path("none")) == 99


def test_a_port_for_later_is_none_that_connections_are_given() -> None:
    first = int(EPHEMERAL.read_text().split()[0])
    if first <= LOWEST_PORT:
        pytest.skip("this machine gives all ports to connections")
    assert all(LOWEST_PORT <= free_port() < first for _ in range(20))
    Path("one_more").write_text(f"{LOWEST_PORT + 1}\t60999\n")
    Path("none").write_text("1024\t65535\n")
    with contextlib.ExitStack() as held:
        with contextlib.suppress(OSError):  # somebody has it, which is as good
            held.enter_context(socket.create_server(("127.0.0.1", LOWEST_PORT)))
        assert free_port(ephemeral=Path("one_more")) != LOWEST_PORT, "it is taken"
    with socket.create_server(("127.0.0.1", free_port(ephemeral=Path("none")))):
        pass


# -------------------------------------------------------------------------------- models and tasks


def model(*names: str) -> Path:
    directory = Path("model")
    directory.mkdir()
    for name in names:
        (directory / name).write_text(json.dumps({"model_type": "qwen3"}))
    if "tokenizer.json" in names:
        write_tokenizer(directory)
    return directory


def data(*prompts: str, held_out: int = 0, verifier: str = "exact") -> list[str]:
    """A file of prompts, as settings; its answers are 12."""
    text = "".join(json.dumps({"prompt": prompt, "answer": 12}) + "\n" for prompt in prompts)
    Path("data.jsonl").write_text(text)
    of_task = {"name": "jsonl", "path": "data.jsonl", "eval_size": held_out, "verifier": verifier}
    return [f"task.{name}={value}" for name, value in of_task.items()]


TRACEBACK = 'Traceback (most recent call last):\n  File "/a/odd.py", line 7, in of\n    1\n'
ALL = ("config.json", "tokenizer.json", "model-00001-of-00002.safetensors")


def test_a_whole_model_passes() -> None:
    model(*ALL)
    preflight.check(config("model.path=model"), None, 2)


@pytest.mark.parametrize(
    ("missing", "named"),
    [
        ("config.json", "no config.json"),
        ("tokenizer.json", "no tokenizer.json"),
        (ALL[2], "no weights (*.safetensors)"),
    ],
)
def test_a_model_with_something_missing(missing: str, named: str) -> None:
    model(*(name for name in ALL if name != missing))
    assert named in refusal(config("model.path=model"))


def test_steps_follow_from_the_lines_that_there_are() -> None:
    settings = [*data(*"abcdefghijkl"), "task.epochs=1", "train.batch_groups=2"]
    checked, notes = preflight.check(config(*settings), None, 2)
    assert checked.task.train_size == 12 and steps(checked) == 6 and not notes
    of_file = {"name": "jsonl", "path": "data.jsonl", "eval_size": 2}
    mix = {"x": of_file, "y": of_file | {"eval_size": 5}, "z": {"train_size": 7, "eval_size": 2}}
    task = TaskConfig(mix=mix, weights={"x": 0.5, "y": 0.25, "z": 0.25})
    checked, _ = preflight.check(msgspec.structs.replace(config(), task=task), None, 2)
    assert [table["train_size"] for table in checked.task.mix.values()] == [10, 7, 7]


def test_answers_that_no_response_can_be_are_noted() -> None:
    """The verifier may want another one, so the run can go on."""
    lines = [{"prompt": str(n), "answer": "7"} for n in range(6)]
    lines[1]["answer"], lines[2]["answer"], lines[5]["answer"] = "x" * 8, "<|end|>", "x" * 7
    Path("data.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    sets = ["task.name=jsonl", "task.path=data.jsonl", "task.eval_size=1"]
    notes = preflight.check(config(*sets, "rollout.max_new_tokens=8"), None, 2).notes
    assert [note.meaning for note in notes] == [
        "the data's own answers to 1 of 5 training prompts that were checked leave no room for the "
        "end in rollout.max_new_tokens = 8",
        "the data's own answers to 1 of 5 training prompts that were checked are other texts once "
        "the tokenizer has read them (unknown letters, special tokens)",
    ]


def test_a_run_goes_on_whoever_counted_its_lines() -> None:
    """A run.toml of an earlier version has the default in the place of the number."""
    before = config(*data(*"abcdef"), "run.dir=r")
    for known in (before, preflight.check(before, None, 2).config):
        with preflight.claimed(known):
            pass
        preflight.check(config(*data(*"abcdef"), resume=Path("r")), Path("r"), 2)
        preflight.check(known, Path("r"), 2)


@pytest.mark.explore
def test_a_resume_goes_on_with_the_data_that_it_began_with(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("judge_of_resume.py").write_text("def f(answer, line): return 1.0\n")
    monkeypatch.syspath_prepend(str(Path.cwd()))
    monkeypatch.setenv("PYTHONPATH", str(Path.cwd()))
    settings = data(*"abcdef", held_out=2, verifier="judge_of_resume:f")
    run = Path("r")
    with preflight.claimed(preflight.check(config(*settings, "run.dir=r"), None, 2).config):
        pass
    resumed = config(*settings, resume=run)
    assert preflight.check(resumed, run, 2).notes == []
    Path("judge_of_resume.py").write_text("def f(answer, line): return 0.5\n")
    (note,) = preflight.check(resumed, run, 2).notes
    assert note.value == "the module judge_of_resume" and "rewards may differ" in note.meaning
    examples = ["supervised.coefficient=1", "supervised.path=s.jsonl"]
    Path("s.jsonl").write_text('{"prompt": "a", "response": "b"}\n')
    with preflight.claimed(
        preflight.check(config(*settings, *examples, "run.dir=s"), None, 2).config
    ):
        pass
    Path("s.jsonl").write_text('{"prompt": "a", "response": "c"}\n')
    taught = config(*settings, *examples, resume=Path("s"))
    (note,) = preflight.check(taught, Path("s"), 2).notes
    assert note.value == str(Path("s.jsonl").absolute()) and "its examples may" in note.meaning
    data(*"abcxef")
    said = refusal(resumed, run)
    assert "data.jsonl is not the file that this run began with" in said
    (run / "origins.json").unlink()  # as an earlier version leaves it
    assert preflight.check(resumed, run, 2).notes == []


def test_prompts_that_cannot_be_answered_are_counted() -> None:
    settings = [
        *data("a", *("b" * (300 - n) for n in range(3)), "c" * 300, held_out=1),
        "engine.context_tokens=128",
    ]
    training, held_out = preflight.check(config(*settings), None, 2).notes
    assert "of 4 training prompts that were checked 3 leave no room" in training.meaning
    assert "the longest prompt has 301" in training.meaning and "dropped" in training.meaning
    assert "of 1 held-out prompts" in held_out.meaning and "accuracy leaves" in held_out.meaning
    said = refusal(config(*data("b" * 300, "c" * 300), "engine.context_tokens=128"))
    assert "2 leave no room for an answer" in said and "raise engine.context_tokens" in said


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        (
            "normalizer",
            {
                "type": "Sequence",
                "normalizers": [{"type": "Replace", "pattern": {"String": "b"}, "content": "b" * 9}]
                * 12,
            },
            "the model's tokenizer fails at the first prompt: it ",
        ),
        (
            "pre_tokenizer",
            {
                "type": "Split",
                "behavior": "Isolated",
                "invert": False,
                "pattern": {"Regex": "(b+)+$"},
            },
            "the model's tokenizer fails at",
        ),
    ],
)
def test_a_tokenizer_without_an_end_is_refused_in_a_process_that_can_be_killed(
    key: str, value: object, says: str, capfd: pytest.CaptureFixture[str]
) -> None:
    file = model(*ALL) / "tokenizer.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {key: value}))
    said = refusal(config(*data("b" * 30 + "a", "c"), "model.path=model"))
    assert says in said
    assert "panicked" not in capfd.readouterr().err


def test_a_token_without_a_row_of_the_embedding_is_seen() -> None:
    directory = model(*ALL)
    (directory / "config.json").write_text('{"model_type": "qwen3", "vocab_size": 100}')
    settings = ["model.path=model", *data("abc", "xyz")]
    (note,) = preflight.check(config(*settings), None, 2).notes
    assert "1 have a token that the model's embedding has no row for" in note.meaning


def test_a_model_whose_responses_cannot_end_is_refused() -> None:
    directory = model(*ALL)
    (directory / "tokenizer_config.json").write_text("{}")
    assert "none of its files names an end" in refusal(config("model.path=model", *data("a")))


def test_the_chat_template_is_tried() -> None:
    directory = model(*ALL)
    (directory / "chat_template.jinja").write_text("{{")
    settings = ["model.path=model", "task.chat=true", *data("a")]
    assert "cannot render this" in refusal(config(*settings))
    (directory / "chat_template.jinja").unlink()
    assert "no chat template" in refusal(config(*settings))


@pytest.mark.processes
def test_a_verifier_judges_an_answer_of_the_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the sandbox and the process in which a reward actor has it judge."""
    lines = ["def listed(a, line): return [float(a == str(line['answer']))]"]
    lines += ["def lost(a, line): return float(a == open('/etc/nowhere').read())"]
    lines += ["def endless(a, line): return float('nan')"]
    lines += ["def never(a, line): return 0.0"]
    lines += ["def right(a, line): return float(a == str(line['answer']))"]
    lines += ["def trl(completions, answer): return [float(completions[0].strip() == answer[0])]"]
    Path("tried_by_check.py").write_text("\n".join(lines) + "\n")
    # else this process and the sandbox's make a folder of bytecode
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.syspath_prepend(str(Path.cwd()))
    monkeypatch.setenv("PYTHONPATH", str(Path.cwd()))
    said = refusal(config(*data("a", verifier="tried_by_check:listed")))
    assert "gives no reward" in said and "not a number: list" in said
    said = refusal(config(*data("a", verifier="tried_by_check:lost")))
    assert "gives no reward on the data's own answer to prompt 0 ('12'): raised: File" in said
    said = refusal(config(*data("a", verifier="tried_by_check:endless")))
    assert "not finite; a reward is a finite number" in said
    (note,) = preflight.check(config(*data("a", verifier="tried_by_check:never")), None, 2).notes
    assert "no reward to the data's own answer to prompt 0 ('12')" in note.meaning
    assert not preflight.check(config(*data("a", verifier="tried_by_check:right")), None, 2).notes
    asked = [{"role": "user", "content": "a"}]
    Path("chat.jsonl").write_text(f"{json.dumps({'prompt': asked, 'answer': '12'})}\n" * 2)
    chat = ["task.name=data", "task.path=chat.jsonl", "task.eval_size=0"]
    said = refusal(config(*chat, "task.verifier=tried_by_check:trl"))
    assert "'list' object has no attribute 'strip'" in said
    assert 'a list of messages, as in TRL: completions[0][0]["content"] is its text' in said


def test_a_shard_that_is_missing_is_named() -> None:
    directory = model(*ALL)
    shards = {"a.weight": ALL[2], "b.weight": "model-00002-of-00002.safetensors"}
    index = directory / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": shards}))
    said = refusal(config("model.path=model"))
    assert "model-00002-of-00002.safetensors is not in it, which model.safetensors.index" in said
    index.write_text("[]")
    assert "index.json cannot be read" in refusal(config("model.path=model"))


def try_here(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """Try models in this process, where torch is imported."""

    def here(argv: list[str], **_: Any) -> subprocess.CompletedProcess[bytes]:
        monkeypatch.setattr(sys, "argv", argv[3:])
        status = importlib.import_module(argv[3]).main()
        return subprocess.CompletedProcess(argv, status, capfd.readouterr().out.encode(), b"")

    monkeypatch.setattr(subprocess, "run", here)


@pytest.mark.parametrize(
    "settings",
    [
        {"model_type": "qwen3", "num_hidden_layers": 2, "layer_types": ["x"]},
        {},
        {"model_type": "gpt9"},
        {"model_type": "qwen3", "hidden_size": "large"},
    ],
)
def test_a_configuration_of_which_no_model_can_be_made(
    settings: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """The first in a process of its own, as it is, but forked; the others here, where torch is
    imported. The next test's process is started."""
    directory = model(*ALL)
    (directory / "config.json").write_text(json.dumps(settings))
    if "layer_types" in settings:
        monkeypatch.setattr(torch_process, "subprocess", SimpleNamespace(run=warm_process.run))
    else:
        try_here(monkeypatch, capfd)
    with pytest.raises(ConfigError, match=r"config\.json"):
        check_architecture(directory, Config())


@pytest.mark.explore
def test_a_configuration_of_which_a_model_can_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And nothing is left of the trial: torch makes a folder."""
    (files := tmp_path / "files").mkdir()
    monkeypatch.setenv("TMPDIR", str(files))
    check_architecture(model("config.json", "tokenizer.json"), Config())
    assert [*files.iterdir()] == []


def test_a_model_that_the_engine_cannot_decode_is_refused(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """It ended the run's actors by an error, after check had said that the run can begin."""
    directory = model("config.json", "tokenizer.json")
    sizes = "engine.context_tokens=1000000", "train.micro_tokens=1000000"
    longer = config(*sizes)
    served = config(*sizes, "engine.kind=vllm", "engine.vllm.urls=['http://localhost:1']")
    try_here(monkeypatch, capfd)
    check_architecture(directory, Config())
    with pytest.raises(ConfigError, match="context_tokens is 1000000, but the model holds"):
        check_architecture(directory, longer)
    check_architecture(directory, served)  # the server says what it can do


def test_adapters_of_layers_that_a_model_does_not_have_are_refused(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Files have the weights of each expert, and a model one tensor of all: it says its names."""
    directory, rank = model("config.json", "tokenizer.json"), "model.lora.rank=2"
    right = config(rank, "model.lora.targets=['q_proj','mlp.down_proj']")
    wrong = config(rank, "model.lora.targets=['q_proj','gate_up_proj']")
    try_here(monkeypatch, capfd)
    check_architecture(directory, right)
    with pytest.raises(ConfigError, match=r"no such layer in .*; it has down_proj, gate_proj"):
        check_architecture(directory, wrong)


@pytest.mark.parametrize(
    ("status", "printed", "said"),
    [
        (
            1,
            TRACEBACK + "KeyError: 'rope'\n",
            "failed: KeyError: 'rope' (odd.py, line 7); check that",
        ),
        (1, TRACEBACK + "MemoryError\n", "failed: MemoryError (odd.py, line 7); make room in mem"),
        (3, "", "failed: it ended with exit status 3 and said nothing; check that its config.json"),
        (-9, "", "signal 9 (Killed) ended it, as the system does when it is out of memory; make r"),
        (-11, "Fatal Python error: x\n", "signal 11 (Segmentation fault) ended it; check that its"),
    ],
)
def test_a_trial_that_ends_unexpectedly_is_no_model_that_can_run(
    status: int, printed: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever ended it but a refusal was taken for a success."""
    directory = model(*ALL)
    ended = subprocess.CompletedProcess([""], status, b"", printed.encode())
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: ended)
    with pytest.raises(ConfigError) as caught:
        check_architecture(directory, Config())
    assert said in str(caught.value) and str(caught.value).startswith("model.path is 'model', and ")


def test_a_trial_that_takes_too_long_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(command: list[str], **_: Any) -> None:
        raise subprocess.TimeoutExpired(command, 1)

    monkeypatch.setattr(subprocess, "run", run)
    (note,) = check_architecture(model(*ALL), Config())
    assert note.name == "note" and "its config.json was not tried" in note.meaning


def test_a_model_is_made_before_its_memory_is_predicted(monkeypatch: pytest.MonkeyPatch) -> None:
    """For sizes that no model has the prediction takes minutes."""
    model(*ALL)
    order = list[str]()
    monkeypatch.setattr(
        model_directories, "check_architecture", lambda *_: order.append("made") or []
    )
    monkeypatch.setattr(train, "memory_rows", lambda _: order.append("predicted") or [])
    to = Console(file=io.StringIO())
    train.checked(config("model.path=model"), None, to, None, architecture=True)
    train.checked(config("model.path=model"), None, to, None)
    assert order == ["made", "predicted", "predicted"]


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json"])
@pytest.mark.parametrize("text", ["[]", "7", "null", '"x"', None])
def test_a_model_file_that_is_no_object_or_a_pipe_is_a_sentence(
    name: str, text: str | None
) -> None:
    directory = model(*ALL)
    (directory / name).unlink()
    if text is None:
        os.mkfifo(directory / name)
    else:
        (directory / name).write_text(text)
    said = refusal(config("model.path=model"))
    assert f"{name} in it " in said and ("not a" in said)


@pytest.mark.parametrize("type_", [np.float32, np.float16])
def test_a_tied_model_with_another_output_layer_is_refused(type_: type) -> None:
    """Two readers took one layer each; it was five restarts and a traceback."""
    directory = model(*ALL[:2])
    shape = {"hidden_size": 8, "vocab_size": 300, "tie_word_embeddings": True}
    (directory / "config.json").write_text(json.dumps({"model_type": "qwen3", **shape}))
    rows = np.arange(2400, dtype=type_).reshape(300, 8)
    other = rows.copy()
    other[:150] += 1
    weights = {"model.embed_tokens.weight": rows, "lm_head.weight": rows.copy()}
    save_file(weights, directory / "model.safetensors")
    settings = ["model.path=model", *data("a")]
    preflight.check(config(*settings), None, 2)
    save_file(weights | {"lm_head.weight": other}, directory / "model.safetensors")
    assert "set tie_word_embeddings to false there" in refusal(config(*settings))
    (directory / "config.json").write_text(
        json.dumps({"model_type": "qwen3", **shape, "tie_word_embeddings": False})
    )
    preflight.check(config(*settings), None, 2)


def test_other_bad_models() -> None:
    assert "no such directory" in refusal(config("model.path=nowhere"))
    directory = model("config.json", "tokenizer.json", "pytorch_model.bin")
    assert "only pickles" in refusal(config("model.path=model"))
    (directory / "model.safetensors").touch()
    (directory / "config.json").write_text("{")
    assert "config.json in it is not JSON" in refusal(config("model.path=model"))
    (directory / "config.json").write_text('{"quantization_config": {"quant_method": "fp8"}}')
    assert "quantized weights are not trained" in refusal(config("model.path=model"))


def test_a_task_that_cannot_be_opened() -> None:
    assert "spell_backwards" in refusal(config("task.name=spell_backwards"))
    assert "nowhere.jsonl" in refusal(config("task.name=jsonl", "task.path=nowhere.jsonl"))


# ----------------------------------------------------------------------------------------- sandbox


@pytest.fixture(params=["", "unshare: Operation not permitted"], ids=["here", "missing"])
def missing(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Reason for which this machine has no sandbox `strict`, if any."""
    found: str = request.param
    for module in (preflight, judge_checks):
        monkeypatch.setattr(module, "support", lambda: Support(found, 7))
    return found


def test_a_run_gets_the_sandbox_that_its_machine_has(missing: str) -> None:
    assert config().task.sandbox == ("process" if missing else "strict")
    preflight.check(config(), None, 2)
    preflight.check(config("task.sandbox=process"), None, 2)


def test_a_sandbox_that_is_not_there_is_refused(missing: str) -> None:
    strict = config("task.sandbox=strict")
    if missing:
        assert missing in refusal(strict)
    else:
        preflight.check(strict, None, 2)


@pytest.mark.parametrize(
    ("sets", "said"),
    [
        (["sandbox.kind=docker"], "there is no command docker"),
        (["sandbox.kind=directory"], "sandbox.hosts cannot be kept"),
        (["sandbox.kind=e2b"], "E2B_API_KEY"),
    ],
)
def test_what_agents_sandboxes_need_is_looked_for(
    sets: list[str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.delenv("E2B_API_KEY", raising=False)
    agent = "agent.run=asyncrl.agents.examples.retry:solve"
    assert said in refusal(config(agent, *sets))


@pytest.mark.parametrize(
    ("sets", "named"),
    [
        (["sandbox.kind=docker"], "agent.run"),
        (["sandbox.kind=docker", "agent.run=http"], "programs open their own"),
        (["sandbox.hosts=['--all']"], "is not a host"),
        (["sandbox.hosts=['*', 'a.org']"], "already means all hosts"),
        (["sandbox.url=http://api.example.org"], "https"),
        (["sandbox.kind=dokcer"], "sandbox.kind"),
    ],
)
def test_settings_of_sandboxes_that_cannot_be_are_refused(sets: list[str], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        config(*sets)


@pytest.mark.parametrize("sandbox", ["auto", "strict", "process"])
@pytest.mark.parametrize("name", ["n_queens", "countdown"])
def test_a_task_that_executes_answers_is_refused_without_the_sandbox(
    name: str, sandbox: str, missing: str
) -> None:
    checked = config(f"task.name={name}", f"task.sandbox={sandbox}")
    if missing or sandbox == "process":
        said = refusal(checked)
        assert "task.sandbox" in said and (not missing or sandbox == "process" or missing in said)
    else:
        preflight.check(checked, None, 2)


def test_programs_need_a_sandbox_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The verifier `run` cannot start programs in `strict`, and is refused without bwrap."""
    line = {"prompt": "p", "language": "python", "cases": [{"input": "", "output": "1"}]}
    path = tmp_path / "data.jsonl"
    path.write_text("".join(json.dumps(line | {"prompt": str(n)}) + "\n" for n in range(3)))
    sets = ["task.name=jsonl", f"task.path={path}", "task.eval_size=1", "model.path="]
    runs = config(*sets, "task.verifier=run")
    assert runs.task.sandbox == "process"
    assert PROGRAMS in derived(runs, 2) and PROGRAMS not in derived(config(), 2)
    monkeypatch.setattr(judge_checks, "trial", lambda language, sandbox: "")
    monkeypatch.setattr(judge_checks.Bubblewrap, "missing", lambda self: "")
    preflight.check(runs, None, 2)
    assert "in which no program can be started" in refusal(
        config(*sets, "task.verifier=run", "task.sandbox=strict")
    )
    mix = (
        f'{{a = {{name = "countdown"}}, b = {{name = "jsonl", path = "{path}", verifier = "run"}}}}'
    )
    both = config("task.eval_size=1", f"task.mix={mix}", "task.weights={a = 0.5, b = 0.5}")
    assert both.task.sandbox == "process" and "make two runs of it" in refusal(both)
    monkeypatch.setattr(judge_checks, "trial", lambda language, sandbox: f"{language} is broken")
    assert "a verifier is `run`, and python is broken" in refusal(runs)
    monkeypatch.setattr(judge_checks.Bubblewrap, "missing", lambda self: "no user namespaces")
    assert "the sandbox of programs (no user namespaces)" in refusal(runs)


@pytest.mark.parametrize(
    ("run", "said"),
    [
        ("nowhere:solve", "the agent 'nowhere:solve' cannot be loaded, because nowhere cannot be"),
        ("asyncrl.agents.examples.retry:nobody", "has no nobody"),
        ("math:pi", "is a float; name a function, as in async def solve(client, episode)"),
        ("solve", "names no agent"),
        ('["no-such-program"]', "there is no such program on PATH"),
    ],
)
def test_an_agent_that_is_not_there_starts_nothing(run: str, said: str) -> None:
    assert said in refusal(config(f"agent.run={run}"))


def test_an_agents_sandbox_that_cannot_be_had_starts_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing falls back to a program that is kept from nothing."""
    monkeypatch.setattr(judge_checks.Bubblewrap, "missing", lambda self: "no user namespaces")
    for run in ('["true"]', "asyncrl.agents.examples.retry:solve"):
        asked = config(f"agent.run={run}", "agent.sandbox=bwrap")
        assert "agent.sandbox is bwrap, and this machine does not have it (no user" in refusal(
            asked
        )
    preflight.check(config('agent.run=["true"]'), None, 2)
    with pytest.raises(ConfigError, match=r"agent\.sandbox.*none, bwrap"):
        config('agent.run=["true"]', "agent.sandbox=docker")


def test_who_plays_is_shown_and_programs_elsewhere_need_nothing_here() -> None:
    for run in ("asyncrl.agents.examples.retry:solve", "http"):
        checked = config(f"agent.run={run}")
        preflight.check(checked, None, 2)
        (row,) = [row for row in derived(checked, 2) if row.name == "agent"]
        assert row.value == run and "≤ 64 at a time" in row.meaning
