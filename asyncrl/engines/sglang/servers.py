"""A server as a child process. Invariant: it ends with the block that started it and with this
process, whichever ends first, and all of its session with it; while the block lasts, its death is
noticed at once.

A container is the exception: its client ends so, and is asked to first (SIGTERM, which stops the
container); but the container of a client that was killed goes on.

Loopback is everybody's on a machine, so each server asks for a key of its own. It comes from a file
that only this user may open: every user can read a command line, and SGLang writes its own to its
log and gives it to whoever asks.
"""

from __future__ import annotations

import os
import secrets
import signal
import sys
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import trio

from asyncrl.config.gpus import visible
from asyncrl.engines import canary
from asyncrl.engines.sglang.client import Client
from asyncrl.engines.sglang.errors import ServerGone
from asyncrl.ipc.keys import write_key
from asyncrl.processes.machine import free_port
from asyncrl.processes.process import Process, spawn

HOST = "127.0.0.1"
_TERM_S = 5.0
"""Seconds that a server gets to end by itself; a container's client needs it, a server of ours
holds nothing."""


class Launch(msgspec.Struct, frozen=True):
    """The start of a server. `python` is the command of a Python that has SGLang: a path, or
    `docker run … python3`. It decodes `slots` rollouts of at most `context_tokens` tokens at a
    time, and the canary. `gpus` are those of this machine that it may use; all where empty."""

    python: tuple[str, ...]
    model: str
    dtype: str
    device: str
    slots: int
    context_tokens: int
    tensor_parallel: int = 1
    seed: int = 0
    arguments: tuple[str, ...] = ()
    gpus: tuple[int, ...] = ()


def command(launch: Launch, port: int, key_file: Path) -> list[str]:
    """The command line of a server at `port` of this machine alone, which asks for the key in
    `key_file`. `launch.arguments` come last, and so win."""
    context = max(launch.context_tokens, canary.TOKENS) + _UNUSABLE
    options = {
        "config": key_file,
        "model-path": launch.model,
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


def environment(launch: Launch, cores: Sequence[int]) -> dict[str, str]:
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


class Server:
    """A server that is up; `url` is its address, and `key` what it asks for."""

    def __init__(self, url: str, key: str, process: Process) -> None:
        self.url = url
        self.key = key
        self.process = process

    async def watch(self) -> None:
        """Wait for its death, which is ServerGone, with the end of its log. Of its leader's: SGLang
        ends that when any other part dies."""
        code = await self.process.wait()
        raise ServerGone(
            f"the server at {self.url} {_ended(code)}; the end of its log {self.process.log}:",
            log=self.process.tail(),
        )


@asynccontextmanager
async def managed(
    launch: Launch,
    *,
    log: Path,
    name: str = "server",
    cores: Collection[int] | None = None,
    ready_s: float = 600.0,
    extra_environment: Mapping[str, str] | None = None,
) -> AsyncIterator[Server]:
    """A server for the length of the block, started and ready within `ready_s` seconds, on `cores`
    alone where given.

    Its output goes to `log`, and its key is in a file beside that until it is ready. Use it in the
    main thread. Raises ServerGone where it dies before it is ready, or is not in time; then nothing
    of it is left either. In the block, run `watch` beside everything else.
    """
    port, key = free_port(HOST), secrets.token_hex()
    key_file = log.with_name(f"{name}-key.yaml")  # SGLang reads no other kind
    write_key(key_file, msgspec.json.encode({"api-key": key}))
    wanted = command(launch, port, key_file)
    argv = [sys.executable, "-m", "asyncrl.engines.sglang.guarded_command", *wanted]
    env = environment(launch, sorted(cores or os.sched_getaffinity(0))) | dict(
        extra_environment or {}
    )
    process = spawn(name, argv, log=log, cores=cores, env=env)
    server = Server(f"http://{HOST}:{port}", key, process)
    try:
        try:
            await _until_ready(server, ready_s)
        finally:
            key_file.unlink(missing_ok=True)
        yield server
    finally:
        await _end(process)


async def _until_ready(server: Server, ready_s: float) -> None:
    """Wait for whichever comes first: ready, dead, or out of time."""
    failures: list[ServerGone] = []

    async def watch() -> None:
        try:
            await server.watch()
        except ServerGone as error:
            failures.append(error)
            nursery.cancel_scope.cancel()

    async with (
        Client.open(server.url, api_key=server.key) as client,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(watch)
        try:
            await client.wait_ready(ready_s)
        except ServerGone as error:
            failures.append(ServerGone(f"{error}: {server.process.log}", log=server.process.tail()))
        nursery.cancel_scope.cancel()
    if failures:
        raise failures[0]


async def _end(process: Process) -> None:
    with trio.CancelScope(shield=True):
        process.signal(signal.SIGTERM)
        with trio.move_on_after(_TERM_S):
            await process.wait()
        await process.kill_group()


def _ended(code: int) -> str:
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with status {code}"
