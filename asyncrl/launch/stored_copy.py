"""A copy of a run in an object store (`run.copy = "s3://bucket/run"`); `run_copy.py` keeps one in a
directory.

    journal at one moment, checkpoints, curve → objects, named by their contents → the manifest

Invariant: whenever the copying is killed, the manifest names only complete objects: an object is
put before the manifest that names it, and deleted after the one that names it no more. So nothing
is put twice, and `asyncrl fetch` gets all files of one moment.
"""

from __future__ import annotations

import re
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping
from functools import partial as applied
from pathlib import Path

import msgspec

from asyncrl.config.errors import ConfigError
from asyncrl.config.paths import exists, is_folder, refuse_small_disk, room_for
from asyncrl.escape import escaped
from asyncrl.files import open_regular, write_whole
from asyncrl.journal import SqliteHistory
from asyncrl.journal.sqlite import copy as copy_journal
from asyncrl.launch.copied_code import CODE_FILE, code_files
from asyncrl.object_store import (
    MissingObject,
    StoreError,
    folder_of,
    open_store,
    refuse_url,
    shown_url,
    understood,
)
from asyncrl.runtime.run_dir import (
    CODE,
    COPY_ID,
    IMAGES,
    JOURNAL,
    METRICS,
    ORIGINS,
    PACKED,
    RUN_TOML,
)
from asyncrl.training.checkpoint_index import (
    NAME,
    SCALARS,
    Checkpoint,
    CheckpointError,
    Digest,
    complete,
    digested,
    scalars,
)

MANIFEST = "manifest.json"
MANIFEST_BYTES = 64 << 20
"""Size of a manifest, at most."""
PLAIN = frozenset({RUN_TOML, ORIGINS, PACKED, METRICS, COPY_ID, JOURNAL})
"""Files of a run that are copied, besides its checkpoints."""
_OF_CHECKPOINT = re.compile(rf"checkpoints/{NAME}/[A-Za-z0-9_-][A-Za-z0-9_.-]*")
_OF_CODE = re.compile(rf"{CODE}/{CODE_FILE.pattern}")
_OF_IMAGE = re.compile(rf"{IMAGES}/[0-9a-f]{{64}}")
_HASH = re.compile(r"[0-9a-f]{32}")
PIECE_BYTES = 2**20
"""Bytes of a file that are read at a time."""


class Manifest(msgspec.Struct, frozen=True):
    """The files of one moment by their paths in the run, and the `id` of their run."""

    id: str
    files: dict[str, Digest]


def refuse_unfit_store(url: str, run: Path, *, resumed: bool) -> None:
    """Raise ConfigError if the store cannot have this run's copy."""
    try:
        refuse_url(url)
        folder = folder_of(url)
        if folder is not None and not exists(folder):  # the first copy makes it
            room_for(folder)
            return
        store = StoredCopy(url, patient=False)
        store.look()
        manifest = store.manifest()
    except StoreError as error:
        raise ConfigError(f"run.copy is {shown_url(url)}, and {error}.") from None
    if manifest is not None and not (resumed and manifest.id == _id(run)):
        raise ConfigError(
            f"{shown_url(url)}: run.copy has another run's copy; choose another place, or "
            "continue that run (`asyncrl fetch`)."
        )


def fetch(url: str, run: Path, say: Callable[[str, int], object]) -> None:
    """Copy a run from an object store to the new directory `run`, whole or not at all. `say` is
    called with each file and its bytes before it comes. Raises ConfigError."""
    if run.is_symlink() or (exists(run) and (not is_folder(run) or any(run.iterdir()))):
        raise ConfigError(f"{run}: this already exists; choose another directory.")
    run = run.absolute()
    room_for(run.parent if exists(run) else run)
    partial = run.with_name(f".{run.name}.partial")
    try:
        refuse_url(url)
        folder = folder_of(url)
        store = StoredCopy(url) if folder is None or is_folder(folder) else None  # it would be made
        if store is None or (manifest := store.manifest()) is None:
            raise ConfigError(f"{shown_url(url)}: there is no copy of a run; check its run.copy.")
        needed = sum(digest.size for digest in manifest.files.values())
        refuse_small_disk(run, "the files of the copy", needed)
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(mode=0o700, parents=True)
        for name, digest in manifest.files.items():
            say(name, digest.size)
            store.get(digest, partial / name)
        partial.rename(run)
    except StoreError as error:
        raise ConfigError(f"{shown_url(url)}: it is not fetched, because {error}.") from None
    except OSError as error:
        raise ConfigError(f"{run}: it cannot be written: {error.strerror or error}.") from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def copy_to_store(run: Path, url: str) -> None:
    """Update the copy at a URL to the present run. Raises StoreError, CheckpointError,
    JournalError and OSError."""
    StoredCopy(url).bring_up(run)


