"""The cost of a lag, by how the loss corrects for it: final held-out accuracy where every token has
exactly that lag.

Nothing here is left to timing. One process generates and trains in turns, with the embedded engine
and the learner that a run has: what step t trains was sampled with the weights of version max(0, t
- lag), and says so. Task, reward (exact), model, warm-up, groups and learning rate are run.toml's;
all lags have as many steps, more than the largest lag; a step trains those of its groups whose
rewards differ. Losses (METHODS), each as its paper has it where it names one:

    default      run.toml's: the ratio of current to behaviour policy, clipped, and IcePop's band
    decoupled    the ratio is clipped around the exact proximal policy (snapshot), and weighed by
                 that of proximal to behaviour
    vcpo         REINFORCE, weighed by the rollout's ratio, with a minimum-variance baseline (its
                 cheap proxy from the logits), and a learning rate that shrinks with the effective
                 sample size
    uncorrected  REINFORCE on old tokens as if they were new
    areal        decoupled, around AReaL's guess at the policy one version before the current one
    m2po, dppo, icepop    those of docs/recipes.md
    ppo_ewma     decoupled, around an average of the weights

With more (MORE) of any of them, as `default+ess` or `vcpo+grow`:

    ess          the learning rate shrinks with the effective sample size
    narrow       half the clip
    wide         no clip and no band: the ratio alone
    longer       a learning rate of 1.25 times run.toml's
    grow         the lag grows from 0, by one every second step, until it is there

Each cell is a line of JSON in `--out` as soon as it is done, and what is there already is not run
again, so that it can be stopped and resumed; the table is of all the lines there are.

    python bench/high_lag.py [--out high_lag.jsonl] [--methods default,vcpo] [--lags 0,8]
                             [--seeds 0] [--processes 2] [--every 10]
                             [--set train.lr=1e-3]
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import os
import statistics
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import torch
import trio

from asyncrl import config as configuration
from asyncrl.actors.coordinator.prompts import PromptSource
from asyncrl.bundled.warmup import prepare_model
from asyncrl.config import Config
from asyncrl.config.chunk_tokens import chunk_tokens
from asyncrl.config.micro_tokens import micro_tokens
from asyncrl.engines.embedded import EmbeddedEngine
from asyncrl.engines.embedded.embedded_options import EmbeddedOptions
from asyncrl.engines.protocol import Chunk, Request
from asyncrl.experience.micro_batches import micro_batches
from asyncrl.messages import Finish, MicroBatch, Sample, Span, Split
from asyncrl.tasks import Task, open_task
from asyncrl.tasks.text import Tokenizer
from asyncrl.training.learner import Learner
from asyncrl.training.models import load_model, parameters_for_publication

RUN_TOML = Path(__file__).parent.parent / "run.toml"
SETTINGS = ["train.steps=320"]
METHODS: dict[str, list[str]] = {
    "default": [],
    "decoupled": [
        "staleness.proximal=snapshot",
        'staleness.correction=[{kind = "token_tis", hi = 2.0}]',
    ],
    "vcpo": [
        "train.objective=reinforce",
        "train.advantage=min_variance_logits",
        "train.loss_mean=constant",
        "train.ess_base=1.0",
        'staleness.correction=[{kind = "sequence_tis", hi = 8.0}]',
    ],
    "uncorrected": ["train.objective=reinforce", "staleness.correction=[]"],
    "m2po": [
        "train.objective=one_forward",
        "train.loss_divisor=all",
        'staleness.correction=[{kind = "m2po", hi = 0.04}]',
    ],
    "dppo": [
        "train.objective=one_forward",
        "train.loss_divisor=all",
        'staleness.correction=[{kind = "dppo", lo = 0.2, hi = 0.2}]',
    ],
    "areal": [
        "staleness.proximal=loglinear",
        'staleness.correction=[{kind = "token_tis", hi = 5.0}]',
    ],
    "icepop": [
        "train.loss_mean=rollout",
        "train.loss_divisor=all",
        "staleness.proximal=snapshot",
    ],
    "ppo_ewma": [
        "train.ema=0.889",
        "staleness.proximal=ema",
        'staleness.correction=[{kind = "token_tis", hi = 2.0}]',
    ],
}
MORE: dict[str, list[str]] = {
    "ess": ["train.ess_base=1.0"],
    "narrow": ["train.clip_lo=0.1", "train.clip_hi=0.14"],
    "wide": ["train.clip_lo=0.99", "train.clip_hi=1000.0", "staleness.correction=[]"],
    "longer": ["train.lr=5e-4"],
    "grow": [],
}
FIRST = ["default", "decoupled", "vcpo", "uncorrected"]
"""Those that are run where none are named."""
LAGS = [0, 2, 8, 32, 128]
GROW = 2
"""Steps for each version by which the lag of `grow` grows."""
GOAL = 0.8
"""Accuracy whose step is told."""
AIM, NEAR, FAR = 0.02, 8, 128
"""Largest cost in accuracy of lag `NEAR`; and the lag at which it is asked who is stable."""
TAIL = 10
"""Steps whose mean says how it went in the end."""


class Cell(msgspec.Struct, frozen=True):
    """One run: a method at a lag, from a seed, with settings over those of the method, evaluated
    once in `every` steps."""

    method: str
    lag: int
    seed: int
    sets: list[str] = []
    every: int = 20

    def lag_of(self, step: int) -> int:
        """Age in versions of the weights that sample for a step."""
        grown = step // GROW if "grow" in self.method.split("+") else step
        return min(self.lag, grown)


class Result(msgspec.Struct, frozen=True):
    """One run: held-out accuracy (greedy) of each version that was evaluated, the last steps' means
    (`ended`: the share of answers that end within their budget), and seconds of one core."""

    cell: Cell
    curve: dict[int, float]
    reward: float
    ended: float
    kept: float
    ess: float
    k3: float
    seconds: float

    @property
    def start(self) -> float:
        return self.curve[0]

    @property
    def final(self) -> float:
        return self.curve[max(self.curve)]

    @property
    def reached(self) -> float:
        """The step at which the line between two evaluations comes to the goal; infinite if none
        does."""
        steps = sorted(self.curve)
        for before, after in pairwise(steps):
            low, high = self.curve[before], self.curve[after]
            if high >= GOAL:
                return before + (after - before) * max(0.0, (GOAL - low) / (high - low))
        return math.inf

    @property
    def fall(self) -> float:
        """Distance of the end under the best."""
        return max(self.curve.values()) - self.final


class Response(NamedTuple):
    """Tokens that an engine sampled for one request, and why they end."""

    ids: np.ndarray
    behaviour: np.ndarray
    finish: Finish


class Generator:
    """The embedded engine, one batch of requests at a time."""

    def __init__(
        self,
        engine: EmbeddedEngine,
        task: Task,
        prompts: PromptSource,
        tokenizer: Tokenizer,
        config: Config,
    ) -> None:
        self.engine, self._task, self._tokenizer, self._config = engine, task, tokenizer, config
        self._prompts = prompts
        self._chunks: dict[int, list[Chunk]] = {}
        self._left = 0
        self._done = trio.Event()

    async def emit(self, chunks: Sequence[Chunk]) -> None:
        for chunk in chunks:
            self._chunks.setdefault(chunk.rollout, []).append(chunk)
            self._left -= bool(chunk.finish)
        if not self._left:
            self._done.set()
        await trio.lowlevel.checkpoint()

    def prompt(self, split: Split, prompt_index: int) -> np.ndarray:
        return np.frombuffer(self._prompts.ids(split, prompt_index), np.int32)

    async def sample(
        self, prompts: Sequence[np.ndarray], key: int, temperature: float
    ) -> list[Response]:
        """One response to each, drawn with keys from `key` on, in the given order."""
        self._chunks, self._left, self._done = {}, len(prompts), trio.Event()
        tokens = self._config.rollout.max_new_tokens
        self.engine.submit(
            [Request(n, 1, key + n, ids, 0, tokens, temperature) for n, ids in enumerate(prompts)]
        )
        await self._done.wait()
        parts = [self._chunks[n] for n in range(len(prompts))]
        assert all(chunk.version == self.engine.version for chunks in parts for chunk in chunks)
        return [
            Response(
                np.concatenate([c.ids for c in chunks]),
                np.concatenate([c.behaviour for c in chunks]),
                chunks[-1].finish,
            )
            for chunks in parts
        ]

    def reward(self, split: Split, prompt_index: int, response: Response) -> float:
        return self._task.verify(split, prompt_index, self._tokenizer.decode(response.ids.tolist()))

    async def accuracy(self) -> float:
        """Share of held-out prompts whose greedy answer is fully right."""
        items = self._prompts.evaluation_items()
        responses = await self.sample(
            [self.prompt("evaluation", prompt_index) for prompt_index in items], 0, 0.0
        )
        return statistics.mean(
            self.reward("evaluation", prompt_index, found) >= 1
            for prompt_index, found in zip(items, responses, strict=True)
        )


def settings(cell: Cell) -> Config:
    name, *more = cell.method.split("+")
    method = sum((MORE[each] for each in more), METHODS[name])
    old = max(1, cell.lag)
    sets = [f"staleness.max_lag={old}", f"staleness.depth={old}", f"run.seed={cell.seed}"]
    config = configuration.load(RUN_TOML, [*SETTINGS, *method, *sets, *cell.sets], {})
    if cell.lag >= config.train.steps:
        raise SystemExit(
            f"in {config.train.steps} steps nothing has a lag of {cell.lag}: set train.steps"
        )
    return config


def run(cell: Cell) -> Result:
    """One cell, in this process, on one thread."""
    torch.set_num_threads(1)
    config = settings(cell)
    return trio.run(_run, cell, config, prepare_model(config))


async def _run(cell: Cell, config: Config, initial: Path) -> Result:
    begun = time.process_time()
    tokenizer, task = Tokenizer(initial), open_task(config.task, config.run.seed)
    prompts = PromptSource(task, tokenizer, seed=config.run.seed, epochs=0)
    engine = EmbeddedEngine(
        load_model(initial),
        EmbeddedOptions(
            slots=config.engine.slots,
            context_tokens=config.engine.context_tokens,
            chunk_tokens=chunk_tokens(config),
            stop_ids=frozenset(tokenizer.stop_ids),
            run_seed=config.run.seed,
            kv=config.engine.kv,
            packed_from=8,
        ),
    )
    generator = Generator(engine, task, prompts, tokenizer, config)
    learner = Learner(
        load_model(initial),
        config.train,
        config.staleness,
        config.rollout.temperature,
        budget=config.rollout.max_new_tokens,
    )
    weights = {0: _weights(learner)}
    curve, metrics = dict[int, float](), deque[dict[str, float]](maxlen=TAIL)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(engine.run, generator.emit)
        await engine.load(0, weights[0])
        curve[0] = await generator.accuracy()
        for step in range(config.train.steps):
            version = step - cell.lag_of(step)
            weights = {each: weights[each] for each in weights if each >= version}
            await engine.load(version, weights[version])
            metrics.append(await _step(generator, learner, prompts, config))
            weights[learner.version] = _weights(learner)
            if learner.version % cell.every == 0 or learner.version == config.train.steps:
                await engine.load(learner.version, weights[learner.version])
                curve[learner.version] = await generator.accuracy()
        nursery.cancel_scope.cancel()
    means = {
        name: statistics.mean(row[name] for row in metrics)
        for name in ("reward", "ended", "kept_fraction", "ess", "k3")
    }
    return Result(
        cell,
        curve,
        reward=means["reward"],
        ended=means["ended"],
        kept=means["kept_fraction"],
        ess=means["ess"],
        k3=means["k3"],
        seconds=time.process_time() - begun,
    )


async def _step(
    generator: Generator, learner: Learner, prompts: PromptSource, config: Config
) -> dict[str, float]:
    """Generate and train one step; what was sampled is of the version that the engine has."""
    size, step, groups = config.rollout.group_size, learner.version, config.train.batch_groups
    items = [
        prompt_index
        for place in range(step * groups, (step + 1) * groups)
        if (prompt_index := prompts.train_item(place)) is not None
    ]
    texts = [generator.prompt("train", prompt_index) for prompt_index in items]
    asked = [text for text in texts for _ in range(size)]
    responses = await generator.sample(asked, step * groups * size, config.rollout.temperature)
    scores = [
        generator.reward("train", items[n // size], response)
        for n, response in enumerate(responses)
    ]
    version = generator.engine.version
    assert version is not None
    every = {group: scores[group * size : (group + 1) * size] for group in range(groups)}
    taken = [group for group, found in every.items() if min(found) < max(found)]
    members = [range(group * size, (group + 1) * size) for group in taken]

    def sample(n: int) -> Sample:
        tokens = len(responses[n].ids)
        return Sample(
            step * groups * size + n,
            n // size,
            len(asked[n]),
            tokens,
            scores[n],
            [Span(version, len(asked[n]), len(asked[n]) + tokens)],
            finish=responses[n].finish,
        )

    for index, batch in enumerate(
        micro_batches(
            members, lambda n: len(asked[n]) + len(responses[n].ids), micro_tokens(config)
        )
    ):
        ids = b"".join(asked[n].tobytes() + responses[n].ids.tobytes() for n in batch)
        behaviour = b"".join(responses[n].behaviour.tobytes() for n in batch)
        rewards = {group: every[group] for group in dict.fromkeys(n // size for n in batch)}
        mask = b"\1" * (len(behaviour) // 4)
        learner.accumulate(
            MicroBatch(step, index, [sample(n) for n in batch], rewards), (ids, behaviour, mask)
        )
    ended = statistics.mean(response.finish == "stop" for response in responses)
    return {"reward": statistics.mean(scores), "ended": ended, **learner.step()}


def _weights(learner: Learner) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in parameters_for_publication(learner.model)}


def table(results: Sequence[Result]) -> None:
    """Medians over the seeds of each method at each lag, and the worst; `cost` is how far the final
    accuracy is under that of the same method at lag 0, `fall` how far under its own best, at
    most; `to` the step of the goal."""
    found: dict[tuple[str, int], list[Result]] = {}
    for result in results:
        found.setdefault((result.cell.method, result.cell.lag), []).append(result)
    finals = {cell: statistics.median(row.final for row in rows) for cell, rows in found.items()}
    heads = (
        "start",
        "final",
        "worst",
        "most",
        "cost",
        "fall",
        "reward",
        "ended",
        "kept",
        "ess",
        "to",
    )
    print(f"{'loss':<18}{'lag':>4}{'seeds':>6}" + "".join(f"{head:>8}" for head in heads), end="")
    print(f"{'k3':>9}{'s':>6}")
    for cell in sorted(found, key=_place):
        (method, lag), rows = cell, found[cell]
        every = [row.final for row in rows]
        values = [statistics.median(row.start for row in rows), finals[cell], min(every)]
        values += [max(every), finals.get((method, 0), math.nan) - finals[cell]]
        values += [max(row.fall for row in rows)]
        values += [
            statistics.median(getattr(row, name) for row in rows)
            for name in ("reward", "ended", "kept", "ess", "reached")
        ]
        print(f"{method:<18}{lag:>4}{len(rows):>6}", end="")
        print("".join(f"{value:>8.3f}" for value in values), end="")
        print(f"{statistics.median(row.k3 for row in rows):>9.4f}", end="")
        print(f"{statistics.median(row.seconds for row in rows):>6.0f}")
    fresh, near, far = (
        [(finals[cell], cell[0]) for cell in finals if cell[1] == lag] for lag in (0, NEAR, FAR)
    )
    if fresh and near:
        print(
            f"\nlag {NEAR} under lag 0, the best of each: {max(fresh)[0] - max(near)[0]:.3f} "
            f"({max(near)[1]}, {max(fresh)[1]}; aim: at most {AIM})"
        )
    if far:
        print(f"the best at lag {FAR}: {max(far)[0]:.3f} ({max(far)[1]})")


def _place(cell: tuple[str, int]) -> tuple[int, str, int]:
    return list(METHODS).index(cell[0].split("+")[0]), *cell


def listed(text: str) -> list[str]:
    return text.split(",")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("high_lag.jsonl"))
    parser.add_argument("--methods", type=listed, default=FIRST)
    parser.add_argument("--lags", type=listed, default=LAGS)
    parser.add_argument("--seeds", type=listed, default=list(range(8)))
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--every", type=int, default=20, help="steps between two evaluations")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        dest="sets",
        help="section.key=value, over what the method sets",
    )
    arguments = parser.parse_args()
    for method in arguments.methods:
        name, *more = method.split("+")
        if name not in METHODS or not MORE.keys() >= set(more):
            parser.error(f"there is no method {method}: {', '.join(METHODS)}, + {', '.join(MORE)}")
    lines = arguments.out.read_text().splitlines() if arguments.out.exists() else []
    results = [msgspec.json.decode(line, type=Result) for line in lines]
    asked = [
        Cell(method, int(lag), int(seed), arguments.sets, arguments.every)
        for seed in arguments.seeds
        for lag in arguments.lags
        for method in arguments.methods
    ]
    done = [result.cell for result in results]
    os.environ |= {"OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
    for seed in {cell.seed for cell in asked if cell not in done}:
        prepare_model(settings(Cell("default", 0, seed, arguments.sets)))
    with (
        ProcessPoolExecutor(arguments.processes, multiprocessing.get_context("spawn")) as pool,
        arguments.out.open("ab") as out,
    ):
        for future in as_completed([pool.submit(run, cell) for cell in asked if cell not in done]):
            results.append(future.result())
            out.write(msgspec.json.encode(results[-1]) + b"\n")
            out.flush()
    table([result for result in results if result.cell in asked])


if __name__ == "__main__":
    main()
