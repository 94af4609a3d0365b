"""Verifiers that are `async` run beside each other in one process that can be killed, and what one
of them does wrong costs its own answer a verdict, and nothing else."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import trio
from sandbox_support import needs_strict
from some_values import some

from asyncrl.actors.reward_actor import VerifierPool, open_verifiers
from asyncrl.actors.verifier_process import TimedVerdict
from asyncrl.bundled.bundled_model import write_tokenizer
from asyncrl.config.schema import TaskConfig
from asyncrl.messages import NoVerdict, Scored, Verdict
from asyncrl.runtime.ipc.waits import Waits
from asyncrl.tasks import TaskError, open_task

pytestmark = pytest.mark.processes

VERIFIERS = """
import os, signal, sys, time
import LIBRARY as library

async def do(answer, line):
    word, _, argument = answer.partition(" ")
    await library.sleep(0)
    match word:
        case "after":
            await library.sleep(float(argument))
            return float(os.getpid())
        case "hang": await library.sleep(10**9)
        case "deaf":
            while True:
                try: await library.sleep(10**9)
                except BaseException: pass
        case "spin":
            while True: pass
        case "die": os._exit(7)
        case "raise": raise ValueError(argument)
        case "exit": raise SystemExit(3)
        case "text": return "0.5"
        case "ended": return answer.tokens + (0.5 if answer.finish == "length" else 0.0)
        case _: return float(word == line["answer"])

async def two(answer, line):
    await library.sleep(0)
    return {"right": 1.0, "brief": float(len(answer) < 4)}

two.rewards = ("right", "brief")

async def executing(answer, line): return 1.0

executing.executes = True

def plain(answer, line): return 0.25

