"""The launcher's part of a run's page: a process that is there as long as the launcher."""

from __future__ import annotations

import errno
import re
import urllib.error
import urllib.request
from pathlib import Path

import pytest
import trio

from asyncrl.config import Config, load, render
from asyncrl.launch import page
from asyncrl.launch.page import keep_page
from asyncrl.runtime.processes.machine import free_port
from asyncrl.runtime.run_dir import PAGE_KEY, RUN_TOML

PATIENCE_S = 120.0


def config_of(run: Path, *sets: str) -> Config:
    config = load(None, [f"run.dir={run}", f"run.page_port={free_port()}", *sets], {})
    (run / "logs").mkdir()
    (run / RUN_TOML).write_text(render(config))
    return config


async def answer(url: str, cookie: str = "") -> tuple[int, str, str]:
    """Status, text and cookie, once somebody answers."""

    def ask() -> tuple[int, str, str]:
        request = urllib.request.Request(url, headers={"cookie": cookie} if cookie else {})
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_S) as found:
                return found.status, found.read().decode(), found.headers.get("set-cookie", "")
        except urllib.error.HTTPError as error:
            return error.code, "", ""

    with trio.fail_after(PATIENCE_S):
        while True:
            try:
                return await trio.to_thread.run_sync(ask)
            except OSError:
                await trio.sleep(0.1)


async def test_a_page_that_cannot_be_started_is_said_and_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    config, said = config_of(tmp_path), list[str]()
    monkeypatch.setattr(page, "spawn", full)
    await keep_page(config.run, said.append)
    assert len(said) == 1 and "Too many open files" in said[0] and "continues without it" in said[0]


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
async def test_a_page_with_a_key_where_it_is_not_on_loopback(tmp_path: Path, host: str) -> None:
    config = config_of(tmp_path, f"run.page_host={host}")
    said: list[str] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(keep_page, config.run, said.append)
        own = f"http://127.0.0.1:{config.run.page_port}/"
        found = await answer(own)
        if host == "127.0.0.1":
            assert found[0] == 200 and said == [f"The page of this run: {own}"]
            assert not (tmp_path / PAGE_KEY).exists()
            said_part = await answer(f"{own}part/flow")
            assert "has no status yet" in said_part[1]
        else:
            key = (tmp_path / PAGE_KEY).read_text()
            assert found[0] == 401 and (tmp_path / PAGE_KEY).stat().st_mode & 0o077 == 0
            assert said[0].endswith(f"?key={key}")
            status, _, cookie = await answer(f"{own}?key={key}")
            assert status == 200
            assert (await answer(own, cookie.partition(";")[0]))[0] == 200
        nursery.cancel_scope.cancel()
    with pytest.raises(OSError, match="connect"):
        await trio.open_tcp_stream("127.0.0.1", config.run.page_port)


async def test_a_page_that_ends_is_said_and_missed(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    (tmp_path / RUN_TOML).write_text("what is this")
    said: list[str] = []
    with trio.fail_after(PATIENCE_S):
        await keep_page(config.run, said.append)
    assert re.search(r"ended with exit code 1, and the run continues .*page-0\.log", said[1])
