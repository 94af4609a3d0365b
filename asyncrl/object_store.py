"""Object stores, by URL: obstore speaks S3's, Google's and Azure's protocols; credentials come from
the environment. Copies of runs and shared groups lie there. Invariant: whatever a store does, the
error is a StoreError whose text is a part of a sentence and has no credentials; and each request
has a deadline."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.request import url2pathname

from asyncrl.config.errors import installs
from asyncrl.escape import escaped
from asyncrl.messages.address import url_parts

if TYPE_CHECKING:
    from obstore.store import ObjectStore

SCHEMES = ("s3", "gs", "az", "file")
_LOOK = {"timeout": "10s", "connect_timeout": "5s"}, timedelta(seconds=10)
_WORK = {"timeout": "10m", "connect_timeout": "10s"}, timedelta(minutes=2)
"""Deadlines of one request, and seconds for which it is tried again."""


class StoreError(Exception):
    """An object store cannot be reached, read or written; the message is part of a sentence."""


class MissingObject(StoreError):
    """There is no object of that name, or no bucket, or no file to put."""


def is_stored(place: str) -> bool:
    """True for a setting that is a URL and not a directory.

    >>> is_stored("s3://bucket/run"), is_stored("/disk/run")
    (True, False)
    """
    return "://" in place


def folder_of(setting: str) -> Path | None:
    """The folder that a setting names, by a path or as `file://`; None for a store.

    >>> folder_of("file:///shared/groups"), folder_of("s3://bucket/groups")
    (PosixPath('/shared/groups'), None)
    """
    if not is_stored(setting):
        return Path(setting)
    parts = url_parts(setting)
    return Path(url2pathname(parts.path)) if parts.scheme == "file" else None


def refuse_url(url: str) -> None:
    """Raise StoreError for a URL that no store has."""
    if not url.isprintable():  # a line break is left out by whoever reads a URL: another place
        raise StoreError("it has characters that no URL has: write each as % and two digits")
    parts = url_parts(url)
    if parts.scheme not in SCHEMES:
        raise StoreError(f"it begins with none of {', '.join(f'{s}://' for s in SCHEMES)}")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise StoreError(
            "credentials and options belong into the environment, not into a URL that is "
            "written down"
        )


def open_store(url: str, *, patient: bool) -> ObjectStore:
    """The store at a URL; a folder is made if it is not there. With `patient` a request may last
    for minutes, and is tried again. Raises StoreError, also for a missing extra."""
    refuse_url(url)
    try:
        from obstore import store as stores
    except ImportError:
        raise StoreError(f"the extra for it is missing: {installs('store')}") from None
    timeouts, again = _WORK if patient else _LOOK
    options: dict[str, Any] = {}
    if url_parts(url).scheme == "file":
        options["mkdir"] = True
    else:
        options["client_options"] = timeouts | {"allow_http": True}
        options["retry_config"] = {"max_retries": 5, "retry_timeout": again}
    with understood():
        found: ObjectStore = stores.from_url(url, **options)
        return found


@contextmanager
def understood() -> Iterator[None]:
    """Convert errors of the store to StoreError."""
    try:
        yield
    except Exception as error:
        from obstore.exceptions import BaseError

        if not isinstance(error, BaseError | FileNotFoundError | ValueError):
            raise
        text = " ".join(str(error).split("Debug source:")[0].split())
        kind = MissingObject if isinstance(error, FileNotFoundError) else StoreError
        raise kind(f"the store says: {escaped(text, 300).rstrip('.')}") from error


def shown_url(url: str) -> str:
    """A URL without its parts that may be secret; another text as it is.

    >>> shown_url("s3://key:secret@bucket/run"), shown_url("runs/one")
    ('s3://bucket/run', 'runs/one')
    """
    parts = url_parts(url)
    if not is_stored(url):
        return escaped(url, 200)
    return escaped(f"{parts.scheme}://{parts.hostname or ''}{parts.path}", 200)
