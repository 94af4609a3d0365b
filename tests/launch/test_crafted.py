"""Files of a run that somebody else has written: each is gone on with, or refused by a sentence."""

from __future__ import annotations

import io
import json
import os
import random
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
from hostile import HOSTILE_SUMMARY, hostile_status
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.console import Console
from some_values import drawn

from asyncrl.cli import main
from asyncrl.config import ConfigError
from asyncrl.experience import events as e
from asyncrl.explain import run_status, summary
from asyncrl.explain.curve import trim
from asyncrl.explain.display import show_summary
from asyncrl.journal import Journal, sqlite
from asyncrl.launch import preflight
from asyncrl.messages import Scored
from asyncrl.runtime.run_dir import METRICS
from asyncrl.training.checkpoint_index import (
    CheckpointError,
    Digest,
    Scalars,
    checkpoint_path,
    complete,
    digested,
)

EVENTS: list[e.AnyEvent] = [
    e.Admitted(0, 0, 2, "train", 3, b"\x01\x00\x00\x00", 8),
    e.Published(0),
    e.Leased(0, "rollout-0", 1),
    e.Extended(0, 1, 0, 0, b"\x01\x00\x00\x00" * 2, bytes(8)),
    e.Sealed(0, 1, "stop"),
    e.Judged(0, Scored(1.0)),
    e.Leased(1, "rollout-0", 1),
    e.Buried(1, "attempts"),
    e.Taken(0, [0]),
]
MORE: list[e.AnyEvent] = [
    e.Admitted(1, 2, 2, "train", 4, b"\x01\x00\x00\x00", 8),
    e.Leased(2, "rollout-0", 1),
]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run's directory with a journal of two rows and a snapshot between them."""
    run = tmp_path_factory.mktemp("crafted") / "run"
    run.mkdir()

    async def write() -> None:
        from asyncrl.experience.experience import Experience

        experience = Experience()
        async with Journal.open(run / "journal.sqlite", commit_ms=0, full_s=1.0) as journal:
            for event in EVENTS:
                experience.apply(event)
                journal.append(event)
            journal.keep(0, experience)
            await journal.flush()
            for event in MORE:
                experience.apply(event)
                journal.append(event)
            await journal.flush()

    trio.run(write)
    preflight.refuse_unreadable(run)
    return run


def refused(run: Path) -> str:
    """The sentence, or empty where the run is gone on with. Anything else that is raised is a
    traceback for the user."""
    try:
        preflight.refuse_unreadable(run)
    except ConfigError as error:
        assert str(error).isprintable() and str(error).endswith(".") and len(str(error)) <= 2000
        return str(error)
    return ""


# ---------------------------------------------------------------------------------------- journals

CELLS = [("header", "format"), ("header", "run"), ("events", "first"), ("events", "data")] + [
    ("snapshots", column) for column in ("number", "part", "version", "data")
]
VALUES = st.one_of(
    st.none(),
    st.integers(-(2**63), 2**63 - 1),
    st.sampled_from([0, -1, 1, 2, 3, 2**62, 2**63 - 1, -(2**63)]),
    st.floats(),
    st.text(st.characters(exclude_categories=("Cs",)), max_size=20),
    st.sampled_from(["\x1b[2J", "9" * 5000]),
    st.binary(max_size=40),
    st.just(b"\x91" * 5000),
    st.just(bytes(2**20)),
)


TABLES = (
    ("header", "format, run"),
    ("events", "first, data"),
    ("snapshots", "number, part, version, data"),
)


