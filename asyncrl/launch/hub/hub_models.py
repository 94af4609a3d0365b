"""Models that settings name by `org/name`: their directories in a hub's cache. This is the one
place where a name becomes a directory.

Before a run, what is not on this machine is *outlined*: a directory with the model's small files,
and with files of weights that have their headers and holes for their numbers. So all that follows
from a model is checked before its weights are downloaded. Invariant: a resumed run uses the very
commit that it began with.
"""

from __future__ import annotations

import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from asyncrl import config as configuration
from asyncrl.config import Config, ConfigError
from asyncrl.config.derived import Row
from asyncrl.config.fields import lookup
from asyncrl.config.model_names import MODELS, ModelName, model_name, of_snapshot
from asyncrl.config.paths import is_file, is_folder, shown
from asyncrl.launch.hub.hub_messages import (
    BytesCame,
    DownloadModel,
    FindModel,
    ModelFound,
    ModelRefused,
    Reply,
    Request,
)
from asyncrl.own_folder import own_folder
from asyncrl.runtime.processes.process import isolated
from asyncrl.runtime.run_dir import RUN_TOML
from asyncrl.runtime.waiting import Doing
from asyncrl.words import share, size

PROCESS = "asyncrl.launch.hub.hub_process"
SILENT_S = 120.0
"""Seconds in which the process that speaks with a hub must say something."""
STEP = 20
"""Words on the progress of a download: one for each of so many parts."""
_QUIET = {
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_HUB_DISABLE_UPDATE_CHECK": "1",
    "HF_HUB_DISABLE_IMPLICIT_TOKEN": "1",
}


class NamedModels:
    """The models that the settings of one configuration name, while it is checked."""

    def __init__(self, folder: Path, doing: Doing) -> None:
        """`folder` is for outlines; `doing` is called with what may take long."""
        self._folder, self._doing = folder, doing
        self._found = dict[str, tuple[ModelName, ModelFound]]()  # by key
        self._names = dict[str, str]()  # of directories
        self._notes = list[Row]()

    @property
    def missing(self) -> bool:
        """True if a model has to be downloaded before a run."""
        return any(found.missing for _, found in self._found.values())

    @property
    def rows(self) -> list[Row]:
        """Rows about the models."""
        return [row for key, (_, found) in self._found.items() for row in _rows(key, found)] + (
            self._notes
        )

    def find(self, config: Config, resume: Path | None) -> Config:
        """The configuration with a directory for each model that is named: in the cache, or an
        outline of what is not there. Raises ConfigError."""
        began = _settings_of(resume)
        for key in MODELS:
            text = str(lookup(config, key))
            name, note = _named(text, "" if began is None else str(lookup(began, key)))
            self._notes += [Row("note", key, note)] * bool(note)
            if name is not None:
                weights = key == "model.path" or not lookup(config, f"{key[:-5]}.server")
                _room(key, name, self._ask(key, name, weights))
        return self.settled(config)

    def download(self) -> None:
        """Download what is missing. Raises ConfigError."""
        for key, (name, found) in self._found.items():
            if found.missing:
                request = DownloadModel(name.repository, found.commit, found.missing)
                self._keep(key, name, _reply(key, name, request, self._doing))

    def settled(self, config: Config) -> Config:
        """The configuration with the directories as they are now."""
        for key, (_, found) in self._found.items():
            config = _replaced(config, key, found.directory)
        return config

    def by_name(self, text: str) -> str:
        """A text with the names of models in place of their directories."""
        for directory, name in self._names.items():
            text = text.replace(directory, name)
        return text

    def _ask(self, key: str, name: ModelName, weights: bool) -> ModelFound:
        for other, found in self._found.values():
            if other == name and (weights or not found.missing):
                self._found[key] = name, found
                return found
        self._doing(f"looking for the model {name}")
        ask = FindModel(name.repository, name.revision, weights, str(self._folder))
        return self._keep(key, name, _reply(key, name, ask, self._doing))

    def _keep(self, key: str, name: ModelName, found: ModelFound) -> ModelFound:
        self._found[key] = name, found
        self._names[found.directory] = f"{name.repository}@{found.commit}"
        return found


@contextmanager
def named_models(doing: Doing = lambda what: None) -> Iterator[NamedModels]:
    """Models by name, for one check. A ConfigError of the block names them, too."""
    with own_folder("models") as folder:
        models = NamedModels(folder, doing)
        try:
            yield models
        except ConfigError as error:
            if (text := models.by_name(str(error))) == str(error):
                raise
            raise ConfigError(text) from error


def model_directory(text: str | Path, doing: Doing = lambda what: None) -> Path:
    """The directory of a model that is named, downloaded if it is not on this machine; that of a
    path is itself, as each `Path` is. Raises ConfigError."""
    name = None if isinstance(text, Path) else _named(text, "")[0]
    if name is None:
        return Path(text)
    with own_folder("models") as folder:
        ask = FindModel(name.repository, name.revision, True, str(folder))
        found = _reply("the model", name, ask, doing)
        if found.missing:
            _room("the model", name, found)
            request = DownloadModel(name.repository, found.commit, found.missing)
            found = _reply("the model", name, request, doing)
    return Path(found.directory)


