"""The supervised warm-up of the bundled model. Invariant: its result is a function of the
settings, and is computed at most once on a machine.

Two models are shipped warmed up, in `prewarmed/` beside this file, so that a newcomer need not wait
for them: that of the main job (`run.toml`), and that of an agent with default settings, which takes
minutes. `python -m asyncrl.bundled.warmup run.toml` writes that folder.

The model learns the training prompts' own answers: the loss is on the answer and its end alone. It
stops as soon as there is something to reinforce: enough of its greedy answers are right
(`model.warmup_accuracy`), and of sampled ones, which is what reinforcement learning sees, a tenth
as many. At the latest it stops after `model.warmup_steps`: to learn the task well is the purpose of
reinforcement learning. For an agent it also learns to answer again (`further_turns.py`), and reads
the question alone (`question_template.py`).
"""

from __future__ import annotations

import hashlib
import logging
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from asyncrl.bundled import bundled_model
from asyncrl.bundled.frame import frame_of
from asyncrl.bundled.further_turns import FurtherTurns
from asyncrl.bundled.outlook import Lesson
from asyncrl.bundled.question_template import question_template
from asyncrl.config import read
from asyncrl.config.mix import each, is_counted, named
from asyncrl.config.schema import AgentConfig, Config, TaskConfig
from asyncrl.tasks import Task, TaskError, open_task
from asyncrl.tasks.gym_indices import indices_of
from asyncrl.tasks.mixed import in_turn
from asyncrl.tasks.prompt import Prompt, text_of
from asyncrl.tasks.text import Tokenizer
from asyncrl.user_cache import cache

CODE = 7
"""Counts the changes of this file, of `bundled_model.py`, of the tasks and of defaults that change
the result."""
PREWARMED = Path(__file__).with_name("prewarmed")
"""Model directories that are installed with the package, each named by its task and recipe."""
BATCH = 64
UNREAD = 1000
"""Prompts in a row that may be unreadable."""
"""Answers in a step."""
RATE, RAMP = 1e-3, 20
"""AdamW's learning rate, and the steps of its linear ramp."""
SMOOTHING = 0.5
"""Share of the accuracy before it that a step keeps."""
SAMPLED = 0.1
"""Right sampled answers for each right greedy one that are enough. Sorting five letters is
right greedily one time in four after 25 steps, and sampled not once in 4,000 times."""
IGNORED = -100
SAMPLED_BY_AGENTS = 0.5
"""The same for an agent, whose attempts are slow."""
PIECES = 4
"""Parts of a step for an agent, each of prompts of about the same length."""

log = logging.getLogger(__name__)


def prepare_model(
    config: Config, on_lesson: Callable[[Lesson], None] = lambda lesson: None
) -> Path:
    """The model directory that the run starts from: `model.path`, or the bundled model, warmed up
    for the task. That one comes with the package (`PREWARMED`) or is kept in the user's cache,
    where the next run with these settings finds it. `on_lesson` is called for each step of a
    warm-up. Computes with torch's threads. Raises TaskError."""
    if config.model.path:
        return Path(config.model.path)
    name = _name(config)
    if (PREWARMED / name / "config.json").is_file():
        return PREWARMED / name
    final = cache() / f"{name}-{torch.__version__}"
    if (final / "config.json").is_file():
        return final
    final.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f"{final.name}.", dir=final.parent))
    try:
        _make(config, work, on_lesson)
        _publish(work, final)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return final


def recipe(config: Config) -> str:
    """A name for what the warm-up's result follows from, and for nothing else: the examples that it
    can come to, the weights that it begins with, and when it stops. Raises TaskError for a file
    that cannot be read."""
    of_file = config.sft.run and config.task.reads_data  # nothing of it is in the model
    tasks = () if of_file else each(config.task)
    steps = config.model.warmup_steps
    examples = max(steps * BATCH, bundled_model.FRAMED)
    parts = [
        CODE,
        [
            _examples(
                task, len(range(place, examples, len(tasks))), config.run.seed
            )  # they are taught in turn
            for place, task in enumerate(tasks)
        ],
        steps,
        config.model.warmup_accuracy if steps else 0.0,
        config.run.seed,
        *(["of an agent"] if config.agent.run else []),
    ]
    return hashlib.blake2b(msgspec.json.encode(parts), digest_size=8).hexdigest()


