"""Answers that are programs: what they do reaches nothing but their own verdict."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import msgspec
import numpy as np
import pytest
import trio
from sandbox_support import needs_strict
from some_values import some

from asyncrl.actors.reward_actor import REASON, VerifierPool, _ask, open_verifiers
from asyncrl.actors.verifier_process import TimedVerdict, VerifyRequest
from asyncrl.actors.worker_process import frame
from asyncrl.bundled.bundled_model import write_tokenizer
from asyncrl.config.schema import TaskConfig
from asyncrl.escape import CUT
from asyncrl.messages import NoVerdict, Scored, Verdict
from asyncrl.runtime.ipc.waits import Waits
from asyncrl.tasks.gym import EXECUTING

pytestmark = pytest.mark.processes

RUNNING = """
import os, sys

def run(answer, line):
    "The answer is a program, and its last line the reward."
    lines = answer.splitlines()
    names = {"line": line}
    exec("\\n".join(lines[:-1]), names)
    return eval(lines[-1], names)

run.executes = True

def score(answer, line):
    return float(answer == line["answer"])

score.executes = True
VERIFIERS = {"score": score}
"""
Open = Callable[..., AbstractAsyncContextManager[VerifierPool]]


@pytest.fixture
def task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TaskConfig:
    name = f"running_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(RUNNING)
    lines = [{"prompt": "run", "answer": ""}] * 4
    lines += [{"prompt": "score", "answer": "right", "verifier": f"{name}:score"}] * 4
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    )
    monkeypatch.setenv("ASYNCRL_TEST_SECRET", "a secret")
    write_tokenizer(tmp_path)
    return TaskConfig(
        name="jsonl",
        path=str(tmp_path / "data.jsonl"),
        verifier=f"{name}:run",
        eval_size=0,
        verdict_s=20.0,
        sandbox="strict",
    )


@pytest.fixture
def opened(task: TaskConfig, tmp_path: Path) -> Open:
    def opened(**changes: object) -> AbstractAsyncContextManager[VerifierPool]:
        changed = msgspec.structs.replace(task, **changes)
        return open_verifiers(changed, 0, str(tmp_path), Waits())

    return opened


async def verdict(verifiers: VerifierPool, answer: str, prompt_index: int = 0) -> Verdict:
    ids = np.frombuffer(answer.encode(), np.uint8).astype("<i4").tobytes()
    return (await verifiers.judge("train", prompt_index, ids, "stop")).verdict


# ----------------------------------------------------------------------------- each proved way in


@needs_strict
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name == "countdown" else pytest.mark.explore)
        for name in sorted(EXECUTING)
    ],
)
async def test_an_answer_to_reasoning_gym_reaches_nothing(
    name: str, opened: Open, tmp_path: Path
) -> None:
    """Each of the nine scorers evaluates the answer; in each this program ran."""
    stolen = tmp_path / "stolen"
    program = (
        f"[__import__('pathlib').Path({str(stolen)!r}).write_text(str(__import__('os').environ)),"
        "__import__('os')._exit(0)]"
    )
    config = {"name": name, "path": "", "train_size": 4, "verifier": "exact"}
    async with opened(**config) as verifiers:
        given = [await verdict(verifiers, answer) for answer in (program, f"({program})[0]")]
    assert not stolen.exists()
    assert all(isinstance(one, Scored) and one.reward <= 0.05 for one in given), given


@needs_strict
async def test_an_answer_reads_no_key_and_no_environment(opened: Open, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("the key of the run")
    async with opened() as verifiers:
        for program in (
            f"0.0 if open({str(key)!r}).read() else 1.0",
            "float(__import__('os').environ['ASYNCRL_TEST_SECRET'] == '')",
            "float('ASYNCRL' in open('/proc/self/environ').read())",
        ):
            given = await verdict(verifiers, program)
            assert isinstance(given, NoVerdict), program
            assert given.reason.startswith(("raised: FileNotFoundError", "raised: KeyError"))


@needs_strict
async def test_an_answer_changes_no_other_verdict(opened: Open, task: TaskConfig) -> None:
    """The verifier that it replaces is its own process's."""
    module = task.verifier.partition(":")[0]
    poison = (
        f"import sys\nsys.modules[{module!r}].score.__code__ = (lambda a, b: 1.0).__code__\n1.0"
    )
    async with opened() as verifiers:
        assert await verdict(verifiers, "right", 4) == Scored(1.0)
        for _ in range(3):
            assert await verdict(verifiers, poison) == Scored(1.0)
            assert await verdict(verifiers, "wrong", 4) == Scored(0.0)


