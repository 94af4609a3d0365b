"""The sandbox with real processes: each way out that a program could take is tried from inside."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from sandbox_support import needs_strict

from asyncrl.sandbox.environment import allowed

pytestmark = [pytest.mark.processes, needs_strict]

STARTER = """
import os, sys
from asyncrl.sandbox.limits import Limits
from asyncrl.sandbox.zygote import Zygote
kept = open(sys.argv[1])
leaked = os.open(sys.argv[1], os.O_RDWR)
zygote = Zygote.enter(Limits(cpu_s=20), keep=(), quiet=False)
for code in sys.argv[2:]:
    reader, writer = os.pipe()
    number = zygote.fork(writer)
    if not number:
        try:
            result = repr(eval(code))
        except BaseException as error:
            result = type(error).__name__
        os.write(writer, result.encode())
        os._exit(0)
    os.close(writer)
    print(os.read(reader, 10000).decode(), flush=True)
    zygote.end(number)
zygote.end_all()
"""
USERS = [None] + ([1000] if os.geteuid() == 0 else [])
"""Users that start it: this one, and one without any privilege."""


def reachable(user: int) -> bool:
    """True if another user may run this Python."""
    try:
        argv = [sys.executable, "-c", "import msgspec"]
        return subprocess.run(argv, user=user, group=user, extra_groups=[]).returncode == 0
    except PermissionError:
        return False


@pytest.fixture(params=USERS, ids=lambda user: f"user {user}" if user else "this user")
def inside(request: pytest.FixtureRequest, tmp_path: Path):
    """Evaluates programs, each in a sandbox of its own. Returns what they came to."""
    data = tmp_path / "data"
    data.write_text("some data")
    if request.param:
        if not reachable(request.param):
            pytest.skip(f"user {request.param} may not run {sys.executable}")
        os.chown(data, request.param, request.param)
        for folder in (tmp_path, *tmp_path.parents[:2]):  # pytest's, which are this user's alone
            folder.chmod(0o755)

    def inside(*codes: str) -> list[str]:
        done = subprocess.run(
            [sys.executable, "-P", "-c", STARTER, str(data), *codes],
            env=allowed(os.environ) | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            capture_output=True,
            text=True,
            timeout=300,
            user=request.param,
            group=request.param,
            extra_groups=request.param and [],
            check=False,
        )
        assert not done.stderr, done.stderr
        return done.stdout.splitlines()

    return inside


def test_nothing_but_python_can_be_read_and_nothing_written(inside, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("secret")
    found = inside(
        f"open({str(tmp_path / 'key')!r}).read()",
        "open('/etc/passwd').read()",
        "open('/proc/self/environ').read()",
        "open('/usr/new', 'w')",
        "open('/new', 'w')",
        "__import__('os').chmod('/usr', 0o777)",
        "open('/dev/null', 'w').write('x')",
        "open(__import__('os').environ['TMPDIR'] + '/new', 'w').write('x')",
        "__import__('json').__name__",
    )
    assert found == [
        "FileNotFoundError",
        "FileNotFoundError",
        "FileNotFoundError",
        "OSError",
        "OSError",
        "OSError",
        "1",
        "1",
        "'json'",
    ]


def test_what_was_written_is_gone_for_the_next(inside) -> None:
    write, read = "open('x', 'w').write('x')", "open('x').read()"
    assert inside(write, read) == ["1", "FileNotFoundError"]


def test_processes_share_semaphores_and_memory_that_no_other_sandbox_sees(inside) -> None:
    """`/dev/shm` is of the sandbox alone, in its temporary space, and bounded with it."""
    name = f"asyncrl-{os.getpid()}"
    shared = "__import__('multiprocessing.shared_memory').shared_memory.SharedMemory"
    found = inside(
        "__import__('multiprocessing').Pool(2).map(abs, [-1, 2])",
        "[*__import__('concurrent.futures').futures.ProcessPoolExecutor(2).map(abs, [-3])]",
        f"{shared}({name!r}, create=True, size=4096).size",
        f"{shared}({name!r})",
        "__import__('os').listdir('/dev/shm')",
        "[open(f'/dev/shm/{n}', 'wb').write(bytes(2**25)) for n in range(3)]",
    )
    assert found == ["[1, 2]", "[3]", "4096", "FileNotFoundError", "[]", "OSError"]
    assert not Path("/dev/shm", name).exists()


def test_no_network_is_there(inside, tmp_path: Path) -> None:
    connect = "(s := __import__('socket')).socket(s.{}).connect({!r})"
    with (
        socket.create_server(("127.0.0.1", 0)) as tcp,
        socket.socket(socket.AF_UNIX) as abstract,
        socket.socket(socket.AF_UNIX) as named,
    ):
        name = f"\0asyncrl-{os.getpid()}"
        for server, address in ((abstract, name), (named, str(tmp_path / "socket"))):
            server.bind(address)
            server.listen()
        (tmp_path / "socket").chmod(0o777)
        found = inside(
            connect.format("AF_INET", tcp.getsockname()),
            connect.format("AF_UNIX", name),
            connect.format("AF_UNIX", str(tmp_path / "socket")),
            connect.format("AF_VSOCK", (2, 1)),
        )
    refused = {"PermissionError", "ConnectionRefusedError", "FileNotFoundError", "OSError"}
    assert set(found) <= refused and len(found) == 4


def test_no_other_process_is_seen(inside) -> None:
    found = inside(
        "__import__('os').getpid()",
        "__import__('os').kill(2, 9)",
        "__import__('os').getppid()",
        "[open(f'/proc/{n}/stat') for n in (1, 2)]",
    )
    assert found == ["1", "ProcessLookupError", "0", "FileNotFoundError"]


def test_processes_memory_and_files_are_limited(inside) -> None:
    found = inside(
        "[__import__('os').fork() or __import__('signal').pause() for _ in range(1000)]",
        "len(bytearray(2**31))",
        "open('x', 'wb').write(bytes(2**27))",
        "[open('/dev/null') for _ in range(1000)]",
        "__import__('os').memfd_create('x')",
        "__import__('mmap').mmap(-1, 2**31)",
    )
    assert found == [
        "BlockingIOError",
        "MemoryError",
        "OSError",
        "OSError",
        "PermissionError",
        "OSError",
    ]


def test_no_privilege_can_be_had(inside) -> None:
    call = "(c := __import__('ctypes')).CDLL(None).{}"
    found = inside(
        call.format("unshare(0x10000000)"),
        call.format("mount(b'x', b'/tmp', b'tmpfs', 0, None)"),
        call.format("ptrace(0, 0, 0, 0)"),
        call.format("prctl(39, 0, 0, 0, 0)"),
        "__import__('os').setuid(0)",
    )
    assert found == ["-1", "-1", "-1", "1", "OSError"]


def test_what_leaves_the_session_ends_with_the_fork(inside) -> None:
    """A daemon with a name that nobody else has is not there any more when the fork has ended."""
    name = f"daemon-{os.getpid()}"
    daemon = (
        "(os := __import__('os')).fork() or (os.setsid(), os.fork() and os._exit(0) or "
        f"os.execv('/bin/sleep', [{name!r}, '1000']))"
    )
    assert int(inside(daemon, "'done'")[0]) > 0
    running = [p.read_bytes() for p in Path("/proc").glob("[0-9]*/cmdline") if p.exists()]
    assert not any(name.encode() in text for text in running)


def test_a_fork_holds_no_descriptor_that_another_one_holds(inside, tmp_path: Path) -> None:
    """The file that is open for reading is there, at its place, and is the fork's own; the one
    that is open for writing is not."""
    data = tmp_path / "data"
    mode = data.stat().st_mode
    found = inside(
        "kept.read()",
        "kept.read()",
        "__import__('os').fchmod(kept.fileno(), 0)",
        "__import__('os').fstat(leaked)",
    )
    assert found == ["'some data'", "'some data'", "OSError", "OSError"]
    assert data.stat().st_mode == mode
