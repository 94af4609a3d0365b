"""The tasks that the bundled model can learn: each data set of reasoning-gym, with its own
parameters, warmed up with the default settings, for at most so many seconds of one core.

    python bench/learnable.py [--seconds 60] [--only NAME ...] [--again]

What was measured before stays, unless `--again`. Writes `asyncrl/tasks/catalog.json`, from which
`asyncrl tasks` reads, and the table of docs/tasks.md, which has what was measured, after each task;
so it may be ended at any time.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import msgspec
import torch

from asyncrl.bundled import bundled_model
from asyncrl.bundled.outlook import Lesson
from asyncrl.bundled.warmup import teach
from asyncrl.config.schema import ModelConfig, TaskConfig
from asyncrl.explain.task_list import example
from asyncrl.tasks import Task, TaskError, open_task
from asyncrl.tasks.catalog import FILE, CatalogEntry, Learned, fits, verdict
from asyncrl.tasks.gym_library import DATASETS
from asyncrl.tasks.text import Tokenizer

ROOT = Path(__file__).parents[1]
CATALOG, PAGE = ROOT / "asyncrl" / "tasks" / FILE, ROOT / "docs" / "tasks.md"
LOOKED_AT = 64
"""Prompts that lengths are measured on."""
QUESTION = 1500
"""Characters of an example's question that are kept."""
SHOWN, SHOWN_OF_LONG = 44, 28
"""Characters of a question in the table of the page, and of one that is long for the defaults."""
MARK = "| task | an example | bundled model |\n|---|---|---|\n"


def described(name: str) -> tuple[Task, CatalogEntry]:
    """The data set, opened, and its entry without a measurement. Raises TaskError."""
    task = open_task(TaskConfig(name=name, train_size=2_000, eval_size=0), 0)
    prompts = [task.prompt("train", item) for item in range(LOOKED_AT)]
    answers = [task.answer("train", item) for item in range(LOOKED_AT)]
    tokenizer = bundled_model.tokenizer(bundled_model.frame(prompts))

    def most(texts: list[str]) -> int:
        return max((len(tokenizer.encode(text).ids) for text in texts), default=0)

    shortest = min(range(LOOKED_AT), key=lambda item: len(prompts[item]) + len(answers[item] or ""))
    entry = CatalogEntry(
        name=name,
        question=prompts[shortest].strip()[:QUESTION],
        answer=answers[shortest],
        prompt_tokens=most(prompts),
        answer_tokens=1 + most([answer for answer in answers if answer is not None]),
    )
    return task, entry


def learned(task: Task, limit_s: float) -> Learned | None:
    """Warm the bundled model up for at most so many seconds of this process; None where the task
    knows no answers."""
    settings, began, last = ModelConfig(), time.process_time(), Lesson(0, 0.0, 0.0, 0.0, 0.0)
    with tempfile.TemporaryDirectory() as folder:
        prompts = [task.prompt("train", item) for item in range(LOOKED_AT)]
        bundled_model.write_tokenizer(Path(folder), bundled_model.frame(prompts))
        steps, enough = settings.warmup_steps, settings.warmup_accuracy
        lessons = teach(
            bundled_model.new_model(0), Tokenizer(Path(folder)), task, steps=steps, enough=enough
        )
        try:
            for lesson in lessons:
                last = lesson
                if time.process_time() - began > limit_s:
                    break
        except TaskError:
            return None
    return Learned(
        accuracy=round(last.accuracy, 3),
        steps=last.step,
        seconds=round(time.process_time() - began, 1),
        ended=last.accuracy >= enough or last.step >= steps,
    )


def write(entries: dict[str, CatalogEntry]) -> None:
    """Write the catalog, and the table of the page."""
    ordered = [entries[name] for name in sorted(entries)]
    lines = b",\n".join(msgspec.json.encode(entry) for entry in ordered)
    CATALOG.write_bytes(b"[\n" + lines + b"\n]\n")
    head, mark, _ = PAGE.read_text().partition(MARK)
    PAGE.write_text(head + mark + "".join(map(row, filter(known, ordered))))


def known(entry: CatalogEntry) -> bool:
    """True for a task of the page: it was measured, or has no answers to teach."""
    return entry.learned is not None or entry.answer is None


def row(entry: CatalogEntry) -> str:
    """A task in the table of the page."""
    shown = SHOWN if fits(entry) else SHOWN_OF_LONG
    return f"| `{entry.name}` | {cell(example(entry, shown))} | {verdict(entry)} |\n"


def cell(text: str) -> str:
    """Text in a table of a page."""
    return "`` " + text.replace("|", "¦").replace("``", "´´") + " ``"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--seconds", type=float, default=60.0, help="of one core, for each task")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these data sets")
    parser.add_argument("--again", action="store_true", help="measure what was measured before")
    args = parser.parse_args()
    torch.set_num_threads(1)
    entries = {}
    if CATALOG.exists():
        read = msgspec.json.decode(CATALOG.read_bytes(), type=list[CatalogEntry])
        entries = {entry.name: entry for entry in read}
    for name in args.only or sorted(DATASETS):
        before = entries.get(name)
        try:
            task, entry = described(name)
        except TaskError as error:
            print(f"{name:26} left out: {error}")
            continue
        found = before.learned if before is not None and not args.again else None
        if found is None and args.seconds and fits(entry) and entry.answer is not None:
            found = learned(task, args.seconds)
        entries[name] = msgspec.structs.replace(entry, learned=found)
        print(f"{name:26} {verdict(entries[name])}", flush=True)
        write(entries)


if __name__ == "__main__":
    main()