FORGE = """
import os, stat
from __main__ import Scored, TimedVerdict, frame
for fd in range(100):
    try:
        if stat.S_ISSOCK(os.fstat(fd).st_mode):
            os.write(fd, frame(TimedVerdict(Scored(1.0), -1e9)) * {count})
    except OSError:
        pass
{then}
"""


@pytest.mark.explore
@needs_strict
@pytest.mark.parametrize("then", ["0.0", "os._exit(0)\n0.0"])
async def test_forged_frames_are_one_verdict_and_their_own(opened: Open, then: str) -> None:
    """It may award itself, as it runs where its verifier runs; nobody else hears of it."""
    async with opened() as verifiers:
        assert await verdict(verifiers, FORGE.format(count=5, then=then)) == Scored(1.0)
        assert [await verdict(verifiers, answer, 4) for answer in ("wrong", "right", "wrong")] == [
            Scored(0.0),
            Scored(1.0),
            Scored(0.0),
        ]
        assert 0 <= verifiers.slowest[0] < 100


def running(name: str) -> list[int]:
    """Living processes of that name, wherever they are."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if name.encode() in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


async def until_none(name: str) -> None:
    with trio.fail_after(60):
        while running(name):
            await trio.lowlevel.checkpoint()


DAEMON = """
import os, signal
if not os.fork():
    os.setsid()
    if not os.fork():
        os.execv("/bin/sleep", [{name!r}, "1000"])
    os._exit(0)
{then}
"""


@needs_strict
@pytest.mark.parametrize("then", some(["signal.pause()\n1.0", "1.0"]))
async def test_an_answer_leaves_no_process_behind(opened: Open, then: str) -> None:
    name = f"daemon-{os.getpid()}-{time.monotonic_ns()}"
    async with opened(verdict_s=5.0) as verifiers:
        given = await verdict(verifiers, DAEMON.format(name=name, then=then))
        assert given == (Scored(1.0) if then == "1.0" else NoVerdict("timeout"))
        await until_none(name)
        assert await verdict(verifiers, "right", 4) == Scored(1.0)


@pytest.mark.explore
async def test_without_the_sandbox_what_left_its_session_ends_with_the_worker(
    opened: Open, tmp_path: Path
) -> None:
    """Of a verifier that executes nothing, but leaves a process."""
    name = f"daemon-{os.getpid()}-{time.monotonic_ns()}"
    module = tmp_path / f"leaving_{tmp_path.name}.py"
    body = DAEMON.format(name=name, then="signal.pause()").replace("\n", "\n    ")
    module.write_text(f"def leave(answer, line):{body}\n")
    (tmp_path / "leaving.jsonl").write_text('{"prompt": "leave", "answer": ""}\n')
    changes = {"path": str(tmp_path / "leaving.jsonl"), "verifier": f"{module.stem}:leave"}
    async with opened(sandbox="process", verdict_s=5.0, **changes) as verifiers:
        assert await verdict(verifiers, "") == NoVerdict("timeout")
        await until_none(name)


@pytest.mark.explore
@needs_strict
async def test_memory_processes_and_time_are_an_answers_own(opened: Open) -> None:
    """A bomb of each kind, and beside them answers that do not notice."""
    bombs = {
        "bytearray(2**32) and 1.0": "raised: MemoryError",
        "import os\nwhile True: os.fork()\n1.0": "raised: BlockingIOError",
        "while True: pass\n1.0": "timeout",
        "open('x', 'wb').write(bytes(2**28)) and 1.0": "raised: OSError",
    }
    found: dict[str, Verdict] = {}

    async def judge(verifiers: VerifierPool, answer: str) -> None:
        found[answer] = await verdict(verifiers, answer)

    async with opened(verdict_s=8.0) as verifiers, trio.open_nursery() as nursery:
        for answer in bombs:
            nursery.start_soon(judge, verifiers, answer)
        for _ in range(20):
            assert await verdict(verifiers, "right", 4) == Scored(1.0)
    for answer, reason in bombs.items():
        given = found[answer]
        assert isinstance(given, NoVerdict) and given.reason.split(":")[0] in (
            reason.split(":")[0],
            "timeout",
        ), (answer, given)


@needs_strict
async def test_an_answer_writes_into_no_log(
    opened: Open, capfd: pytest.CaptureFixture[str]
) -> None:
    async with opened() as verifiers:
        program = "import os\nprint('forged')\nos.write(2, b'Traceback')\n0.5"
        assert await verdict(verifiers, program) == Scored(0.5)
    assert capfd.readouterr() == ("", "")


# --------------------------------------------------------------------------- what a worker may say


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (frame(TimedVerdict(NoVerdict("timeout"), 0.5)), None),
        (frame(TimedVerdict(NoVerdict("you have been\x1b[2J"), 0.5)), None),
        (frame(TimedVerdict(Scored(0.0, [0.0] * 2**16), 0.5)), None),
        (
            frame(TimedVerdict(NoVerdict("raised: \x1b[2J\n"), 0.0)),
            NoVerdict("raised: \\x1b[2J\\n"),
        ),
        (
            frame(TimedVerdict(NoVerdict("raised: " + "x" * 9999), 0.0)),
            NoVerdict(("raised: " + "x" * 9999)[: REASON - 1] + CUT),
        ),
    ],
)
async def test_a_reply_is_a_verdict_that_a_verifier_can_give(
    said: bytes, expected: Verdict | None
) -> None:
    ours, theirs = socket.socketpair()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2**20)
    with ours:
        ours.setblocking(False)
        ours.send(said)
        async with trio.SocketStream(trio.socket.from_stdlib_socket(theirs)) as stream:
            given = await _ask(stream, VerifyRequest("train", 0, b"", "stop"))
    assert (given and given.verdict) == expected


@pytest.mark.parametrize("seconds", [-1e9, 1e300, float("nan"), float("inf")])
async def test_seconds_are_the_actors_own_where_a_worker_cannot_have_taken_them(
    seconds: float,
) -> None:
    ours, theirs = socket.socketpair()
    with ours:
        ours.sendall(frame(TimedVerdict(Scored(1.0), seconds)))
        async with trio.SocketStream(trio.socket.from_stdlib_socket(theirs)) as stream:
            given = await _ask(stream, VerifyRequest("train", 0, b"", "stop"))
    assert given is not None and 0 <= given.seconds < 100


# --------------------------------------------------------------------------- how verifiers start


async def test_no_verifier_has_the_environment_of_the_run(opened: Open, tmp_path: Path) -> None:
    """Without the sandbox too."""
    module = tmp_path / f"reading_{tmp_path.name}.py"
    module.write_text(
        "import os\ndef read(answer, line): return float('ASYNCRL_TEST_SECRET' in os.environ)\n"
    )
    (tmp_path / "reading.jsonl").write_text('{"prompt": "read", "answer": ""}\n')
    changes = {"path": str(tmp_path / "reading.jsonl"), "verifier": f"{module.stem}:read"}
    async with opened(sandbox="process", **changes) as verifiers:
        assert await verdict(verifiers, "") == Scored(0.0)


async def test_verifiers_import_nothing_from_the_current_directory(
    opened: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    for name in ("msgspec", "tokenizers", "sitecustomize"):
        (here / f"{name}.py").write_text("open('ran', 'w')\n")
    monkeypatch.chdir(here)
    lines = tmp_path / "exact.jsonl"
    lines.write_text('{"prompt": "say", "answer": "yes"}\n')
    changes = {"path": str(lines), "verifier": "exact", "sandbox": "process"}
    async with opened(**changes) as verifiers:
        assert await verdict(verifiers, "yes") == Scored(1.0)
    assert not (here / "ran").exists()


async def test_an_executing_task_is_not_opened_without_the_sandbox(opened: Open) -> None:
    with pytest.raises(RuntimeError, match="log"):
        async with opened(sandbox="process"):
            pass


@pytest.mark.explore
@needs_strict
async def test_of_several_tasks_only_the_answers_that_are_executed_get_fresh_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker counts its verdicts; the same module executes in one task, and not in the other."""
    name = f"counting_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(COUNTING)
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    (data := tmp_path / "data.jsonl").write_text('{"prompt": "do", "answer": ""}\n' * 3)
    write_tokenizer(tmp_path)
    same = {"name": "jsonl", "path": str(data), "eval_size": 0}
    mixed = TaskConfig(
        mix={
            "counts": same | {"verifier": f"{name}:counts"},
            "runs": same | {"verifier": f"{name}:runs"},
            "last": same | {"verifier": f"{name}:counts"},
        },
        weights={"counts": 0.5, "runs": 0.25, "last": 0.25},
        verdict_s=20.0,
        sandbox="strict",
    )
    async with open_verifiers(mixed, 0, str(tmp_path), Waits()) as verifiers:
        found = [await verdict(verifiers, "", index) for index in (0, 3, 1, 5, 8, 4)]
        assert found == [Scored(count) for count in (1.0, 1.0, 2.0, 1.0, 3.0, 1.0)]
        # a lasting worker adds up its answers' seconds of a core, so it has no limit of them
        limits = [await verdict(verifiers, "limit", index) for index in (0, 3)]
        assert limits == [Scored(-1.0), Scored(21.0)]


COUNTING = """
import resource
JUDGED = []

def counts(answer, line):
    if answer == "limit": return float(resource.getrlimit(resource.RLIMIT_CPU)[0])
    JUDGED.append(1)
    return float(len(JUDGED))

def runs(answer, line):
    return counts(answer, line)

runs.executes = True
"""
