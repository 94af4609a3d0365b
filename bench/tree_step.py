"""A training step on trees of sequences against the same sequences each by itself, in seconds of
one core.

Both train the same samples with the same loss from the same weights, take turns, and must report
the same loss value; the table has ratios of medians. `R` is the tokens of all sequences over the
places of their tree: what computing everything shared once can save. The aim is 0.85 R, and where R
is 1 no more than 3 % lost.

    alone      32 rollouts that have nothing in common, of 60 to 300 tokens: R = 1
    prompt     groups of 8 rollouts: a prompt of 256 tokens, responses of 144
    8 turns    an agent whose template drops the thoughts of earlier turns: each is a branch
    binary     a tree that branches in two five times: 32 leaves, each segment sampled in one
    24 turns   as above, of 24 tokens each after a prompt of 125
    24 long    the same, four times as long: attention, of which deep places share less, is half

The model is Qwen3-style, 2 layers of 128, or with `--large` 4 of 384.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import NamedTuple
from unittest.mock import patch

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AutoModelForCausalLM, PreTrainedModel, Qwen3Config

from asyncrl.config.schema import StalenessConfig, TrainConfig
from asyncrl.messages import MicroBatch, Sample, Span
from asyncrl.training.learner import Learner
from asyncrl.training.packing import pack

VOCABULARY = 64
Random = np.random.Generator
Ids = NDArray[np.int32]


class Leaf(NamedTuple):
    """A sequence, and the runs of it that are trained: [start, end) of each."""

    ids: Ids
    trained: list[tuple[int, int]]


def drawn(random: Random, tokens: int) -> Ids:
    return random.integers(0, VOCABULARY, tokens).astype(np.int32)


def alone(random: Random) -> list[Leaf]:
    sizes = random.integers(60, 300, 32).tolist()
    return [Leaf(drawn(random, size), [(20, size)]) for size in sizes]


def prompts(random: Random) -> list[Leaf]:
    given = [drawn(random, 256) for _ in range(2)]
    return [
        Leaf(np.concatenate([prompt, drawn(random, 144)]), [(256, 400)])
        for prompt in given
        for _ in range(8)
    ]


def turns(random: Random, count: int, prompt: int, size: int) -> list[Leaf]:
    """Each turn: an observation of `size` tokens, a thought of four times as many, an answer of as
    many; the next turn has all of it but the thought."""
    history, leaves = drawn(random, prompt), []
    for _ in range(count):
        history = np.concatenate([history, drawn(random, size)])
        thought, answer = drawn(random, 4 * size), drawn(random, size)
        ids = np.concatenate([history, thought, answer])
        leaves.append(Leaf(ids, [(len(history), len(ids))]))
        history = np.concatenate([history, answer])
    return leaves


def binary(random: Random) -> list[Leaf]:
    leaves = [Leaf(drawn(random, 84), [])]
    for _ in range(5):
        grown = []
        for leaf in leaves:
            start = len(leaf.ids)
            for first in (True, False):
                ids = np.concatenate([leaf.ids, drawn(random, 32)])
                grown.append(Leaf(ids, [*(leaf.trained if first else []), (start, len(ids))]))
        leaves = grown
    return leaves


SHAPES: dict[str, Callable[[Random], list[Leaf]]] = {
    "alone": alone,
    "prompt": prompts,
    "8 turns": lambda random: [leaf for _ in range(3) for leaf in turns(random, 8, 114, 16)],
    "binary": binary,
    "24 turns": lambda random: [leaf for _ in range(2) for leaf in turns(random, 24, 125, 4)],
    "24 long": lambda random: turns(random, 24, 502, 16),
}


class Step(NamedTuple):
    """The samples of one optimizer step, as a learner gets them; `ratio` is R."""

    batch: MicroBatch
    buffers: tuple[bytes, bytes, bytes]
    ratio: float


def step_of(leaves: list[Leaf], random: Random) -> Step:
    """A step with these sequences. Behaviour is close to what a random model says."""
    samples = []
    for number, leaf in enumerate(leaves):
        prompt, end = leaf.trained[0][0], leaf.trained[-1][1]
        spans = [Span(0, *run) for run in leaf.trained]
        reward = float(random.integers(0, 2))
        samples.append(Sample(number, 0, prompt, end - prompt, reward, spans))
    ids = np.concatenate([leaf.ids for leaf in leaves])
    trained = sum(sample.sampled_tokens for sample in samples)
    behaviour = (-np.log(VOCABULARY) + random.normal(0, 0.1, trained)).astype(np.float32)
    lengths = [s.prompt_tokens for s in samples], [s.response_tokens for s in samples]
    places = sum(len(packed.tree.ids) for packed in pack(ids, *lengths, shared=True))
    return Step(
        MicroBatch(0, 0, samples, {0: [sample.reward for sample in samples]}),
        (ids.tobytes(), behaviour.tobytes(), np.ones(trained, np.uint8).tobytes()),
        (len(ids) - len(leaves)) / places,
    )


def build(large: bool) -> PreTrainedModel:
    """A Qwen3-style model with random weights, always the same."""
    torch.manual_seed(0)
    layers, width = (4, 384) if large else (2, 128)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=width,
        intermediate_size=3 * width,
        num_hidden_layers=layers,
        num_attention_heads=width // 32,
        num_key_value_heads=width // 64,
        head_dim=32,
        tie_word_embeddings=True,
    )
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config)
    return model.eval()


def trained(learner: Learner, step: Step, *, shared: bool) -> float:
    """The loss of a step."""
    batch = MicroBatch(learner.version, 0, step.batch.samples, step.batch.rewards)
    with patch("asyncrl.training.learner.shares", lambda _: shared):
        learner.accumulate(batch, step.buffers)
    return learner.step()["loss"]


def measure(shape: str, large: bool, rounds: int) -> None:
    """Two steps come before the first that counts: kernels are compiled for new sizes."""
    random = np.random.default_rng(0)
    train, staleness = TrainConfig(lr=1e-5, lr_warmup_steps=0), StalenessConfig()
    learners = {
        shared: Learner(build(large), train, staleness, temperature=1.0) for shared in (True, False)
    }
    seconds: dict[bool, list[float]] = {True: [], False: []}
    ratios = []
    for turn in range(2 + rounds):
        step = step_of(SHAPES[shape](random), random)
        ratios.append(step.ratio)
        losses = {}
        for shared in (True, False) if turn % 2 else (False, True):
            start = time.process_time()
            losses[shared] = trained(learners[shared], step, shared=shared)
            if turn > 1:
                seconds[shared].append(time.process_time() - start)
        assert abs(losses[True] - losses[False]) < 1e-4, f"the losses differ: {losses}"
    tree, apart = (statistics.median(seconds[shared]) for shared in (True, False))
    ratio = statistics.median(ratios)
    print(
        f"{shape:<10}{ratio:6.2f}{apart:12.3f}{tree:12.3f}{apart / tree:9.2f}"
        f"{apart / tree / ratio:9.2f}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("shapes", nargs="*", default=list(SHAPES), help=", ".join(SHAPES))
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{'4 x 384' if arguments.large else '2 x 128'}, one thread")
    print(f"{'':10}{'R':>6}{'separate, s':>12}{'tree, s':>12}{'faster':>9}{'of R':>9}")
    for shape in arguments.shapes:
        measure(shape, arguments.large, arguments.rounds)


if __name__ == "__main__":
    main()
