"""The supervised warm-up of the bundled model. Invariant: what comes out is a function of the settings, and is computed once on a machine.

The model learns the training prompts' own answers: the loss is on the answer and its end alone. It stops as soon as it would give them
often enough for reinforcement learning to find something to reinforce (`model.warmup_success`), at the latest after `model.warmup_steps`.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from asyncrl.config.schema import Config
from asyncrl.tasks import Task, TaskError, open_task
from asyncrl.tasks.text import Tokenizer
from asyncrl.training import bundled

CODE = 2
"""Counts the changes of this file, of `bundled.py` and of the tasks that change what comes out."""
BATCH = 64
"""Answers in a step."""
RATE, RAMP = 5e-4, 20
"""AdamW's learning rate, and the steps of its linear ramp."""
SMOOTHING = 0.7
"""What a step keeps of the estimate of success before it."""
IGNORED = -100

log = logging.getLogger(__name__)


def prepare_model(config: Config) -> Path:
    """The model directory that the run starts from: `model.path`, or the bundled model, warmed up for the task and kept in the user's
    cache, where the next run with these settings finds it. Computes with torch's threads. Raises TaskError."""
    if config.model.path:
        return Path(config.model.path)
    final = cache() / f"{config.task.name}-{key(config)}"
    if (final / "config.json").is_file():
        return final
    final.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f"{final.name}.", dir=final.parent))
    try:
        _make(config, work)
        _publish(work, final)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return final


def cache() -> Path:
    """`$XDG_CACHE_HOME/asyncrl`, or `~/.cache/asyncrl`."""
    home = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(home) if home else Path.home() / ".cache") / "asyncrl"


def key(config: Config) -> str:
    """Names what the warm-up depends on, and nothing else."""
    task = msgspec.structs.asdict(config.task)
    file = Path(config.task.path)
    if config.task.path and file.is_file():
        task["modified"] = file.stat().st_mtime_ns
    parts = [CODE, task, config.model, config.run.seed, str(torch.__version__)]
    return hashlib.blake2b(msgspec.json.encode(parts), digest_size=8).hexdigest()


def teach(model: Any, tokenizer: Tokenizer, task: Task, *, steps: int, enough: float) -> float:
    """Train until a sampled answer would be the task's own with probability `enough`, at most `steps` steps of `BATCH` answers. Returns
    that probability: the mean over answers of the product of their tokens' probabilities, smoothed over about three steps. Raises TaskError
    where the task knows no answers."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.98), weight_decay=0.01)
    success = 0.0
    for step, (ids, labels) in zip(range(steps), _batches(tokenizer, task), strict=False):
        for group in optimizer.param_groups:
            group["lr"] = RATE * min(1.0, (step + 1) / RAMP)
        likely = log_likelihood(model, ids, labels)
        loss = -likely.sum() / (labels != IGNORED).sum()
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        success = SMOOTHING * success + (1 - SMOOTHING) * likely.detach().exp().mean().item()
        if (done := success >= enough) or step % 50 == 49:
            log.info("warm-up step %d: loss %.3f, right with probability %.3f", step + 1, loss.item(), success)
        if done:
            break
    return success


def log_likelihood(model: Any, ids: Tensor, labels: Tensor) -> Tensor:
    """float32 [rows]: of each row's labelled tokens together, given what stands before them. The head is asked for no other token."""
    hidden = model.model(input_ids=ids).last_hidden_state[:, :-1]
    told = labels[:, 1:] != IGNORED
    of_tokens = cross_entropy(model.lm_head(hidden[told]), labels[:, 1:][told], reduction="none")
    return -torch.zeros(len(ids)).index_add(0, told.nonzero()[:, 0], of_tokens)


def _batches(tokenizer: Tokenizer, task: Task) -> Iterator[tuple[Tensor, Tensor]]:
    """`[BATCH, length]` ids, padded at the right, and labels: the answers' ids, `IGNORED` elsewhere. Goes round the training split."""
    item, size = 0, task.size("train")
    while True:
        rows: list[tuple[list[int], list[int]]] = []
        for _ in range(BATCH):
            answer = task.answer("train", item % size)
            if answer is None:
                raise TaskError("the task knows no answers to warm the bundled model up with; set model.path, or model.warmup_steps = 0")
            rows.append((tokenizer.encode(task.prompt("train", item % size)), [*tokenizer.encode(answer), bundled.END_ID]))
            item += 1
        length = max(len(prompt) + len(answer) for prompt, answer in rows)
        ids = torch.full((BATCH, length), bundled.PADDING_ID)
        labels = torch.full((BATCH, length), IGNORED)
        for row, (asked, told) in enumerate(rows):
            end = len(asked) + len(told)
            ids[row, :end] = torch.tensor(asked + told)
            labels[row, len(asked) : end] = torch.tensor(told)
        yield ids, labels


def _make(config: Config, directory: Path) -> None:
    """The bundled model, warmed up, in `directory`."""
    task = open_task(config.task, config.run.seed)
    bundled.write_tokenizer(directory, bundled.frame([task.prompt("train", item) for item in range(min(64, task.size("train")))]))
    model = bundled.new_model(config.run.seed)
    teach(model, Tokenizer(directory), task, steps=config.model.warmup_steps, enough=config.model.warmup_success)
    model.save_pretrained(str(directory))


def _publish(work: Path, final: Path) -> None:
    """Give the finished directory its name; a run that was quicker keeps it."""
    try:
        work.rename(final)
    except OSError:
        if not (final / "config.json").is_file():
            raise
