"""The start of a vLLM server on this machine.

It listens at a Unix socket in a folder that only this user may enter, and at no port: the calls by
which vLLM is paused and given weights ask for no key, so on loopback every user of the machine
could make them.
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from asyncrl.config.gpus import visible
from asyncrl.engines import canary
from asyncrl.engines.servers.kept_servers import ServerAddress
from asyncrl.engines.servers.server_process import (
    TAKEN_OVER_S,
    Keeping,
    ServerLaunch,
    ServerProcess,
    ServerStart,
    server_process,
)
from asyncrl.engines.vllm.vllm_client import VllmClient

WORKER = Path(__file__).with_name("worker")
"""The folder of the module that a server imports into its workers, and of nothing else."""
EXTENSION, BACKEND = "asyncrl_receiver.Extension", "asyncrl"
"""The class by which it does so, and the name of the transfer that this registers."""
LOGPROBS = "processed_logprobs"
"""The log-probabilities that are asked for: of the temperature-scaled distribution."""
URL = "http://vllm"
"""The address of a server that has none: requests name some host."""


def command(launch: ServerLaunch, socket: Path) -> list[str]:
    """The command line of a server at `socket`. `launch.arguments` come last, and so win."""
    context = max(launch.context_tokens, canary.TOKENS + 1)  # which is asked for one token more
    options = {
        "model": launch.model,
        "load-format": launch.weights,
        "uds": socket,
        "dtype": launch.dtype,
        "tensor-parallel-size": launch.tensor_parallel,
        # one more for the canary, which must not wait for a rollout to end
        "max-num-seqs": launch.slots + 1,
        "max-model-len": context,
        "stream-interval": launch.chunk_tokens,
        "seed": launch.seed,
        "logprobs-mode": LOGPROBS,
        "generation-config": "vllm",  # not the model's own: each request says all
        "worker-extension-cls": EXTENSION,
        "weight-transfer-config": json.dumps({"backend": BACKEND}),
    }
    if launch.device == "cpu":
        # Memory is not a device's here: room for what is decoded at a time is what counts.
        # By the second it only checks that there is memory at all.
        options["num-gpu-blocks-override"] = (launch.slots + 1) * -(-context // _BLOCK) + 1
        options["gpu-memory-utilization"] = 0.25
    switches = ["--skip-tokenizer-init", "--enable-scale-out"]
    if launch.device == "cpu":
        switches.append("--enforce-eager")
    pairs = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    server = "vllm.entrypoints.openai.api_server"
    return [*launch.python, "-m", server, *pairs, *switches, *launch.arguments]


_BLOCK = 128
"""Tokens of a block of the cache on a processor."""


def environment(launch: ServerLaunch) -> dict[str, str]:
    """The variables of a server's environment beyond ours. Nothing is fetched from anywhere or
    told to anybody. On a CPU it has one thread, since more make a small model slower, and compiles
    nothing: what counts ranks of log-probabilities would be, for 30 s amid the first response."""
    path = os.environ.get("PYTHONPATH")
    always = {
        "PYTHONPATH": f"{WORKER}{os.pathsep}{path}" if path else str(WORKER),
        "VLLM_SERVER_DEV_MODE": "1",  # else it cannot be paused or given weights
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
    }
    if launch.gpus:
        allowed = os.environ.get("CUDA_VISIBLE_DEVICES")
        always["CUDA_VISIBLE_DEVICES"] = visible(launch.gpus, allowed)
    if launch.device != "cpu":
        return always
    return always | {
        "OMP_NUM_THREADS": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "TORCH_COMPILE_DISABLE": "1",
    }


@asynccontextmanager
async def managed(
    launch: ServerLaunch,
    *,
    log: Path,
    name: str = "server",
    ready_s: float = 600.0,
    keeping: Keeping | None = None,
) -> AsyncIterator[ServerProcess]:
    """A server for the length of the block, started and ready within `ready_s` seconds, or one
    that was kept; its output goes to `log`.

    Use it in the main thread. Raises ServerGone where it dies before it is ready, or is not in
    time; then nothing of it is left either. In the block, run `watch` beside everything else.
    """

    def begin(files: Path) -> tuple[list[str], ServerAddress]:
        at = files / "server.sock"
        return command(launch, at), ServerAddress(URL, socket=str(at))

    async def ready(server: ServerProcess, seconds: float) -> None:
        async with VllmClient.open(server.url, socket=server.socket) as client:
            await client.wait_ready(seconds)

    start = ServerStart(
        name=name,
        log=log,
        cores=None,
        environment=environment(launch),
        like=command(launch, Path()),
        begin=begin,
        ready=partial(ready, seconds=ready_s),
        answers=partial(ready, seconds=TAKEN_OVER_S),
    )
    async with server_process(start, keeping) as server:
        yield server
