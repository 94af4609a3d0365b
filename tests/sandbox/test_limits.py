"""The pure parts of the sandbox: what it allows, as numbers."""

from __future__ import annotations

import resource
import struct
from errno import EAFNOSUPPORT, ENOSYS, EPERM

import pytest

from asyncrl.sandbox.environment import allowed
from asyncrl.sandbox.landlock import handled
from asyncrl.sandbox.limits import Limits
from asyncrl.sandbox.seccomp import program
from asyncrl.sandbox.view import outermost, python_view


def test_no_secret_is_passed_on() -> None:
    secrets = ("OPENAI_API_KEY", "HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "_ASYNCRL_PARENT_PID", "X")
    kept = {"PATH": "/bin", "PYTHONPATH": "/mine", "PYTHONHASHSEED": "0", "LC_ALL": "C"}
    assert allowed(dict.fromkeys(secrets, "secret") | kept) == kept


def test_memory_is_limited_beyond_what_is_inherited() -> None:
    limits = Limits(memory_bytes=7, processes=3, cpu_s=2).rlimits(100)
    assert limits[resource.RLIMIT_AS] == 107 and limits[resource.RLIMIT_NPROC] == 3
    assert limits[resource.RLIMIT_CPU] == 2 and limits[resource.RLIMIT_CORE] == 0
    assert resource.RLIMIT_CPU not in Limits().rlimits(0)


def test_paths_beneath_others_are_not_shown_twice() -> None:
    assert list(outermost(["/usr/lib", "/usr", "/usrlocal", "/a/b"])) == [
        "/a/b",
        "/usr",
        "/usrlocal",
    ]


def test_the_view_has_no_home_and_nothing_of_pythonpath(
    monkeypatch: pytest.MonkeyPatch, tmp_path
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    view = python_view({"/open/3": "/home/somebody/data"})
    assert "/open/3" in view.readable and "/home/somebody/data" not in view.readable
    assert str(tmp_path) not in view.paths and "/" not in view.paths and "/etc" not in view.paths
    assert not any(path in view.paths for path in ("/home", "/root", "/proc", "/run", "/var"))


def test_each_version_of_landlock_denies_more() -> None:
    found = [handled(version) for version in range(1, 8)]
    assert found == sorted(found) and found[0] == (0x1FFF, 0, 0) and found[-1] == (0xFFFF, 3, 3)


# ------------------------------------------------------------------------------------------ seccomp


def decide(code: bytes, number: int, first: int = 0, machine: int = 0xC000003E) -> int:
    """Run a filter, as the kernel does. Returns what it decides."""
    data = struct.pack("<iIQ6Q", number, machine, 0, first, 0, 0, 0, 0, 0)
    steps, at, value = list(struct.iter_unpack("<HBBI", code)), 0, 0
    while True:
        kind, yes, no, k = steps[at]
        at += 1
        match kind:
            case 0x20:
                (value,) = struct.unpack_from("<I", data, k)
            case 0x15:
                at += yes if value == k else no
            case 0x35:
                at += yes if value >= k else no
            case 0x45:
                at += yes if value & k else no
            case 0x06:
                return k


ALLOW, ERRNO, KILL = 0x7FFF0000, 0x50000, 0x80000000


@pytest.mark.parametrize(
    ("number", "first", "expected"),
    [
        (0, 0, ALLOW),  # read
        (56, 17, ALLOW),  # clone, as fork does
        (56, 0x3D0F00, ALLOW),  # clone, as a thread
        (56, 0x10000011, ERRNO | EPERM),  # clone with a user namespace
        (435, 0, ERRNO | ENOSYS),  # clone3
        (272, 0x10000000, ERRNO | EPERM),  # unshare
        (319, 0, ERRNO | EPERM),  # memfd_create
        (29, 0, ERRNO | EPERM),  # shmget
        (41, 1, ALLOW),  # socket: unix
        (41, 2, ALLOW),  # internet
        (41, 10, ALLOW),
        (41, 40, ERRNO | EAFNOSUPPORT),  # vsock
        (41, 38, ERRNO | EAFNOSUPPORT),  # the kernel's ciphers
        (53, 1, ALLOW),  # socketpair
        (0x40000000, 0, ERRNO | EPERM),  # the other table of x86_64
    ],
)
def test_calls_that_reach_around_the_sandbox_are_denied(
    number: int, first: int, expected: int
) -> None:
    assert decide(program("x86_64"), number, first) == expected


def test_calls_of_another_machine_end_the_process() -> None:
    assert decide(program("x86_64"), 3, machine=0x40000003) == KILL
    assert decide(program("aarch64"), 279, machine=0xC00000B7) == ERRNO | EPERM
    with pytest.raises(OSError, match="not known on"):
        program("sparc64")
