"""The benchmark of hostile programs, with each kind once."""

from __future__ import annotations

import contextlib
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import hostile_programs
import pytest
import trio
import trio.testing
from program_support import needs_programs

from asyncrl.sandbox.programs.runner import run
from asyncrl.sandbox.programs.unconfined import Unconfined

pytestmark = [pytest.mark.processes, needs_programs]
KEY = b"k" * 32
HARMLESS = "key", "key to a socket", "environment", "network", "abstract socket", "files", "links"
"""Kinds that may be tried outside of a sandbox."""


@pytest.fixture
def victims() -> Iterator[hostile_programs.Victims]:
    """They are where programs of any user could reach them."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        Path(folder).chmod(0o755)
        yield hostile_programs.Victims(Path(folder), stack)


@pytest.mark.parametrize("kind", HARMLESS)
def test_an_attack_without_a_sandbox_is_seen(victims: hostile_programs.Victims, kind: str) -> None:
    """Else the benchmark would find nothing, whatever a program did."""
    assert victims.effects().total() == 0
    run(hostile_programs.hostile(kind, victims.places, 1, KEY), Unconfined())
    assert victims.effects().total() > 0


async def test_an_award_with_the_right_key_is_seen(victims: hostile_programs.Victims) -> None:
    judge = hostile_programs.Judge(KEY)
    for right, awarded in (("call", 0), ("reward", 1)):
        key = hostile_programs.capability(KEY, "s1", right)
        for ask in ("call", "reward"):
            ours, theirs = trio.testing.memory_stream_pair()
            await theirs.send_all(f"{ask} s1 {key}\n".encode())
            await judge.serve(ours)
            assert await theirs.receive_some(9) == (b"yes" if ask == right else b"no")
        assert judge.awarded == awarded


@pytest.mark.explore
async def test_no_kind_has_an_effect(victims: hostile_programs.Victims) -> None:
    count = len(hostile_programs.ATTACKS)
    found = await hostile_programs.attack(victims, count, seed=0)
    assert found + victims.effects() == Counter()
