"""The reward actor with real processes: what a verifier does wrong costs its own answer a verdict,
and nothing else."""

from __future__ import annotations

import gc
import json
import math
import os
import signal
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from fractions import Fraction
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
import pytest
import trio
from memory_link import memory_links
from sandbox_support import needs_strict
from some_values import some

from asyncrl.actors.errors import CoordinatorLost
from asyncrl.actors.reporting import REPORT_S, Reporter
from asyncrl.actors.reward_actor import Asks, VerifierPool, _ask, open_verifiers, reward_actor
from asyncrl.actors.verifier_process import LARGEST, TimedVerdict, VerifyRequest, read
from asyncrl.actors.worker_forks import WorkersLost
from asyncrl.actors.worker_process import frame
from asyncrl.algorithms import advantages
from asyncrl.bundled.bundled_model import write_tokenizer
from asyncrl.config.errors import ConfigError
from asyncrl.config.schema import TaskConfig
from asyncrl.library.task import ListTask
from asyncrl.messages import (
    Drain,
    Drained,
    GroupScoreRequest,
    GroupScoreResult,
    Interrupt,
    NoVerdict,
    Report,
    Scored,
    ScoreRequest,
    ScoreResult,
    Verdict,
    Wait,
)
from asyncrl.runtime.ipc.link import Link
from asyncrl.runtime.ipc.waits import Waits
from asyncrl.tasks import MaskedReward, NoReward
from asyncrl.tasks.judge_request import TEXT_BYTES, GroupRequest, JudgeRequest
from asyncrl.tasks.verifiers import rewarded

pytestmark = pytest.mark.processes

VERIFIERS = '''
import multiprocessing, os, signal, subprocess, sys
from pathlib import Path
from asyncrl.tasks import Figures

REMEMBERED = []

def do(answer, entry):
    """The answer is a program of one word, and perhaps its argument."""
    word, _, argument = answer.partition(" ")
    match word:
        case "give": return float(argument)
        case "raise": raise ValueError(argument)
        case "exit": raise SystemExit(3)
        case "hang": signal.pause()
        case "spin":
            while True: pass
        case "deaf":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            signal.pause()
        case "die": os._exit(7)
        case "die-once":
            if not Path(argument).exists():
                Path(argument).touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return 0.25
        case "print":
            print("x" * 100_000)
            print("y", file=sys.stderr)
            os.write(1, b"zzz")
            return 0.5
        case "ask": return float(input("reward? "))
        case "text": return "0.5"
        case "log": return Figures(0.5, {argument: len(argument)})
        case "rewards": return dict(zip(("right", "brief"), map(float, argument.split())))
        case "nothing": return None
        case "ended": return answer.tokens + (0.5 if answer.finish == "length" else 0.0)
        case "opened": return float(answer.prompt == "<think>" and answer.text_special == "opened")
        case "remember":
            REMEMBERED.append(1)
            return float(len(REMEMBERED))
        case "pid": return float(os.getpid())
        case "pool":
            with multiprocessing.Pool(2) as pool: return float(sum(pool.map(abs, [-1, 2])))
        case "read": return float(len(Path(argument).read_text()))
        case "read-behind":
            try: Path(argument).read_text()
            except OSError as error: raise RuntimeError("no words") from error
        case "unnamed": raise PermissionError(1, "may not")
        case "child":
            child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
            Path(argument).write_text(str(child.pid))
            signal.pause()
        case "meet":
            here, on = argument.split()
            with open(here, "wb", buffering=0) as file: file.write(b".")
            with open(on, "rb", buffering=0) as file: return float(len(file.read(1)))

def several(answer, entry):
    return do(answer, entry)

several.rewards = ("right", "brief")
'''

Open = Callable[..., AbstractAsyncContextManager[VerifierPool]]

both = pytest.mark.parametrize("sandbox", ["process", pytest.param("strict", marks=needs_strict)])
"""Promises that hold in each sandbox."""


@pytest.fixture
def task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TaskConfig:
    name = f"doing_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(VERIFIERS)
    (tmp_path / "data.jsonl").write_text('{"prompt": "do", "answer": ""}\n' * 10)
    monkeypatch.syspath_prepend(str(tmp_path))
    path = [str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path))
    write_tokenizer(tmp_path)
    return TaskConfig(
        name="jsonl",
        path=str(tmp_path / "data.jsonl"),
        verifier=f"{name}:do",
        eval_size=0,
        verdict_s=20.0,
        sandbox="process",
    )