class StoredCopy:
    """The copy of one run at a URL. Raises StoreError if there can be none."""

    def __init__(self, url: str, *, patient: bool = True) -> None:
        """With `patient` a request may last for minutes, and is tried again. A store of files is
        a folder, which others may have filled."""
        self._store = open_store(url, patient=patient)
        self._folder = folder_of(url)

    def look(self) -> None:
        """Check that there is such a store, which may be empty. Raises StoreError."""
        with understood():
            next(iter(self._store.list("objects", chunk_size=1)), None)

    def manifest(self) -> Manifest | None:
        """The newest manifest; None if there is none. Raises StoreError."""
        try:
            written = bytearray()
            for piece in self._pieces(MANIFEST):
                written += piece
                if len(written) > MANIFEST_BYTES:
                    raise StoreError("its manifest is too large to be one")
        except MissingObject:
            return None
        try:
            manifest = msgspec.json.decode(written, type=Manifest)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            raise StoreError("its manifest is damaged") from None
        for name, digest in manifest.files.items():
            patterns = (_OF_CHECKPOINT, _OF_CODE, _OF_IMAGE)
            if name not in PLAIN and not any(one.fullmatch(name) for one in patterns):
                raise StoreError(f"it names a file that no run has, {escaped(repr(name), 80)}")
            if not _HASH.fullmatch(digest.blake2b):
                raise StoreError(f"its manifest is damaged at {escaped(name, 80)}")
        return manifest

    def bring_up(self, run: Path) -> None:
        """Update the copy to the present run. Raises StoreError, CheckpointError,
        JournalError and OSError."""
        if not (run / JOURNAL).exists():
            return
        id_ = _id(run) or _new_id(run)
        before = self.manifest()
        if before is not None and before.id != id_:
            raise StoreError("it now has another run's copy")
        there = set() if before is None else {digest.blake2b for digest in before.files.values()}
        journal = run / f".{JOURNAL}.copied"
        try:
            copy_journal(run / JOURNAL, journal)
            with SqliteHistory(journal) as history:
                known = {version for _, version in history.snapshots()}
                forgotten = bool(history.forgotten)
            files = dict[str, Digest]()
            put = set[int]()
            for checkpoint in complete(run):
                if of_it := self._checkpoint(run, checkpoint, there):
                    put.add(checkpoint.version)
                    files |= of_it
            if forgotten and not known & put:
                raise CheckpointError("its checkpoints were replaced faster than they are copied")
            for name in sorted(PLAIN - {JOURNAL}):
                if (run / name).is_file():
                    files[name] = self._put((run / name).read_bytes(), there)
            for name in code_files(run):
                files[f"{CODE}/{name}"] = self._put((run / CODE / name).read_bytes(), there)
            files |= self._images(run, {} if before is None else before.files, there)
            files[JOURNAL] = self._put(journal, there)
        finally:
            journal.unlink(missing_ok=True)
        with understood():
            self._store.put(MANIFEST, msgspec.json.encode(Manifest(id_, files)))
        self._forget_all_but({digest.blake2b for digest in files.values()})

    def get(self, digest: Digest, target: Path) -> None:
        """Fetch one file. Raises StoreError and OSError."""
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        left = digest.size
        with target.open("xb") as file:
            try:
                for piece in self._pieces(_key(digest)):
                    if (left := left - len(piece)) < 0:
                        break
                    file.write(piece)
            except MissingObject:
                raise StoreError("it is being written at the moment: fetch it again") from None
        if left or digested(target) != digest:
            raise StoreError(f"{target.name} is not what was copied")

    def _pieces(self, name: str) -> Iterator[bytes]:
        """The contents of an object. In a store of files it is a file, and no pipe or device, from
        which a read may not return. Raises StoreError."""
        with understood():
            if self._folder is None:
                yield from map(bytes, self._store.get(name).stream())
                return
        try:
            with open_regular(self._folder / name) as file:
                yield from iter(applied(file.read, PIECE_BYTES), b"")
        except FileNotFoundError:
            raise MissingObject(f"{name} is not in it") from None
        except OSError as error:
            raise StoreError(f"{name} in it cannot be read ({error.strerror})") from None

    def _images(
        self, run: Path, before: Mapping[str, Digest], there: set[str]
    ) -> dict[str, Digest]:
        """Put the images that the copied journal may name, each once: a name is a hash of its
        bytes."""
        put = dict[str, Digest]()
        for path in sorted((run / IMAGES).iterdir()) if (run / IMAGES).is_dir() else ():
            if _OF_IMAGE.fullmatch(name := f"{IMAGES}/{path.name}"):
                put[name] = before.get(name) or self._put(path, there)
        return put

    def _checkpoint(self, run: Path, checkpoint: Checkpoint, there: set[str]) -> dict[str, Digest]:
        """Put one checkpoint; returns nothing if it is removed meanwhile."""
        try:
            folder, digests = checkpoint.path, scalars(checkpoint.path).files
            put = {SCALARS: self._put(folder / SCALARS, there)}
            for name, digest in digests.items():
                put[name] = self._put(folder / name, there, digest)
            return {f"{folder.relative_to(run)}/{name}": digest for name, digest in put.items()}
        except (CheckpointError, FileNotFoundError, MissingObject):
            if checkpoint.path.exists():
                raise
            return {}

    def _put(self, contents: Path | bytes, there: set[str], digest: Digest | None = None) -> Digest:
        """Put a file, which changes no more, or bytes, unless they exist there. Their `digest` may
        be known."""
        if digest is None:
            digest = digested(contents)
        if digest.blake2b not in there:
            with understood():
                self._store.put(_key(digest), contents)
        return digest

    def _forget_all_but(self, named: set[str]) -> None:
        """Delete the objects that no manifest names any more."""
        with understood():
            for listed in self._store.list("objects"):
                if gone := [entry["path"] for entry in listed if entry["path"][-32:] not in named]:
                    self._store.delete(gone)


def _key(digest: Digest) -> str:
    return f"objects/{digest.blake2b}"


def _id(run: Path) -> str:
    """The id of a run that was copied before; empty for another one."""
    path = run / COPY_ID
    return path.read_text().strip() if path.is_file() else ""


def _new_id(run: Path) -> str:
    made = secrets.token_hex(16)
    write_whole(run / COPY_ID, f"{made}\n")
    return made
