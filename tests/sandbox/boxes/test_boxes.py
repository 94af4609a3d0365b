"""Sandboxes that an attempt opens: containers of a client's double, and folders. The same contract
holds for each kind."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from box_support import REAL_IMAGE, RUN, directories, opener, real_engine, settings
from container_double import calls, offers, on_path

from asyncrl.config.errors import ConfigError
from asyncrl.sandbox.boxes.box import Box, BoxThing
from asyncrl.sandbox.boxes.box_errors import BoxError, ImageError
from asyncrl.sandbox.boxes.box_names import wrong_image
from asyncrl.sandbox.boxes.open_boxes import (
    OpenBoxes,
    end_now,
    provider_of,
    refuse_without_provider,
)

IMAGE = "team/task:1"


@pytest.fixture
def double(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    made = on_path(tmp_path, monkeypatch)
    offers(made, IMAGE)
    return made


def inside(boxes: OpenBoxes, use: Callable[[Box], Awaitable[None]]) -> None:
    async def both() -> None:
        async with boxes.open() as box:
            await use(box)

    asyncio.run(both())


async def used(box: Box) -> None:
    """The contract of every kind of sandbox on this machine."""
    ran = await box.run(
        ["sh", "-c", "cat; echo err >&2; echo $A; exit 3"],
        stdin="in\n",
        environment={"A": "b c"},
    )
    assert (ran.stdout, ran.stderr, ran.code) == (b"in\nb c\n", b"err\n", 3)
    assert (await box.run(["no-such-command"])).code == 127
    await box.put("a/b", "text")
    assert await box.get("a/b") == b"text"
    assert (await box.run("cat b", cwd="a")).stdout == b"text"
    with pytest.raises(FileNotFoundError):
        await box.get("a/none")
    with pytest.raises(BoxError, match=r"larger|more than"):
        await box.get("a/b", 3)
    began = time.monotonic()
    ran = await box.run("sleep 99 & sleep 99", seconds=0.3)
    assert ran.timed_out and time.monotonic() - began < 20
    ran = await box.run(["yes"], output_bytes=1000)
    assert ran.truncated and len(ran.stdout) == 1000
    assert (await box.run(["cat", "a/b"])).stdout == b"text", "files outlive a command's end"


@pytest.mark.parametrize("kind", ["docker", "podman", "directory"])
def test_a_sandbox_runs_commands_and_keeps_files(kind: str, tmp_path: Path, double: Path) -> None:
    told: list[tuple[str, BoxThing]] = []
    hosts = ("*",) if kind == "directory" else ()
    inside(
        opener(tmp_path, kind=kind, image=IMAGE, hosts=hosts, told=lambda *one: told.append(one)),
        used,
    )
    thing = BoxThing("directory" if kind == "directory" else "container", told[0][1].name, kind)
    assert told == [("opens", thing), ("gone", thing)]
    assert thing.name == f"asyncrl-{RUN}-r12-1-0"
    assert not list((double / "containers").iterdir())
    assert not list((tmp_path / "scratch").glob("*"))


@pytest.mark.processes
def test_a_real_engine_does_the_same_and_holds_what_is_in_it(tmp_path: Path) -> None:
    if not (kind := real_engine()):
        pytest.skip(f"no docker or podman of this machine has the image {REAL_IMAGE}")

    async def held(box: Box) -> None:
        await used(box)
        ran = await box.run("ls /sys/class/net; grep -E 'CapEff|NoNewPrivs' /proc/self/status")
        assert ran.stdout.split() == [b"lo", b"CapEff:", b"0" * 16, b"NoNewPrivs:", b"1"]
        if provider.unbounded():  # rootless, under cgroup v1
            return
        assert (await box.run("dd if=/dev/zero of=/dev/null bs=200M count=1")).code == 137
        assert (await box.run("for i in $(seq 60); do sleep 5 & done")).code != 0

    provider = provider_of(settings(kind=kind), tmp_path)
    boxes = opener(tmp_path, kind=kind, image=REAL_IMAGE, memory_gb=0.05, processes=20)
    inside(boxes, held)
    assert asyncio.run(provider.of_run(RUN)) == []


def test_limits_that_an_engine_does_not_keep_are_said(tmp_path: Path, double: Path) -> None:
    """As rootless podman under cgroup v1."""
    for kind in ("docker", "podman"):
        assert refuse_without_provider(settings(kind=kind, image=IMAGE), tmp_path) == ""
        (double / "no-pids").touch()
        said = refuse_without_provider(settings(kind=kind, image=IMAGE), tmp_path)
        assert said.startswith(f"{kind} does not bound the pids of its containers")
        (double / "no-pids").unlink()
    assert refuse_without_provider(settings(kind="directory", hosts=("*",)), tmp_path) == ""


def test_a_container_has_no_network_no_privilege_and_limits(tmp_path: Path, double: Path) -> None:
    async def use(box: Box) -> None:
        assert (await box.run(["true"])).well

    entry = {"image": IMAGE}
    inside(opener(tmp_path, entry, kind="docker", memory_gb=2, processes=99, lasts_s=60), use)
    (words,) = [call for call in calls(double) if call[0] == "run"]
    told = " ".join(words)
    for part in (
        "--network none",
        "--cap-drop ALL",
        "--security-opt no-new-privileges",
        "--memory 2000000000",
        "--pids-limit 99",
        f"--label asyncrl.run={RUN}",
        "--pull never",
    ):
        assert part in told
    assert words[-1] == "60", "it ends by itself"
    inside(opener(tmp_path, entry, kind="docker", hosts=("*",)), use)
    assert "--network" not in [call for call in calls(double) if call[0] == "run"][-1]


def test_each_sandbox_is_ended_whatever_happens_in_the_block(tmp_path: Path, double: Path) -> None:
    told: list[tuple[str, BoxThing]] = []
    boxes = opener(tmp_path, kind="docker", image=IMAGE, told=lambda *one: told.append(one))

    async def fails() -> None:
        async with boxes.open() as first, boxes.open() as second:
            assert first.name != second.name
            raise KeyError("the agent's own")

    with pytest.raises(KeyError):
        asyncio.run(fails())

    async def is_cancelled() -> None:
        async with boxes.open() as box:
            running = asyncio.ensure_future(box.run(["sleep", "99"]))
            await asyncio.sleep(0.2)
            running.cancel()
            raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(is_cancelled())
    assert not list((double / "containers").iterdir())
    assert [event for event, _ in told] == ["opens", "opens", "gone", "gone", "opens", "gone"]


def test_what_an_earlier_run_left_under_its_name_is_replaced(tmp_path: Path, double: Path) -> None:
    name = f"asyncrl-{RUN}-r12-1-0"
    (double / "containers" / name).mkdir()
    (double / "containers" / name / "words").write_text("")

    async def use(box: Box) -> None:
        assert (await box.run(["true"])).well

    inside(opener(tmp_path, kind="docker", image=IMAGE), use)
    end_now(settings(kind="docker"), tmp_path, name)  # which is gone already


def test_a_sandbox_that_fails_says_so_by_name(tmp_path: Path, double: Path) -> None:
    async def lost(box: Box) -> None:
        await asyncio.to_thread(end_now, settings(kind="docker"), tmp_path, box.name)
        with pytest.raises(BoxError, match=r"did not begin a command: .*No such container"):
            await box.run(["true"])

    inside(opener(tmp_path, kind="docker", image=IMAGE), lost)
    offers(double, "late:1")
    with pytest.raises(BoxError, match=r"did not start within sandbox.start_s, 0.5 s"):
        inside(opener(tmp_path, kind="docker", image="late:1", start_s=0.5), lost)
    assert sum(call[0] == "run" for call in calls(double)) == 2
    assert not list((double / "containers").iterdir()), "it came once its client was killed"

    async def wrong(box: Box) -> None:
        for argv in ([], ["a\0b"], ["a" * 70_000]):
            with pytest.raises(ValueError, match="command"):
                await box.run(argv)
        with pytest.raises(ValueError, match="variable"):
            await box.run(["true"], environment={"A": "1\nB=2"})
        for path in ("-f", "", "a/", "a\0"):
            with pytest.raises(ValueError, match="no path"):
                await box.put(path, b"")

    inside(directories(tmp_path), wrong)


@pytest.mark.parametrize(
    ("image", "hosts", "said"),
    [
        ("--privileged", None, "no name of an image"),
        ("a b", None, "no name of an image"),
        ("", None, "no image"),
        ("missing:1", None, "the image missing:1 cannot be pulled: Error: manifest unknown"),
        (IMAGE, ["evil.org"], "sandbox.hosts does not have 'evil.org'"),
    ],
)
def test_an_image_or_a_host_that_cannot_be_is_said(
    image: str, hosts: list[str] | None, said: str, tmp_path: Path, double: Path
) -> None:
    async def opened() -> None:
        async with opener(tmp_path, kind="docker").open(image, hosts):
            raise AssertionError("it opened")

    with pytest.raises(BoxError, match=said) as error:
        asyncio.run(opened())
    assert isinstance(error.value, ImageError) == (hosts is None)
    assert not list((double / "containers").iterdir())


def test_names_of_images_are_those_of_registries() -> None:
    right = ("ubuntu", "ghcr.io/a/b:v1", "localhost:5000/x", f"a/b@sha256:{'0' * 64}", "a--b/c__d")
    assert not [name for name in right if wrong_image(name)]
    wrong = ("-v", "a:b:c", "A", "a\n", "a;b", "../a", "a//b", "a" * 500, "$(id)", "a:", 3, None)
    assert [name for name in wrong if not wrong_image(name)] == []


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"kind": "docker"}, "there is no command docker"),
        ({"kind": "directory"}, r'sandbox.hosts = \["\*"\]'),
        ({"kind": "docker", "hosts": ("pypi.org",)}, "cannot hold it to single hosts"),
        ({"kind": "docker", "image": "-it"}, "no name of an image"),
        ({"kind": "e2b"}, "E2B_API_KEY"),
        ({"kind": "daytona", "api_key_file": "/nowhere"}, "cannot be read"),
        ({"kind": "daytona", "hosts": ("a.org", "10.0.0.0/8")}, "not both"),
        ({"kind": "no.module:Boxes"}, "cannot be loaded"),
    ],
)
def test_what_a_machine_or_a_provider_cannot_is_said_before_anything_starts(
    given: dict[str, object], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("E2B_API_KEY", raising=False)
    with pytest.raises(ConfigError, match=said):
        refuse_without_provider(settings(**given), tmp_path)
    refuse_without_provider(settings(), tmp_path)
