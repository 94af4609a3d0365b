"""Names of models on a hub, `org/name` or `org/name@revision`, and the directories of its cache.
Pure: `asyncrl.launch.hub_models` finds what they name.

Invariant: a path that is clearly one (absolute, or begun by `./`, `../` or `~`) is no name.
"""

from __future__ import annotations

import re
from pathlib import PurePath
from typing import NamedTuple

_PART = r"[A-Za-z0-9_](?:[A-Za-z0-9._-]*[A-Za-z0-9_])?"
_NAME = re.compile(rf"({_PART}/{_PART})(?:@([A-Za-z0-9_][A-Za-z0-9._/+-]{{0,199}}))?")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_SNAPSHOT = re.compile(rf"models--({_PART})--({_PART})/snapshots/([0-9a-f]{{40}})")
MODELS = ("model.path", "reference.path", "teacher.path")
"""The settings that name a model."""
LONGEST = 96
"""Characters of a name on a hub, at most."""
OUTLINE = ".outline"
"""Name of a file in a directory whose weights are holes: it says what a model is, before it is
downloaded."""
DEFAULT = "main"
"""The revision that is meant where none is named."""


class ModelName(NamedTuple):
    """A model on a hub, at a revision (a branch, a tag or a commit); empty: the hub's default."""

    repository: str
    revision: str = ""

    def __str__(self) -> str:
        return f"{self.repository}@{self.revision}" if self.revision else self.repository

    @property
    def is_pinned(self) -> bool:
        """True if the revision is a commit, which never changes."""
        return is_commit(self.revision)


def is_commit(revision: str) -> bool:
    """True for the whole hash of a commit.

    >>> is_commit("a" * 40), is_commit("a" * 39), is_commit("main")
    (True, False, False)
    """
    return _COMMIT.fullmatch(revision) is not None


def model_name(text: str) -> ModelName | None:
    """The model that a setting names; None for what can only be a path.

    >>> model_name("Qwen/Qwen3-0.6B"), model_name("a/b@v1.0"), str(model_name("a/b@refs/pr/1"))
    (ModelName(repository='Qwen/Qwen3-0.6B', revision=''), \
ModelName(repository='a/b', revision='v1.0'), 'a/b@refs/pr/1')
    >>> [text for text in ("/a/b", "./a", "../x", "~/a", "a", "a/b/c", "a/b@", "a/..", "a/b@../c",
    ...     "a/b.git", "a/b--c", "a b/c", "a/b\\n", "é/b", "a/" + "b" * 95) if model_name(text)]
    []
    """
    if not (found := _NAME.fullmatch(text)) or len(found[1]) > LONGEST:
        return None
    if "--" in found[1] or ".." in text or "//" in text or found[1].endswith(".git"):
        return None
    return ModelName(found[1], found[2] or "")


def of_snapshot(directory: str | PurePath) -> ModelName | None:
    """The model, and its commit, whose files are in a directory of a hub's cache; None for any
    other directory.

    >>> str(of_snapshot("/c/hub/models--a--b/snapshots/" + "0" * 40))
    'a/b@0000000000000000000000000000000000000000'
    >>> of_snapshot("/models/mine")
    """
    last = "/".join(PurePath(directory).parts[-3:])
    found = _SNAPSHOT.fullmatch(last)
    return ModelName(f"{found[1]}/{found[2]}", found[3]) if found else None


def snapshot_folder(name: ModelName) -> str:
    """The directory of a model at a commit, below that of a hub's cache.

    >>> snapshot_folder(ModelName("a/b", "c" * 3))
    'models--a--b/snapshots/ccc'
    """
    return f"models--{name.repository.replace('/', '--')}/snapshots/{name.revision}"


def same_model(one: str, other: str) -> bool:
    """True for settings that name one model: equal, or one commit in two caches.

    >>> commit = "0" * 40
    >>> same_model(*(f"/{cache}/models--a--b/snapshots/{commit}" for cache in "cd"))
    True
    >>> same_model("/c/a", "/d/a"), same_model("/c/a", "/c/a")
    (False, True)
    """
    return one == other or (of_snapshot(one) == of_snapshot(other) is not None)


def said(path: str) -> str:
    """The setting that names a model, for people: a directory of a hub's cache by its name.

    >>> said("/c/hub/models--a--b/snapshots/" + "0" * 40)[:10], said("/models/mine"), said("")
    ('a/b@000000', '/models/mine', '')
    """
    return str(of_snapshot(path) or path)