def _examples(task: TaskConfig, most: int, seed: int) -> list[Any]:
    """Name the first `most` examples of a task: a file's or a class's by themselves; a data set's
    by what they follow from, because it takes seconds to make them."""
    if is_counted(task):
        rows = open_task(task, seed)
        return [_example(rows, index) for index in range(min(most, rows.size("train")))]
    size, some_held_out = min(most, task.train_size), task.eval_size > 0
    return [task.name, task.params, task.template, size, indices_of(task), some_held_out]


def _example(task: Task, index: int) -> list[Any]:
    """A prompt and its answer; nothing of one that cannot be read."""
    try:
        return [task.prompt("train", index), task.answer("train", index)]
    except TaskError:
        return []


def teach(
    model: Any,
    tokenizer: Tokenizer,
    task: Task,
    *,
    steps: int,
    enough: float,
    turns: FurtherTurns | None = None,
) -> Iterator[Lesson]:
    """Train until the share `enough` of greedy answers is right and `SAMPLED` times that of sampled
    ones, at most `steps` steps of `BATCH` answers. With `turns` prompts are as it gives them, and
    `SAMPLED_BY_AGENTS` counts. Yields each step. Its accuracy is that of greedy decoding on the
    batch before it is trained, its chance the probability of a right sample there; both are
    smoothed over two steps. Raises TaskError if the task has no answers."""
    began = time.monotonic()
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.98), weight_decay=0.01)
    accuracy = chance = 0.0
    sampled = SAMPLED if turns is None else SAMPLED_BY_AGENTS
    for step, batch in zip(range(steps), _batches(tokenizer, task, turns), strict=False):
        for group in optimizer.param_groups:
            group["lr"] = RATE * min(1.0, (step + 1) / RAMP)
        optimizer.zero_grad()
        loss, right, nats = _learned(model, batch)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        accuracy = SMOOTHING * accuracy + (1 - SMOOTHING) * right.float().mean().item()
        chance = SMOOTHING * chance + (1 - SMOOTHING) * torch.exp(-nats).mean().item()
        done = accuracy >= enough and chance >= sampled * enough
        if done or step % 50 == 49:
            log.info("warm-up step %d: loss %.3f, accuracy %.3f", step + 1, loss, accuracy)
        yield Lesson(
            step + 1, time.monotonic() - began, nats.mean().item(), accuracy, chance / sampled
        )
        if done:
            break


def _learned(model: Any, batch: Sequence[tuple[Tensor, Tensor]]) -> tuple[float, Tensor, Tensor]:
    """Add the gradient of a batch's mean loss, piece by piece; the loss, which answers are right,
    and their nats."""
    tokens = sum(int((labels != IGNORED).sum()) for _, labels in batch)
    losses, rights, every = 0.0, list[Tensor](), list[Tensor]()
    for ids, labels in batch:
        loss, right, nats = answer_losses(model, ids, labels)
        share = int((labels != IGNORED).sum()) / tokens
        (loss * share).backward()  # type: ignore[no-untyped-call]
        losses += loss.item() * share
        rights.append(right)
        every.append(nats)
    return losses, torch.cat(rights), torch.cat(every)


