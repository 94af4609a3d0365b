"""Directories of runs that somebody else has filled: links at every name that is written, pipes and
files without end at every name that is read, journals with more in them than a journal has.

They are made from a short run of a tiny model; what `rollouts` says of it is compared with its
file of prompts, and its rewards and accuracy are counted again.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stranger_kit import data
from stranger_kit.attempt import LOOKED, REFUSED, RUNS, Case, Said
from stranger_kit.models import STRANGE, no_file

Maker = Callable[[random.Random, Path, Path], Case]
LOOKS = ("why", "report", "compare", "rollouts", "top", "calibrate")
WRITTEN = (
    *("report.html", "models.toml", "summary.json", "status.json", "run.toml", "metrics.jsonl"),
    *("lock", "origins.json", "key", "stall.json", "logs/coordinator-0.log"),
    *("logs/trainer-0.log", "logs/launcher-0.log", "journal.sqlite-wal", "journal.sqlite-shm"),
    *("journal.sqlite-journal", "copy.id", "progress.pipe", "weights.store", "packed_from"),
)
READ = (
    *("run.toml", "summary.json", "status.json", "metrics.jsonl", "lock", "stall.json"),
    *("journal.sqlite", "origins.json", "models.toml", "journal.sqlite-wal", "initial"),
)
JUDGE = """
def judge(answer, line):
    return len(answer) % 3 / 2
"""
PROMPTS = [f"{n} + {n} =" for n in range(12)]


def make_base(base: Path) -> None:
    """A run of two steps: twelve prompts, of which two are held out."""
    if (base / "run" / "summary.json").exists():
        return
    (base / "judges_of_base.py").write_text(JUDGE)
    lines: list[data.Line] = [{"prompt": prompt, "answer": "x"} for prompt in PROMPTS]
    data.write(base / "d.jsonl", lines)
    settings = {
        "task.name": "jsonl",
        "task.path": base / "d.jsonl",
        "task.eval_size": 2,
        "task.verifier": "judges_of_base:judge",
        "model.path": base / "model",
        "run.dir": base / "run",
        "train.steps": 2,
        "train.batch_groups": 2,
        "train.eval_every": 2,
        "rollout.group_size": 4,
        "rollout.max_new_tokens": 8,
        "rollout.filter": "none",
        "engine.slots": 8,
        "engine.compile": "false",
    }
    subprocess.run(
        [sys.executable, "-m", "asyncrl", "train"]
        + [f"--set={key}={value}" for key, value in settings.items()],
        check=True,
        env=os.environ | {"PYTHONPATH": f"{base}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"},
        stdout=subprocess.DEVNULL,
    )


def copied(folder: Path, model: Path) -> Path:
    """A copy of the run, in a folder of the case, and its verifier's module."""
    (folder / "modules").mkdir()
    (folder / "modules" / "judges_of_base.py").write_text(JUDGE)
    return Path(shutil.copytree(model.parent / "run", folder / "run", symlinks=True))


def looked(verb: str, run: Path, *more: str, **other: Any) -> Case:
    """A verb that looks at the run."""
    runs = (str(run), str(run)) if verb == "compare" else (str(run),)
    return Case((verb, *runs, *more), **({"right": LOOKED, "may": ("run/", "modules/")} | other))


def _link(draw: random.Random, folder: Path, model: Path) -> Case:
    """A link to a file of the user's at a name that is written."""
    run = copied(folder, model)
    victim = _profile(folder)
    for _ in range(draw.randint(1, 4)):
        name = draw.choice(WRITTEN)
        ending = draw.choice(["", "", ".partial"])
        path = run / (name + ending)
        path.parent.mkdir(exist_ok=True)
        if ending and draw.random() < 0.5:
            path = path.with_name(f".{path.name}")
        path.unlink(missing_ok=True)
        target = draw.choice([victim, victim, folder / "home" / "new", victim.parent])
        path.symlink_to(target)
    return looked(draw.choice(LOOKS), run)


def _strange(draw: random.Random, folder: Path, model: Path) -> Case:
    """No ordinary file at a name that is read."""
    run = copied(folder, model)
    for _ in range(draw.randint(1, 2)):
        no_file(run / draw.choice(READ), draw.choice(STRANGE))
    return looked(draw.choice(LOOKS), run)


