"""Tokens a second through asyncrl against a bare load generator, on the same SGLang server.

    bare       streams of the same requests, read to their end with the same HTTP library and not
               looked at, so many at a time
    asyncrl    the rollout actor and its engine: leases in, chunks out of a link, with
               log-probabilities and versions reconciled

They take turns on one server; medians of tokens/s, and their ratio (at least 0.95).

    python bench/sglang_load.py [--concurrent 32,128] [--tokens 64] [--waves 4] [--repeat 5]
"""

from __future__ import annotations

import argparse
import re
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import httpx2
import msgspec
import numpy as np
import torch
import trio
from numpy.typing import NDArray

from asyncrl.actors.reporting import Reporter
from asyncrl.actors.rollout_actor import rollout_actor
from asyncrl.bundled.bundled_model import END_ID, VOCABULARY, new_model, write_tokenizer
from asyncrl.engines import canary
from asyncrl.engines.options import EngineOptions
from asyncrl.engines.servers.server_engine import ServerEngine
from asyncrl.engines.servers.server_process import ServerLaunch, ServerProcess
from asyncrl.engines.sglang.sglang_client import SglangClient
from asyncrl.engines.sglang.sglang_launch import managed
from asyncrl.messages import Chunks, Drain, Drained, Lease, Leases, Prepare
from asyncrl.runtime.ipc.link import Link
from asyncrl.runtime.ipc.waits import Waits
from asyncrl.simulation.network import links
from asyncrl.training.models import parameters_for_publication
from asyncrl.weightsync.reception import StagedReception
from asyncrl.weightsync.servers.from_disk import FromDisk
from asyncrl.weightsync.servers.weight_loader import WeightLoader
from asyncrl.weightsync.transport import Received

ROOT = Path(__file__).parent.parent
PROMPT, CHUNK, CONTEXT = 18, 8, 256
SAID = b'"completion_tokens":'
SAMPLED = re.compile(SAID + rb"\s*(\d+)")


def prompts(count: int) -> list[NDArray[np.int32]]:
    draw = np.random.default_rng(0)
    return [draw.integers(0, 256, PROMPT).astype(np.int32) for _ in range(count)]


async def bare(server: ServerProcess, concurrent: int, count: int, tokens: int) -> float:
    """Tokens a second of `count` requests, `concurrent` at a time."""
    waiting, sampled = iter(prompts(count)), 0

    async def stream(http: httpx2.AsyncClient, waiting: Iterator[NDArray[np.int32]]) -> None:
        nonlocal sampled
        for ids in waiting:
            sampling = {"max_new_tokens": tokens, "temperature": 1.0, "stream_interval": CHUNK}
            body = {
                "rid": uuid4().hex,
                "input_ids": ids.tolist(),
                "sampling_params": sampling,
                "return_logprob": True,
                "stream": True,
            }
            found = None
            async with http.stream(
                "POST", "/generate", content=msgspec.json.encode(body)
            ) as response:
                async for data in response.aiter_bytes():
                    found = SAMPLED.search(data, max(0, data.rfind(SAID))) or found
            assert found is not None
            sampled += int(found[1])

    headers = {"content-type": "application/json", "authorization": f"Bearer {server.key}"}
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx2.AsyncClient(
        base_url=server.url, headers=headers, timeout=600, limits=limits, trust_env=False
    ) as http:
        begun = time.perf_counter()
        async with trio.open_nursery() as nursery:
            for _ in range(concurrent):
                nursery.start_soon(stream, http, waiting)
        return sampled / (time.perf_counter() - begun)


