"""docker/keyed_server.py before the real server: it asks for the key of a file, and shows it to
nobody."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import httpx2
import pytest
from real_sglang import Server

ASKED = {"input_ids": [1, 2, 3], "sampling_params": {"max_new_tokens": 2, "temperature": 0}}


def command_lines(group: int) -> list[str]:
    """The arguments of every process of a group."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if os.getpgid(int(process.name)) == group:
                found.append(os.fsdecode((process / "cmdline").read_bytes()))
    return found


@pytest.mark.explore
def test_a_server_asks_for_the_key_of_a_file_and_never_says_it(sglang_server: Server) -> None:
    server, key = sglang_server, sglang_server.key
    with httpx2.Client(base_url=server.url, trust_env=False, timeout=60.0) as http:
        for headers in ({}, {"authorization": "Bearer other"}):
            assert http.post("/generate", json=ASKED, headers=headers).status_code == 401
            for path in ("/model_info", "/server_info", "/get_server_info"):
                assert http.get(path, headers=headers).status_code == 401, path
        for path in ("/ready", "/metrics"):
            assert http.get(path).status_code == 200, path
        known = {"authorization": f"Bearer {key}"}
        answer = http.post("/generate", json=ASKED, headers=known)
        assert answer.status_code == 200 and len(answer.json()["output_ids"]) == 2
        told = http.get("/server_info", headers=known)
        assert told.status_code == 200 and "model_path" in told.text and key not in told.text
    assert key not in server.log.read_text()
    lines = command_lines(server.group)
    assert any("keyed_server.py" in line for line in lines)
    assert not any(key in line for line in lines)
