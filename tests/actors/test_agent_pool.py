"""Users' agents in real processes: one that hangs, dies or leaves things behind costs its own
episode a reward, and nothing else."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import msgspec
import pytest
import trio
import trio.testing
from fake_gateway import FakeGateway, fake_gateway
from some_values import some

from asyncrl.actors.agent_pool import OUTPUT_BYTES, AgentClock, AgentPool, _ask, open_agent_pool
from asyncrl.actors.agent_starts import starts_of
from asyncrl.actors.worker_forks import WorkersLost
from asyncrl.actors.worker_process import frame
from asyncrl.agents.agent_episode import EpisodeFacts
from asyncrl.agents.endings import AgentEnded, AgentFailed
from asyncrl.config.errors import ConfigError
from asyncrl.runtime.ipc.waits import Waits
from asyncrl.runtime.processes.machine import available_cores

pytestmark = pytest.mark.processes

PATIENCE_S = 300.0

AGENTS = """
import asyncio, os, random, signal, subprocess, sys, threading, time
from pathlib import Path

SEEN = []

async def do(client, episode):
    word, _, argument = episode.prompt.partition(" ")
    match word:
        case "give": return float(argument)
        case "call":
            answer = await client.chat.completions.create(
                model="policy", messages=[{"role": "user", "content": "?"}])
            return float(answer.choices[0].message.content)
        case "hang": await asyncio.Event().wait()
        case "spin":
            while True: pass
        case "deaf":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            signal.pause()
        case "die":
            print("the last word", end="", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        case "exit-in-a-task":
            async def leave(): raise SystemExit(3)
            await asyncio.gather(asyncio.create_task(leave()))
        case "rubbish":
            for descriptor in range(3, 64):
                try: os.write(descriptor, b"\\xff" * 64)
                except OSError: pass
            signal.pause()
        case "print":
            for _ in range(100): print("x" * 10_000)
            print("end\\x1b[2J", file=sys.stderr)
            return 1.0
        case "seen":
            SEEN.append(1)
            return float(len(SEEN))
        case "draw": return random.random()
        case "child" | "orphan":
            code = "import os, signal\\n"
            if word == "orphan": code += "os.setsid()\\nif os.fork(): os._exit(0)\\n"
            code += f"open({argument!r}, 'w').write(str(os.getpid()))\\nsignal.pause()"
            subprocess.Popen([sys.executable, "-c", code])
            await asyncio.Event().wait()
        case "kill-the-nursery":
            os.kill(os.getppid(), signal.SIGKILL)
            signal.pause()
        case "thread":
            threading.Thread(target=time.sleep, args=(3600,)).start()
            return 1.0
"""

CLOSES = """
import time
from pathlib import Path

class Room:
    async def reset(self, entry, seed):
        self.word, _, self.told = entry["word"].partition(" ")
        match self.word:
            case "raise": raise ValueError("no")
            case "spin":
                Path(self.told).write_text("1")
                while True: pass
            case "exit": raise SystemExit(3)
            case "wait":
                Path(self.told).write_text("1")
                time.sleep(3600)
        return ""

    def step(self, reply): pass

    def close(self):
        if self.word == "exit": raise KeyError("no key")
        if self.word == "spin": time.sleep(3600)
        if self.told: Path(f"{self.told}-closed").touch()
        print("closed", flush=True)
"""

GRACEFUL = """
import os, signal, subprocess, sys, time
from pathlib import Path
told = Path(os.environ["ASYNCRL_PROMPT"])

def end(*_):
    told.with_name(f"{told.name}-{name}").touch()
    sys.exit(0)

name = "parent" if len(sys.argv) == 1 else "child"
signal.signal(signal.SIGTERM, end)
if name == "parent":
    subprocess.Popen([sys.executable, __file__, "child"])
else:
    told.write_text(str(os.getpid()))
time.sleep(3600)
"""

Open = Callable[..., AbstractAsyncContextManager[AgentPool]]


@pytest.fixture
def gateway() -> Iterator[FakeGateway]:
    with fake_gateway() as served:
        yield served


@pytest.fixture
def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Open:
    name = f"agents_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(AGENTS)
    path = [str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path))

    @asynccontextmanager
    async def opens(
        run: str | list[str] = "",
        most_s: float = PATIENCE_S,
        grace_s: float = 1.0,
        told: Callable[[str, str], None] = lambda counter, sentence: None,
    ) -> AsyncIterator[AgentPool]:
        waits = Waits()
        starts, named = starts_of(waits), run or f"{name}:do"
        async with open_agent_pool(
            named, waits, starts, most_s=most_s, grace_s=grace_s, told=told
        ) as pool:
            if not isinstance(run, list):
                yield pool
                return
            async with trio.open_nursery() as nursery:
                nursery.start_soon(starts.run)
                yield pool
                nursery.cancel_scope.cancel()

    return opens


FACTS = EpisodeFacts("", {}, 3, 17, 0, "http://127.0.0.1:9/sessions/e/v1", "k", "r")


async def play(pool: AgentPool, prompt: str, seconds: float = PATIENCE_S) -> object:
    facts = msgspec.structs.replace(FACTS, prompt=prompt)
    end = (await pool.play(facts, AgentClock(seconds))).end
    return end.kind if isinstance(end, AgentFailed) else end.reward


async def gone(process: int) -> None:
    """Wait for the end of a process, of which this is a pidfd."""
    with trio.fail_after(PATIENCE_S):
        await trio.lowlevel.wait_readable(process)
    os.close(process)


@pytest.fixture
def told(tmp_path: Path) -> Path:
    """A pipe, into which a program of an agent writes its process id."""
    os.mkfifo(pipe := tmp_path / "told")
    return pipe


def found(folder: Path, pattern: str) -> set[str]:
    return {path.name for path in folder.glob(pattern)}


async def said(pipe: Path) -> int:
    with trio.fail_after(PATIENCE_S):
        return int(await trio.to_thread.run_sync(pipe.read_text, abandon_on_cancel=True))


@pytest.mark.explore
async def test_an_agent_that_goes_wrong_takes_no_other_along(opened: Open) -> None:
    """All at once, beside one that plays on."""
    ends: dict[str, object] = {}
    wrong = {
        "hang": "timeout",
        "spin": "timeout",
        "deaf": "timeout",
        "die": "crashed",
        "rubbish": "crashed",
        "exit-in-a-task": "raised",
        "give nan": "not finite",
    }
    async with opened() as pool, trio.open_nursery() as nursery:

        async def end(prompt: str) -> None:
            ends[prompt] = await play(pool, prompt, 3.0 if wrong[prompt] == "timeout" else 300.0)

        for prompt in wrong:
            nursery.start_soon(end, prompt)
        unsayable = msgspec.structs.replace(FACTS, entry={"n": 2**80})
        attempt = await pool.play(unsayable, AgentClock(PATIENCE_S))
        assert isinstance(attempt.end, AgentFailed) and attempt.end.kind == "no facts"
        assert await play(pool, "give 0.5") == 0.5
    assert ends == wrong


@pytest.mark.explore
async def test_each_attempt_begins_in_the_same_state(opened: Open) -> None:
    async with opened() as pool:
        assert [await play(pool, "seen") for _ in range(2)] == [1.0, 1.0]
        drawn = random.Random(17).random()
        assert [await play(pool, "draw") for _ in range(2)] == [drawn, drawn]
        facts = msgspec.structs.replace(FACTS, prompt="draw", seed=18)
        other = (await pool.play(facts, AgentClock(PATIENCE_S))).end
        assert other == AgentEnded(random.Random(18).random())


@pytest.mark.explore
async def test_the_clock_stands_while_a_call_is_answered(
    opened: Open, gateway: FakeGateway
) -> None:
    """All that time is the answer's; that it ends no attempt is a clock's own test, below."""
    gateway.answer.clear()
    gateway.replies = ["7"]
    clock, began = AgentClock(PATIENCE_S), trio.current_time()
    async with opened() as pool, trio.open_nursery() as nursery:

        async def answered() -> None:
            """Stop the clock while a call runs, as a gateway does."""
            await trio.to_thread.run_sync(gateway.calling.wait, PATIENCE_S)
            with clock.paused():
                await trio.sleep(2.0)
            gateway.answer.set()

        nursery.start_soon(answered)
        attempt = await pool.play(gateway.facts(prompt="call"), clock)
    assert attempt.end == AgentEnded(7.0)
    assert attempt.seconds <= trio.current_time() - began - 2.0


async def test_output_is_bounded_and_printable(
    opened: Open, capfd: pytest.CaptureFixture[str]
) -> None:
    async with opened() as pool:
        facts = msgspec.structs.replace(FACTS, prompt="print")
        attempt = await pool.play(facts, AgentClock(PATIENCE_S))
        assert attempt.end == AgentEnded(1.0)
        assert 2000 < len(attempt.output) <= OUTPUT_BYTES
        assert attempt.output.rstrip().endswith(r"end\x1b[2J")
        facts = msgspec.structs.replace(FACTS, prompt="die")
        died = (await pool.play(facts, AgentClock(PATIENCE_S))).end
        assert isinstance(died, AgentFailed) and died.text.endswith("the last word")
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("word", some(["orphan", "child"]))
async def test_a_cancelled_attempt_ends_with_all_that_it_started(
    opened: Open, told: Path, word: str
) -> None:
    """An orphan outlives the ends of other attempts, and not that of its own."""
    async with opened() as pool:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(play, pool, f"{word} {told}")
            process = os.pidfd_open(await said(told))
            assert await play(pool, "give 1") == 1.0
            assert await play(pool, "give 1") == 1.0
            with trio.move_on_after(0):
                await trio.lowlevel.wait_readable(process)
                raise AssertionError("it ended with another attempt")
            nursery.cancel_scope.cancel()
        await gone(process)


@pytest.mark.explore
async def test_what_an_agent_leaves_behind_keeps_no_attempt_open(opened: Open) -> None:
    async with opened() as pool:
        with trio.fail_after(PATIENCE_S):
            assert await play(pool, "thread") == 1.0


async def test_what_an_attempt_opened_is_closed_however_it_ends(
    opened: Open, told: Path, tmp_path: Path
) -> None:
    """An environment whose reset raises, ends its process, computes for ever, or is cancelled.
    Failures of `close()` are counted, and change nothing in how the attempt ended."""
    (tmp_path / "closes.py").write_text(CLOSES)
    failures = list[str]()

    async def one(word: str, clock: AgentClock | None = None) -> tuple[str, str]:
        facts = msgspec.structs.replace(FACTS, entry={"word": word})
        attempt = await pool.play(facts, clock or AgentClock(PATIENCE_S))
        assert isinstance(attempt.end, AgentFailed)
        return attempt.end.kind, attempt.output

    async def computes_for_ever() -> None:
        kind, _ = await one(f"spin {told}", clock)
        assert kind == "timeout"

    async with opened("closes:Room", told=lambda *said: failures.append(said[0])) as pool:
        kind, output = await one("raise")
        assert kind == "raised" and output == "closed\n" and not failures
        assert (await one("exit"))[0] == "raised"
        assert failures == ["agents_close_failed"]
        clock = AgentClock(0.2)
        async with trio.open_nursery() as nursery:
            with clock.paused():
                nursery.start_soon(computes_for_ever)
                assert await said(told) == 1
        # its close() slept, and was killed
        assert failures == ["agents_close_failed"] * 2
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one, f"wait {told}")
            assert await said(told) == 1
            nursery.cancel_scope.cancel()
        assert found(tmp_path, "told-*") == {"told-closed"}
        assert failures == ["agents_close_failed"] * 2


async def test_a_program_and_its_children_are_told_to_end(
    opened: Open, told: Path, tmp_path: Path
) -> None:
    """Both get SIGTERM, and have their grace."""
    (tmp_path / "graceful.py").write_text(GRACEFUL)
    async with opened([sys.executable, str(tmp_path / "graceful.py")], grace_s=600.0) as pool:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(play, pool, str(told))
            process = os.pidfd_open(await said(told))
            began = trio.current_time()
            nursery.cancel_scope.cancel()
        await gone(process)
        assert trio.current_time() - began < 300.0
    assert found(tmp_path, "told-*") == {"told-parent", "told-child"}


@pytest.mark.explore
async def test_no_attempt_takes_longer_than_the_most(opened: Open) -> None:
    async with opened(most_s=2.0) as pool:
        clock = AgentClock(PATIENCE_S)
        with clock.paused():
            facts = msgspec.structs.replace(FACTS, prompt="hang")
            end = (await pool.play(facts, clock)).end
    assert end == AgentFailed("timeout", "the episode took 2 s, its calls included")


async def test_a_program_and_what_it_says_wrong(opened: Open) -> None:
    code = (
        "import os; print(os.environ['ASYNCRL_PROMPT'])\n"
        "if os.environ['ASYNCRL_PROMPT'] == 'no luck': raise SystemExit(3)"
    )
    async with opened([sys.executable, "-c", code]) as pool:
        assert await play(pool, '{"reward": 2}') == 2.0
        assert await play(pool, "no luck") == "exit"
        assert await play(pool, "done") is None
        assert pool.starts is not None and pool.starts.seconds > 0


@pytest.mark.explore
async def test_programs_start_a_few_at_a_time_and_the_rest_once_the_gateway_has_heard_of_them(
    opened: Open, tmp_path: Path
) -> None:
    """Each says that it is there, and is busy for a quarter of its time until it is let go: one
    that is idle has started. Those that start are as many as the bound; others come once these are
    heard of (one for one on a quiet machine, tests/actors/test_agent_starts.py)."""
    code = (
        "import os, pathlib, time\n"
        "name = os.environ['ASYNCRL_PROMPT']\n"
        f"pathlib.Path({str(tmp_path)!r}, name).touch()\n"
        f"while not pathlib.Path({str(tmp_path)!r}, 'go').exists():\n"
        "    until = time.process_time() + 0.02\n"
        "    while time.process_time() < until: pass\n"
        "    time.sleep(0.06)\n"
    )
    cores = available_cores()
    names = [f"p{number}" for number in range(2 * cores + 2)]
    clocks = {name: AgentClock(PATIENCE_S) for name in names}

    def there() -> list[str]:
        return [name for name in names if (tmp_path / name).exists()]

    async def one(name: str) -> None:
        await pool.play(msgspec.structs.replace(FACTS, prompt=name), clocks[name])

    async with opened([sys.executable, "-c", code]) as pool, trio.open_nursery() as nursery:
        for name in names:
            nursery.start_soon(one, name)
        with trio.fail_after(PATIENCE_S):
            while len(there()) < cores:  # noqa: ASYNC110 (of other processes)
                await trio.sleep(0.05)
            await trio.sleep(0.5)
            assert pool.starts is not None
            assert len(there()) == pool.starts.starting == cores
            assert pool.starts.waiting == len(names) - cores
            for name in there():
                clocks[name].heard.set()
            while len(there()) == cores:  # noqa: ASYNC110
                await trio.sleep(0.05)
        (tmp_path / "go").touch()
    assert len(there()) == len(names)
    assert (pool.starts.waiting, pool.starts.starting) == (0, 0)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("1 / 0", "ZeroDivisionError"),
        (
            "import threading, time\n"
            "threading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
            "async def do(client, episode): pass",
            "1 threads run",
        ),
    ],
)
async def test_an_agent_that_cannot_be_opened_is_one_sentence(
    opened: Open, tmp_path: Path, text: str, says: str
) -> None:
    (tmp_path / f"agents_{tmp_path.name}.py").write_text(text)
    with pytest.raises(ConfigError, match=says):
        async with opened():
            pass


async def test_a_lost_nursery_process_ends_the_pool_and_its_workers(opened: Open) -> None:
    with pytest.raises(WorkersLost, match="the process that starts agents ended"):
        async with opened() as pool:
            await play(pool, "kill-the-nursery")


# ------------------------------------------------------------------------------ without processes


async def test_a_clock_counts_what_is_not_paused(autojump_clock: trio.testing.MockClock) -> None:
    clock = AgentClock(10.0)
    with clock.running() as scope:
        await trio.sleep(4)
        with clock.paused():
            await trio.sleep(100)
            with clock.paused():  # two calls at a time
                await trio.sleep(100)
            await trio.sleep(100)
        await trio.sleep(5)
        assert clock.spent_s == 9.0
        await trio.sleep(5)
    assert scope.cancelled_caught and clock.spent_s == 10.0


async def test_a_clock_that_is_paused_before_it_runs(
    autojump_clock: trio.testing.MockClock,
) -> None:
    clock = AgentClock(10.0)
    with clock.paused(), clock.running() as scope:
        await trio.sleep(100)
    assert not scope.cancelled_caught and clock.spent_s == 0.0


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        (b"", "crashed"),
        (b"\xff\xff\xff\xff", "crashed"),
        (b"\x01\x00\x00\x00\xc1", "crashed"),
        (frame(AgentEnded(float("nan"))), "not finite"),
        (frame(AgentEnded({"": 1.0})), "not named"),
        (frame(AgentEnded(True)), "crashed"),
        (frame(AgentFailed("mine", "x")), "crashed"),  # type: ignore[arg-type]
        (frame(AgentFailed("raised", "\x1b[2J" + "x" * 10_000)), "raised"),
    ],
)
async def test_what_a_worker_says_is_a_strangers(said: bytes, kind: str) -> None:
    one, other = trio.socket.socketpair()
    async with trio.SocketStream(one) as ours, trio.SocketStream(other) as theirs:
        await theirs.send_all(said)
        await theirs.send_eof()
        end = await _ask(ours, FACTS)
    assert isinstance(end, AgentFailed) and end.kind == kind
    assert end.text.isprintable() and len(end.text) <= 400
