"""A server of another kind is refused before anything starts, with what to do about it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from asyncrl.actors.engines.server_kind import BUNDLED
from asyncrl.actors.engines.sglang import SglangServers
from asyncrl.bundled.bundled_model import model_config
from asyncrl.config import ConfigError, load
from asyncrl.engines.servers.other_model import Incompatible, Needs
from asyncrl.engines.servers.server_types import ModelInfo, ServerInfo
from asyncrl.engines.sglang.compatibility import (
    check_compatibility,
    refuse_other_model,
    refuse_other_start,
)
from asyncrl.engines.sglang.sglang_client import SglangClient
from asyncrl.launch import preflight

QWEN = "Qwen3ForCausalLM"
MODEL = ModelInfo("/m", "default", architectures=[QWEN])
SERVER = ServerInfo(
    "0.5.23", dtype="float32", skip_tokenizer_init=True, context_length=104, max_running_requests=9
)


def test_a_server_that_fits_is_taken() -> None:
    refuse_other_model(MODEL, SERVER, architecture=QWEN, dtype="float32")
    refuse_other_model(
        ModelInfo("/m", "1"), replace(SERVER, dtype="auto"), architecture=QWEN, dtype="float32"
    )
    refuse_other_start(SERVER, context_tokens=96, slots=8)
    for version in ("0.5.23.post1", "0.5.100"):
        refuse_other_start(
            replace(SERVER, version=version, context_length=None, max_running_requests=None),
            context_tokens=96,
            slots=8,
        )


@pytest.mark.parametrize(
    ("model", "architecture", "dtype", "said"),
    [
        (
            MODEL,
            "GPT2LMHeadModel",
            "float32",
            r"it serves Qwen3ForCausalLM \(/m\), and the run's model is GPT2LMHeadModel",
        ),
        (
            MODEL,
            QWEN,
            "bfloat16",
            "computes in float32, and this run's servers in bfloat16: start it with --dtype bf",
        ),
        (ModelInfo("/m", "1", is_generation=False), QWEN, "float32", "does not generate text"),
    ],
)
def test_another_model_is_refused(
    model: ModelInfo, architecture: str, dtype: str, said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        refuse_other_model(model, SERVER, architecture=architecture, dtype=dtype)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"version": "0.5.22"}, "SGLang 0.5.22; 0.5.23 is the oldest"),
        ({"version": "0.4.99"}, "oldest"),
        ({"version": "?"}, "oldest"),
        ({"version": "0.6.0rc1"}, "tried with 0.5.23, and 0.6 and later are not supported"),
        ({"skip_tokenizer_init": False}, "--skip-tokenizer-init"),
        ({"dp_size": 2}, "2 data-parallel replicas, .* name each in engine.sglang.urls"),
        ({"pp_size": 4}, "4 pipeline ranks, .* --pp-size 1, and with a larger --tp-size"),
        ({"speculative_algorithm": "EAGLE"}, r"\(EAGLE\).* without --speculative-algorithm"),
        ({"disaggregation_mode": "prefill"}, "only does the prefill part"),
        ({"context_length": 103}, "--context-length 104"),
        ({"max_running_requests": 8}, "--max-running-requests 9"),
    ],
)
def test_another_start_is_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        refuse_other_start(replace(SERVER, **change), context_tokens=96, slots=8)


@contextmanager
def answering(answers: dict[str, Any]) -> Iterator[str]:
    """A server that says this of itself; its address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps(answers.get(self.path)).encode()
            self.send_response(200 if self.path in answers else 404)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


GOOD = {
    "/model_info": {"model_path": "/m", "weight_version": "default", "architectures": [QWEN]},
    "/server_info": {
        "version": "0.5.23",
        "dtype": "float32",
        "skip_tokenizer_init": True,
        "context_length": 104,
        "max_running_requests": 9,
    },
}


