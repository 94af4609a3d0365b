"""The table of servers' versions: what is locked is what was tried, and the pages say so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from asyncrl.engines.servers.managed import ServerProgram
from asyncrl.engines.servers.server_versions import VERSIONS, misfit, numbers
from asyncrl.engines.sglang.sglang_launch import PROGRAM as SGLANG
from asyncrl.engines.vllm.vllm_launch import PROGRAM as VLLM

ROOT = Path(__file__).parents[2]
PROGRAMS = {"sglang": SGLANG, "vllm": VLLM}


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_locks_have_the_version_that_was_tried(name: str) -> None:
    program: ServerProgram = PROGRAMS[name]
    versions = VERSIONS[program.package.title]
    lock = (ROOT / f"requirements/{name}-cpu.lock").read_text()
    pinned = re.findall(rf"(?m)^(?:{'|'.join(program.package.names)})==([\w.]+)", lock)
    assert pinned == [versions.tried]
    asked = (ROOT / f"docker/{name}-cpu/unresolved.txt").read_text()
    assert f"=={versions.tried}\n" in asked
    page = " ".join((ROOT / "docs/servers.md").read_text().split())
    assert f"{program.package.title} {versions.tried}" in page


@pytest.mark.parametrize("kind", VERSIONS)
def test_the_versions_of_a_kind_are_in_order(kind: str) -> None:
    oldest, tried, newest, refused = map(numbers, VERSIONS[kind])
    assert oldest <= tried <= newest < refused
    for taken in (VERSIONS[kind].oldest, VERSIONS[kind].tried, VERSIONS[kind].newest):
        assert misfit(kind, taken) is None
    for other in ("", "unknown", "0.1", VERSIONS[kind].refused, "99.0.0"):
        assert misfit(kind, other)
