"""The process that speaks with a hub, through `huggingface_hub`: `python -m
asyncrl.launch.hub.hub_process` reads one request as JSON and answers in lines of JSON.

A process of its own reads the variables that say where hub and cache are (HF_HOME, HF_HUB_CACHE,
HF_ENDPOINT, HF_HUB_OFFLINE) when it starts, as that library does, and can be ended while it waits.
Invariants: nothing outside of the cache and of the outline is written, whatever a hub answers, and
no more bytes than it lists; the token is that of the environment alone, and is in no answer.
"""

from __future__ import annotations

import glob
import json
import os
import re
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import msgspec
from huggingface_hub import (
    HfApi,
    constants,
    get_cached_repo_tree,
    get_hf_file_metadata,
    hf_hub_url,
    snapshot_download,
)
from huggingface_hub.errors import (
    CachedRepoTreeNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils import build_hf_headers, get_session, hf_raise_for_status

from asyncrl.config.model_names import DEFAULT, OUTLINE, ModelName, is_commit, snapshot_folder
from asyncrl.escape import escaped
from asyncrl.files import JSON_BYTES, read_regular, whole_file, write_whole
from asyncrl.launch.hub.hub_faults import HubError, hub_token, is_offline, sentence
from asyncrl.launch.hub.hub_files import INDEX, WEIGHTS, incomplete, misfit, wanted
from asyncrl.launch.hub.hub_messages import (
    BytesCame,
    DownloadModel,
    FindModel,
    ModelFound,
    ModelRefused,
    Reply,
    Request,
)
from asyncrl.words import size

ASK_S = 10.0
"""Seconds in which a hub must begin to answer."""
LOOK_S = 0.2
"""Seconds between two looks at what has come."""
SLACK = 2**26
"""Bytes beyond those that the hub lists that a download may take on the disk."""
FIRST = 2**17
"""Bytes of a file of weights that are read first: most headers are shorter."""
HEADER_BYTES = 10**8
"""Bytes of a header, at most, as safetensors has it."""
WORKERS = 4
"""Files that are asked for at a time."""
UNKNOWN = -1
"""Bytes of a file for which a hub lists none."""
_ETAG = re.compile(r"[A-Za-z0-9_+=-][A-Za-z0-9._+=-]{0,199}")
_FAULTS = (Exception,)


class _ShardIndex(msgspec.Struct):
    weight_map: dict[str, str]


def main() -> int:
    """Answer one request. Returns the exit status."""
    request = msgspec.json.decode(sys.stdin.buffer.read(), type=Request)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: _end(_storage(request.repository)))
    answer(reply(request))
    return 0


def reply(request: Request) -> Reply:
    """The answer to a request."""
    try:
        return _found(request) if isinstance(request, FindModel) else _downloaded(request)
    except HubError as error:
        return _refusal(str(error))
    except _FAULTS as error:
        return _refusal(sentence(error, request.repository, getattr(request, "revision", "")))


def answer(told: Reply) -> None:
    """Write a line."""
    sys.stdout.buffer.write(msgspec.json.encode(told) + b"\n")
    sys.stdout.buffer.flush()


def _refusal(why: str) -> ModelRefused:
    """The answer that the model cannot be used."""
    if isinstance(token := hub_token(), str):
        why = why.replace(token, "…")
    return ModelRefused(escaped(why, 1000))


# ------------------------------------------------------------------------------------------- to ask


def _found(ask: FindModel) -> ModelFound:
    """Find a model. Raises HubError, and the errors of the library."""
    revision = ask.revision or DEFAULT
    if is_commit(revision) and (there := _cached(ask, revision)):
        return there
    try:
        info = HfApi(token=hub_token()).model_info(
            ask.repository, revision=revision, files_metadata=True, timeout=ASK_S
        )
        commit, listed = str(info.sha), _listed(info.siblings)
    except _FAULTS as error:
        return _without_hub(ask, revision, error)
    if not is_commit(commit):
        raise HubError(f"and {constants.ENDPOINT} names no commit for it: it is not a model hub")
    if why := misfit(listed, weights=ask.weights):
        raise HubError(f"which {why}; choose another model")
    return _of_hub(
        ask, commit, _counted(ask.repository, commit, wanted(listed, weights=ask.weights))
    )


