"""The gap of log-probabilities between a trainer and a real SGLang server on a CPU, of a tiny
mixture of experts (Qwen3-MoE), with and without the experts that the server returned, and the bytes
that these cost.

The server computes in bfloat16, the trainer in float32 with the same weights, so tokens near a tie
get other experts. The gap is the mean of |trainer - server| over all tokens, of the tokens whose
experts differ, and k3 (e^-d + d - 1, d = trainer - server), each twice: with the trainer's own
experts, and with the returned ones. In float32 (`--dtype`) both are the same model, and the shares
of tokens with other experts say whether the records are those of the tokens.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from contextlib import aclosing
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import trio
from numpy.typing import NDArray
from served_families import FAMILIES, KINDS, built
from torch import Tensor
from transformers import PreTrainedModel

from asyncrl.algorithms.routing.records import decoded
from asyncrl.algorithms.routing.routers import passing, replay, watch
from asyncrl.bundled.bundled_model import write_tokenizer
from asyncrl.engines.servers.routing_layout import layout_of
from asyncrl.engines.servers.server_process import ServerLaunch
from asyncrl.engines.servers.server_routing import RoutingLayout
from asyncrl.engines.sglang.sglang_client import SglangClient
from asyncrl.engines.sglang.sglang_launch import managed

ROOT = Path(__file__).parents[1]
PROMPT, VOCABULARY = 16, 250


class Response(NamedTuple):
    prompt: NDArray[np.int32]
    ids: NDArray[np.int32]
    behaviour: NDArray[np.float32]
    routing: NDArray[np.uint8]


async def sampled(
    client: SglangClient, layout: RoutingLayout | None, number: int, tokens: int
) -> tuple[Response, float]:
    """A response of so many tokens, and its seconds."""
    prompt = np.random.default_rng(number).integers(3, VOCABULARY, PROMPT).astype(np.int32)
    begun, parts = time.perf_counter(), []
    asked = client.generate(
        f"{number:032x}",
        prompt,
        max_new_tokens=tokens,
        temperature=1.0,
        stream_interval=8,
        extra_key=str(layout),
        routing=layout,
    )
    async with aclosing(asked) as events:
        async for event in events:
            parts.append(event)
    ids = np.concatenate([part.ids for part in parts])
    behaviour = np.concatenate([part.behaviour for part in parts])
    routing = parts[-1].routing
    none = np.zeros((0, 0), np.uint8)
    response = Response(prompt, ids, behaviour, none if routing is None else routing)
    return response, time.perf_counter() - begun


def scored(model: PreTrainedModel, response: Response, experts: Tensor | None) -> Tensor:
    """The trainer's log-probabilities of a response, by its own experts or by these."""
    ids = torch.from_numpy(np.concatenate([response.prompt, response.ids])).long()
    recorded = None
    if experts is not None:
        recorded = torch.full((len(ids), *experts.shape[1:]), -1, dtype=torch.long)
        recorded[PROMPT - 1 : -1] = experts.long()
    with torch.no_grad(), passing(model, recorded):
        logits = model(input_ids=ids[None], use_cache=False).logits[0].float()
    new = logits[PROMPT - 1 : -1].log_softmax(-1)
    return new.gather(1, ids[PROMPT:, None])[:, 0]


def chosen(model: PreTrainedModel, response: Response) -> Tensor:
    """The experts that the trainer would have given the tokens of a response."""
    ids = torch.from_numpy(np.concatenate([response.prompt, response.ids])).long()
    with torch.no_grad(), passing(model) as passed:
        model(input_ids=ids[None], use_cache=False)
    assert passed is not None
    every = torch.stack([passed.choices[place].experts for place in sorted(passed.choices)], 1)
    return every[PROMPT - 1 : -1]


def show(name: str, apart: Tensor) -> None:
    k3 = (-apart).exp() + apart - 1
    if len(apart):
        print(f"{name:44} {apart.abs().mean():9.5f} {apart.abs().max():9.4f} {k3.mean():9.6f}")


def compare(model: PreTrainedModel, responses: Sequence[Response]) -> None:
    """Print the gap, with and without the returned experts."""
    watch(model)
    own, given, differ = list[Tensor](), list[Tensor](), list[Tensor]()
    for response in responses:
        experts = decoded(response.routing.reshape(-1), len(response.ids), model)
        mine = chosen(model, response)
        differ.append((mine.sort(-1).values != experts.long().sort(-1).values).any(-1).any(-1))
        own.append(scored(model, response, None) - torch.from_numpy(response.behaviour))
    replay(model)
    for response in responses:
        experts = decoded(response.routing.reshape(-1), len(response.ids), model)
        given.append(scored(model, response, experts) - torch.from_numpy(response.behaviour))
    flips = torch.cat(differ)
    print(f"{len(flips)} tokens, of which {flips.float().mean():.1%} got other experts in a layer")
    print(f"{'':44} {'mean':>9} {'largest':>9} {'k3':>9}")
    for name, apart in (("by its own experts", own), ("by the returned ones", given)):
        every = torch.cat(apart)
        show(f"the trainer {name}", every)
        show(f"  of the tokens that got others, {name}", every[flips])


async def main(python: Path, dtype: str, count: int, tokens: int) -> None:
    model = built(FAMILIES["Qwen3-MoE"], KINDS["sglang"])
    layout = layout_of(model)
    with tempfile.TemporaryDirectory(prefix="asyncrl-") as folder:
        place = Path(folder)
        model.save_pretrained(place / "model")
        write_tokenizer(place / "model")
        launch = ServerLaunch(
            (str(python),), str(place / "model"), dtype, "cpu", 4, PROMPT + tokens, routing=True
        )
        async with (
            managed(launch, log=place / "log") as server,
            SglangClient.open(server.url, api_key=server.key) as client,
        ):
            await sampled(client, layout, 10**6, tokens)  # what the first one alone computes
            found = [await sampled(client, layout, number, tokens) for number in range(count)]
            plain = [await sampled(client, None, number, tokens) for number in range(count)]
    responses = [response for response, _ in found]
    compare(built(FAMILIES["Qwen3-MoE"], KINDS["sglang"]).float(), responses)
    width = responses[0].routing.shape[1]
    row = layout.layers * layout.chosen
    seconds = [np.median([one[1] for one in ran]) for ran in (found, plain)]
    print(
        f"{width} bytes of a token's record, {4 * row * 4 / 3:.0f} in the answer "
        f"({layout.layers} layers of {layout.chosen}); a response of {tokens} tokens takes "
        f"{seconds[0]:.2f} s, without them {seconds[1]:.2f} s"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", type=Path, default=ROOT / ".venv-sglang" / "bin" / "python")
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], default="bfloat16")
    parser.add_argument("--responses", type=int, default=24)
    parser.add_argument("--tokens", type=int, default=64)
    given = parser.parse_args()
    torch.set_num_threads(1)
    trio.run(main, given.python, given.dtype, given.responses, given.tokens)
