"""Twelve ordinary files, each as a public data set has it: the settings that it needs, and the
seconds from `asyncrl init FILE` to the end of a run of a few steps; and with --rows a Parquet file
of so many rows: seconds to the first prompt and memory.

    python bench/data_formats.py [--only NAME] [--rows 5000000]

Each file has 40 sums. The warm-up of the bundled model is cut short, and two steps are trained: the
seconds are those of reading, checking and starting, not of learning.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import io
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

Row = dict[str, Any]
BRIEF = ("--set=train.steps=2", "--set=model.warmup_steps=4", "--set=rollout.filter=none")
SUMS = [(f"{n} + {n + 1} =", str(2 * n + 1)) for n in range(40)]


class Case(NamedTuple):
    """A file: its name, what writes it, and the settings that it needs."""

    file: str
    data: Callable[[], bytes]
    settings: tuple[str, ...] = ()


def lines(row: Callable[[str, str], Row]) -> bytes:
    return b"".join(json.dumps(row(*one)).encode() + b"\n" for one in SUMS)


def table(row: Callable[[str, str], Row]) -> bytes:
    rows = [row(*one) for one in SUMS]
    writer = csv.DictWriter(text := io.StringIO(), list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()


def parquet(row: Callable[[str, str], Row]) -> bytes:
    import pyarrow
    from pyarrow import parquet

    parquet.write_table(pyarrow.Table.from_pylist([row(*one) for one in SUMS]), out := io.BytesIO())
    return out.getvalue()


def user(text: str) -> Row:
    return {"role": "user", "content": text}


def chat(question: str, answer: str) -> Row:
    system = {"role": "system", "content": "Be brief."}
    return {"messages": [system, user(question), {"role": "assistant", "content": answer}]}


def verl(question: str, answer: str) -> Row:
    truth = {"style": "rule", "ground_truth": answer}
    return {"data_source": "own", "prompt": [user(question)], "reward_model": truth}


def own(question: str, answer: str) -> Row:
    return {"prompt": question, "answer": int(answer)}


CASES: Mapping[str, Case] = {
    "asyncrl's own": Case("own.jsonl", lambda: lines(own)),
    "gsm8k": Case(
        "gsm8k.jsonl", lambda: lines(lambda q, a: {"question": q, "answer": f"So.\n#### {a}"})
    ),
    "MATH": Case(
        "math.jsonl", lambda: lines(lambda q, a: {"problem": q, "solution": f"\\boxed{{{a}}}"})
    ),
    "chat messages": Case("chat.jsonl", lambda: lines(chat)),
    "verl, DAPO (Parquet)": Case("verl.parquet", lambda: parquet(verl)),
    "prime-rl, verifiers": Case(
        "verifiers.jsonl", lambda: lines(lambda q, a: {"prompt": [user(q)], "answer": a})
    ),
    "open-instruct (RLVR)": Case(
        "rlvr.jsonl.gz",
        lambda: gzip.compress(lines(lambda q, a: {"messages": [user(q)], "ground_truth": a})),
    ),
    "slime": Case("slime.jsonl", lambda: lines(lambda q, a: {"prompt": q, "label": a})),
    "OpenR1, DeepScaleR (JSON array)": Case(
        "openr1.json",
        lambda: json.dumps([{"problem": q, "solution": "", "answer": a} for q, a in SUMS]).encode(),
    ),
    "alpaca": Case(
        "alpaca.json",
        lambda: json.dumps(
            [{"instruction": q, "input": "", "output": a} for q, a in SUMS]
        ).encode(),
    ),
    "a table (CSV with a byte order mark)": Case(
        "table.csv", lambda: b"\xef\xbb\xbf" + table(lambda q, a: {"Question": q, "Answer": a})
    ),
    "keys of one's own": Case(
        "mine.jsonl",
        lambda: lines(lambda q, a: {"body": {"ask": q}, "answer": a}),
        ("--set=task.prompt_key=body.ask",),
    ),
}


def trained(case: Case, folder: Path) -> float:
    """Write the file, and train on it. Returns the seconds. Raises CalledProcessError."""
    (folder / case.file).write_bytes(case.data())
    begin = time.monotonic()
    asyncrl = [sys.executable, "-m", "asyncrl"]
    if case.settings:  # `init` takes no settings: those of a run without it
        settings = [
            f"--set=task.path={case.file}",
            "--set=task.name=data",
            "--set=task.eval_size=8",
        ]
        command = [*asyncrl, "train", *settings, *case.settings, *BRIEF]
        subprocess.run(command, cwd=folder, check=True, capture_output=True)
    else:
        subprocess.run([*asyncrl, "init", case.file], cwd=folder, check=True, capture_output=True)
        command = [*asyncrl, "train", "run.toml", *BRIEF]
        subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return time.monotonic() - begin


OPEN = """
import json, resource, sys, time
begin = time.monotonic()
from asyncrl.config.schema import TaskConfig
from asyncrl.tasks import open_task
task = open_task(TaskConfig(name="data", path=sys.argv[1]), 0)
task.prompt("train", task.size("train") // 2)
own = [line for line in open("/proc/self/status") if line.startswith("RssAnon")][0].split()[1]
print(json.dumps([time.monotonic() - begin, int(own) / 1024, task.size("train")]))
"""


def write_large(path: Path, rows: int) -> None:
    """Write a Parquet file of questions, in verl's form and the default row groups."""
    import pyarrow
    from pyarrow import parquet

    writer = None
    for start in range(0, rows, 2**17):
        part = [
            verl(f"Question {n}: what is {n} + {n % 997}? Show your work.", str(n + n % 997))
            for n in range(start, min(rows, start + 2**17))
        ]
        content = pyarrow.Table.from_pylist(part)
        writer = writer or parquet.ParquetWriter(path, content.schema)
        writer.write_table(content)
    if writer:
        writer.close()


def measure_large(rows: int, folder: Path) -> None:
    """Print seconds to the first prompt and memory of its own, for a first and a second process."""
    write_large(path := folder / "large.parquet", rows)
    env = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache")}
    for which in ("first", "next"):
        command = [sys.executable, "-c", OPEN, str(path)]
        done = subprocess.run(command, check=True, capture_output=True, env=env)
        seconds, memory, trains = json.loads(done.stdout)
        print(
            f"{rows:,} rows, {path.stat().st_size >> 20} MiB, {which} process: "
            f"{seconds:.1f} s to the first prompt, {memory:.0f} MiB of its own, {trains:,} train"
        )


def main() -> None:
    """Print a row for each file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=CASES)
    parser.add_argument("--rows", type=int, default=0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        if arguments.rows:
            measure_large(arguments.rows, Path(name))
            return
        print(f"load {os.getloadavg()[0]:.1f} of {os.cpu_count()} cores", flush=True)
        for number, (what, case) in enumerate(CASES.items()):
            if arguments.only in (None, what):
                (folder := Path(name, str(number))).mkdir()
                seconds = trained(case, folder)
                said = " ".join(case.settings).replace("--set=", "") or "none"
                print(f"| {what} | `{case.file}` | {said} | {seconds:.0f} |", flush=True)


if __name__ == "__main__":
    main()