def _changed(draw: random.Random, folder: Path, model: Path) -> Case:
    """A few bytes of a file that is read are others."""
    run = copied(folder, model)
    path = run / draw.choice(
        ["run.toml", "summary.json", "status.json", "metrics.jsonl", "journal.sqlite"]
    )
    text = bytearray(path.read_bytes() if path.exists() else b"{}")
    for _ in range(draw.randint(1, 6)):
        at = draw.randrange(len(text) + 1)
        piece = draw.choice(
            [
                draw.randbytes(2),
                b"\0",
                b"\x1b[2J",
                b"9" * 400,
                b"1e999",
                b"-",
                b"null",
                b"\xff",
                b"NaN",
            ]
        )
        text[at : at + draw.choice([0, 0, 1, 2, 40])] = piece
    if draw.random() < 0.2:
        del text[draw.randrange(len(text)) :]
    path.write_bytes(text)
    return looked(draw.choice(LOOKS), run)


SCHEMA = (
    "CREATE TRIGGER t AFTER INSERT ON events BEGIN DELETE FROM events; END",
    "CREATE TRIGGER t BEFORE DELETE ON snapshots BEGIN SELECT RAISE(IGNORE); END",
    "CREATE VIEW v AS SELECT * FROM events",
    "CREATE TABLE more (x)",
    "CREATE INDEX i ON events (data)",
    "CREATE INDEX i ON events (length(data)) WHERE first > 0",
    "ALTER TABLE snapshots ADD COLUMN more BLOB GENERATED ALWAYS AS (zeroblob(900000000))",
    "ALTER TABLE events ADD COLUMN more",
    "ALTER TABLE header ADD COLUMN more",
)


def _schema(draw: random.Random, folder: Path, model: Path) -> Case:
    """A journal that has more in it than a journal has."""
    run = copied(folder, model)
    with contextlib.closing(sqlite3.connect(run / "journal.sqlite")) as file, file:
        file.execute(draw.choice(SCHEMA))
    return looked("rollouts", run, right=REFUSED, says="journal")


def _bomb(draw: random.Random, folder: Path, model: Path) -> Case:
    """Tables whose columns are computed, to more than there is room for."""
    run = copied(folder, model)
    table, column = draw.choice(["events", "snapshots"]), "data"
    with contextlib.closing(sqlite3.connect(run / "journal.sqlite")) as file, file:
        others = [row[1] for row in file.execute(f"PRAGMA table_info({table})")]
        others.remove(column)
        file.execute(f"ALTER TABLE {table} RENAME TO old")
        file.execute(
            f"CREATE TABLE {table} ({', '.join(others)}, {column} BLOB GENERATED ALWAYS AS "
            "(zeroblob(900000000)))"
        )
        marks = ", ".join("?" * len(others))
        file.executemany(
            f"INSERT INTO {table} ({', '.join(others)}) VALUES ({marks})",
            [[row + 1] * len(others) for row in range(40)],
        )
        file.execute("DROP TABLE old")
    return looked("rollouts", run, right=REFUSED, says="journal")


def _values(draw: random.Random, folder: Path, model: Path) -> Case:
    """Other values in the journal's columns."""
    run = copied(folder, model)
    with contextlib.closing(sqlite3.connect(run / "journal.sqlite")) as file, file:
        names = [
            row[0] for row in file.execute("SELECT name FROM sqlite_master WHERE type='table'")
        ]
        table = draw.choice(names)
        columns = [row[1] for row in file.execute(f"PRAGMA table_info({table})")]
        value = draw.choice(
            [None, -1, 0, 2**62, "x", b"", b"\x91" * 5000, 1.5, "\x1b[2J", draw.randbytes(40)]
        )
        where = draw.choice(["", " WHERE rowid = (SELECT max(rowid) FROM " + table + ")"])
        with contextlib.suppress(sqlite3.Error):
            file.execute(f"UPDATE {table} SET {draw.choice(columns)} = ?{where}", (value,))
    return looked("rollouts", run, "--json")


