"""Forks that are kept from nothing: what ends with one of them, and that its end looks at no
process but this one's children."""

from __future__ import annotations

import subprocess
import sys

import pytest

ORPHAN = """
import os, signal, sys, time
from asyncrl.sandbox import forks as module

def all_children():
    raise AssertionError("every process of the machine was looked at")

with_all, module._all_children = module._all_children, all_children
forks = module.PlainForks(close=[])
into, out = os.pipe()
number = forks.fork(out)
if number == 0:
    if os.fork() == 0:
        os.setsid()  # it leaves the group, and loses its parent with the fork
        os.write(out, b"%d" % os.getpid())
        time.sleep(60)
    signal.pause()
orphan = int(os.read(into, 20))
other = forks.fork(out) or signal.pause()
os.kill(number, signal.SIGKILL)
os.waitid(os.P_PID, number, os.WEXITED | os.WNOWAIT)
os.kill(orphan, 0)  # it lives still, and the fork is not buried
if sys.argv[1] == "end":
    forks.end(number)
else:
    module._all_children = with_all
    forks.end_all()
try:
    os.kill(orphan, 0)
    print("it lives")
except ProcessLookupError:
    print("it is gone")
print(sorted(forks._living - {other}), other in forks._living)
module._all_children = with_all
forks.end_all()
"""


@pytest.mark.processes
@pytest.mark.parametrize(("way", "other_lives"), [("end", True), ("end_all", False)])
def test_what_left_its_group_ends_with_its_fork(way: str, other_lives: bool) -> None:
    done = subprocess.run(
        [sys.executable, "-c", ORPHAN, way],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout == f"it is gone\n[] {other_lives}\n", done.stderr