@pytest.fixture
def waits() -> Waits:
    """Of the process that would be."""
    return Waits()


@pytest.fixture
def opened(task: TaskConfig, tmp_path: Path, waits: Waits) -> Open:
    """Opens verifiers of that task, with other settings if given."""

    def opened(**changes: object) -> AbstractAsyncContextManager[VerifierPool]:
        return open_verifiers(msgspec.structs.replace(task, **changes), 0, str(tmp_path), waits)

    return opened


async def verdict(verifiers: VerifierPool, answer: str) -> Verdict:
    given = await verifiers.judge("train", 0, ids(answer), "stop")
    return given.verdict


def ids(answer: str) -> bytes:
    return np.frombuffer(answer.encode(), np.uint8).astype("<i4").tobytes()


@pytest.fixture
def pipe(tmp_path: Path) -> Callable[[str], Path]:
    """Makes named pipes: reading one is waiting for its writer."""

    def pipe(name: str) -> Path:
        os.mkfifo(tmp_path / name)
        return tmp_path / name

    return pipe


async def said(pipe: Path) -> str:
    """The bytes that are written to the pipe. If nobody opens it, the waiting thread is left."""
    with trio.fail_after(60):
        return await trio.to_thread.run_sync(pipe.read_text, abandon_on_cancel=True)


async def gone(process: int) -> None:
    """Returns when the process behind a descriptor of `os.pidfd_open` has ended."""
    with trio.fail_after(60):
        await trio.lowlevel.wait_readable(process)
    os.close(process)


async def worker(verifiers: VerifierPool) -> int:
    """A process id that judged."""
    pid = await verdict(verifiers, "pid")
    assert isinstance(pid, Scored)
    return int(pid.reward)


@both
async def test_every_way_to_give_no_verdict(
    opened: Open, sandbox: str, capfd: pytest.CaptureFixture[str]
) -> None:
    async with opened(sandbox=sandbox) as verifiers:
        expected: dict[str, Verdict] = {
            "give 0.75": Scored(0.75),
            "give -2": Scored(-2.0),
            "give nan": NoVerdict("not finite"),
            "give inf": NoVerdict("not finite"),
            "give -1e300": NoVerdict("too large"),
            "text": NoVerdict("not a number: str"),
            "log words": Scored(0.5, figures={"words": 5.0}),
            "log two words": NoVerdict(
                "figures: the name 'two words', which may have letters, digits, _, - and . alone, "
                "at most 40"
            ),
            "nothing": NoVerdict("not a number: NoneType"),
            "raise no such luck": NoVerdict("raised: ValueError: no such luck"),
            "raise " + "x" * 999: NoVerdict("raised: ValueError: " + "x" * 200),
            "exit": NoVerdict("raised: SystemExit: 3"),
            "die": NoVerdict("crashed"),
            "print": Scored(0.5),
            "ask": NoVerdict("raised: EOFError: a verifier has no standard input"),
        }
        assert {answer: await verdict(verifiers, answer) for answer in expected} == expected
    assert "reward?" not in capfd.readouterr().err  # before a sentence of the terminal


async def test_a_pattern_without_an_end_is_no_verdict(opened: Open, tmp_path: Path) -> None:
    """Python's `re` hears no signal and releases no lock: the process is killed."""
    data = tmp_path / "patterns.jsonl"
    data.write_text(json.dumps({"prompt": "do", "pattern": "^(a+)+$", "verifier": "regex"}) + "\n")
    async with opened(path=str(data), verdict_s=0.5) as verifiers:
        with trio.fail_after(60):
            assert await verdict(verifiers, "a" * 50 + "!") == NoVerdict("timeout")
        assert await verdict(verifiers, "aaa") == Scored(1.0)


@pytest.mark.parametrize("huge", [10**400, -(10**400), Fraction(10**400)], ids=type)
def test_a_number_that_is_too_large_for_a_float_is_no_reward_and_is_called_a_number(
    huge: object,
) -> None:
    """It was "not a number: int"."""

    def judge(answer: str, line: object) -> dict[str, object]:
        return {"right": 1, "far": huge}

    judge.rewards = ("right", "far")  # type: ignore[attr-defined]
    assert read(huge) == NoVerdict("too large")
    with pytest.raises(NoReward, match=r"^too large: far$"):
        rewarded(judge, judge("", {}))
    with pytest.raises(NoReward, match=r"^too large$"):
        MaskedReward(huge, [])  # type: ignore[arg-type]
    with pytest.raises(NoReward, match=r"^too large$"):
        ListTask([{"prompt": "p"}], lambda *_: huge).verify("train", 0, "a")


