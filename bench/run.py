"""The whole run against its parts: does asynchrony hide what it can, and cost nothing where there
is nothing to hide?

One run of the bundled job (a few steps, no evaluation) is timed from its first admission to its
last step. Then the same work is done in this process with all cores: every rollout of the run is
generated again, as many tokens from the same prompts (B), and trained again, the same groups in the
same steps (C), each by the run's own engine and learner.

    instant verifier             run / (B + C)     at most 1.05: nothing waits, so there is little
                                                   to overlap
    verifier that takes 0.2-1 s  run / max(B, C)   at most 1.15: its waiting and the faster side
                                                   are hidden behind the slower one

    python bench/run.py [--steps 40] [--repeat 3] [--slow-only | --instant-only] [--set KEY=VALUE]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
import trio

from asyncrl import config as configuration
from asyncrl import journal
from asyncrl.config import Config
from asyncrl.config.chunk_tokens import chunk_tokens
from asyncrl.config.micro_tokens import micro_tokens
from asyncrl.engines.embedded.embedded_options import EmbeddedOptions
from asyncrl.engines.embedded.engine import EmbeddedEngine
from asyncrl.engines.protocol import Chunk, Request
from asyncrl.experience import events as e
from asyncrl.experience.micro_batches import micro_batches
from asyncrl.explain import summary
from asyncrl.messages import MicroBatch, Sample, Span
from asyncrl.tasks import open_task
from asyncrl.training.learner import Learner
from asyncrl.training.models import load_model, parameters_for_publication

BENCH = Path(__file__).parent


class Work:
    """Read from its journal what a run did: the prompts, the responses, and which step trained
    which group."""

    def __init__(self, run: Path) -> None:
        self.prompts: dict[int, bytes] = {}
        self.groups: dict[int, int] = {}
        self.ids: dict[int, bytearray] = {}
        self.behaviour: dict[int, bytearray] = {}
        self.rewards: dict[int, float] = {}
        self.steps: dict[int, list[int]] = {}
        for _, event in journal.read(run / "journal.sqlite"):
            match event:
                case e.Admitted():
                    for rollout in range(event.first, event.first + event.size):
                        self.prompts[rollout], self.groups[rollout] = event.prompt, event.group
                        self.ids[rollout], self.behaviour[rollout] = bytearray(), bytearray()
                case e.Extended():
                    self.ids[event.rollout] += event.ids
                    self.behaviour[event.rollout] += event.behaviour
                case e.Judged():
                    self.rewards[event.rollout] = getattr(event.verdict, "reward", 0.0)
                case e.Taken():
                    self.steps.setdefault(event.step, []).extend(event.rollouts)

    def tokens(self, rollout: int) -> int:
        return (len(self.prompts[rollout]) + len(self.ids[rollout])) // 4

    def batches(self, budget: int) -> Iterator[list[tuple[MicroBatch, tuple[bytes, ...]]]]:
        """The micro-batches of each step."""
        for step in sorted(self.steps):
            groups: dict[int, list[int]] = {}
            for rollout in self.steps[step]:
                groups.setdefault(self.groups[rollout], []).append(rollout)
            yield [
                self._batch(step, index, batch, groups)
                for index, batch in enumerate(micro_batches(groups.values(), self.tokens, budget))
            ]

    def _batch(
        self, step: int, index: int, batch: list[int], groups: dict[int, list[int]]
    ) -> tuple[MicroBatch, tuple[bytes, ...]]:
        # all of version 0: what was sampled when makes no difference to the time it takes
        samples = [
            Sample(
                r,
                self.groups[r],
                len(self.prompts[r]) // 4,
                len(self.ids[r]) // 4,
                self.rewards[r],
                [Span(0, len(self.prompts[r]) // 4, len(self.prompts[r] + self.ids[r]) // 4)],
            )
            for r in batch
        ]
        rewards = {group: [self.rewards[r] for r in members] for group, members in groups.items()}
        ids = b"".join(self.prompts[r] + bytes(self.ids[r]) for r in batch)
        behaviour = b"".join(bytes(self.behaviour[r]) for r in batch)
        mask = b"\1" * sum(len(self.ids[r]) // 4 for r in batch)
        return MicroBatch(step, index, samples, rewards), (ids, behaviour, mask)


def run_asynchronously(run: Path, slow: bool, steps: int, sets: list[str]) -> Config:
    """One `asyncrl train`, with these settings besides."""
    settings = {
        "run.dir": str(run),
        "train.steps": steps,
        "task.eval_size": 0,
        "train.checkpoint_every": 0,
        "rollout.filter": "none",
    }
    argv = [sys.executable, "-m", "asyncrl.cli", "train", str(BENCH.parent / "run.toml")]
    if slow:
        prompts = run.with_suffix(".jsonl")
        task = open_task(configuration.load(BENCH.parent / "run.toml", [], {}).task, 0)
        lines = [
            {
                "prompt": task.prompt("train", prompt_index).rstrip("\n"),
                "answer": task.answer("train", prompt_index),
            }
            for prompt_index in range(5000)
        ]
        prompts.write_text("".join(json.dumps(line) + "\n" for line in lines))
        settings |= {
            "task.name": "jsonl",
            "task.path": str(prompts),
            "task.verifier": "slow_verifier:exact",
        }
        settings |= {"reward.concurrency": 512, "staleness.depth": 4, "staleness.max_lag": 8}
    argv += [f"--set={key}={value}" for key, value in settings.items()]
    argv += [f"--set={one}" for one in sets]
    environment = os.environ | {"PYTHONPATH": str(BENCH)}
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stdout + done.stderr)
    return configuration.read(run / "run.toml")


async def generate_alone(work: Work, config: Config, model: torch.nn.Module) -> float:
    """Seconds to generate as many tokens from the same prompts, with every core."""
    engine = EmbeddedEngine(
        model,
        EmbeddedOptions(
            slots=config.engine.slots,
            context_tokens=config.engine.context_tokens,
            chunk_tokens=chunk_tokens(config),
            stop_ids=frozenset(),
            run_seed=config.run.seed,
            kv=config.engine.kv,
        ),
    )
    weights = dict(parameters_for_publication(model))  # type: ignore[arg-type]
    await engine.load(0, {name: tensor.clone() for name, tensor in weights.items()})
    requests = [
        Request(
            r,
            1,
            r,
            np.frombuffer(work.prompts[r], np.int32),
            0,
            len(ids) // 4,
            config.rollout.temperature,
        )
        for r, ids in work.ids.items()
        if ids
    ]
    left = 0
    done = trio.Event()

    async def emit(chunks: list[Chunk]) -> None:
        nonlocal left
        left -= sum(bool(chunk.finish) for chunk in chunks)
        if not left:
            done.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(engine.run, emit)
        for part in (requests[: config.engine.slots], requests):  # the first is a warm-up
            left, done = len(part), trio.Event()
            begun = time.perf_counter()
            engine.submit(part)
            await done.wait()
            seconds = time.perf_counter() - begun
        nursery.cancel_scope.cancel()
    return seconds


def train_alone(work: Work, config: Config, model: torch.nn.Module) -> float:
    """Seconds to train the same groups in the same steps, with every core."""
    seconds = 0.0
    for warm_up in (True, False):
        learner = Learner(model, config.train, config.staleness, config.rollout.temperature)  # type: ignore[arg-type]
        seconds = 0.0
        for batches in work.batches(micro_tokens(config)):
            begun = time.perf_counter()
            for batch, buffers in batches:
                learner.accumulate(batch, buffers)
            learner.step()
            seconds += time.perf_counter() - begun
            if warm_up:
                break
    return seconds


def measure(slow: bool, steps: int, sets: list[str]) -> tuple[float, float, float, summary.Summary]:
    """Seconds of the run, of generation alone and of training alone."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        config = run_asynchronously(run, slow, steps, sets)
        found = summary.read(run / "summary.json")
        work = Work(run)
        torch.set_num_threads(len(os.sched_getaffinity(0)))
        generation = trio.run(generate_alone, work, config, load_model(run / "initial"))
        training = train_alone(work, config, load_model(run / "initial"))
    assert found.training_seconds is not None
    return found.training_seconds, generation, training, found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--slow-only", action="store_true")
    parser.add_argument("--instant-only", action="store_true")
    parser.add_argument("--set", action="append", default=[], dest="sets", help="of the run")
    args = parser.parse_args()
    print(
        f"{'verifier':>10} {'run s':>8} {'generation s':>13} {'training s':>11} "
        f"{'idle trainer':>13} {'idle rollout':>13} {'ratio':>7}"
    )
    for slow in (False, True):
        if (slow and args.instant_only) or (not slow and args.slow_only):
            continue
        ratios = []
        for _ in range(args.repeat):
            run, generation, training, found = measure(slow, args.steps, args.sets)
            ratios.append(
                run / max(generation, training) if slow else run / (generation + training)
            )
            idle = f"{found.idle.trainer or 0:>12.0%} {found.idle.rollout or 0:>12.0%}"
            name = "0.2-1 s" if slow else "instant"
            print(
                f"{name:>10} {run:>8.2f} {generation:>13.2f} {training:>11.2f}  {idle}  "
                f"{ratios[-1]:>6.2f}",
                flush=True,
            )
        what, limit = (
            ("run / max(generation, training)", 1.15)
            if slow
            else ("run / (generation + training)", 1.05)
        )
        print(f"{what}: median {statistics.median(ratios):.2f}, to be at most {limit}")


if __name__ == "__main__":
    main()
