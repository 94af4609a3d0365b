"""Sandboxes as an agent gets them from its episode, and how an attempt ends that has none."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from box_support import RUN, settings
from fake_gateway import fake_gateway

from asyncrl.agents.closing import Closing
from asyncrl.agents.endings import AgentEnd, AgentEnded, AgentFailed, played
from asyncrl.agents.load_agent import load_agent
from asyncrl.sandbox.boxes.open_boxes import BoxOrigin

AGENTS = """
async def sleeps(client, episode):
    async with episode.sandbox() as box:
        ran = await box.run("echo $$; pwd")
        return float(episode.session in box.name and box.name in ran.stdout.decode())

def waits(client, episode):
    with episode.sandbox() as box, episode.sandbox() as other:
        box.put("a/b", "text")
        return float(box.run(["cat", "a/b"], seconds=9).stdout == box.get("a/b", most=9) == b"text")

def raises(client, episode):
    with episode.sandbox():
        raise KeyError("mine")

def refused(client, episode):
    with episode.sandbox(hosts=["evil.org"]):
        return 1.0

async def pulls(client, episode):
    async with episode.sandbox("--privileged"):
        return 1.0
"""


@pytest.fixture(autouse=True)
def agents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_agents.py").write_text(AGENTS)
    monkeypatch.syspath_prepend(str(tmp_path))


def test_functions_open_sandboxes_and_a_sandbox_that_fails_is_the_attempts_end(
    tmp_path: Path,
) -> None:
    free = BoxOrigin(settings(kind="directory", hosts=("*",)), RUN, str(tmp_path / "scratch"))
    held = BoxOrigin(settings(kind="docker", hosts=("a.org",)), RUN, str(tmp_path / "scratch"))
    with fake_gateway() as gateway:

        def end(name: str, boxes: BoxOrigin | None) -> AgentEnd:
            agent = load_agent(f"own_agents:{name}")
            return asyncio.run(played(agent, gateway.facts(boxes=boxes), Closing()))

        assert end("sleeps", free) == end("waits", free) == AgentEnded(1.0)
        one, two = (f"asyncrl-{RUN}-episode-3-{number}" for number in range(2))
        noted = [("POST", one), ("DELETE", one)]
        assert gateway.opened == [*noted, noted[0], ("POST", two), ("DELETE", two), noted[1]]
        failed = end("raises", free)
        assert isinstance(failed, AgentFailed) and failed.kind == "raised"
        assert "KeyError" in failed.text and not list((tmp_path / "scratch").iterdir())
        for name, boxes, kind, said in (
            ("sleeps", None, "sandbox", "set sandbox.kind"),
            ("refused", held, "sandbox", "evil.org"),
            ("sleeps", held, "sandbox", "cannot be held to its hosts"),
            ("pulls", BoxOrigin(settings(kind="docker"), RUN, "-"), "image", "no name of an image"),
        ):
            failed = end(name, boxes)
            assert isinstance(failed, AgentFailed) and failed.kind == kind and said in failed.text
