"""The copy of a run in an object store: what is put and deleted in what order, what is fetched, and
what is refused. The store is a folder here, behind the library that speaks with the others."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

pytest.importorskip("obstore", reason="the extra store is not installed")

from asyncrl.cli import main
from asyncrl.config import Config, ConfigError
from asyncrl.experience import events as e
from asyncrl.experience.experience import Experience
from asyncrl.journal import Journal, read
from asyncrl.launch.run_copy import keep_copy, refuse_unfit
from asyncrl.launch.stored_copy import MANIFEST, Manifest, StoredCopy, fetch
from asyncrl.object_store import StoreError, is_stored
from asyncrl.runtime.run_dir import CODE, COPY_ID, IMAGES, JOURNAL, METRICS, RUN_TOML
from asyncrl.training.checkpoint_index import (
    SCALARS,
    CheckpointError,
    Digest,
    Scalars,
    checkpoint_path,
    complete,
    digested,
)


def url(folder: Path) -> str:
    return folder.as_uri()


def config_of(run: Path, copy: str) -> Config:
    config = Config()
    of_run = msgspec.structs.replace(config.run, dir=str(run), copy=copy, copy_s=1000.0)
    return msgspec.structs.replace(config, run=of_run)


def checkpoint(run: Path, version: int, weights: bytes = b"weights") -> None:
    path = checkpoint_path(run, version)
    path.mkdir(parents=True, exist_ok=True)
    (path / "model.safetensors").write_bytes(weights)
    files = {"model.safetensors": digested(weights)}
    (path / SCALARS).write_bytes(msgspec.json.encode(Scalars(version, version, files)))


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def objects(folder: Path) -> set[str]:
    return names(folder / "objects")


def fetched(folder: Path, run: Path) -> int:
    """Fetch the run of a store; the number of its files."""
    there, said = run.absolute(), list[tuple[str, int]]()
    fetch(url(folder), run, lambda name, size: said.append((name, size)))
    assert {name: (there / name).stat().st_size for name, _ in said} == dict(said)
    return len(said)


def contents(run: Path) -> dict[str, bytes]:
    """The files of a run but for its journal, and what SQLite has beside that."""
    return {
        str(path.relative_to(run)): path.read_bytes()
        for path in run.rglob("*")
        if path.is_file() and not path.name.startswith(JOURNAL)
    }


def manifest(folder: Path) -> Manifest:
    found = StoredCopy(url(folder)).manifest()
    assert found is not None
    return found


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / RUN_TOML).write_text("")
    (tmp_path / "run" / METRICS).write_text('{"step": 1}\n')
    return tmp_path / "run"


async def test_what_is_fetched_is_what_was_copied(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, again = tmp_path / "store", tmp_path / "again"
    async with Journal.open(run / JOURNAL, commit_ms=0) as log:
        log.append(e.LateTokens(3))
        await log.flush()
        checkpoint(run, 2)
        (run / CODE).mkdir()
        (run / CODE / "reward.py").write_text("def f(answer): return 1.0\n")
        (run / IMAGES).mkdir()
        (run / IMAGES / ("ab" * 32)).write_bytes(b"an image")
        StoredCopy(url(store)).bring_up(run)
        (run / IMAGES / f".{'ab' * 32}.partial").write_bytes(b"half an image")
        StoredCopy(url(store)).bring_up(run)
        (run / IMAGES / f".{'ab' * 32}.partial").unlink()
    assert fetched(store, again) == 8
    assert [*read(again / JOURNAL)] == [*read(run / JOURNAL)]
    assert contents(again) == contents(run)
    assert again.stat().st_mode & 0o77 == 0
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert fetched(store, Path()) == 8 and (tmp_path / "here" / JOURNAL).exists()


async def test_contents_are_put_once_and_go_with_the_last_manifest_that_names_them(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "store"
    async with Journal.open(run / JOURNAL, commit_ms=0) as log:
        checkpoint(run, 1, b"one")
        checkpoint(run, 2, b"two")
        StoredCopy(url(store)).bring_up(run)
        first = objects(store)
        shutil.rmtree(checkpoint_path(run, 1))
        checkpoint(run, 3, b"three")
        log.append(e.LateTokens(1))
        await log.flush()
        copy = StoredCopy(url(store))
        put = list[str]()
        before = copy._put

        def noted(contents: Any, there: set[str], digest: Any = None) -> Any:
            found = before(contents, there, digest)
            if found.blake2b not in there:
                put.append(found.blake2b)
            return found

        monkeypatch.setattr(copy, "_put", noted)
        copy.bring_up(run)
    assert len(put) == 3 and not set(put) & first  # checkpoint 3's two files, and the journal
    found = manifest(store)
    assert objects(store) == {digest.blake2b for digest in found.files.values()}
    assert {name for name in found.files if "step-" in name} == {
        f"checkpoints/step-00000{version}/{name}"
        for version in (2, 3)
        for name in (SCALARS, "model.safetensors")
    }


class Cut(Exception):
    """The copying was killed."""


@pytest.mark.parametrize("after", range(9))
async def test_killed_at_any_request_the_manifest_names_what_is_there(
    run: Path, tmp_path: Path, after: int
) -> None:
    """A copy was there; the next one is killed after so many requests, and the one after it puts
    all to rights."""
    store = tmp_path / "store"
    async with Journal.open(run / JOURNAL, commit_ms=0) as log:
        checkpoint(run, 1, b"one")
        StoredCopy(url(store)).bring_up(run)
        shutil.rmtree(checkpoint_path(run, 1))
        checkpoint(run, 2, b"two")
        log.append(e.LateTokens(1))
        await log.flush()
        copy = StoredCopy(url(store))
        copy._store = Killed(copy._store, after)  # type: ignore[assignment]
        with pytest.raises(Cut):
            copy.bring_up(run)
            raise Cut
        fetched(store, tmp_path / "again")
        StoredCopy(url(store)).bring_up(run)
    assert objects(store) == {digest.blake2b for digest in manifest(store).files.values()}
    fetched(store, tmp_path / "once-more")
    assert (checkpoint_path(tmp_path / "once-more", 2) / "model.safetensors").read_bytes() == b"two"


class Killed:
    """A store that answers so many requests."""

    def __init__(self, store: Any, requests: int) -> None:
        self._store, self._left = store, requests

    def __getattr__(self, name: str) -> Any:
        def asked(*args: Any) -> Any:
            if not self._left:
                raise Cut
            self._left -= 1
            return getattr(self._store, name)(*args)

        return asked


async def test_a_journal_is_named_only_where_a_checkpoint_of_it_is_there(
    run: Path, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    async with Journal.open(run / JOURNAL, commit_ms=0) as log:
        log.append(e.LateTokens(1))
        await log.flush()
        StoredCopy(url(store)).bring_up(run)
        before = manifest(store)
        log.keep(1, Experience())
        log.compact(1)
        log.append(e.LateTokens(2))
        await log.flush()
        with pytest.raises(CheckpointError):
            StoredCopy(url(store)).bring_up(run)
    assert manifest(store) == before
    assert not [name for name in contents(run) if name.endswith(".copied")]


async def test_a_failure_is_said_and_the_next_copy_tried(run: Path, tmp_path: Path) -> None:
    over, notes, store = trio.Event(), list[str](), tmp_path / "store"
    over.set()
    async with Journal.open(run / JOURNAL, commit_ms=0):
        await keep_copy(config_of(run, url(store)), over, notes.append, 60)
        assert (store / MANIFEST).exists() and not notes
        (run / COPY_ID).write_text("another\n")
        await keep_copy(config_of(run, url(store)), over, notes.append, 60)
    (said,) = notes
    assert said == (f"The run was not copied to {url(store)}: it now has another run's copy.")


async def test_what_cannot_be_the_copy_is_refused(run: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    for copy, said in (
        ("ftp://host/run", "begins with none of s3://, gs://, az://, file://"),
        ("s3://key:secret@bucket/run", "credentials and options belong into the environment"),
        ("s3://bucket/run?key=secret", "credentials and options belong into the environment"),
        ("s3://", "the store says"),
        ("s3://[::1", "begins with none of"),
        ("s3://bucket-without-credentials/run", "the store says"),
    ):
        with pytest.raises(ConfigError, match=said) as refused:
            refuse_unfit(config_of(run, copy), None)
        assert "secret" not in str(refused.value)
    async with Journal.open(run / JOURNAL, commit_ms=0):
        StoredCopy(url(store)).bring_up(run)
    refuse_unfit(config_of(run, url(store)), run)
    for config, resume in (
        (config_of(run, url(store)), None),
        (config_of(tmp_path / "another", url(store)), tmp_path / "another"),
    ):
        with pytest.raises(ConfigError, match="has another run's copy"):
            refuse_unfit(config, resume)


@pytest.fixture
def stored(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "store").mkdir()
    yield tmp_path / "store"


@pytest.mark.parametrize(
    "name",
    [
        *("../run.toml", "/etc/passwd", "checkpoints/step-000001/../../x", "checkpoints/x/y"),
        *(
            "code/../x.py",
            "code/a.sh",
            "code/a/b.py",
            "key",
            "checkpoints/step-\u0661\u0661\u0661\u0661\u0661\u0661/a",
        ),
        *("checkpoints/step-0000001/a", f"checkpoints/step-{'1' * 5000}/a"),
    ],
)
def test_a_manifest_names_files_of_a_run_alone(stored: Path, tmp_path: Path, name: str) -> None:
    forged = Manifest("x", {name: digested(b"")})
    (stored / MANIFEST).write_bytes(msgspec.json.encode(forged))
    with pytest.raises(ConfigError, match="names a file that no run has"):
        fetched(stored, tmp_path / "again")
    assert not (tmp_path / "again").exists()


NEGATIVE, HUGE = (
    b'{"id": "x", "files": {"key": {"size": %d, "blake2b": "%s"}}}' % (size, b"0" * 32)
    for size in (-1, 2**62)
)


@pytest.mark.parametrize(
    "text", [b"", b"{}", b"[]", b"\xff", b'{"id": 1, "files": {}}', NEGATIVE, HUGE]
)
def test_a_manifest_that_is_none_is_said(stored: Path, tmp_path: Path, text: bytes) -> None:
    (stored / MANIFEST).write_bytes(text)
    with pytest.raises(ConfigError, match="its manifest is damaged"):
        fetched(stored, tmp_path / "again")


@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
@pytest.mark.parametrize("which", ["manifest", "object"])
def test_a_pipe_in_a_store_of_files_is_refused_at_once(
    stored: Path, tmp_path: Path, kind: str, which: str
) -> None:
    of_it = digested(b"1")
    place = stored / MANIFEST
    if which == "object":
        place.write_bytes(msgspec.json.encode(Manifest("x", {METRICS: of_it})))
        place = stored / "objects" / of_it.blake2b
        place.parent.mkdir()
    match kind:
        case "pipe":
            os.mkfifo(place)
        case "device":
            place.symlink_to("/dev/zero")
        case _:
            place.mkdir()
    refused = list[ConfigError]()

    def look() -> None:
        try:
            fetched(stored, tmp_path / "again")
        except ConfigError as error:
            refused.append(error)

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    thread.join(30.0)
    assert not thread.is_alive() and "cannot be read" in str(*refused)
    assert names(tmp_path) == {"store"}


def test_the_disk_is_asked_before_the_first_byte(
    stored: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = Digest(3 * 2**30, "0" * 32)
    files = {METRICS: large, "checkpoints/step-000001/a": large}
    (stored / MANIFEST).write_bytes(msgspec.json.encode(Manifest("x", files)))
    monkeypatch.setattr(
        shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(2**33, 0, 5 * 2**30)
    )  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match=r"copy of 6.0 GiB, and 16.0 MiB to.* has 5.0 GiB free"):
        fetch(url(stored), tmp_path / "again", lambda *_: pytest.fail("it begins"))
    assert names(tmp_path) == {"store"}


def test_a_version_has_one_folder(tmp_path: Path) -> None:
    for name in (
        "step-000111",
        "step-0000111",
        "step-\u0661\u0661\u0661\u0661\u0661\u0661",
        "step-1234567",
    ):
        (tmp_path / "checkpoints" / name).mkdir(parents=True)
    (tmp_path / "checkpoints" / f"step-{'1' * 200}").mkdir()
    assert [one.version for one in complete(tmp_path)] == [111, 1234567]


async def test_what_was_changed_in_the_store_is_not_taken(run: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    async with Journal.open(run / JOURNAL, commit_ms=0):
        StoredCopy(url(store)).bring_up(run)
    of_curve = manifest(store).files[METRICS]
    (store / "objects" / of_curve.blake2b).write_text('{"step": 2}\n')
    with pytest.raises(ConfigError, match=r"metrics.jsonl is not what was copied"):
        fetched(store, tmp_path / "again")
    (store / "objects" / of_curve.blake2b).write_bytes(bytes(1 << 20))
    with pytest.raises(ConfigError, match=r"metrics.jsonl is not what was copied"):
        fetched(store, tmp_path / "again")
    (store / "objects" / of_curve.blake2b).unlink()
    with pytest.raises(ConfigError, match="fetch it again"):
        fetched(store, tmp_path / "once-more")
    assert names(tmp_path) == {"run", "store"}, "nothing is left half fetched"


def test_the_verb_says_what_is_wrong(
    stored: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["fetch", url(stored), str(tmp_path / "again")]) == 2
    assert "there is no copy of a run" in capsys.readouterr().err
    assert main(["fetch", url(tmp_path / "nowhere"), str(tmp_path / "again")]) == 2
    assert "there is no copy of a run" in capsys.readouterr().err
    refuse_unfit(config_of(tmp_path / "run", url(tmp_path / "nowhere")), None)
    assert names(tmp_path) == {"store"}, "to look at a place does not make it"
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    assert main(["fetch", url(stored), str(tmp_path / "full")]) == 2
    assert "this already exists" in capsys.readouterr().err
    for wrong, says in {
        "runs/[a]": "asyncrl: runs/[a]: it is not fetched, because it begins with none of s3://",
        "file:///a\nb": "it has characters that no URL has",  # which was /ab
    }.items():
        assert main(["fetch", wrong, str(tmp_path / "again")]) == 2
        assert says in capsys.readouterr().err
    with pytest.raises(StoreError):
        StoredCopy("nonsense")
    assert is_stored("s3://a") and not is_stored("/a/b")
