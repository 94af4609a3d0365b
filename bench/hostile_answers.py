"""Effects of answers that are programs beside their own verdict, and what keeping them from it
costs.

A thousand hostile answers go to twelve verifiers that execute what they are given (`unscreened.py`)
in the sandbox `strict`: each tries one thing, and between them honest answers, right and wrong, are
judged. What they did is looked for afterwards, from outside:

    connections     a listener on loopback, on an abstract socket and on a named one was reached
    files           a file of the user's was changed, its mode too, or a new one is there
    verdicts        an honest answer got another verdict than it deserves, or none
    processes       a process that an answer started lives
    logs            a line of an answer's is in the reward actor's log
    memory          more memory was taken than so many answers at a time may have

Then: the same programs as answers to the nine tasks as they are trained, which award none of
themselves; and verdicts a second of honest answers, strict against process.

    python bench/hostile_answers.py [--answers 1000] [--seed 0]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import socket
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np
import trio
from unscreened import NINE, VERIFIERS

from asyncrl.actors.reward_actor import VerifierPool, open_verifiers
from asyncrl.bundled.bundled_model import write_tokenizer
from asyncrl.config.schema import TaskConfig
from asyncrl.messages import NoVerdict, Scored, Verdict
from asyncrl.runtime.ipc.waits import Waits
from asyncrl.sandbox.support import support
from asyncrl.tasks import open_task

SECRET = "a-secret-of-this-run"
MARK = f"hostile-{os.getpid()}"
AT_A_TIME = 4
MOST = AT_A_TIME * (2**30 + 2**28)
"""Bytes of memory that so many answers may take."""
VERDICT_S = 3.0
FLOOR = 0.05
"""Most that reasoning-gym gives for an answer that is none."""

FORGE = """
import os, stat, struct, msgspec
frame = msgspec.msgpack.encode([["Scored", 1.0, []], 0.0])
for fd in range(3, 128):
    try:
        if stat.S_ISSOCK(os.fstat(fd).st_mode):
            os.write(fd, (struct.pack("<I", len(frame)) + frame) * {n})
    except OSError: pass
{then}
"""
ATTACKS = {
    "key": "import shutil; shutil.copy({key!r}, {free!r} + '/{n}')",
    "key to a socket": (
        "import socket; s = socket.socket(socket.AF_UNIX); s.connect({named!r}); "
        "s.send(open({key!r}, 'rb').read())"
    ),
    "environment": "import os; open({free!r} + '/{n}', 'w').write(str(dict(os.environ)))",
    "environment of others": (
        "import glob; open({free!r} + '/{n}', 'wb').write(b''.join(open(p, 'rb').read() "
        "for p in glob.glob('/proc/*/environ')))"
    ),
    "network": "import socket; socket.create_connection({tcp!r}, 1).send(b'here')",
    "abstract socket": (
        "import socket; s = socket.socket(socket.AF_UNIX); s.connect({abstract!r}); s.send(b'here')"
    ),
    "files": "open({victim!r}, 'w').write('changed')",
    "modes": "import os; os.chmod({victim!r}, 0o777)",
    "inherited files": (
        "import os\nfor fd in range(128):\n"
        "    for do in (lambda: os.fchmod(fd, 0), lambda: os.ftruncate(fd, 0)):\n"
        "        try: do()\n        except OSError: pass"
    ),
    "logs": "import os; print({mark!r}); os.write(1, b{mark!r}); os.write(2, b{mark!r})",
    "forged frames": FORGE.replace("{n}", "3").replace("{then}", ""),
    "forged frame and end": FORGE.replace("{n}", "1").replace("{then}", "os._exit(0)"),
    "other verdicts": (
        "import gc, sys\nfor module in list(sys.modules.values()):\n"
        "    for name in ('judge', 'score_answer', 'serve_answers', 'read'):\n"
        "        if hasattr(module, name): setattr(module, name, lambda *a: 1.0)\n"
        "import unscreened\nfor f in unscreened.VERIFIERS.values(): "
        "f.__code__ = (lambda answer, line: 1.0).__code__"
    ),
    "signals": (
        "import os, signal\nfor pid in [-1, *range(2, 300)]:\n"
        "    try: os.kill(pid, signal.SIGKILL)\n    except OSError: pass"
    ),
    "fork bomb": ("import os\nwhile True:\n    try: os.fork()\n    except OSError: pass"),
    "memory": "a = []\nwhile True: a.append(bytearray(2**24))",
    "shared memory": (
        "import mmap\na = []\nwhile True:\n    a.append(mmap.mmap(-1, 2**26))\n"
        "    a[-1].write(bytes(2**26))"
    ),
    "memory in files": (
        "n = 0\nwhile True:\n    n += 1\n    open(f'/tmp/{{n}}', 'wb').write(bytes(2**22))"
    ),
    "setsid": (
        "import os\nif not os.fork():\n    os.setsid()\n    if not os.fork(): "
        "os.execv('/bin/sleep', [{mark!r}, '1000'])\n    os._exit(0)"
    ),
    "namespaces": (
        "import ctypes\nl = ctypes.CDLL(None)\nl.unshare(0x10000000 | 0x20000)\n"
        "l.mount(b'none', b'/', None, 0x44000, None)\nl.setns(3, 0)\n"
        "open({free!r} + '/{n}', 'w').write('out')"
    ),
    "time": "while True: pass",
}


def program(attack: str, task: str, places: dict[str, object], number: int) -> str:
    """The answer to `task` that tries this."""
    code = ATTACKS[attack]
    text = code if attack.startswith("forged") else code.format(**places, n=number)
    return text if task in ("python", "shell") else f"exec({text!r})"


async def judged(verifiers: VerifierPool, answer: str, index: int) -> Verdict:
    ids = np.frombuffer(answer.encode(), np.uint8).astype("<i4").tobytes()
    return (await verifiers.judge("train", index, ids, "stop")).verdict


def lines(folder: Path, names: list[str]) -> TaskConfig:
    """A task with one line for each of these verifiers."""
    path = folder / f"lines-{len(names)}-{names[0]}.jsonl"
    path.write_text(
        "".join(
            json.dumps({"prompt": n, "answer": "", "verifier": f"unscreened:{n}"}) + "\n"
            for n in names
        )
    )
    return TaskConfig(
        name="jsonl",
        path=str(path),
        verifier="unscreened:default",
        eval_size=0,
        verdict_s=VERDICT_S,
        sandbox="strict",
    )


def free_memory() -> int:
    text = Path("/proc/meminfo").read_text().split("MemAvailable:")[1]
    return int(text.split()[0]) * 1024


def left_running() -> int:
    found = 0
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found += MARK.encode() in path.read_bytes().split(b"\0")
    return found


async def attack(folder: Path, count: int, seed: int) -> Counter[str]:
    """Effects by kind, of `count` answers."""
    effects: Counter[str] = Counter()
    key, victim, free = folder / "key", folder / "victim", folder / "free"
    key.write_text(SECRET)
    victim.write_text("as it was")
    free.mkdir(mode=0o777)
    free.chmod(0o777)
    victim.chmod(0o666)
    modes = victim.stat().st_mode
    names, draw = list(VERIFIERS), random.Random(seed)
    lowest = start = free_memory()
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(socket.create_server(("127.0.0.1", 0)))]
        for address in (f"\0{MARK}", str(folder / "socket")):
            servers.append(stack.enter_context(socket.socket(socket.AF_UNIX)))
            servers[-1].bind(address)
            servers[-1].listen()
        (folder / "socket").chmod(0o777)
        for server in servers:
            server.setblocking(False)
        places: dict[str, object] = {
            "key": str(key),
            "victim": str(victim),
            "free": str(free),
            "tcp": servers[0].getsockname(),
            "abstract": f"\0{MARK}",
            "named": str(folder / "socket"),
            "mark": MARK,
        }
        kinds = list(ATTACKS)
        answers = [
            (names[n % len(names)], kinds[n // len(names) % len(kinds)]) for n in range(count)
        ]
        draw.shuffle(answers)
        own: Counter[str] = Counter()
        config = lines(folder, names)
        places_free = trio.Semaphore(AT_A_TIME)

        async def one(verifiers: VerifierPool, number: int, task: str, kind: str) -> None:
            nonlocal lowest
            index = names.index(task)
            async with places_free:
                given = await judged(verifiers, program(kind, task, places, number), index)
                own["awarded themselves"] += isinstance(given, Scored) and given.reward >= 0.5
                own["no verdict"] += isinstance(given, NoVerdict)
                lowest = min(lowest, free_memory())
                if number % 5 == 0:
                    right = await judged(verifiers, "right", index)
                    wrong = await judged(verifiers, "1", index)
                    fair = isinstance(right, Scored) and right.reward == 1
                    fair &= isinstance(wrong, Scored) and wrong.reward <= FLOOR
                    effects["verdicts"] += not fair

        os.environ["HOSTILE_SECRET"] = SECRET
        judging = open_verifiers(config, 0, str(folder), Waits())
        async with judging as verifiers, trio.open_nursery() as nursery:
            for number, (task, kind) in enumerate(answers):
                nursery.start_soon(one, verifiers, number, task, kind)
        for server in servers:
            with contextlib.suppress(BlockingIOError):
                server.accept()
                effects["connections"] += 1
    effects["files"] += len(list(free.iterdir()))
    effects["files"] += victim.read_text() != "as it was" or victim.stat().st_mode != modes
    effects["processes"] += left_running()
    effects["memory"] += start - lowest > MOST
    print(
        f"    what became of them: {dict(own)}; memory taken at most: {(start - lowest) >> 20} MiB"
    )
    return effects


async def trained(folder: Path) -> tuple[int, int]:
    """Programs as answers to the nine tasks as they are, and how many awarded themselves."""
    given, awarded = 0, 0
    for name in NINE:
        config = TaskConfig(name=name, train_size=4, eval_size=0, sandbox="strict")
        async with open_verifiers(config, 0, str(folder), Waits()) as verifiers:
            for answer in (
                f"exec({FORGE.replace('{n}', '1').replace('{then}', 'os._exit(0)')!r})",
                "exit(0)",
                "oracle_answer",
                "entry['answer']",
                "(exit)(0)",
            ):
                verdict = await judged(verifiers, answer, 0)
                given += 1
                awarded += not (isinstance(verdict, Scored) and verdict.reward <= FLOOR)
    return given, awarded


async def rate(config: TaskConfig, folder: Path, answers: list[tuple[str, int]]) -> float:
    """Verdicts a second, AT_A_TIME at a time."""
    async with open_verifiers(config, 0, str(folder), Waits()) as verifiers:
        places = trio.Semaphore(AT_A_TIME)

        async def one(answer: str, index: int) -> None:
            async with places:
                given = await judged(verifiers, answer, index)
                assert isinstance(given, Scored), given

        for answer, index in answers[:AT_A_TIME]:
            await one(answer, index)
        began = time.perf_counter()
        async with trio.open_nursery() as nursery:
            for answer, index in answers:
                nursery.start_soon(one, answer, index)
        return len(answers) / (time.perf_counter() - began)


async def rates(folder: Path) -> None:
    """Print verdicts a second of both kinds of tasks, in both sandboxes."""
    plain = TaskConfig(name="spell_backward", train_size=500, eval_size=0, sandbox="process")
    task = open_task(plain, 0)
    honest = [(task.answer("train", n % 500) or "", n % 500) for n in range(4000)]
    found = {}
    for sandbox in ("process", "strict", "process", "strict"):
        config = TaskConfig(
            name="spell_backward",
            train_size=500,
            eval_size=0,
            sandbox=sandbox,  # type: ignore[arg-type]
        )
        found[sandbox] = max(found.get(sandbox, 0.0), await rate(config, folder, honest))
    print(f"nothing executed   {_against(found)}")
    executed = TaskConfig(name="countdown", train_size=50, eval_size=0, sandbox="strict")
    task = open_task(executed, 0)
    honest = [(task.answer("train", n % 50) or "", n % 50) for n in range(1000)]
    found = {"strict": await rate(executed, folder, honest)}
    (folder / "reused.jsonl").write_text('{"prompt": "p", "answer": ""}\n')
    reused = TaskConfig(
        name="jsonl",
        path=str(folder / "reused.jsonl"),
        verifier="unscreened:reused",
        eval_size=0,
        sandbox="process",
    )
    found["process"] = await rate(reused, folder, [("right", 0)] * 1000)
    print(f"executed           {_against(found)}")


def _against(found: dict[str, float]) -> str:
    share = found["strict"] / found["process"]
    return (
        f"{found['strict']:7,.0f} verdicts/s strict, {found['process']:7,.0f} process: {share:.2f}"
    )


async def main(count: int, seed: int) -> int:
    if missing := support().missing:
        print(f"this machine does not have the sandbox strict: {missing}")
        return 1
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [str(Path(__file__).parent), *filter(None, sys.path)]
    )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.chmod(folder, 0o755)  # noqa: PTH101
        write_tokenizer(folder)
        with tempfile.TemporaryFile() as log, _errors_in(log.fileno()):
            effects = await attack(folder, count, seed)
            log.seek(0)
            effects["logs"] += MARK.encode() in log.read()
        kinds = ("connections", "files", "verdicts", "processes", "logs", "memory")
        print(f"{count:,} hostile answers  effects outside of their own verdict: {effects.total()}")
        print(f"    {', '.join(f'{kind} {effects[kind]}' for kind in kinds)}")
        given, awarded = await trained(folder)
        print(f"{given} programs as answers to the nine tasks: {awarded} awarded themselves")
        await rates(folder)
    return int(effects.total() > 0 or awarded > 0)


@contextlib.contextmanager
def _errors_in(descriptor: int):  # type: ignore[no-untyped-def]
    """Have what this process and its children write to standard error in a file."""
    kept = os.dup(2)
    os.dup2(descriptor, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--answers", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    sys.exit(trio.run(main, arguments.answers, arguments.seed))
