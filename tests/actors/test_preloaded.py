"""The imports of a run's fork server: an actor forked from it computes as a fresh one does."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from process_support import forking
from train_support import tiny_model

from asyncrl.actors import preloaded

OURS = ("actors", "asyncrl", "staleness", "weightsync")
BEFORE = """
import msgspec
from asyncrl.actors import preloaded
from asyncrl.config import Config
preloaded.preload(msgspec.convert({settings}, Config))
"""
ACTOR = """
from asyncrl.runtime.processes.process import become_child; become_child()
import ast, importlib, json, numpy, os, random, sys, threading
before = set(sys.modules)
import torch
torch.set_num_threads({threads})

def tasks():
    return os.listdir("/proc/self/task")

found = dict(cuda=torch.cuda.is_initialized(), forked_badly=torch.cuda._is_in_bad_fork())
found["tasks"] = len(tasks())
found["asks"] = "torch.utils.cpp_extension" in before  # of a torch that is built for CUDA
found["drawn"] = [random.random(), numpy.random.random(), torch.rand(1).item()]

def compute():
    inner = torch.nn.Linear(512, 512).bfloat16()  # which oneDNN multiplies
    for _ in range(30):
        weights = torch.randn(512, 512, requires_grad=True)
        (weights @ weights).exp().sum().backward()
        inner(weights.detach().bfloat16())
    found["threads"], found["teams"] = torch.get_num_threads(), len(tasks())

thread = threading.Thread(target=compute)  # as the trainer and the engine do
thread.start()
thread.join()
from asyncrl.training.models import empty_model, load_model
from asyncrl.tasks.text import Tokenizer
load_model({model!r}), empty_model({model!r}), Tokenizer({model!r})
for place in {places!r}:
    for node in ast.walk(ast.parse(open(place).read())):
        if isinstance(node, ast.ImportFrom):
            importlib.import_module(node.module)
found["imported"] = sorted(set(sys.modules) - before)
print(json.dumps(found))
"""


@pytest.mark.explore
@pytest.mark.processes
async def test_a_forked_actor_computes_with_its_threads_and_imports_nothing(tmp_path: Path) -> None:
    model = str(tiny_model(tmp_path / "model"))
    cores = sorted(os.sched_getaffinity(0))[:2]
    settings = {
        "model": {"path": model},
        "agent": {"run": "http"},
        "task": {"name": "data", "path": "any.jsonl", "verifier": "judge"},
        "judge": {"url": "http://127.0.0.1:1/v1", "model": "any"},
    }
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    drawn: set[float] = set()
    folder = Path(preloaded.__file__).parent
    names = ("roles", "engines/embedded", "engines/scripted")
    places = [str(folder / f"{name}.py") for name in names]
    async with forking(tmp_path, BEFORE.format(settings=settings), **threads) as fork:
        for used in (cores, cores[:1]):
            code = ACTOR.format(model=model, threads=len(used), places=places)
            process = fork.start(code, cores=used)
            assert await process.wait() == 0, process.tail()
            found = json.loads(process.log.read_text().splitlines()[-1])
            assert not found["cuda"] and not found["forked_badly"] and not found["asks"]
            assert found["tasks"] == len(used), "no thread but the main thread's team"
            assert not drawn & set(found["drawn"]), "each actor draws other numbers"
            drawn |= set(found["drawn"])
            # `set_num_threads` starts a team for the main thread, and who computes has its own
            assert found["threads"] == len(used) and found["teams"] == 2 * len(used)
            assert len(found["imported"]) < 10, "of the product nothing, and little of torch"
            assert not [name for name in found["imported"] if name.startswith(OURS)]
        assert not fork.lost


def test_the_models_own_code_is_imported(tmp_path: Path) -> None:
    for path in ("", str(tiny_model(tmp_path / "model"))):
        model = preloaded.model_class(path)
        assert model is not None and model.__name__ == "Qwen3ForCausalLM"
    (tmp_path / "config.json").write_text("{")
    assert preloaded.model_class(str(tmp_path)) is None


@pytest.mark.parametrize("poisoned", [False, True])
def test_a_server_that_touched_cuda_is_known(
    poisoned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "_is_in_bad_fork", lambda: poisoned)
    assert preloaded.cuda_is_touched() is poisoned