def _without_hub(ask: FindModel, revision: str, error: Exception) -> ModelFound:
    """The copy in the cache, where the hub does not answer as it should. Raises HubError."""
    commit = revision if is_commit(revision) else _known(ask.repository, revision)
    why = sentence(error, ask.repository, ask.revision)
    has_answered = isinstance(error, RepositoryNotFoundError | RevisionNotFoundError)
    if commit and (there := _cached(ask, commit)):
        note = f"its copy in the cache is used, of commit {commit}"
        return there if is_offline() else msgspec.structs.replace(there, note=f"{note}: {why}")
    if has_answered:
        raise HubError(why)
    part = _snapshot(ask.repository, commit) if commit else None
    begun = "of which a part is" if part and part.is_dir() else "which is not"
    raise HubError(f"{begun} in the cache {constants.HF_HUB_CACHE}, {why}")


def _of_hub(ask: FindModel, commit: str, files: Mapping[str, int]) -> ModelFound:
    """A model of the hub: its directory in the cache if all of it is there, else its outline."""
    _remember(ask.repository, ask.revision or DEFAULT, commit)
    snapshot = _snapshot(ask.repository, commit)
    small = {name: count for name, count in files.items() if not name.endswith(WEIGHTS)}
    if missing := _missing(snapshot, small):
        _fetch(ask.repository, commit, missing)
    missing = _missing(snapshot, files)
    if not missing:
        return ModelFound(str(snapshot), commit, constants.HF_HUB_CACHE)
    outline = Path(ask.folder) / snapshot_folder(ModelName(ask.repository, commit))
    outline.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(WORKERS) as threads:
        outlined = [
            threads.submit(_outline, outline / name, ask.repository, commit, count)
            for name, count in missing.items()
        ]
        for each in outlined:
            each.result()
    for name in files.keys() - missing.keys():
        if not (outline / name).exists():
            (outline / name).symlink_to(snapshot / name)
    (outline / OUTLINE).touch()
    return ModelFound(str(outline), commit, constants.HF_HUB_CACHE, missing)


def _cached(ask: FindModel, commit: str) -> ModelFound | None:
    """The model in the cache, if all of it is there. Raises HubError for a damaged file."""
    snapshot = _snapshot(ask.repository, commit)
    if not snapshot.is_dir():
        return None
    try:
        tree = get_cached_repo_tree(ask.repository, revision=commit)
    except CachedRepoTreeNotFoundError:  # another program has filled the cache
        there = {path.name for path in snapshot.iterdir() if path.is_file()}
        if incomplete(there, _shards(snapshot), weights=ask.weights):
            return None
    else:
        listed = {file.path: file.size for file in tree}
        if _missing(snapshot, wanted(listed, weights=ask.weights)):
            return None
    return ModelFound(str(snapshot), commit, constants.HF_HUB_CACHE)


def _shards(snapshot: Path) -> set[str]:
    """The files that a model's index names; none where it has no index that can be read, which the
    check of the directory says."""
    try:
        index = msgspec.json.decode(read_regular(snapshot / INDEX, JSON_BYTES), type=_ShardIndex)
    except (OSError, ValueError):
        return set()
    return set(index.weight_map.values())


def _missing(snapshot: Path, files: Mapping[str, int]) -> dict[str, int]:
    """The files that are not in the cache. Raises HubError for one with another number of bytes."""
    missing = {}
    for name, count in files.items():
        path = snapshot / name
        if not path.is_file():
            missing[name] = count
        elif path.stat().st_size != count:
            raise HubError(
                f"whose {name} has {path.stat().st_size:,} bytes in the cache, and {count:,} by "
                f"the hub's list: remove {snapshot} and try again"
            )
    return missing