async def through(engine: ServerEngine, count: int, tokens: int) -> float:
    """Tokens a second of `count` rollouts through a rollout actor, which has as many at a time as
    its engine has slots."""
    ours, theirs = links()
    sampled, finished = 0, 0
    async with ours, theirs, trio.open_nursery() as nursery:
        reception = StagedReception(engine, _Never(), theirs.send)
        nursery.start_soon(rollout_actor, theirs, engine, reception, Reporter(Waits()))
        begun = time.perf_counter()
        await _lease(ours, count, tokens)
        async for message, _ in ours:
            if isinstance(message, Chunks):
                sampled += sum(head.count for head in message.heads)
                finished += sum(bool(head.finish) for head in message.heads)
                if finished == count:
                    break
        seconds = time.perf_counter() - begun
        await ours.send(Drain())
        async for message, _ in ours:
            if isinstance(message, Drained):
                break
    return sampled / seconds


async def _lease(link: Link, count: int, tokens: int) -> None:
    leases = [Lease(n, 1, n, "train", PROMPT, 0, tokens, 1.0, None) for n in range(count)]
    await link.send(Leases(leases), np.concatenate(prompts(count)).data)


class _Never:
    """A receiver, though nothing is published here."""

    async def join(self, message: Prepare) -> None:
        raise AssertionError(f"{message} came")

    async def receive(self, message: Prepare, own: object) -> Received:
        raise AssertionError(f"{message} came")


async def measure(concurrent: int, args: argparse.Namespace, folder: Path) -> float:
    """The ratio of medians at so many requests at a time."""
    model, directory = new_model(0), folder / "model"
    model.save_pretrained(directory)
    write_tokenizer(directory)
    launch = ServerLaunch(
        (str(args.python),), str(directory), "float32", "cpu", concurrent, CONTEXT
    )
    count, rates = concurrent * args.waves, {"bare": list[float](), "asyncrl": list[float]()}
    async with (
        managed(launch, log=folder / f"server-{concurrent}.log") as server,
        SglangClient.open(server.url, api_key=server.key) as client,
    ):
        text = canary.text(VOCABULARY, (END_ID,))
        publisher = WeightLoader(
            client,
            FromDisk(folder / "weights"),
            model,
            text,
            mode="retract",
            tolerance=1e-3,
            deadline_s=60,
        )

        async def load(version: int, weights: object, _: object, stop: Callable[[], None]) -> float:
            own = dict(parameters_for_publication(model))
            reference = canary.reference(model, own, text)
            return (await publisher.load(version, own, reference, stop)).pause_s

        engine = ServerEngine(
            client,
            load,
            EngineOptions(slots=concurrent, context_tokens=CONTEXT, chunk_tokens=CHUNK),
            vocab_size=VOCABULARY,
            stop_ids=frozenset(),
        )
        await engine.load(0, {})
        for turn in range(args.repeat + 1):
            found = {
                "bare": await bare(server, concurrent, count, args.tokens),
                "asyncrl": await through(engine, count, args.tokens),
            }
            if turn:  # the first warms up
                for side, rate in found.items():
                    rates[side].append(rate)
    medians = {side: statistics.median(found) for side, found in rates.items()}
    ratio = medians["asyncrl"] / medians["bare"]
    spread = ", ".join(f"{a / b:.2f}" for a, b in zip(rates["asyncrl"], rates["bare"], strict=True))
    print(
        f"{concurrent:>4} concurrent: bare {medians['bare']:,.0f} tokens/s, asyncrl "
        f"{medians['asyncrl']:,.0f}: {ratio:.3f} ({spread})",
        flush=True,
    )
    return ratio


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--concurrent", default="32,128")
    parser.add_argument("--tokens", type=int, default=64, help="of each response")
    parser.add_argument(
        "--waves", type=int, default=4, help="requests for each that runs at a time"
    )
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--python", type=Path, default=ROOT / ".venv-sglang/bin/python")
    args = parser.parse_args()
    torch.set_num_threads(1)
    for concurrent in map(int, args.concurrent.split(",")):
        with tempfile.TemporaryDirectory() as name:
            trio.run(measure, concurrent, args, Path(name))


if __name__ == "__main__":
    main()
