"""The start of a vLLM server on this machine.

It listens at a Unix socket in a folder that only this user may enter, and at no port: the calls
that pause vLLM and load weights require no key, so on loopback every user of the machine could make
them.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from asyncrl.engines import canary
from asyncrl.engines.servers.kept_servers import ServerAddress
from asyncrl.engines.servers.managed import ServerProgram, offline
from asyncrl.engines.servers.managed import managed as managed_server
from asyncrl.engines.servers.server_environment import ServerPackage
from asyncrl.engines.servers.server_process import RETURN_ROUTING, ServerLaunch
from asyncrl.engines.vllm.vllm_client import VllmClient
from asyncrl.engines.vllm.vllm_fit import BACKEND, EXTENSION, LOGPROBS, check_vllm, lora_rank
from asyncrl.files import JSON_BYTES, read_regular

WORKER = Path(__file__).with_name("worker")
"""The folder of the module that a server imports into its workers, and of nothing else."""
URL = "http://vllm"
"""The URL for a server without a host, since requests must name one."""


def address(files: Path) -> ServerAddress:
    """The address of a server with this folder."""
    return ServerAddress(URL, socket=str(files / "server.sock"))


def command(launch: ServerLaunch, address: ServerAddress, _: Path) -> list[str]:
    """The command line of a server."""
    context = max(launch.context_tokens, canary.TOKENS + 1)  # which requests one more token
    options = {
        "model": launch.model,
        "load-format": launch.weights,
        "uds": address.socket,
        "dtype": launch.dtype,
        "tensor-parallel-size": launch.tensor_parallel,
        # one more for the canary, which must not wait for a rollout to end
        "max-num-seqs": launch.slots + 1,
        "max-model-len": context,
        "stream-interval": launch.chunk_tokens,
        "seed": launch.seed,
        "logprobs-mode": LOGPROBS,
        "generation-config": "vllm",  # not the model's own: each request sets all
        "worker-extension-cls": EXTENSION,
        "weight-transfer-config": json.dumps({"backend": BACKEND}),
    }
    if launch.device == "cpu":
        # On a CPU, memory is the machine's: room for the concurrent requests is enough. The second
        # option only makes it check that there is memory.
        model = _described(launch.model)
        blocks = -(-context // _block(model)) * _groups(model)
        options["num-gpu-blocks-override"] = (launch.slots + 1) * blocks + 1
        options["gpu-memory-utilization"] = 0.25
    switches = ["--skip-tokenizer-init", "--enable-scale-out"]
    if launch.device == "cpu":
        switches.append("--enforce-eager")
    if launch.routing:
        # it keeps experts with the prefixes that it caches, by default not of every family
        switches += [RETURN_ROUTING, "--enable-prefix-caching"]
    if (adapters := launch.adapters) is not None:
        options |= {
            "max-lora-rank": lora_rank(adapters.rank),
            "max-loras": adapters.versions,
            "max-cpu-loras": 2 * adapters.versions,
        }
        # else its output layer takes some too, and scoring beside other requests ends the server
        switches += ["--enable-lora", "--lora-target-modules", *adapters.targets]
    pairs = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    server = "vllm.entrypoints.openai.api_server"
    return [*launch.python, "-m", server, *pairs, *switches, *launch.arguments]


def _described(model: str) -> dict[str, Any]:
    """The text part of a model's config.json; empty where it cannot be read, which the model's
    loading tells."""
    try:
        config = json.loads(read_regular(Path(model) / "config.json", JSON_BYTES))
    except (OSError, ValueError, RecursionError):
        config = {}
    own = config if isinstance(config, dict) else {}
    text = own.get("text_config")
    return text if isinstance(text, dict) else own


def _block(model: Mapping[str, Any]) -> int:
    """Tokens of a cache block on a CPU, of which latent attention (DeepSeek's) has small ones."""
    return 16 if model.get("kv_lora_rank") else 128


def _groups(model: Mapping[str, Any]) -> int:
    """Blocks that a request holds for the same tokens: vLLM puts layers of one kind in groups, each
    as large as the smallest kind, and all groups take from one store.

    >>> _groups({"layer_types": ["linear_attention"] * 3 + ["full_attention"]}), _groups({})
    (4, 1)
    """
    kinds = model.get("layer_types")
    if not isinstance(kinds, list) or not kinds:
        return 1
    counts = Counter(map(str, kinds)).values()
    return sum(-(-count // min(counts)) for count in counts)


def environment(launch: ServerLaunch, _: Sequence[int] = ()) -> dict[str, str]:
    """The additional environment variables of a server. Usage reports are off. On a CPU it has one
    thread, since more make a small model slower, and compiles nothing: compiling the ranking of
    log-probabilities would take 30 s within the first response."""
    path = os.environ.get("PYTHONPATH")
    always = offline(launch) | {
        "PYTHONPATH": f"{WORKER}{os.pathsep}{path}" if path else str(WORKER),
        "VLLM_SERVER_DEV_MODE": "1",  # else it cannot be paused or given weights
        "VLLM_NO_USAGE_STATS": "1",
    }
    if launch.adapters is not None:
        always["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "1"
    if launch.device != "cpu":
        return always
    return always | {
        "OMP_NUM_THREADS": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "TORCH_COMPILE_DISABLE": "1",
    }


PACKAGE = ServerPackage(
    "vLLM",
    ("vllm", "vllm-cpu"),
    "vllm",
    "model_executor/models/registry.py",
    r"^_(?:TEXT_GENERATION|MULTIMODAL)_MODELS\s*=\s*(\{.*?^\})",
    r'(?m)^\s+"(\w+)":',
    "vllm.general_plugins",
)
PROGRAM = ServerProgram(VllmClient, check_vllm, address, command, environment, "VLLM", PACKAGE)
managed = partial(managed_server, PROGRAM)
