"""Real runs, as a user starts them: one command, real processes, a tiny model with random
weights."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import warm_process

SETTINGS = {
    "task.name": "spell_backward",
    "task.eval_size": 8,
    "train.batch_groups": 2,
    "rollout.group_size": 4,
    "rollout.max_new_tokens": 16,
    "rollout.filter": "none",
    "engine.slots": 8,
    "engine.compile": False,
    "reward.concurrency": 2,
    "supervision.grace_s": 5.0,
}
"""Steps of engines are traced and compiled (two core seconds of each start) in one test of
tests/runs/test_train.py, in docs/examples, and in tests/engines."""
DEADLINE_S = 300.0
"""Seconds that whatever must come may take on a machine that others use too: a run begins
in 20 s on two free cores."""


def command(model: Path, run: Path, **settings: object) -> list[str]:
    """`asyncrl train` of the tiny model; a setting's dots are written as double underscores."""
    values = (
        SETTINGS
        | {"model.path": str(model), "run.dir": str(run)}
        | {k.replace("__", "."): v for k, v in settings.items()}
    )
    return [
        sys.executable,
        "-m",
        "asyncrl.cli",
        "train",
        *(f"--set={key}={_toml(value)}" for key, value in values.items()),
    ]


UNHURRIED = """
import time

def judge(answer, line):
    time.sleep(0.1)
    return float(len(answer) % 3)
"""


def unhurried(folder: Path) -> dict[str, object]:
    """Settings of a run that goes on while a test waits for something else, and that leaves most
    of the cores to other tests meanwhile: its verifier, a file in this folder, sleeps."""
    folder.mkdir(exist_ok=True)
    (folder / "unhurried.py").write_text(UNHURRIED)
    lines = [{"prompt": f"{n} + 1 =", "answer": str(n + 1)} for n in range(64)]
    (folder / "prompts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return {
        "task__name": "jsonl",
        "task__path": str(folder / "prompts.jsonl"),
        "task__verifier": f"{folder / 'unhurried.py'}:judge",
    }


def joins(token: Path, name: str, folder: Path) -> list[str]:
    """`asyncrl agent`."""
    argv = [sys.executable, "-m", "asyncrl.cli", "agent", "--join", str(token), "--name", name]
    return [*argv, "--dir", str(folder)]


def _toml(value: object) -> str:
    return json.dumps(value) if not isinstance(value, str) else value


def train(argv: list[str], **environment: str) -> subprocess.CompletedProcess[str]:
    """Run it to its end."""
    env = os.environ | environment
    return warm_process.run(argv, capture_output=True, text=True, timeout=DEADLINE_S, env=env)