def _listed(siblings: Any) -> dict[str, int]:
    """The files of a model, with their bytes; UNKNOWN where the hub does not list them. Raises
    HubError."""
    listed = {}
    for sibling in siblings or ():
        name, count = sibling.rfilename, UNKNOWN if sibling.size is None else sibling.size
        if not isinstance(name, str) or not isinstance(count, int) or count < UNKNOWN:
            raise HubError(f"and {constants.ENDPOINT} lists invalid files")
        listed[name] = count
    return listed


def _counted(repository: str, commit: str, files: Mapping[str, int]) -> dict[str, int]:
    """The files with the bytes that the hub did not list, as it says when it is asked for each."""
    return {name: _asked_size(repository, commit, name, count) for name, count in files.items()}


def _asked_size(repository: str, commit: str, name: str, count: int) -> int:
    if count != UNKNOWN:
        return count
    url = hf_hub_url(repository, name, revision=commit)
    return get_hf_file_metadata(url, token=hub_token(), timeout=ASK_S).size or 0


def _known(repository: str, revision: str) -> str:
    """The commit of a revision when it was last downloaded; empty if that is not known."""
    ref = _storage(repository) / "refs" / revision
    try:
        commit = read_regular(ref, 100).decode(errors="replace").strip()
    except OSError:
        return ""
    return commit if is_commit(commit) else ""


def _remember(repository: str, revision: str, commit: str) -> None:
    """Write down the commit of a revision as the library does, for the time without the hub."""
    if is_commit(revision):
        return
    ref = _storage(repository) / "refs" / revision
    ref.parent.mkdir(parents=True, exist_ok=True)
    write_whole(ref, commit, forced=False)


# --------------------------------------------------------------------------------------- to outline


def _outline(path: Path, repository: str, commit: str, count: int) -> None:
    """Write a file of weights with its header and a hole for its numbers. Raises HubError."""
    header = _header(repository, commit, path.name, count)
    ends = [
        offsets[1]
        for tensor in json.loads(header[8:]).values()
        if isinstance(tensor, dict) and isinstance(offsets := tensor.get("data_offsets"), list)
    ]
    if len(header) + max(ends, default=0) != count:
        raise HubError(
            f"whose {path.name} has {count:,} bytes by the hub's list, and "
            f"{len(header) + max(ends, default=0):,} by its own header: it is damaged there"
        )
    with whole_file(path, forced=False) as file:
        file.write(header)
        file.truncate(count)


def _header(repository: str, commit: str, name: str, count: int) -> bytes:
    """The header of a file of weights, with its length before it. Raises HubError."""
    data = _begin(repository, commit, name, min(FIRST, count))
    length = 8 + int.from_bytes(data[:8], "little")
    if length > min(count, HEADER_BYTES):
        raise HubError(f"whose {name} is not safetensors: its header has no end")
    if length > len(data):
        data = _begin(repository, commit, name, length)
    try:
        is_header = isinstance(json.loads(data[8:length]), dict)
    except (ValueError, RecursionError):
        is_header = False
    if len(data) < length or not is_header:
        raise HubError(f"whose {name} is not safetensors: its header cannot be read")
    return data[:length]


def _begin(repository: str, commit: str, name: str, count: int) -> bytes:
    """The first bytes of a file, also from a hub that sends all of it when asked for a part."""
    headers = {**build_hf_headers(token=hub_token()), "Range": f"bytes=0-{count - 1}"}
    headers["Accept-Encoding"] = "identity"
    url, data = hf_hub_url(repository, name, revision=commit), bytearray()
    with get_session().stream("GET", url, headers=headers, timeout=ASK_S) as response:
        hf_raise_for_status(response)
        for piece in response.iter_bytes():
            data += piece
            if len(data) >= count:
                break
    return bytes(data[:count])