@pytest.mark.filterwarnings("error")
def test_a_coroutine_is_no_number_and_nobody_is_warned_of_it() -> None:
    """`check` printed two lines of Python's own above its sentence."""

    async def reward() -> float:
        return 1.0

    assert read(reward()) == NoVerdict("not a number: coroutine")
    gc.collect()


@both
async def test_a_verifier_may_have_processes_and_a_file_that_it_misses_is_named(
    opened: Open, sandbox: str, tmp_path: Path
) -> None:
    (words := tmp_path / "words").write_text("four")
    missing = f"FileNotFoundError: [Errno 2] No such file or directory: '{words}'"
    behind = "raised: RuntimeError: no words"
    async with opened(sandbox=sandbox) as verifiers:
        found = {
            word: await verdict(verifiers, f"{word} {words}")
            for word in ("pool", "read", "read-behind", "unnamed")
        }
    if sandbox == "strict":
        expected: dict[str, Verdict] = {
            "pool": Scored(3.0),
            "read": NoVerdict(f"raised: {missing}, in the sandbox strict"),
            "read-behind": NoVerdict(f"{behind}, in the sandbox strict, after {missing}"),
            "unnamed": NoVerdict(
                "raised: PermissionError: [Errno 1] may not (the error names no file), in the "
                "sandbox strict"
            ),
        }
    else:
        expected = {
            "pool": Scored(3.0),
            "read": Scored(4.0),
            "read-behind": NoVerdict("not a number: NoneType"),
            "unnamed": NoVerdict("raised: PermissionError: [Errno 1] may not"),
        }
    assert found == expected


async def test_a_verifier_is_told_how_the_response_ended_and_how_long_it_is(
    opened: Open,
) -> None:
    async with opened() as verifiers:
        by_stop = await verifiers.judge("train", 0, ids("ended"), "stop")
        by_length = await verifiers.judge("train", 0, ids("ended"), "length")
        prompted = await verifiers.judge("train", 0, ids("opened"), "stop", ids("<think>"))
    assert (by_stop.verdict, by_length.verdict) == (Scored(5.0), Scored(5.5))
    assert prompted.verdict == Scored(1.0)


@pytest.mark.explore
@both
async def test_several_rewards_are_one_verdict_with_its_parts_or_none(
    opened: Open, task: TaskConfig, sandbox: str
) -> None:
    several = task.verifier.replace(":do", ":several")
    async with opened(sandbox=sandbox, verifier=several) as verifiers:
        expected: dict[str, Verdict] = {
            "rewards 1 0.25": Scored(1.25, [1.0, 0.25]),
            "rewards 0 0": Scored(0.0, [0.0, 0.0]),
            "rewards 1 nan": NoVerdict("not finite: brief"),
            "rewards inf -inf": NoVerdict("not finite: right"),
            "rewards 1e39 0": NoVerdict("too large: right"),
            "rewards 9e37 9e37": NoVerdict("too large"),
            "rewards 1": NoVerdict("other rewards: without ['brief']"),
            "give 1": NoVerdict(
                "other rewards: a float was returned, where ('right', 'brief') are its rewards"
            ),
        }
        assert {answer: await verdict(verifiers, answer) for answer in expected} == expected
    async with opened(sandbox=sandbox) as verifiers:
        assert await verdict(verifiers, "rewards 1 1") == NoVerdict(
            "unnamed rewards: a verifier that returns ['right', 'brief'] must have these names "
            "as its rewards"
        )


@both
@pytest.mark.parametrize("answer", some(["deaf", "spin", "hang"]))
async def test_pain_06_a_verifier_that_does_not_return_is_killed_and_gives_no_verdict(
    opened: Open, answer: str, sandbox: str
) -> None:
    async with opened(sandbox=sandbox, verdict_s=2.0) as verifiers:
        assert await verdict(verifiers, answer) == NoVerdict("timeout")
        assert verifiers.slowest == (2.0, "train", 0)
        assert await verdict(verifiers, "give 1") == Scored(1.0)


@pytest.mark.explore
async def test_a_timeout_kills_what_the_verifier_started(
    opened: Open, pipe: Callable[[str], Path]
) -> None:
    found: list[Verdict] = []
    child = pipe("child")

    async def judge(verifiers: VerifierPool) -> None:
        found.append(await verdict(verifiers, f"child {child}"))

    async with opened(verdict_s=10.0) as verifiers, trio.open_nursery() as nursery:
        nursery.start_soon(judge, verifiers)
        await gone(os.pidfd_open(int(await said(child))))
    assert found == [NoVerdict("timeout")]


