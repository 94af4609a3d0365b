"""Meeting places of a group's processes: on one machine nobody else may write there."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from asyncrl.weightsync.stores import open_store, own_address, served_store

AMPLE = timedelta(seconds=30)
LOOPBACK = ["127.0.0.1", "localhost", "::1", "127.0.0.2"]
STRANGER = 65534
"""A user that has nothing to do with the run."""


def listening() -> set[str]:
    """The sockets on which this process listens."""
    mine = {os.readlink(path) for path in Path("/proc/self/fd").iterdir() if path.is_symlink()}  # ruff: ignore[PTH115] a socket is no path
    return {
        line.split()[1]
        for table in ("tcp", "tcp6")
        for line in Path(f"/proc/self/net/{table}").read_text().splitlines()[1:]
        if line.split()[3] == "0A" and f"socket:[{line.split()[9]}]" in mine
    }


@pytest.mark.parametrize("host", LOOPBACK)
def test_on_one_machine_the_store_is_a_file_of_its_user_alone(host: str, tmp_path: Path) -> None:
    before, path = listening(), tmp_path / "weights.store"
    with served_store(host, path) as address:
        assert listening() == before, "loopback is open to every user"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        one, other = open_store(address, AMPLE), open_store(address, AMPLE)
        one.set("a", "b")
        assert other.get("a") == b"b" and own_address(address) == "127.0.0.1"
        del one, other
    assert not path.exists()


def test_what_a_killed_trainer_left_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "weights.store"
    path.write_bytes(b"left")
    path.chmod(0o666)
    with served_store("127.0.0.1", path) as address:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600 and not path.read_bytes()
        assert not open_store(address, AMPLE).check(["a"])


WRITE = """
import os, sys
os.setgroups([]); os.setgid({user}); os.setuid({user})
try:
    open(sys.argv[1], "r+b").write(b"mine")
except PermissionError:
    print("refused")
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
def test_another_user_of_the_machine_cannot_write_to_it() -> None:
    """Uid 65534 wrote to the trainer's TCPStore, which took it as an engine's answer."""
    with TemporaryDirectory() as name, served_store("127.0.0.1", Path(name) / "s") as address:
        Path(name).chmod(0o755)  # so that the file itself is what is tried
        tried = subprocess.run(
            [sys.executable, "-c", WRITE.format(user=STRANGER), address.removeprefix("file:")],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
    assert tried.stdout == "refused\n"


def test_between_machines_it_is_a_port_of_that_address_alone(tmp_path: Path) -> None:
    before = listening()
    with served_store("0.0.0.0", tmp_path / "s") as address:
        assert address.startswith("tcp:0.0.0.0:") and len(listening() - before) == 1
        open_store(address, AMPLE).set("a", "b")
        assert not (tmp_path / "s").exists()


def test_a_store_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="no such file"):
        open_store(f"file:{tmp_path}/none", AMPLE)
    assert not list(tmp_path.iterdir())