# -------------------------------------------------------------------------------------- to download


def _downloaded(download: DownloadModel) -> ModelFound:
    """Download a model. Raises HubError, and the errors of the library."""
    _fetch(download.repository, download.commit, download.files, told=True)
    snapshot = _snapshot(download.repository, download.commit)
    return ModelFound(str(snapshot), download.commit, constants.HF_HUB_CACHE)


def _fetch(repository: str, commit: str, files: Mapping[str, int], *, told: bool = False) -> None:
    """Download files to the cache, and tell how many bytes have come. What came of a file goes on
    where a connection broke off, and whole files stay. Raises HubError."""
    for name, count in files.items():
        _try(repository, commit, name, count)
    storage, over = _storage(repository), threading.Event()
    watcher = threading.Thread(
        target=_watch, args=(storage, sum(files.values()), over, told), daemon=True
    )
    watcher.start()
    snapshot_download(
        repository,
        revision=commit,
        allow_patterns=[glob.escape(name) for name in files],
        token=hub_token(),
        max_workers=WORKERS,
    )
    over.set()
    watcher.join()
    if missing := _missing(_snapshot(repository, commit), files):
        raise HubError(
            f"whose {min(missing)} did not come, though the hub lists it: try again, or remove "
            f"{storage}"
        )


def _try(repository: str, commit: str, name: str, count: int) -> None:
    """Ask for a file, and compare it with the hub's list, before anything of it is written. The
    library names its files by what a hub answers. Raises HubError."""
    url = hf_hub_url(repository, name, revision=commit)
    file = get_hf_file_metadata(url, token=hub_token(), timeout=ASK_S)
    if file.etag is None or not _ETAG.fullmatch(file.etag) or ".." in file.etag:
        raise HubError(f"whose {name} has no tag to store it under: this is not a model hub")
    if file.commit_hash != commit:
        raise HubError(f"whose {name} is of another commit than requested")
    if file.size is not None and file.size != count:
        raise HubError(
            f"whose {name} has {count:,} bytes by the hub's list, and {file.size:,} when it is "
            "asked for"
        )


def _watch(storage: Path, promised: int, over: threading.Event, told: bool) -> None:
    """Tell what has come, and end this process if that is more than the hub listed, or if its
    starter is gone."""
    began, count = _held(storage), 0
    while not over.wait(LOOK_S):
        before = count
        with suppress(OSError):  # no descriptor is free: the next look tells
            count = _held(storage) - began
        if count > promised + SLACK:
            answer(_refusal(f"of which more comes than the {size(promised)} that the hub lists"))
            _end(storage)
        if told and count != before:
            try:
                answer(BytesCame(count))
            except OSError:
                _end(storage)


def _end(storage: Path) -> NoReturn:
    """End this process, and remove what it did not complete."""
    for left in storage.glob("blobs/*.incomplete"):
        left.unlink(missing_ok=True)
    os._exit(0)


def _held(storage: Path) -> int:
    """Bytes of the files in a directory of the cache."""
    return sum(_sizes(storage))


def _sizes(folder: Path) -> Iterator[int]:
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    yield from _sizes(Path(entry.path))
                else:
                    yield entry.stat(follow_symlinks=False).st_size
    except FileNotFoundError:  # it was renamed meanwhile
        return


# --------------------------------------------------------------------------------------- in general


def _storage(repository: str) -> Path:
    """The directory of a model in the cache."""
    return (
        Path(constants.HF_HUB_CACHE).expanduser().resolve()
        / snapshot_folder(ModelName(repository)).partition("/")[0]
    )


def _snapshot(repository: str, commit: str) -> Path:
    return _storage(repository) / "snapshots" / commit


if __name__ == "__main__":
    sys.exit(main())
