"""The start of an SGLang server on this machine.

Loopback is everybody's on a machine, so each server asks for a key of its own. It comes from a file
that only this user may open: every user can read a command line, and SGLang writes its own to its
log and gives it to whoever asks.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

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
from asyncrl.engines.sglang.sglang_client import SglangClient
from asyncrl.ipc.keys import write_key
from asyncrl.processes.machine import free_port

HOST = "127.0.0.1"


def command(launch: ServerLaunch, port: int, key_file: Path) -> list[str]:
    """The command line of a server at `port` of this machine alone, which asks for the key in
    `key_file`. `launch.arguments` come last, and so win."""
    context = max(launch.context_tokens, canary.TOKENS) + _UNUSABLE
    options = {
        "config": key_file,
        "model-path": launch.model,
        "load-format": launch.weights,
        "host": HOST,
        "port": port,
        "device": launch.device,
        "dtype": launch.dtype,
        "tp-size": launch.tensor_parallel,
        # one more for the canary, which must not wait for a rollout to end
        "max-running-requests": launch.slots + 1,
        "context-length": context,
        "random-seed": launch.seed,
    }
    if launch.device == "cpu":
        # Memory is not a device's here: the share is of the whole machine, and the room for tokens
        # is what counts.
        options |= {
            "attention-backend": "torch_native",
            "mem-fraction-static": 0.5,
            "max-total-tokens": max((launch.slots + 1) * context, _LEAST_TOKENS),
        }
    # Incremental events hold what is new; others hold all so far, whose cost grows with the square
    # of a response.
    switches = [
        "--skip-tokenizer-init",
        "--incremental-streaming-output",
        "--sleep-on-idle",
        "--enable-metrics",
    ]
    pairs = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    return [*launch.python, "-m", "sglang.launch_server", *pairs, *switches, *launch.arguments]


_UNUSABLE = 8
"""SGLang takes no input that ends in the last six positions of its context, and without a word ends
a response two before the last."""

_LEAST_TOKENS = 16_384
"""Room for prompts that several rollouts share."""


def environment(launch: ServerLaunch, cores: Sequence[int]) -> dict[str, str]:
    """The variables of a server's environment beyond ours. Nothing is fetched from anywhere; on a
    CPU the plug-in of `make sglang-cpu` is used, and each rank has one of `cores` (at least one),
    in turn."""
    always = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    # longer than the model's, for what is unusable of it
    always["SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"] = "1"
    if launch.gpus:
        allowed = os.environ.get("CUDA_VISIBLE_DEVICES")
        always["CUDA_VISIBLE_DEVICES"] = visible(launch.gpus, allowed)
    if launch.device != "cpu":
        return always
    ranks = "|".join(str(cores[rank % len(cores)]) for rank in range(launch.tensor_parallel))
    # More threads than one make a small model's decoding eight times slower.
    return always | {
        "SGLANG_PLATFORM": "cpu_native",
        "OMP_NUM_THREADS": "1",
        "SGLANG_CPU_OMP_THREADS_BIND": ranks,
    }


@asynccontextmanager
async def managed(
    launch: ServerLaunch,
    *,
    log: Path,
    name: str = "server",
    cores: Collection[int] | None = None,
    ready_s: float = 600.0,
    extra_environment: Mapping[str, str] | None = None,
    keeping: Keeping | None = None,
) -> AsyncIterator[ServerProcess]:
    """A server for the length of the block, started and ready within `ready_s` seconds, on `cores`
    alone where given; or one that was kept.

    Its output goes to `log`, and its key is in a file beside that until it is ready. Use it in the
    main thread. Raises ServerGone where it dies before it is ready, or is not in time; then nothing
    of it is left either. In the block, run `watch` beside everything else.
    """
    variables = environment(launch, sorted(cores or os.sched_getaffinity(0)))
    variables |= extra_environment or {}
    key_file = log.with_name(f"{name}-key.yaml")  # SGLang reads no other kind

    def begin(files: Path) -> tuple[list[str], ServerAddress]:
        port, key = free_port(HOST), secrets.token_hex()
        write_key(key_file, msgspec.json.encode({"api-key": key}))
        return command(launch, port, key_file), ServerAddress(f"http://{HOST}:{port}", key)

    async def ready(server: ServerProcess) -> None:
        try:
            async with SglangClient.open(server.url, api_key=server.key) as client:
                await client.wait_ready(ready_s)
        finally:
            key_file.unlink(missing_ok=True)

    async def answers(server: ServerProcess) -> None:
        async with SglangClient.open(server.url, api_key=server.key) as client:
            await client.wait_there(TAKEN_OVER_S)

    start = ServerStart(
        name=name,
        log=log,
        cores=cores,
        environment=variables,
        like=command(launch, 0, Path()),
        begin=begin,
        ready=ready,
        answers=answers,
    )
    async with server_process(start, keeping) as server:
        yield server