@pytest.mark.explore
async def test_a_worker_killed_from_outside_costs_its_answer_nothing(
    opened: Open, tmp_path: Path
) -> None:
    async with opened() as verifiers:
        assert await verdict(verifiers, f"die-once {tmp_path / 'flag'}") == Scored(0.25)
        os.kill(await worker(verifiers), signal.SIGKILL)
        assert await verdict(verifiers, "give 1") == Scored(1.0)


@pytest.mark.explore
@both
async def test_the_innocent_do_not_notice(opened: Open, sandbox: str) -> None:
    """Four that hang, two that crash and two hundred good ones, all at a time."""
    found: list[tuple[str, Verdict]] = []

    async def judge(verifiers: VerifierPool, places: trio.Semaphore, answer: str) -> None:
        async with places:
            found.append((answer, await verdict(verifiers, answer)))

    judging = opened(sandbox=sandbox, verdict_s=6.0)
    async with judging as verifiers, trio.open_nursery() as nursery:
        places = trio.Semaphore(8)
        for answer in ["hang", "spin", "die", "hang", "die", "hang"] + [
            f"give {i}" for i in range(200)
        ]:
            nursery.start_soon(judge, verifiers, places, answer)
    assert len(found) == 206
    for answer, given in found:
        match answer.split():
            case ["give", number]:
                assert given == Scored(float(number))
            case ["die"]:
                assert given == NoVerdict("crashed")
            case _:
                assert given == NoVerdict("timeout")


async def test_answers_are_judged_beside_each_other_and_workers_used_again(
    opened: Open, pipe: Callable[[str], Path]
) -> None:
    here, on = pipe("here"), pipe("on")
    # open at both ends, so that neither ever ends
    with (
        open(here, "r+b", buffering=0) as arrived,  # noqa: ASYNC230, PTH123
        open(on, "r+b", buffering=0) as sent,  # noqa: ASYNC230, PTH123
    ):

        def meet() -> None:
            """Nobody goes on before all six are here."""
            assert b"".join(arrived.read(1) for _ in range(6)) == b"." * 6
            sent.write(b"." * 6)

        async with opened() as verifiers:
            async with trio.open_nursery() as nursery:
                for _ in range(6):
                    nursery.start_soon(verdict, verifiers, f"meet {here} {on}")
                await trio.to_thread.run_sync(meet)
            assert len({await worker(verifiers) for _ in range(20)}) == 1


async def test_a_cancelled_answer_leaves_no_process(
    opened: Open, pipe: Callable[[str], Path]
) -> None:
    child = pipe("child")
    async with opened() as verifiers:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(verdict, verifiers, f"child {child}")
            process = os.pidfd_open(int(await said(child)))
            nursery.cancel_scope.cancel()
        await gone(process)
        assert await verdict(verifiers, "give 1") == Scored(1.0)


@pytest.mark.explore
@needs_strict
async def test_the_sandbox_ends_with_the_reward_actors_side(opened: Open) -> None:
    """Whatever is killed: the process that waits for the zygote, or the zygote."""
    others = set(children(os.getpid()))  # servers that tests of this process share
    with pytest.raises(WorkersLost, match="ended"):
        async with opened(sandbox="strict") as verifiers:
            assert await verdict(verifiers, "give 1") == Scored(1.0)
            begun = set(children(os.getpid())) - others
            (starter,) = [pid for pid in begun if children(pid)]
            (zygote,) = children(starter)
            processes = [os.pidfd_open(pid) for pid in (zygote, *children(zygote))]
            assert len(processes) == 2
            os.kill(starter, signal.SIGKILL)
            for process in processes:
                await gone(process)
            await verdict(verifiers, "give 1")


def children(pid: int) -> list[int]:
    """The living children of a process."""
    lists = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children")]
    return [int(child) for child in " ".join(lists).split()]


@needs_strict
async def test_workers_of_the_sandbox_are_used_again_where_nothing_is_executed(
    opened: Open,
) -> None:
    async with opened(sandbox="strict") as verifiers:
        assert await worker(verifiers) == 1, "the first process of its own namespace"
        assert await verdict(verifiers, "remember") == Scored(1.0)
        assert await verdict(verifiers, "remember") == Scored(2.0)


async def test_no_process_outlives_the_verifiers(opened: Open) -> None:
    async with opened() as verifiers:
        process = os.pidfd_open(await worker(verifiers))
    await gone(process)


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


