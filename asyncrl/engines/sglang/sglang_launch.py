"""The start of an SGLang server on this machine.

All users of a machine share loopback, so each server requires a key of its own. It is read from a
file that only this user may open: every user can read a command line, and SGLang writes its own to
its log and returns it on request.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from asyncrl.engines import canary
from asyncrl.engines.servers.kept_servers import ServerAddress
from asyncrl.engines.servers.managed import ServerProgram, offline
from asyncrl.engines.servers.managed import managed as managed_server
from asyncrl.engines.servers.server_environment import ServerPackage
from asyncrl.engines.servers.server_process import RETURN_ROUTING, ServerLaunch
from asyncrl.engines.sglang.compatibility import check_compatibility
from asyncrl.engines.sglang.sglang_client import SglangClient
from asyncrl.runtime.processes.machine import free_port

HOST = "127.0.0.1"


def address(_: Path) -> ServerAddress:
    """The address of a server at a loopback port, which requires a key."""
    return ServerAddress(f"http://{HOST}:{free_port(HOST)}", secrets.token_hex())


def command(launch: ServerLaunch, address: ServerAddress, key_file: Path) -> list[str]:
    """The command line of a server, which requires the key in `key_file`."""
    context = max(launch.context_tokens, canary.TOKENS) + _UNUSABLE
    options = {
        "config": key_file,
        "model-path": launch.model,
        "load-format": launch.weights,
        "host": HOST,
        "port": urlsplit(address.url).port,
        "device": launch.device,
        "dtype": launch.dtype,
        "tp-size": launch.tensor_parallel,
        # one more for the canary, which must not wait for a rollout to end
        "max-running-requests": launch.slots + 1,
        "context-length": context,
        "random-seed": launch.seed,
    }
    if launch.device == "cpu":
        # On a CPU the memory share is of the whole machine, and the room for tokens is what counts.
        options |= {
            "attention-backend": "torch_native",
            "mem-fraction-static": 0.5,
            "max-total-tokens": max((launch.slots + 1) * context, _LEAST_TOKENS),
        }
    if (adapters := launch.adapters) is not None:
        options |= {"max-lora-rank": adapters.rank, "max-loras-per-batch": adapters.versions}
        if launch.device == "cpu":
            options["lora-backend"] = "torch_native"
    # Incremental events hold what is new; others hold all so far, whose cost grows with the square
    # of a response.
    switches = [
        "--skip-tokenizer-init",
        "--incremental-streaming-output",
        "--sleep-on-idle",
        "--enable-metrics",
    ]
    switches += [RETURN_ROUTING] if launch.routing else []
    if adapters is not None:
        switches += ["--enable-lora", "--lora-target-modules", *adapters.targets]
    pairs = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    return [*launch.python, "-m", "sglang.launch_server", *pairs, *switches, *launch.arguments]


_UNUSABLE = 8
"""SGLang refuses an input that ends in the last six positions of its context, and silently ends a
response two before the last."""

_LEAST_TOKENS = 16_384
"""Room for prompts that several rollouts share."""


def environment(launch: ServerLaunch, cores: Sequence[int]) -> dict[str, str]:
    """The additional environment variables of a server. On a CPU the plug-in of `make sglang-cpu`
    is used, and each rank has one of `cores` (at least one), in turn."""
    always = offline(launch) | {
        # longer than the model's, for what is unusable of it
        "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "1",
        # of linear attention, which SGLang rounds to bfloat16: decoding would differ by 0.4 nats
        "SGLANG_MAMBA_CONV_DTYPE": launch.dtype,
    }
    if launch.device != "cpu":
        return always
    ranks = "|".join(str(cores[rank % len(cores)]) for rank in range(launch.tensor_parallel))
    # More threads than one make a small model's decoding eight times slower.
    return always | {
        "SGLANG_PLATFORM": "cpu_native",
        "TRITON_INTERPRET": "1",  # layers whose only kernels are Triton's, on a processor
        "OMP_NUM_THREADS": "1",
        "SGLANG_CPU_OMP_THREADS_BIND": ranks,
    }


PACKAGE = ServerPackage(
    "SGLang",
    ("sglang",),
    "sglang",
    "srt/models/*.py",
    r"^EntryClass\s*=\s*(.*?)(?=^\S|\Z)",
    r"\b[A-Z]\w+",
    "sglang.srt.plugins",
    "SGLANG_EXTERNAL_MODEL_PACKAGE",
)
PROGRAM = ServerProgram(
    SglangClient, check_compatibility, address, command, environment, "SGLANG", PACKAGE
)
managed = partial(managed_server, PROGRAM)
