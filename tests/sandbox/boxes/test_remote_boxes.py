"""Sandboxes of E2B and Daytona, against doubles of their public APIs on loopback."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from box_support import RUN, opener, settings
from provider_double import KEY, ProviderDouble, provider_double

from asyncrl.sandbox.boxes import box_api
from asyncrl.sandbox.boxes.box_errors import BoxError
from asyncrl.sandbox.boxes.open_boxes import OpenBoxes, end_now, provider_of

KINDS = ("e2b", "daytona")


@pytest.fixture
def double(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ProviderDouble]:
    monkeypatch.setattr(box_api, "PAUSES_S", (0.01, 0.02))
    monkeypatch.setattr("asyncrl.sandbox.boxes.providers.daytona.LOOK_S", 0.01)
    (tmp_path / "key").write_text(f"{KEY}\n")
    with provider_double(tmp_path / "remote") as made:
        yield made


def given(kind: str, double: ProviderDouble, folder: Path, **more: Any) -> dict[str, Any]:
    own = {"box_url": f"{double.url}/box/{{id}}"} if kind == "e2b" else {}
    return {
        "kind": kind,
        "url": double.url,
        "image": "team/task:1",
        "api_key_file": str(folder / "key"),
        **own,
        **more,
    }


def boxes(kind: str, double: ProviderDouble, folder: Path, **more: Any) -> OpenBoxes:
    return opener(folder, **given(kind, double, folder, **more))


@pytest.mark.parametrize("kind", KINDS)
def test_a_remote_sandbox_runs_commands_and_keeps_files(
    kind: str, tmp_path: Path, double: ProviderDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    async def used() -> None:
        async with boxes(kind, double, tmp_path).open() as box:
            assert len(double.sandboxes) == 1
            script = "echo out; echo err >&2; printf '\\377'; echo $A; exit 3"
            ran = await box.run(["sh", "-c", script], environment={"A": "b c"})
            assert (ran.stdout, ran.stderr, ran.code) == (b"out\n\xffb c\n", b"err\n", 3)
            assert (await box.run(["cat"], stdin=b"in\x00")).stdout == b"in\x00"
            await box.put("a/b", b"\x00text")
            assert await box.get("a/b") == b"\x00text"
            assert (await box.run(["cat", "b"], cwd="a")).stdout == b"\x00text"
            with pytest.raises(FileNotFoundError):
                await box.get("none")
            with pytest.raises(BoxError, match="more than 3 bytes"):
                await box.get("a/b", 3)
            began = time.monotonic()
            ran = await box.run(["sleep", "99"], seconds=1)
            assert ran.timed_out and time.monotonic() - began < 20
            ran = await box.run(["yes"], output_bytes=1000)
            assert ran.truncated and len(ran.stdout) == 1000
            assert await provider_of(settings(**given(kind, double, tmp_path)), tmp_path).of_run(
                RUN
            ) == [box.name]
        assert not double.sandboxes

    asyncio.run(used())
    end_now(settings(**given(kind, double, tmp_path)), tmp_path, f"asyncrl-{RUN}-r12-1-0")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("500", "answered 500: .*by \\[key\\]"),
        ("garbage", "not in the form of its API|an encoding"),
        ("endless", "more than 1,048,576 bytes"),
        ("hangs", "did not answer within|did not start within"),
    ],
)
def test_whatever_a_provider_does_is_said_by_name_and_without_the_key(
    kind: str,
    fault: str,
    said: str,
    tmp_path: Path,
    double: ProviderDouble,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("asyncrl.sandbox.boxes.open_boxes.END_S", 0.5)
    monkeypatch.setattr("asyncrl.sandbox.boxes.providers.daytona.ENDING_S", 0.2)

    async def opened() -> None:
        double.fault = fault
        async with boxes(kind, double, tmp_path, start_s=0.5).open():
            raise AssertionError("it opened")

    with caplog.at_level(logging.WARNING), pytest.raises(BoxError, match=said) as error:
        asyncio.run(opened())
    assert KEY not in str(error.value) and KEY not in caplog.text

    async def broken_later() -> None:
        async with boxes(kind, double, tmp_path).open() as box:
            assert (await box.run(["true"])).well, "a provider that is well again is used again"
            double.fault = fault
            with pytest.raises(BoxError):
                await box.run(["true"], seconds=0.5)
            double.fault = ""

    double.fault = ""
    asyncio.run(broken_later())
    double.fault = "500"
    with pytest.raises(BoxError):
        end_now(settings(**given(kind, double, tmp_path)), tmp_path, "asyncrl-x")


@pytest.mark.parametrize("kind", KINDS)
def test_a_busy_provider_is_asked_again_and_a_wrong_key_is_said(
    kind: str, tmp_path: Path, double: ProviderDouble
) -> None:
    async def opened(**more: Any) -> None:
        async with boxes(kind, double, tmp_path, **more).open():
            pass

    double.busy = 2
    asyncio.run(opened())
    double.busy = 3
    with pytest.raises(BoxError, match=r"answered 429: .*slow down"):
        asyncio.run(opened())
    (tmp_path / "other").write_text("other-key")
    with pytest.raises(BoxError, match="answered 401: "):
        asyncio.run(opened(api_key_file=str(tmp_path / "other")))


@pytest.mark.parametrize(
    ("kind", "hosts", "said"),
    [
        ("e2b", (), {"allow_internet_access": False}),
        ("e2b", ("*",), {"allow_internet_access": True}),
        ("e2b", ("a.org",), {"network": {"allowOut": ["a.org"], "denyOut": ["0.0.0.0/0"]}}),
        ("daytona", (), {"networkBlockAll": True}),
        ("daytona", ("a.org", "*.b.org"), {"domainAllowList": "a.org,*.b.org"}),
        ("daytona", ("10.0.0.0/8",), {"networkAllowList": "10.0.0.0/8"}),
    ],
)
def test_a_provider_is_told_the_hosts_the_run_and_a_bound_of_time(
    kind: str, hosts: tuple[str, ...], said: dict[str, Any], tmp_path: Path, double: ProviderDouble
) -> None:
    async def opened() -> None:
        async with boxes(kind, double, tmp_path, hosts=hosts, lasts_s=600).open():
            pass

    asyncio.run(opened())
    body = json.loads(next(body for how, _, body in double.asked if how == "POST"))
    assert said.items() <= body.items()
    name = f"asyncrl-{RUN}-r12-1-0"
    if kind == "e2b":
        assert body["metadata"] == {"asyncrl.run": RUN, "asyncrl.name": name}
        assert (body["templateID"], body["timeout"]) == ("team/task:1", 600)
    else:
        assert (body["name"], body["labels"]) == (name, {"asyncrl.run": RUN})
        assert body["buildInfo"] == {"dockerfileContent": "FROM team/task:1\n"}
        assert body["autoStopInterval"] == 10 and body["autoDeleteInterval"] == 0