def answer_losses(model: Any, ids: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The mean loss of the labelled tokens (nats); bool [rows], true if each label of a row is
    the likeliest token, so that greedy decoding gives exactly this answer; and the nats of each
    row's answer [rows], without a gradient: a sample is right with probability `exp(-nats)`. The
    head computes no other token."""
    hidden = model.model(input_ids=ids).last_hidden_state[:, :-1]
    asked = labels[:, 1:] != IGNORED
    logits, answers = model.lm_head(hidden[asked]), labels[:, 1:][asked]
    of_row, losses = asked.nonzero()[:, 0], cross_entropy(logits, answers, reduction="none")
    wrong = torch.zeros(len(ids)).index_add(0, of_row, (logits.argmax(-1) != answers).float())
    nats = torch.zeros(len(ids)).index_add(0, of_row, losses.detach())
    return losses.mean(), wrong == 0, nats


def _batches(
    tokenizer: Tokenizer, task: Task, turns: FurtherTurns | None = None
) -> Iterator[list[tuple[Tensor, Tensor]]]:
    """Batches of `BATCH` prompts and answers, in one piece, or with `turns`, whose prompts are of
    any length, in `PIECES`, from the shortest to the longest. Repeats the training split."""
    items = in_turn(task)
    while True:
        rows: list[tuple[list[int], list[int]]] = []
        for _ in range(BATCH):
            item, prompt = _readable(task, items)
            answer = task.answer("train", item)
            if answer is None:
                raise TaskError(
                    "the task has no answers to warm the bundled model up with; set "
                    "model.path, or model.warmup_steps = 0"
                )
            if turns is not None and (text := text_of(prompt)):
                prompt = turns.before(text, answer)
            rows.append(
                (
                    tokenizer.encode(prompt),
                    [*tokenizer.encode(answer), bundled_model.END_ID],
                )
            )
        if turns is None:
            yield [_padded(rows)]
        else:
            rows.sort(key=lambda row: len(row[0]) + len(row[1]))
            size = max(1, BATCH // PIECES)
            yield [_padded(rows[at : at + size]) for at in range(0, BATCH, size)]


def _padded(rows: Sequence[tuple[list[int], list[int]]]) -> tuple[Tensor, Tensor]:
    """`[rows, length]` ids, padded at the right, and labels: the answers' ids, `IGNORED`
    elsewhere."""
    length = max(len(prompt) + len(answer) for prompt, answer in rows)
    ids = torch.full((len(rows), length), bundled_model.PADDING_ID)
    labels = torch.full((len(rows), length), IGNORED)
    for row, (question, reply) in enumerate(rows):
        end = len(question) + len(reply)
        ids[row, :end] = torch.tensor(question + reply)
        labels[row, len(question) : end] = torch.tensor(reply)
    return ids, labels


def _readable(task: Task, items: Iterator[int]) -> tuple[int, Prompt]:
    """The next prompt that can be read: a large data set is not checked to its end. Raises
    TaskError if many in a row cannot."""
    for _ in range(UNREAD):
        try:
            item = next(items)
            return item, task.prompt("train", item)
        except TaskError as error:
            why = error
    raise why


def _make(config: Config, directory: Path, on_lesson: Callable[[Lesson], None]) -> None:
    """Make and warm up the bundled model in `directory`."""
    played, frame = bool(config.agent.run), frame_of(config)
    steps, enough = config.model.warmup_steps, config.model.warmup_accuracy
    task = open_task(config.task, config.run.seed) if steps or played else None
    if played and task:
        template = question_template(bundled_model.first_prompts(task))
        bundled_model.write_tokenizer(directory, frame, template)
    else:
        bundled_model.write_tokenizer(directory, frame)
    model = bundled_model.new_model(config.run.seed)
    turns, accuracy = FurtherTurns(config.run.seed) if played else None, 0.0
    for lesson in (
        teach(model, Tokenizer(directory), task, steps=steps, enough=enough, turns=turns)
        if steps and task
        else ()
    ):
        accuracy = lesson.accuracy
        on_lesson(lesson)
    model.save_pretrained(str(directory))
    bundled_model.write_accuracy(directory, accuracy, steps)


def _publish(work: Path, final: Path) -> None:
    """Give the finished directory its name; one of a quicker run stays."""
    try:
        work.rename(final)
    except OSError:
        if not (final / "config.json").is_file():
            raise


def shipped(run_toml: Path) -> list[Config]:
    """The settings of the models in the package: of the main job, and of any agent."""
    return [read(run_toml), Config(agent=AgentConfig(run="any:agent"))]


def _name(config: Config) -> str:
    return f"{named(config.task)}-{recipe(config)}"


def main() -> None:
    """Warm up the models of the package, whose main job is a run.toml, and put them into it."""
    shutil.rmtree(PREWARMED, ignore_errors=True)
    for config in shipped(Path(sys.argv[1])):
        directory = PREWARMED / _name(config)
        directory.mkdir(parents=True)
        _make(config, directory, lambda lesson: print(f"{lesson.step}: {lesson.accuracy:.3f}"))


if __name__ == "__main__":
    main()