async def test_a_lost_fork_server_ends_the_actor_and_its_workers(opened: Open) -> None:
    with pytest.raises(WorkersLost, match="ended"):
        async with opened() as verifiers:
            pid = await worker(verifiers)
            process = os.pidfd_open(pid)
            os.kill(parent(pid), signal.SIGKILL)
            await gone(process)
            await verdict(verifiers, "give 1")


async def test_a_task_that_cannot_be_opened_is_said(opened: Open) -> None:
    with pytest.raises(WorkersLost, match="log"):
        async with opened(path="/no/such/file"):
            pass


@pytest.mark.parametrize(("value", "expected"), [(True, 1.0), (np.float32(0.5), 0.5), (0, 0.0)])
def test_numbers_of_any_kind_are_rewards(value: object, expected: float) -> None:
    assert read(value) == Scored(expected)


def test_what_is_too_large_to_be_trained_is_what_advantages_refuse() -> None:
    assert LARGEST == advantages.LARGEST
    assert read(LARGEST) == Scored(LARGEST)


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (Scored(7.0, [0.5, 0.25]), Scored(0.75, [0.5, 0.25])),
        (Scored(1.0, [1.0, math.nan]), NoVerdict("not finite: 1")),
        (Scored(1.0, [1e38, 1e38]), NoVerdict("too large")),
        (Scored(-math.inf), NoVerdict("not finite")),
        (Scored(0.5, errors=[(1, 3)]), Scored(0.5, errors=[(1, 3)])),
        (NoVerdict("error spans: 99 of them"), NoVerdict("error spans: 99 of them")),
    ],
)
async def test_what_a_worker_writes_is_checked_again(said: Verdict, expected: Verdict) -> None:
    ours, theirs = socket.socketpair()
    with ours:
        ours.sendall(frame(TimedVerdict(said, 0.5)))
        async with trio.SocketStream(trio.socket.from_stdlib_socket(theirs)) as stream:
            given = await _ask(stream, VerifyRequest("train", 0, b"", "stop"))
            assert given is not None and given.verdict == expected


# --------------------------------------------------------------------------------------- the actor