def with_directories(config: Config) -> Config:
    """The configuration with a directory for each model that it names, downloaded if it is not on
    this machine. Raises ConfigError."""
    for key in MODELS:
        if text := str(lookup(config, key)):
            config = _replaced(config, key, str(model_directory(text)))
    return config


def _replaced(config: Config, key: str, path: str) -> Config:
    section, _, field = key.partition(".")
    changed = msgspec.structs.replace(getattr(config, section), **{field: path})
    return msgspec.structs.replace(config, **{section: changed})


def _named(text: str, began: str) -> tuple[ModelName | None, str]:
    """The model that a setting names, or None for a directory; and a note. `began` is the directory
    that a resumed run began with."""
    if not text:
        return None, ""
    there = is_folder(Path(text))
    if (lost := of_snapshot(text)) is not None:
        return (None if there else lost), ""
    name = model_name(text)
    if name is None:
        return None, ""
    if there:
        return None, f"the directory ./{text} is taken, and no model of that name on a hub"
    was = of_snapshot(began)
    if was is not None and was.repository == name.repository and not name.is_pinned:
        return was, "the commit that the run began with is used"
    return name, ""


def _settings_of(resume: Path | None) -> Config | None:
    """The settings that a resumed run began with, if they are there."""
    if resume is None or not is_file(resume / RUN_TOML):
        return None
    return configuration.read(resume / RUN_TOML)


def _rows(key: str, found: ModelFound) -> list[Row]:
    """Rows about a model that is named."""
    rows = [Row(key, "of a hub", f"in the cache {found.cache}, at this commit")]
    if found.missing:
        count = len(found.missing)
        text = f"in {count} file{'s' * (count > 1)}; the disk of {found.cache} has"
        text = f"{text} {size(_free(found))} free; a run downloads them when it starts"
        rows = [Row(key, f"{size(sum(found.missing.values()))} to download", text)]
    return rows + [Row("note", key, found.note)] * bool(found.note)


def _room(key: str, name: ModelName, found: ModelFound) -> None:
    """Raise ConfigError if the disk of the cache has no room for a download."""
    need, free = sum(found.missing.values()), _free(found)
    if free < need:
        raise ConfigError(
            f"{key} is {str(name)!r}, whose download takes {size(need)}, and the disk of "
            f"{shown(found.cache)} has {size(free)} free: make room, or set HF_HOME to a directory "
            "of another disk."
        )


def _free(found: ModelFound) -> int:
    """Bytes that are free on the disk of the cache."""
    cache = Path(found.cache)
    return shutil.disk_usage(next(path for path in (cache, *cache.parents) if path.exists())).free


def _reply(key: str, name: ModelName, request: Request, doing: Doing) -> ModelFound:
    """The answer of a hub, or of the cache. Raises ConfigError."""
    total = sum(request.files.values()) if isinstance(request, DownloadModel) else 0
    for reply in _replies(key, name, request):
        match reply:
            case ModelFound():
                return reply
            case ModelRefused(why):
                raise ConfigError(f"{key} is {str(name)!r}, {why}.")
            case BytesCame(count):
                part = min(STEP, STEP * count // max(1, total)) / STEP
                doing(f"downloading {name}: {share(part)} of {size(total)}")
    raise ConfigError(
        f"{key} is {str(name)!r}, and the process that looks for it ended without an answer; try "
        "again, or give the path of a local directory."
    )


def _replies(key: str, name: ModelName, request: Request) -> Iterator[Reply]:
    """The lines that the process of a hub answers with. It ends with this function."""
    environment = isolated(os.environ) | _QUIET
    with subprocess.Popen(
        [sys.executable, "-m", PROCESS],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment,
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        try:
            with suppress(BrokenPipeError):
                process.stdin.write(msgspec.json.encode(request))
                process.stdin.close()
            yield from _lines(key, name, process.stdout.fileno())
        finally:
            process.terminate()


def _lines(key: str, name: ModelName, descriptor: int) -> Iterator[Reply]:
    """The answers on a pipe. Raises ConfigError if none comes for SILENT_S."""
    rest, heard = b"", time.monotonic()
    while True:
        left = heard + SILENT_S - time.monotonic()
        if left <= 0 or not select.select([descriptor], [], [], left)[0]:
            raise ConfigError(
                f"{key} is {str(name)!r}, and its hub has said nothing for {SILENT_S:g} s; try "
                "again, or give the path of a local directory."
            )
        piece, heard = os.read(descriptor, 2**16), time.monotonic()
        if not piece:
            return
        *lines, rest = (rest + piece).split(b"\n")
        yield from (msgspec.json.decode(line, type=Reply) for line in lines)