def _resumed(draw: random.Random, folder: Path, model: Path) -> Case:
    """A resume of a directory whose files are no files: refused, and nothing begun."""
    run = copied(folder, model)
    what = draw.choice(["journal.sqlite", "run.toml", "origins.json", "lock"])
    fine = ("nowhere", "sparse") if what == "lock" else ("nowhere",)  # nobody reads a lock
    for log in run.glob("journal.sqlite-*"):  # a short run's may have all of the journal
        log.unlink()
    no_file(run / what, draw.choice([kind for kind in STRANGE if kind not in fine]))
    may = ("run/", "modules/", "tmp/torch")  # what torch compiles is kept for other runs
    return Case(("train", "--resume", str(run)), right=REFUSED, may=may)


def _resumed_schema(draw: random.Random, folder: Path, model: Path) -> Case:
    case = _schema(draw, folder, model)
    return case._replace(argv=("train", "--resume", case.argv[1]))


def _resumed_link(draw: random.Random, folder: Path, model: Path) -> Case:
    """A resume of a link to the run, or below one that another may change."""
    run = copied(folder, model)
    link = folder / "link"
    if draw.random() < 0.5:
        link.symlink_to(run)
    else:
        run.chmod(draw.choice([0o777, 0o770, 0o722]))
        link = run
    return Case(("train", "--resume", str(link)), says=r"link|others", may=("run/", "modules/"))


def _newer(draw: random.Random, folder: Path, model: Path) -> Case:
    """A run of another asyncrl: a journal of another format, and files that say more."""
    run = copied(folder, model)
    with contextlib.closing(sqlite3.connect(run / "journal.sqlite")) as file, file:
        number = draw.choice([1, 3, 5, 99, 2**62, -1, 4.5, "5", "\x1b[2J"])
        file.execute("UPDATE header SET format = ?", (number,))
    argv = draw.choice([("rollouts", str(run)), ("train", "--resume", str(run))])
    return Case(argv, says="format", may=("run/", "modules/", "tmp/torch"))


def _says_more(draw: random.Random, folder: Path, model: Path) -> Case:
    """Files of a run with names that this asyncrl does not know, or without some that it does."""
    run = copied(folder, model)
    for name in ("summary.json", "status.json", "metrics.jsonl"):
        text = (run / name).read_text()
        lines = [*map(json.loads, text.splitlines() if name == "metrics.jsonl" else [text])]
        for line in lines:
            if draw.random() < 0.5:
                line["more"] = draw.choice([1, None, {"a": []}, "\x1b[2J", 10**30])
            if draw.random() < 0.3:
                line.pop(draw.choice([*line]))
        (run / name).write_text("".join(json.dumps(line) + "\n" for line in lines))
    return looked(draw.choice(LOOKS), run)


def _profile(folder: Path) -> Path:
    """A file of the user's, which no command may change."""
    victim = folder / "home" / ".profile"
    victim.parent.mkdir()
    victim.write_text("echo hello\n")
    return victim


def _hard_link(draw: random.Random, folder: Path, model: Path) -> Case:
    """Another name of a file of the user's, at a name that is written."""
    run = copied(folder, model)
    victim = _profile(folder)
    for name in draw.sample(WRITTEN, 4):
        path = run / name
        path.parent.mkdir(exist_ok=True)
        path.unlink(missing_ok=True)
        path.hardlink_to(victim)
    return looked(draw.choice(LOOKS), run)


def _resumed_names(draw: random.Random, folder: Path, model: Path) -> Case:
    """A resume that would write through a link, into a second name of a file, or elsewhere."""
    run = copied(folder, model)
    victim = _profile(folder)
    name = draw.choice(
        [
            *("metrics.jsonl", "journal.sqlite", "lock", "logs/launcher-0.log", "logs"),
            *("logs/coordinator-0.log", "logs/trainer-0.log", "journal.sqlite-wal"),
        ]
    )
    path = run / name
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    if name == "logs":
        path.symlink_to(victim.parent)
    elif draw.random() < 0.5:
        path.symlink_to(victim)
    else:
        path.hardlink_to(victim)
    argv = ("train", "--resume", str(run), "--set=train.steps=3")
    return Case(argv, says=path.name, may=("run/", "modules/", "tmp/torch"))


FOLDERS = ("checkpoints", "logs", "model", "initial", "sinks", "servers", "tls")