@asynccontextmanager
async def acting(
    verifiers: VerifierPool,
    *,
    concurrency: int,
    waits: Waits | None = None,
    report_s: float = REPORT_S,
    judge: Asks | None = None,
) -> AsyncIterator[Link]:
    """The coordinator's end of a reward actor's link."""
    ours, theirs = memory_links()
    waits = waits or Waits()
    actor = partial(
        reward_actor,
        theirs,
        verifiers,
        waits,
        Reporter(waits, report_s),
        concurrency=concurrency,
        deadline_s=20.0,
        judge=judge,
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(actor)
        yield ours


async def next_of(link: Link, kind: type) -> object:
    while True:
        message, _ = await link.receive()
        if isinstance(message, kind):
            return message
        assert isinstance(message, Report)


async def test_the_actor_judges_what_it_is_asked_and_then_drains(opened: Open) -> None:
    async with opened() as verifiers, acting(verifiers, concurrency=2) as link:
        for rollout in range(50):
            await link.send(
                ScoreRequest(rollout, "train", rollout % 10, "stop"), ids(f"give {rollout}"), b""
            )
        judged = [await next_of(link, ScoreResult) for _ in range(50)]
        assert {j.rollout: j.verdict for j in judged if isinstance(j, ScoreResult)} == {
            i: Scored(float(i)) for i in range(50)
        }
        await link.send(Drain())
        assert await next_of(link, Drained) == Drained()


async def test_the_actor_reports_what_it_waits_for(opened: Open, waits: Waits) -> None:
    async with opened() as verifiers, acting(verifiers, concurrency=2, waits=waits) as link:
        await link.send(ScoreRequest(0, "train", 3, "stop"), ids("hang"), b"")
        table: list[Wait] = []
        while not any(wait.name == "verdict" for wait in table):
            report = await next_of(link, Report)
            assert isinstance(report, Report)
            table = report.waits
        assert [wait.owner for wait in table] == ["train prompt 3"]
        await link.send(Drain())
        assert await next_of(link, Drained) == Drained()


@pytest.mark.explore
async def test_a_drain_parks_what_would_take_long(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("asyncrl.actors.reward_actor.ENDING_S", 5.0)
    # A report that is cut off closes a link in memory, and ENDING_S is a multiple of REPORT_S.
    quiet = 1000.0
    async with opened() as verifiers, acting(verifiers, concurrency=4, report_s=quiet) as link:
        await link.send(ScoreRequest(0, "train", 0, "stop"), ids("hang"), b"")
        await link.send(ScoreRequest(1, "train", 0, "stop"), ids("give 1"), b"")
        await link.send(Drain())
        assert await next_of(link, ScoreResult) == msgspec.structs.replace(
            ScoreResult(1, Scored(1.0), 0.0), seconds=pytest.approx(0, abs=5)
        )
        assert await next_of(link, Drained) == Drained()


@both
async def test_answers_that_wait_for_a_judge_hold_no_worker(opened: Open, sandbox: str) -> None:
    """One worker writes what the judge is asked, in a sandbox without a network. All answers are
    with the judge at once; a judge that refuses all ends the actor."""
    asked, all_there = list[JudgeRequest](), trio.Event()

    class Asked:
        async def ask(self, request: JudgeRequest) -> Verdict:
            asked.append(request)
            if request.answer == "refuse":
                raise ConfigError("the judge refuses each request.")
            if len(asked) == 20:
                all_there.set()
            await all_there.wait()
            return Scored(float(request.answer))

        async def ask_together(self, request: GroupRequest) -> list[Verdict]:
            asked.extend(request.members)
            return [Scored(float(len(member.answer))) for member in request.members]

    task = opened(verifier="judge", sandbox=sandbox, reward="score")
    async with task as verifiers:
        with pytest.RaisesGroup(ConfigError, flatten_subgroups=True):
            async with acting(verifiers, concurrency=1, judge=Asked()) as link:
                for rollout in range(20):
                    request = ScoreRequest(rollout, "train", rollout % 10, "stop")
                    await link.send(request, ids(f"{rollout}"), b"")
                judged = [await next_of(link, ScoreResult) for _ in range(20)]
                assert {j.rollout: j.verdict for j in judged if isinstance(j, ScoreResult)} == {
                    rollout: Scored(float(rollout)) for rollout in range(20)
                }
                assert asked[3] == JudgeRequest("do", "3", "")
                texts = [ids("one"), ids("three")]
                ends = [len(text) // 4 for text in texts]
                group = GroupScoreRequest([20, 21], "train", 4, ["stop", "length"], ends, [0, 0])
                await link.send(group, b"".join(texts), b"")
                together = await next_of(link, GroupScoreResult)
                assert isinstance(together, GroupScoreResult)
                assert together.verdicts == [(20, Scored(3.0)), (21, Scored(5.0))]
                assert [request.answer for request in asked[-2:]] == ["one", "three"]
                await link.send(ScoreRequest(20, "train", 0, "stop"), ids("refuse"), b"")
                await next_of(link, Drained)
        long = await verifiers.judge("train", 0, ids("x" * (TEXT_BYTES + 1)), "stop")
        assert isinstance(long, TimedVerdict)
        assert long.verdict == NoVerdict("too long for the judge: over 1,048,576 bytes")
    async with opened(verifier="judge", reward="exact") as verifiers:
        reply = await verifiers.judge("train", 0, ids("a"), "stop")
        assert reply == JudgeRequest("do", "a", "", exact=True)


@pytest.mark.parametrize("may_ask", [True, False])
async def test_an_answer_that_is_executed_asks_no_judge(may_ask: bool) -> None:
    ours, theirs = socket.socketpair()
    request = JudgeRequest("q", "a", "e")
    with ours:
        ours.sendall(frame(request))
        async with trio.SocketStream(trio.socket.from_stdlib_socket(theirs)) as stream:
            answer = VerifyRequest("train", 0, b"", "stop")
            reply = await _ask(stream, answer, may_ask=may_ask)
            assert reply == (request if may_ask else None)


async def test_no_socket_to_an_idle_worker_outlives_the_verifiers(opened: Open) -> None:
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    async with opened() as verifiers:
        await verdict(verifiers, "1")
    assert verifiers._idle and len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


async def test_a_lost_coordinator_ends_the_actor(opened: Open) -> None:
    async with opened() as verifiers:
        with pytest.RaisesGroup(CoordinatorLost, flatten_subgroups=True):
            async with acting(verifiers, concurrency=1) as link:
                await link.aclose()


async def test_a_strange_message_is_an_error(opened: Open) -> None:
    async with opened() as verifiers:
        with pytest.RaisesGroup(ValueError, flatten_subgroups=True):
            async with acting(verifiers, concurrency=1) as link:
                await link.send(Interrupt([1]))