@pytest.fixture(autouse=True)
def untyped(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables without types pass for a journal's: values are checked even so, since the text of a
    table and what is in it need not agree in a file that somebody wrote."""
    with closing(sqlite3.connect(":memory:")) as made:
        for table, columns in TABLES:
            made.execute(f"CREATE TABLE {table} ({columns})")
        own = sqlite._schema(made)
    monkeypatch.setattr(sqlite, "_own_schema", lambda: own)


def crafted(run: Path, folder: Path) -> Path:
    """A copy in which columns hold whatever they are given: nothing in a file says otherwise."""
    copy = folder / "run"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(run, copy)
    with closing(sqlite3.connect(copy / "journal.sqlite")) as file, file:
        for table, columns in TABLES:
            file.execute(f"CREATE TABLE copy AS SELECT {columns} FROM {table}")
            file.execute(f"DROP TABLE {table}")
            file.execute(f"CREATE TABLE {table} ({columns})")  # of no type at all
            file.execute(f"INSERT INTO {table} SELECT * FROM copy")
            file.execute("DROP TABLE copy")
    return copy


@pytest.mark.explore
@settings(max_examples=drawn(150), deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.tuples(st.sampled_from(CELLS), VALUES, st.booleans()), min_size=1, max_size=3))
def test_any_value_in_any_column_is_a_sentence_at_most(
    run: Path, tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[Any, Any, bool]]
) -> None:
    copy = crafted(run, tmp_path_factory.getbasetemp() / "columns")
    with closing(sqlite3.connect(copy / "journal.sqlite")) as file, file:
        for (table, column), value, everywhere in changes:
            where = "" if everywhere else f" WHERE rowid = (SELECT min(rowid) FROM {table})"
            file.execute(f"UPDATE {table} SET {column} = ?{where}", (value,))
    refused(copy)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("UPDATE events SET data = NULL", "its data is not bytes"),
        ("UPDATE events SET data = 'text'", "its data is not bytes"),
        ("UPDATE events SET data = 7", "its data is not bytes"),
        ("UPDATE events SET first = 'one'", "a number of an event or a version is not a number"),
        ("UPDATE events SET first = NULL", "a number of an event or a version is not a number"),
        ("UPDATE events SET first = -5", "a number of an event or a version is not a number"),
        ("UPDATE events SET first = 9223372036854775807", "is not a number"),
        (
            "UPDATE snapshots SET version = 'one'",
            "a number of an event or a version is not a number",
        ),
        ("UPDATE snapshots SET number = NULL", "a number of an event or a version is not a number"),
        ("UPDATE snapshots SET part = 1", "a part of a snapshot is missing"),
        ("UPDATE snapshots SET part = 'one'", "a part of a snapshot is missing"),
        ("UPDATE snapshots SET data = NULL", "its data is not bytes"),
        ("UPDATE header SET format = 'x'", "has format 'x'"),
        ("DELETE FROM header", "not a journal of asyncrl"),
    ],
)
def test_columns_that_nobody_wrote(
    run: Path, tmp_path: Path, change: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each was a traceback."""
    copy = crafted(run, tmp_path)
    with closing(sqlite3.connect(copy / "journal.sqlite")) as file, file:
        file.execute(change)
    assert said in refused(copy)


ODD = (
    *(None, True, 0, -1, 1, 7, 2**31, 2**62, -(2**62), 0.5, -0.5, 1e300),
    *("", "x\x1b[2J", b"", b"\x01\x00\x00\x00", [], {}, [[]], {"a": 1}),
)


def mutated(value: Any, rng: random.Random) -> Any:
    """`value`, of what JSON and msgpack have, with one thing in it put otherwise."""
    if isinstance(value, dict) and value and rng.random() < 0.9:
        key = rng.choice(list(value))
        return {**value, key: mutated(value[key], rng)}
    if isinstance(value, list) and value and rng.random() < 0.9:
        at = rng.randrange(len(value))
        match rng.randrange(6):
            case 0:
                return value[:at] + value[at + 1 :]
            case 1:
                return [*value, value[at]]
            case _:
                return [*value[:at], mutated(value[at], rng), *value[at + 1 :]]
    return rng.choice(ODD)


@pytest.mark.parametrize("table", ["events", "snapshots"])
def test_rows_that_parse_and_cannot_be_are_a_sentence_at_most(
    table: str, run: Path, tmp_path: Path
) -> None:
    """Events that do not follow from one another, states that contradict themselves."""
    came = set()
    copy = crafted(run, tmp_path)
    path = copy / "journal.sqlite"
    with closing(sqlite3.connect(path, isolation_level=None)) as file:
        rows = file.execute(f"SELECT data FROM {table} ORDER BY rowid DESC LIMIT 1")
        [(was,)] = rows.fetchall()
        for seed in range(400):
            rng, value = random.Random(seed), msgspec.msgpack.decode(was)
            for _ in range(rng.randint(1, 3)):
                value = mutated(value, rng)
            data = msgspec.msgpack.encode(value)
            file.execute(f"UPDATE {table} SET data = ? WHERE data = ?", (data, was))
            came.add(refused(copy).partition("(")[0])
            file.execute(f"UPDATE {table} SET data = ? WHERE data = ?", (was, data))
    assert any("holds events that no run writes" in said for said in came), came
    assert any("not an event of this asyncrl" in said for said in came), came


def test_a_resume_with_a_crafted_journal_ends_with_2(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    copy = crafted(run, tmp_path)
    copy.chmod(0o700)
    from asyncrl.config import load, write

    chosen = preflight.resolved(
        load(None, ["task.train_size=20", "task.eval_size=4", f"run.dir={copy}"], {}),
        None,
        preflight.datetime(2026, 1, 2),
    )
    write(chosen, copy / "run.toml")
    with closing(sqlite3.connect(copy / "journal.sqlite")) as file, file:
        file.execute("UPDATE events SET data = 'x'")
    assert main(["train", "--resume", str(copy)]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("asyncrl: ") and err.count("\n") == 1


# -------------------------------------------------------------------------------------------- curve


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{}",
        b"\xff",
        b"[" * 9999,
        b'{"kind": "evaluation", "version": 1, "at": 1, "seconds": 1, "accuracy": 1e999}',
        b'{"kind": "evaluation", "version": 1' + b"0" * 5000 + b', "at": 1, "seconds": 1}',
        b'{"kind": "evaluation", "version": 9223372036854775808, "at": 1, "seconds": 1}',
    ],
)
def test_a_curve_that_nobody_wrote_is_no_hindrance(text: bytes, run: Path, tmp_path: Path) -> None:
    """Its lines are left out, whole or torn."""
    copy = crafted(run, tmp_path)
    (copy / METRICS).write_bytes(text + b"\n" + text)
    assert not refused(copy)
    trim(copy / METRICS, 9, 9)
    assert (copy / METRICS).read_bytes() == b""


def test_a_curve_that_is_no_file_is_refused(run: Path, tmp_path: Path) -> None:
    copy = crafted(run, tmp_path)
    (copy / METRICS).mkdir()
    assert f"{METRICS}: this is not a file" in refused(copy)


# ----------------------------------------------------------------------------- other files of a run


def variants(text: bytes) -> Iterator[bytes]:
    """The JSON in `text`, a few hundred times with a few things in it put otherwise."""
    for seed in range(300):
        rng, value = random.Random(seed), json.loads(text)
        for _ in range(rng.randint(1, 3)):
            value = mutated(value, rng)
        yield json.dumps(value, default=lambda data: data.decode(errors="replace")).encode()


def test_any_status_is_sentences_or_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "run.toml").touch()
    came = set()
    run_status.write(hostile_status(), tmp_path / "status.json")
    for text in variants((tmp_path / "status.json").read_bytes()):
        (tmp_path / "status.json").write_bytes(text)
        came.add(main(["why", str(tmp_path)]))
        said = "".join(capsys.readouterr())
        assert said and all(line.isprintable() for line in said.splitlines())
    assert came == {0, 2}


