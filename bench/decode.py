"""The embedded engine against `transformers.generate`: one model, the same requests, the same
process, useful tokens a second.

- varied: 256 prompts of 16 tokens, responses of mean 33 and longest 112 tokens. `generate` gets
  them in batches of as many rows as the engine has slots, and each batch runs to the longest of its
  rows: what the others sample after their end is useless.
- equal: as many prompts as slots, 64 tokens each: nothing is wasted by anybody.
- one: a single request of 64 tokens; milliseconds a token.

Both sample at temperature 1 (`generate` without log-probabilities, the engine with). Lengths are
imposed by budgets, nothing stops early. The sides take turns; the table has medians. Time includes
prefill, scheduling and streaming; building is reported apart.
"""

from __future__ import annotations

import argparse
import copy
import math
import os
import statistics
import time
from collections.abc import Callable, Sequence

import numpy as np
import torch
import trio
from transformers import PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from asyncrl.engines.embedded import EmbeddedEngine
from asyncrl.engines.embedded.embedded_options import EmbeddedOptions
from asyncrl.engines.protocol import Chunk, Request

PROMPT, LONGEST, MEAN, CONTEXT = 16, 112, 33, 128
SIZES = {"tiny": (4, 128, 384, 4, 2, 32), "large": (12, 512, 1536, 8, 4, 64)}


def build(size: str) -> PreTrainedModel:
    torch.manual_seed(0)
    layers, hidden, inner, heads, groups, width = SIZES[size]
    return Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=64,
            hidden_size=hidden,
            intermediate_size=inner,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            num_key_value_heads=groups,
            head_dim=width,
            max_position_embeddings=512,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=None,
            pad_token_id=0,
        )
    ).eval()


def varied_lengths(count: int) -> list[int]:
    """Lengths with a heavy tail: a log-normal's quantiles, clipped to [1, LONGEST], scaled to the
    mean, shuffled."""
    rng = np.random.default_rng(0)
    normal = statistics.NormalDist()
    shape = np.array([math.exp(0.75 * normal.inv_cdf((i + 0.5) / count)) for i in range(count)])
    low, high = 0.0, 1000.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (
            (middle, high) if np.clip(shape * middle, 1, LONGEST).mean() < MEAN else (low, middle)
        )
    lengths = np.clip(np.rint(shape * low), 1, LONGEST).astype(int)
    rng.shuffle(lengths)
    return [int(n) for n in lengths]


def prompts(count: int) -> np.ndarray:
    return np.random.default_rng(1).integers(1, 64, (count, PROMPT)).astype(np.int32)


def generate(model: PreTrainedModel, ids: np.ndarray, lengths: Sequence[int], rows: int) -> float:
    begun = time.perf_counter()
    for first in range(0, len(lengths), rows):
        batch = torch.from_numpy(ids[first : first + rows]).long()
        with torch.inference_mode():
            model.generate(
                batch,
                attention_mask=torch.ones_like(batch),
                do_sample=True,
                top_k=0,
                top_p=1.0,
                temperature=1.0,
                max_new_tokens=max(lengths[first : first + rows]),
            )
    return time.perf_counter() - begun


class Embedded:
    """An engine, run to the end of a set of requests at a time."""

    def __init__(self, model: PreTrainedModel, slots: int, *, compile: bool) -> None:
        begun = time.perf_counter()
        weights = {name: p.detach().clone() for name, p in model.named_parameters()}
        self.engine = EmbeddedEngine(
            copy.deepcopy(model),
            EmbeddedOptions(
                slots=slots,
                context_tokens=CONTEXT,
                chunk_tokens=8,
                stop_ids=frozenset(),
                run_seed=0,
                kv="keep",
                compile=compile,
            ),
        )
        trio.run(self.engine.load, 0, weights)
        self.built = time.perf_counter() - begun

    def __call__(self, ids: np.ndarray, lengths: Sequence[int]) -> float:
        requests = [Request(i, 1, i, ids[i], 0, n, 1.0) for i, n in enumerate(lengths)]
        begun = time.perf_counter()
        tokens = trio.run(self._drain, requests)
        assert tokens == sum(lengths)
        return time.perf_counter() - begun

    async def _drain(self, requests: Sequence[Request]) -> int:
        left, tokens = len(requests), 0

        async def count(chunks: Sequence[Chunk]) -> None:
            nonlocal left, tokens
            tokens += sum(len(chunk.ids) for chunk in chunks)
            left -= sum(chunk.finish != "" for chunk in chunks)
            if not left:
                nursery.cancel_scope.cancel()

        self.engine.submit(requests)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.engine.run, count)
        return tokens


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--size", choices=SIZES, default="tiny", help="tiny: 4 layers of 128; large: 12 of 512"
    )
    parser.add_argument("--slots", type=int, default=64)
    parser.add_argument("--prompts", type=int, default=256)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument(
        "--compile", action="store_true", help="also the compiled engine (needs a C++ compiler)"
    )
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)

    model = build(arguments.size)
    engines = {"engine": Embedded(model, arguments.slots, compile=False)}
    if arguments.compile:
        engines["engine, compiled"] = Embedded(model, arguments.slots, compile=True)
    cases = {
        "varied": varied_lengths(arguments.prompts),
        "equal": [64] * arguments.slots,
        "one": [64],
    }
    ids = prompts(max(map(len, cases.values())))
    print(
        f"{arguments.size}, {arguments.slots} slots, {arguments.threads} threads, torch "
        f"{torch.__version__}"
    )
    for name, engine in engines.items():
        print(f"{name}: built in {engine.built:.1f} s")
    varied = cases["varied"]
    print(f"varied: {len(varied)} responses, mean {np.mean(varied):.1f}, longest {max(varied)}\n")
    print(f"{'':10}{'':18}{'seconds':>10}{'tokens/s':>12}{'ms/token':>10}{'ratio':>8}")
    for case, lengths in cases.items():
        sides: dict[str, Callable[[], float]] = {
            "generate": lambda n=lengths: generate(model, ids, n, arguments.slots)
        }  # type: ignore[misc]
        for name, engine in engines.items():
            sides[name] = lambda e=engine, n=lengths: e(ids, n)  # type: ignore[misc]
        taken: dict[str, list[float]] = {name: [] for name in sides}
        for turn in range(arguments.repeat + 1):
            for name, side in sides.items():
                seconds = side()
                if turn:
                    taken[name].append(seconds)
        for name, all_seconds in taken.items():
            seconds = statistics.median(all_seconds)
            ratio = statistics.median(
                a / b for a, b in zip(taken["generate"], all_seconds, strict=True)
            )
            rate = sum(lengths) / seconds
            print(
                f"{case:10}{name:18}{seconds:10.3f}{rate:12.0f}"
                f"{1000 * seconds / max(lengths):10.3f}{ratio:8.2f}"
            )


if __name__ == "__main__":
    main()