def _swapped(draw: random.Random, folder: Path, model: Path) -> Case:
    """A folder with something in it in the place of a file, or a file in the place of a folder."""
    run = copied(folder, model)
    kinds = sorted(draw.choices(("file", "folder"), (3, 2), k=draw.randint(1, 3)))
    for kind in kinds:  # files first: one may lie in a folder that is replaced
        if kind == "file":
            path = run / draw.choice([*READ, *WRITTEN])
            no_file(path, "folder")
            (path / "inside").write_text("x")
        else:
            no_file(run / draw.choice(FOLDERS), draw.choice(STRANGE))
    return looked(draw.choice(LOOKS), run)


def _gone(draw: random.Random, folder: Path, model: Path) -> Case:
    """A run of which a few files are gone."""
    run = copied(folder, model)
    for path in draw.sample(sorted(run.iterdir()), draw.randint(1, 4)):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    return looked(draw.choice(LOOKS), run)


def _resumed_data(draw: random.Random, folder: Path, model: Path) -> Case:
    """A resume with other prompts at the path of the run's own: refused by the file's name."""
    run = copied(folder, model)
    here, there = folder / "d.jsonl", model.parent / "d.jsonl"
    lines = there.read_text().splitlines(keepends=True)
    for name in ("run.toml", "origins.json"):
        path = run / name
        path.write_text(path.read_text().replace(str(there), str(here)))
    match draw.randrange(5):
        case 0:
            lines.reverse()
        case 1:
            lines = lines[:-1]
        case 2:
            lines[0] = lines[0].replace("=", "= ")
        case 3:
            lines[-1] = lines[-1].replace('"x"', '"y"')
        case _:
            lines += lines[:1]
    here.write_text("".join(lines))
    argv = ("train", "--resume", str(run), "--set=train.steps=3")
    return Case(argv, says=r"d\.jsonl", may=("run/", "modules/", "tmp/torch"))


def _untouched(draw: random.Random, folder: Path, model: Path) -> Case:
    """The run itself: what is shown of it is true."""
    run = copied(folder, model)
    return looked("rollouts", run, "--json", "--last", "100", right=RUNS, witness=true_records)


def true_records(said: Said) -> str:
    """A difference between the rollouts that are shown and what was asked of the run."""
    records = [json.loads(line) for line in said.out.splitlines()]
    if not records:
        return "no rollouts are shown"
    for record in records:
        index = record["prompt_index"] + (10 if record["split"] == "evaluation" else 0)
        if record["prompt"] != PROMPTS[index] + "\n":
            return f"prompt {index} is {PROMPTS[index]!r}, and shown is {record['prompt']!r}"
        answer, reward = record.get("response", record.get("answer")), record["reward"]
        if "<|" not in answer and reward != len(answer) % 3 / 2:
            return f"the reward of {answer!r} is {len(answer) % 3 / 2}, and shown is {reward}"
    return ""


def _accuracy(draw: random.Random, folder: Path, model: Path) -> Case:
    """The accuracy that is said, beside the held-out rewards that are shown."""
    run = copied(folder, model)
    points = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    said_last = [point["accuracy"] for point in points if "accuracy" in point][-1]

    def look(said: Said) -> str:
        records = [json.loads(line) for line in said.out.splitlines()]
        last = records[-2:]
        right = sum(record["reward"] >= 1 for record in last) / 2
        return "" if len(last) < 2 or right == said_last else f"{right} and {said_last}: {last}"

    more = ("--json", "--split", "evaluation", "--last", "2")
    return looked("rollouts", run, *more, right=RUNS, witness=look)


MAKERS: dict[str, Maker] = {
    "untouched": _untouched,
    "accuracy": _accuracy,
    "links where it writes": _link,
    "links where it writes, again": _link,
    "no files where it reads": _strange,
    "no files where it reads, again": _strange,
    "other bytes": _changed,
    "other bytes, again": _changed,
    "a journal with more": _schema,
    "a journal that is computed": _bomb,
    "other values in a journal": _values,
    "of another asyncrl": _newer,
    "files that say more": _says_more,
    "other names of a file": _hard_link,
    "folders for files": _swapped,
    "folders for files, again": _swapped,
    "files that are gone": _gone,
    "resumed, other data": _resumed_data,
    "resumed, other names": _resumed_names,
    "resumed, no files": _resumed,
    "resumed, a journal with more": _resumed_schema,
    "resumed, a link": _resumed_link,
}
