"""Requests to the process that speaks with a hub (`hub_process.py`), and its answers."""

from __future__ import annotations

import msgspec


class FindModel(msgspec.Struct, frozen=True, tag=True):
    """Find a model: in the cache, or on the hub. What has to be downloaded is outlined below
    `folder`: files with the headers of its weights, and holes for their numbers."""

    repository: str
    revision: str
    weights: bool
    folder: str


class DownloadModel(msgspec.Struct, frozen=True, tag=True):
    """Download the files of a model at a commit, with the bytes that the hub lists for each."""

    repository: str
    commit: str
    files: dict[str, int]


class ModelFound(msgspec.Struct, frozen=True, tag=True):
    """A model in `directory`, at `commit`: in the cache, or, if files are `missing` there (with the
    bytes of each), its outline. `note` is a sentence for the user."""

    directory: str
    commit: str
    cache: str
    missing: dict[str, int] = msgspec.field(default_factory=dict)
    note: str = ""


class BytesCame(msgspec.Struct, frozen=True, tag=True):
    """So many bytes of a download have come."""

    count: int


class ModelRefused(msgspec.Struct, frozen=True, tag=True):
    """The model cannot be used: `why` follows `key is 'org/name', `."""

    why: str


Request = FindModel | DownloadModel
Reply = ModelFound | BytesCame | ModelRefused
