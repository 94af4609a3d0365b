"""Bounds of a chat template, and the end of its process with its last use."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from asyncrl.tasks import foreign_process
from asyncrl.tasks.foreign_process import ENDS, CallFailed
from asyncrl.tasks.template_process import TemplateProcess

HALF = chr(0xD83D)
"""Half of a surrogate pair, which is no character."""


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foreign_process, "SECONDS", 0.2)


def pid_of(process: TemplateProcess) -> int:
    """The process that answers."""
    child = process._child
    assert child is not None
    return child.pid


def shown(messages: Any, tools: Any) -> str:
    return f"{messages} {tools}"


def test_it_gets_what_was_given_and_gives_what_it_gets() -> None:
    process = TemplateProcess(shown)
    for said in ("", "é", "\0", "x" * 300_000):
        messages: list[dict[str, Any]] = [{"content": said, "n": 2**70, "in": [None, True, 0.5]}]
        assert process.render(messages, [{"a": 1}]) == shown(messages, [{"a": 1}])
    with pytest.raises(CallFailed, match="not JSON serializable"):
        process.render([{"content": object()}], ())


def _raise(error: BaseException) -> str:
    raise error


def _spin() -> str:
    while True:
        pass


def _die() -> str:
    os.kill(os.getpid(), signal.SIGKILL)
    return ""


HOSTILE: dict[str, tuple[Callable[[], str], str]] = {
    "an error": (lambda: _raise(ValueError("no\nyes")), "^no$"),
    "an error without words": (lambda: _raise(KeyError()), "^KeyError$"),
    "an error that is no text": (lambda: _raise(ValueError(HALF)), r"^\?$"),
    "no text": (lambda: HALF, "^the text has half of a surrogate pair"),
    "memory": (lambda: "x" * 2**33, "^it takes more memory than there is$"),
    "characters": (lambda: "x" * (2**24 + 1), "^it gives more than 16,777,216 characters$"),
    "a loop": (_spin, "^it computes for more than 0.2 s$"),
    "one operation": (lambda: str(10 ** (10**9)), "^it computes for more than 0.2 s$"),
    "an exit": (lambda: _raise(SystemExit(3)), "^it ended its process$"),
    "a signal": (_die, "^it ended its process$"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_whatever_it_does_is_a_sentence_and_the_next_call_is_answered(kind: str) -> None:
    does, says = HOSTILE[kind]
    process = TemplateProcess(lambda messages, tools: "good" if messages else does())
    for _ in range(ENDS - 1):
        with pytest.raises(CallFailed, match=says):
            process.render([], ())
        assert process.render([{}], ()) == "good"


def test_it_has_a_name_of_its_own() -> None:
    """Else whoever looks for an actor by its command line finds two of them."""
    process = TemplateProcess(shown)
    process.render([], ())
    theirs, ours = (Path(f"/proc/{pid}/cmdline") for pid in (pid_of(process), "self"))
    assert theirs.read_bytes() != ours.read_bytes()


def test_after_several_ends_it_is_not_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is one killed twice: its number may be that of another process by then."""
    killed, kill = list[int](), os.kill
    monkeypatch.setattr(os, "kill", lambda pid, number: killed.append(pid) or kill(pid, number))
    process = TemplateProcess(lambda messages, tools: _spin())
    for _ in range(ENDS):
        with pytest.raises(CallFailed, match="computes for"):
            process.render([], ())
    began = time.process_time()
    with pytest.raises(CallFailed, match="computes for"):
        process.render([], ())
    assert process._child is None and time.process_time() - began < 0.1
    del process
    gc.collect()
    assert len(killed) == ENDS


def test_it_holds_no_file_of_its_parent_and_ends_with_its_last_use(tmp_path: Path) -> None:
    with (tmp_path / "lock").open("w"):
        process = TemplateProcess(lambda messages, tools: f"{[*Path('/proc/self/fd').iterdir()]}")
        open_files = process.render([], ()).count("PosixPath")
    assert open_files == 2  # its link, and the folder that it lists
    pid = pid_of(process)
    del process
    gc.collect()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_it_ends_with_its_parent() -> None:
    """Also when nothing is done for that, as after SIGKILL."""
    reading, writing = os.pipe()
    parent = os.fork()
    if not parent:
        process = TemplateProcess(lambda messages, tools: str(os.getpid()))
        os.write(writing, process.render([], ()).encode())
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(parent, 0)
    pid, end = os.read(reading, 100).decode(), time.monotonic() + 20
    os.close(reading)
    os.close(writing)
    while Path(f"/proc/{pid}").exists() and " Z " not in Path(f"/proc/{pid}/stat").read_text():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_fork_has_a_process_of_its_own_and_leaves_the_other() -> None:
    process = TemplateProcess(lambda messages, tools: str(os.getppid()))
    assert process.render([], ()) == str(os.getpid())
    fork = os.fork()
    if not fork:
        os._exit(process.render([], ()) != str(os.getpid()))
    assert os.waitpid(fork, 0)[1] == 0
    assert process.render([], ()) == str(os.getpid())


def test_threads_take_turns() -> None:
    process, wrong = TemplateProcess(lambda messages, tools: str(messages[0]["n"])), list[int]()

    def ask(n: int) -> None:
        for _ in range(20):
            if process.render([{"n": n}], ()) != str(n):
                wrong.append(n)

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
