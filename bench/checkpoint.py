"""Seconds for which a checkpoint stops the trainer, over those of a step, at 100M parameters; and
what the writing beside costs the steps.

A learner (Qwen3-style, 12 x 768, float32, AdamW) makes steps of `--tokens` tokens on this
processor. In each round, one after the other: a step alone; a copy of the state (`take`), which is
all that stops the trainer, and a step while a thread writes the copy (`write`: files, hashes,
fsync). What a checkpoint cost that was written at once is the sum of both. The first copy has to be
given its memory and is told apart. Steps that are longer, as most are, have a smaller share.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch
from gpu_kit.shapes import TINY, Shape, again, build, settings, work

from asyncrl.config.schema import StalenessConfig
from asyncrl.training.checkpoint_io import StagedCheckpoint, take, write
from asyncrl.training.learner import Learner
from asyncrl.training.staging import Staging

SHAPE = Shape(768, 2048, 12, 12, 4, head=64, vocabulary=32_000)
PROMPT, RESPONSE = 64, 192


def timed(do: Callable[[], object]) -> float:
    """The seconds that something takes."""
    start = time.perf_counter()
    do()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=4096, help="of a step")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--folder", type=Path, help="where checkpoints are written; some GB")
    parser.add_argument("--tiny", action="store_true", help="a model that takes no time")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        measure(Path(folder), given.rounds, given.tokens, TINY if given.tiny else SHAPE)


def measure(folder: Path, rounds: int, tokens: int, shape: Shape) -> None:
    """Print a table of the medians and the worst."""
    model = build(shape, torch.float32, "cpu")
    parameters = sum(parameter.numel() for parameter in model.parameters())
    learner = Learner(model, settings("cpu"), StalenessConfig(), temperature=1.0)
    staging = Staging()
    given = work(model, PROMPT, RESPONSE, groups=max(1, tokens // 2 // (PROMPT + RESPONSE)))

    def step() -> None:
        now = again(given, learner.version)
        learner.accumulate(now.batch, now.buffers)
        learner.step()

    def copied() -> StagedCheckpoint:
        staged = take(learner, learner.version, staging)
        assert staged is not None
        return staged

    step()  # makes the moments
    first = timed(copied)
    alone, stopped, beside, written = list[float](), list[float](), list[float](), list[float]()
    for _ in range(rounds):
        alone.append(timed(step))
        start = time.perf_counter()
        staged = copied()
        stopped.append(time.perf_counter() - start)
        writer = threading.Thread(
            target=lambda staged=staged: written.append(
                timed(lambda: write(folder, staged, folder))
            )
        )
        writer.start()
        beside.append(timed(step))
        writer.join()
    size = sum(file.stat().st_size for file in (folder / "checkpoints").glob("*/*")) / 2
    shares = [stop / own for stop, own in zip(stopped, alone, strict=True)]
    costs = [(two - one) / one for one, two in zip(alone, beside, strict=True)]
    print(f"{parameters / 1e6:.0f}M parameters, {size / 1e9:.2f} GB a checkpoint")
    print(f"steps of {given.tokens} tokens")
    print(f"{torch.get_num_threads()} threads, load {os.getloadavg()[0]:.1f}, {rounds} rounds")
    for name, found, unit in (
        ("step alone", alone, "s"),
        ("stopped by a save", stopped, "s"),
        ("written beside in", written, "s"),
        ("stopped, of a step", [100 * share for share in shares], "%"),
        ("step with writing beside, longer by", [100 * cost for cost in costs], "%"),
    ):
        print(f"{name:36} median {median(found):8.3f} {unit}, worst {max(found):8.3f} {unit}")
    print(f"{'first copy':36} {first:15.3f} s")


if __name__ == "__main__":
    main()