def check(url: str, *more: str) -> None:
    sets = [
        "engine.kind=sglang",
        f'engine.sglang.urls=["{url}"]',
        "engine.context_tokens=96",
        "engine.slots=8",
        "task.train_size=20",
    ]
    preflight.check(
        preflight.resolved(
            load(None, [*sets, "task.eval_size=4", *more], {}), None, datetime(2026, 1, 2)
        ),
        None,
        2,
    )


def test_a_run_looks_at_the_servers_that_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with answering(GOOD) as url:
        check(url)
        with pytest.raises(
            ConfigError,
            match=(
                r"does not fit this run: it takes 9 requests .* start it with "
                r"--max-running-requests 10"
            ),
        ):
            check(url, "engine.slots=9")
    check(url)  # it is gone; one that is not there yet is waited for by its actor
    other = GOOD | {
        "/model_info": {
            "model_path": "/m",
            "weight_version": "1",
            "architectures": ["GPT2LMHeadModel"],
        }
    }
    with answering(other) as url, pytest.raises(ConfigError, match="serves GPT2LMHeadModel"):
        check(url)
    with (
        answering({"/model_info": GOOD["/model_info"]}) as url,
        pytest.raises(ConfigError, match=r"cannot be used: .*404"),
    ):
        check(url)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("change", "rank", "said"),
    [
        ({}, 0, ""),
        ({}, 4, r"takes none, and the run's have rank 4: start it with --enable-lora --max-lora-r"),
        ({"enable_lora": True, "max_lora_rank": 2}, 4, "takes adapters up to rank 2, and the run"),
        ({"enable_lora": True, "max_lora_rank": 4}, 4, ""),
        ({"enable_lora": True, "max_lora_rank": 4}, 0, "sends it whole weights: start it without"),
    ],
)
async def test_a_server_takes_adapters_or_whole_weights(
    change: dict[str, Any], rank: int, said: str
) -> None:
    needs = Needs(QWEN, "float32", 96, 8, adapters=rank)
    with answering(GOOD | {"/server_info": GOOD["/server_info"] | change}) as url:
        async with SglangClient.open(url) as client:
            if not said:
                await check_compatibility(client, needs)
                return
            with pytest.raises(Incompatible, match=said):
                await check_compatibility(client, needs)


async def test_a_server_that_does_not_return_experts_is_refused_where_they_are_needed() -> None:
    needs = Needs(QWEN, "float32", 96, 8)
    server = GOOD["/server_info"] | {"enable_return_routed_experts": True}
    with answering(GOOD) as plain, answering(GOOD | {"/server_info": server}) as recording:
        for url, routing, taken in (
            (plain, False, True),
            (plain, True, False),
            (recording, True, True),
        ):
            async with SglangClient.open(url) as client:
                if taken:
                    await check_compatibility(client, needs._replace(routing=routing))
                    continue
                with pytest.raises(Incompatible, match="start it with --enable-return-routed-exp"):
                    await check_compatibility(client, needs._replace(routing=routing))


@pytest.mark.parametrize(("interrupt", "noted"), [("retract", 1), ("abort", 0), ("in_place", 0)])
def test_records_that_will_be_lost_are_noted(interrupt: str, noted: int, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"architectures": [QWEN]}))
    sets = [
        "engine.kind=sglang",
        'engine.sglang.urls=["http://127.0.0.1:1"]',
        f"engine.sglang.interrupt={interrupt}",
        f"model.path={tmp_path}",
    ]
    assert not SglangServers.check(load(None, sets, {}))
    notes = SglangServers.check(load(None, [*sets, "train.router_replay=true"], {}))
    assert len(notes) == noted and all('"abort" keeps them' in note for note in notes)


def test_the_bundled_model_is_of_the_class_that_servers_are_asked_for() -> None:
    from transformers import AutoModelForCausalLM

    assert AutoModelForCausalLM._model_mapping[type(model_config())].__name__ == BUNDLED  # type: ignore[no-untyped-call]