@contextmanager
def started(
    argv: list[str], start: type[subprocess.Popen[str]] = warm_process.Popen, **environment: str
) -> Iterator[subprocess.Popen[str]]:
    """Run it beside the test; it is gone at the end of the block. It heeds SIGHUP, also where the
    tests were started to outlive their terminal. A fork of the warm process, unless `start` is
    `subprocess.Popen`."""
    env = os.environ | environment
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    try:
        process = start(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
    finally:
        signal.signal(signal.SIGHUP, before)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()


def end(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Its exit status, output and errors, once it has ended by itself."""
    out, err = process.communicate(timeout=DEADLINE_S)
    return process.returncode, out, err


def processes(run: Path) -> dict[str, int]:
    """The living actors of a run: role-index → process id."""
    found = {}
    for pid, argv in command_lines():
        if str(run) in argv and "asyncrl.actors" in argv:
            role, index = argv[argv.index("asyncrl.actors") + 1 :][:2]
            found[f"{role}-{index}"] = pid
    return found


def processes_with(*words: str) -> list[int]:
    """Those in whose command line the words are, the oldest first."""
    listed = subprocess.run(
        ["ps", "-ww", "-eo", "pid=,args="], capture_output=True, text=True, check=True
    )
    lines = [line.split() for line in listed.stdout.splitlines()]
    return sorted(int(pid) for pid, *args in lines if {*words} <= {*args} and "ps" not in args)


def fork_server(run: Path) -> int:
    """The process that a run's actors are forked from. A child of it has its command line for the
    moment until the child has named itself."""
    named = {
        pid
        for pid, argv in command_lines()
        if str(run) in argv and "asyncrl.actors.preloaded" in argv
    }
    (found,) = (pid for pid in named if _parent(pid) not in named)
    return found


def _parent(pid: int) -> int | None:
    """The process id of its parent; None: it has ended."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return None


def command_lines() -> Iterator[tuple[int, list[str]]]:
    """Process id and arguments of everybody who lives."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                argv = os.fsdecode((entry / "cmdline").read_bytes()).split("\0")
                state = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[0]
            except (FileNotFoundError, ProcessLookupError):
                continue
            if state not in "ZX":
                yield int(entry.name), argv


def wait_for(what: str, look: Any, deadline_s: float = DEADLINE_S, every_s: float = 0.1) -> Any:
    """Look until there is something; of real processes there is no other way to know."""
    end_at = time.monotonic() + deadline_s
    while not (found := look()):
        assert time.monotonic() < end_at, f"no {what} within {deadline_s} s"
        time.sleep(every_s)
    return found


def actors(folder: Path, *names: str) -> dict[str, int]:
    """Wait until these actors of a folder live, and no other: role-index → process id."""

    def found() -> dict[str, int] | None:
        living = processes(folder)
        return living if living.keys() == {*names} else None

    living: dict[str, int] = wait_for(f"{names} alone in {folder}", found)
    return living


_READ: dict[Path, tuple[int, int]] = {}
"""Of each run's journal the number of the last event that was looked at, and the steps by then:
tests look ten times a second."""


def steps_done(run: Path) -> int:
    """Optimizer steps that the journal knows of."""
    from asyncrl.experience import events as e
    from asyncrl.journal import JournalError, read

    last, steps = _READ.get(run, (0, 0))
    try:
        for number, event in read(run / "journal.sqlite", last):
            last = number
            if isinstance(event, e.Published):
                steps = max(steps, event.version)
    except (JournalError, OSError):
        return 0
    _READ[run] = last, steps
    return steps


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def everything(process: subprocess.Popen[str], run: Path) -> None:
    """Kill a run's launcher and all its actors, and return once they are gone."""
    for pid in [process.pid, *processes(run).values()]:
        with contextlib.suppress(ProcessLookupError):
            kill(pid)
    process.wait(DEADLINE_S)
    wait_for("quiet", lambda: not processes(run))


def resume(run: Path) -> list[str]:
    """`asyncrl train --resume`."""
    return [sys.executable, "-m", "asyncrl.cli", "train", "--resume", str(run)]


def tiny_model(path: Path) -> Path:
    """A model directory with random weights."""
    from asyncrl.bundled.bundled_model import new_model, write_tokenizer

    new_model(0).save_pretrained(str(path))
    write_tokenizer(path)
    return path


def tiny_moe(path: Path) -> Path:
    """The same of a mixture of experts, Qwen3-MoE."""
    import torch
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    from asyncrl.bundled.bundled_model import model_config, write_tokenizer

    config = Qwen3MoeConfig(
        **{
            name: value
            for name, value in model_config().to_dict().items()
            if name not in ("architectures", "model_type", "transformers_version")
        },
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=96,
        decoder_sparse_step=1,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        Qwen3MoeForCausalLM(config).save_pretrained(str(path))
    write_tokenizer(path)
    return path


def followed(run: Path) -> Any:
    """A follower of the run through its journal, which knows what may never happen
    (`bench/follower.py`)."""
    place = Path(__file__).parents[2] / "bench" / "follower.py"
    spec = importlib.util.spec_from_file_location("follower", place)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Follower(run)


def all_sealed(follower: Any) -> bool:
    """True if no response of a followed run is unfinished."""
    follower.look()
    return all(
        seen.sealed
        for seen in follower.account.rollouts.values()
        if seen.group.event.split == "train"
    )
