"""A model or a scoring server that cannot be used is bad input, whichever actor finds it: one
sentence, and exit status 2."""

from __future__ import annotations

import errno
import json
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError
from train_support import tiny_model

from asyncrl.actors import roles, trainer_process
from asyncrl.actors.actor_context import ActorContext, refused_as_input
from asyncrl.config import load
from asyncrl.config.errors import BAD_INPUT, ConfigError, input_error
from asyncrl.config.schema import TaskConfig
from asyncrl.messages import Role
from asyncrl.runtime.run_dir import INITIAL
from asyncrl.tasks import TaskError, gym
from asyncrl.training import models
from asyncrl.training.models import ModelError

LACKED = {
    "no memory": MemoryError(),
    "no descriptor": OSError(errno.EMFILE, "Too many open files"),
    "no descriptor of a library in Rust": SafetensorError("I/O error (os error 24)"),
    "no memory of torch": RuntimeError("DefaultCPUAllocator: not enough memory: you tried"),
    "no thread": RuntimeError("can't start new thread"),
    "no room": OSError(errno.ENOSPC, "No space left on device"),
}


@pytest.mark.parametrize("lacked", [*LACKED, ""])
@pytest.mark.parametrize("kind", [TaskError, ModelError, ConfigError])
def test_what_a_machine_lacks_is_no_bad_input(kind: type[Exception], lacked: str) -> None:
    """Whatever was being read when it showed: the actor is started again."""

    def read() -> None:
        try:
            raise LACKED.get(lacked) or ValueError("broken")
        except Exception as error:
            raise kind(f"it cannot be read: {error}") from error

    with pytest.raises(kind) as caught:
        read()
    for error in (caught.value, ExceptionGroup("", [ExceptionGroup("", [caught.value])])):
        assert (input_error(error) is None) is bool(lacked)
    if kind is not TaskError:
        with pytest.raises(kind if lacked else SystemExit), refused_as_input():
            read()


def test_a_data_set_without_memory_is_no_bad_input(monkeypatch: pytest.MonkeyPatch) -> None:
    def lacks(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr(gym, "create_dataset", lacks)
    with pytest.raises(TaskError, match="MemoryError") as caught:
        gym.GymTask(TaskConfig(name="chain_sum"), seed=0)
    assert input_error(caught.value) is None


@pytest.mark.parametrize("role", ["rollout", "trainer"])
async def test_an_output_layer_that_cannot_compute_in_float32(
    role: Role, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny_model(tmp_path / INITIAL)

    def headless(opened: Any) -> Any:
        def open_model(*given: Any) -> Any:
            model = opened(*given)
            model.set_output_embeddings(torch.nn.Identity())
            return model

        return open_model

    for module, name in ((trainer_process, "load_model"), (models, "empty_model")):
        monkeypatch.setattr(module, name, headless(getattr(models, name)))
    config = load(None, ["model.dtype=bfloat16", "model.output_dtype=float32"], {})
    place = ActorContext(role, 0, 0, 1, os.getpid(), tmp_path, config, False)
    with pytest.raises(SystemExit) as ended:
        await roles.ROLES[role](place)
    assert ended.value.code == BAD_INPUT
    (sentence,) = capsys.readouterr().err.splitlines()
    assert "is a Identity and not a linear layer" in sentence
    assert "set model.output_dtype to weights" in sentence


@pytest.fixture
def elsewhere() -> Iterator[str]:
    """The address of a server that scores, and has another vocabulary."""

    class Other(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            ids = json.loads(self.rfile.read(int(self.headers["content-length"])))["input_ids"]
            entries = [[None if at == 0 else -1.0, i, f"t{i}"] for at, i in enumerate(ids)]
            body = json.dumps({"meta_info": {"input_token_logprobs": entries}}).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Other) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


async def test_a_teacher_whose_server_has_another_vocabulary(
    elsewhere: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = str(tiny_model(tmp_path / INITIAL))
    teacher = ["teacher.coefficient=1", f"teacher.path={model}", f"teacher.server={elsewhere}"]
    place = ActorContext("trainer", 0, 0, 1, os.getpid(), tmp_path, load(None, teacher, {}), False)
    with pytest.raises(SystemExit) as ended:
        await roles.ROLES["trainer"](place)
    assert ended.value.code == BAD_INPUT
    (sentence,) = capsys.readouterr().err.splitlines()
    assert f"teacher.server is {elsewhere!r}" in sentence and "vocabulary differs" in sentence