def test_any_summary_is_shown_or_refused(tmp_path: Path) -> None:
    path, came = tmp_path / "summary.json", set()
    summary.write(HOSTILE_SUMMARY, path)
    for text in variants(path.read_bytes()):
        path.write_bytes(text)
        try:
            found = summary.read(path)
        except msgspec.DecodeError:
            came.add("refused")
            continue
        shown = io.StringIO()
        show_summary(found, tmp_path, Console(file=shown, width=80))
        assert all(line.isprintable() for line in shown.getvalue().splitlines())
        came.add("shown")
    assert came == {"shown", "refused"}


def test_any_checkpoint_is_whole_or_put_aside(tmp_path: Path) -> None:
    path = checkpoint_path(tmp_path, 3)
    path.mkdir(parents=True)
    (path / "model.safetensors").write_bytes(b"weights")
    files = {"model.safetensors": digested(path / "model.safetensors")}
    written = msgspec.json.encode(Scalars(3, 17, files))
    came = set()
    for text in [written, *variants(written)]:
        (path / "trainer.json").write_bytes(text)
        [checkpoint] = complete(tmp_path)
        try:
            checkpoint.verify()
            came.add("")
        except CheckpointError as error:
            came.add("damaged" if "is damaged" in str(error) else "unreadable")
    assert came == {"", "damaged", "unreadable"}


@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir, lambda path: path.symlink_to("/dev/zero")])
def test_a_checkpoint_of_what_is_no_file_is_not_waited_for(
    make: Callable[[Path], object], tmp_path: Path
) -> None:
    path = checkpoint_path(tmp_path, 3)
    path.mkdir(parents=True)
    make(path / "model.safetensors")
    files = {"model.safetensors": Digest(1, "ab")}
    (path / "trainer.json").write_bytes(msgspec.json.encode(Scalars(3, 17, files)))
    with pytest.raises(CheckpointError, match=r"model\.safetensors cannot be read"):
        complete(tmp_path)[0].verify()