VERIFIERS = {"plain": plain, "two": two}
"""

Opens = Callable[..., AbstractAsyncContextManager[VerifierPool]]


@pytest.fixture
def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Opens:
    """Opens verifiers of one of the functions, under a library."""
    (tmp_path / "data.jsonl").write_text('{"prompt": "do", "answer": "yes"}\n' * 4)
    monkeypatch.syspath_prepend(str(tmp_path))
    path = [str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path))
    write_tokenizer(tmp_path)

    def opened(
        library: str = "asyncio", function: str = "do", sandbox: str = "process", s: float = 20.0
    ) -> AbstractAsyncContextManager[VerifierPool]:
        name = f"waiting_{tmp_path.name}_{library}"
        (tmp_path / f"{name}.py").write_text(VERIFIERS.replace("LIBRARY", library))
        task = TaskConfig(
            name="jsonl",
            path=str(tmp_path / "data.jsonl"),
            verifier=f"{name}:{function}",
            eval_size=0,
            verdict_s=s,
            sandbox=sandbox,  # type: ignore[arg-type]
        )
        return open_verifiers(task, 0, str(tmp_path), Waits())

    return opened


async def verdict(verifiers: VerifierPool, answer: str, finish: str = "stop") -> Verdict:
    ids = np.frombuffer(answer.encode(), np.uint8).astype("<i4").tobytes()
    given = await verifiers.judge("train", 0, ids, finish)  # type: ignore[arg-type]
    assert isinstance(given, TimedVerdict)
    return given.verdict


async def verdicts(verifiers: VerifierPool, *answers: str) -> list[Verdict]:
    """Those of answers that are judged at the same time, in order."""
    found: list[Verdict] = [NoVerdict("")] * len(answers)

    async def one(place: int, answer: str) -> None:
        found[place] = await verdict(verifiers, answer)

    async with trio.open_nursery() as nursery:
        for place, answer in enumerate(answers):
            nursery.start_soon(one, place, answer)
            await trio.lowlevel.checkpoint()
    return found


@pytest.mark.parametrize("library", ["asyncio", "trio"])
@pytest.mark.parametrize("sandbox", ["process", pytest.param("strict", marks=needs_strict)])
async def test_many_wait_in_one_process(opened: Opens, library: str, sandbox: str) -> None:
    async with opened(library, sandbox=sandbox) as verifiers:
        await verdict(verifiers, "yes")
        began = trio.current_time()
        found = await verdicts(verifiers, *["after 1"] * 60, "yes", "no")
        assert trio.current_time() - began < 30.0, "one after another would take 60 s"
        assert len({pid.reward for pid in found[:60] if isinstance(pid, Scored)}) == 1
        assert found[60:] == [Scored(1.0), Scored(0.0)]
        assert await verdict(verifiers, "ended 12345", "length") == Scored(11.5)
        said = await verdicts(verifiers, "raise no such luck", "exit", "text")
        assert said == [
            NoVerdict("raised: ValueError: no such luck"),
            NoVerdict("raised: SystemExit: 3"),
            NoVerdict("not a number: str"),
        ]


@pytest.mark.parametrize("library", some(["trio", "asyncio"]))
async def test_what_hangs_or_dies_costs_its_own_answer_alone(opened: Opens, library: str) -> None:
    async with opened(library, s=1.5) as verifiers:
        found = await verdicts(verifiers, "hang", "after 0.5", "yes", "hang")
        assert found[0] == found[3] == NoVerdict("timeout")
        assert isinstance(found[1], Scored) and found[2] == Scored(1.0)
        for wrong, reason in (("spin", "timeout"), ("die", "crashed"), ("deaf", "timeout")):
            found = await verdicts(verifiers, "after 0.6", wrong, "after 0.2", "yes")
            assert found[1] == NoVerdict(reason), wrong
            assert isinstance(found[0], Scored) and isinstance(found[2], Scored), wrong
            assert found[3] == Scored(1.0), wrong
        assert await verdict(verifiers, "yes") == Scored(1.0)


async def test_one_that_is_killed_from_outside_is_followed_by_another(opened: Opens) -> None:
    async with opened() as verifiers:
        pid = await verdict(verifiers, "after 0")
        assert isinstance(pid, Scored)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(_killed_soon, int(pid.reward)))
            found = await verdicts(verifiers, *["after 1"] * 8)
        assert all(isinstance(one, Scored) for one in found)
        again = await verdict(verifiers, "after 0")
        assert isinstance(again, Scored) and again != pid


async def _killed_soon(pid: int) -> None:
    await trio.sleep(0.3)
    os.kill(pid, signal.SIGKILL)


async def test_a_cancelled_answer_leaves_the_others_alone(opened: Opens) -> None:
    async with opened() as verifiers:
        pid = await verdict(verifiers, "after 0")
        async with trio.open_nursery() as nursery:
            with trio.move_on_after(0.3):
                async with trio.open_nursery() as first:
                    first.start_soon(verdict, verifiers, "hang")
                    first.start_soon(verdict, verifiers, "hang")
                    await trio.sleep(0.1)

                    async def other() -> None:
                        assert await verdict(verifiers, "after 1") == pid

                    nursery.start_soon(other)
        assert await verdict(verifiers, "after 0") == pid


async def test_several_rewards_and_lines_that_name_a_plain_function(
    opened: Opens, tmp_path: Path
) -> None:
    async with opened(function="two") as verifiers:
        assert await verdict(verifiers, "yes") == Scored(2.0, [1.0, 1.0])
    line = '{"prompt": "do", "answer": "yes", "verifier": "NAME:plain"}\n'
    name = f"waiting_{tmp_path.name}_asyncio"
    verifiers_of = opened()
    (tmp_path / "data.jsonl").write_text(line.replace("NAME", name))
    async with verifiers_of as verifiers:
        assert await verdict(verifiers, "any") == Scored(0.25)


def test_one_that_executes_answers_is_refused(opened: Opens, tmp_path: Path) -> None:
    opened()
    name = f"waiting_{tmp_path.name}_asyncio"
    config = TaskConfig(
        name="jsonl", path=str(tmp_path / "data.jsonl"), verifier=f"{name}:executing", eval_size=0
    )
    with pytest.raises(TaskError, match="is async, and executes answers: make it `def`"):
        open_task(config, 0)
