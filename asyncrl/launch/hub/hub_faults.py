"""Faults between this machine and a hub, in words, with their remedies."""

from __future__ import annotations

import json
import os

import httpx2
from huggingface_hub import constants
from huggingface_hub.errors import (
    FileMetadataError,
    GatedRepoError,
    HfHubHTTPError,
    IncompleteSnapshotError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from asyncrl.config.model_names import DEFAULT, is_commit
from asyncrl.escape import escaped
from asyncrl.files import no_room
from asyncrl.os_errors import remedy


class HubError(Exception):
    """A model cannot be used; its text follows `key is 'org/name', `."""


def sentence(error: BaseException, repository: str, revision: str = "") -> str:
    """The fault between this machine and a hub, in words, and its remedy."""
    hub, host = constants.ENDPOINT, f"the hub {constants.ENDPOINT}"
    chain = [error]
    while (behind := chain[-1].__cause__ or chain[-1].__context__) and behind not in chain:
        chain.append(behind)
    for one in chain:
        match one:
            case OfflineModeIsEnabled():
                return (
                    "and HF_HUB_OFFLINE is set: unset it, or give the path of a local Hugging Face "
                    "model directory"
                )
            case GatedRepoError():
                key = "set HF_TOKEN to a key of that account"
                return f"which is gated: accept its conditions at {hub}/{repository}, and {key}"
            case RevisionNotFoundError() if is_commit(revision):
                return (
                    f"and neither the cache {constants.HF_HUB_CACHE} nor {host} has this commit of "
                    "it: name another, or for a run that began with it put back the cache"
                )
            case RevisionNotFoundError():
                return f"and {host} has no revision {revision or DEFAULT!r} of it: name another"
            case RepositoryNotFoundError():
                private = (
                    "to which HF_TOKEN opens none" if hub_token() else "and HF_TOKEN is not set"
                )
                return (
                    f"which is no directory here, and {host} has no such model, or it is a private "
                    f"one, {private}: look at the name, or give the path of a local directory"
                )
            case HfHubHTTPError():
                return _refused(one.response.status_code, host)
            case httpx2.TransportError():
                why = escaped(str(one) or type(one).__name__, 150)
                return (
                    f"and {host} cannot be reached ({why}): connect to it, or give the path of a "
                    "local Hugging Face model directory"
                )
    if full := no_room(error):
        return f"and {constants.HF_HUB_CACHE} cannot be written ({full.strerror}): {remedy(full)}"
    if isinstance(error, FileMetadataError | json.JSONDecodeError | UnicodeDecodeError):
        return f"and {constants.ENDPOINT} is no hub of models: look at HF_ENDPOINT"
    if isinstance(error, IncompleteSnapshotError | LocalEntryNotFoundError):
        return f"and {host} does not answer as it should: try again later"
    words = escaped(str(error).partition("\n")[0].rstrip("."), 200) or type(error).__name__
    if isinstance(error, OSError) and error.errno:
        where = error.filename or constants.HF_HUB_CACHE
        todo = "set HF_HOME to a directory that you can write"
        return f"and {where} cannot be used ({error.strerror}): {todo}"
    return f"and {host} does not answer as it should ({words}): try again"


def _refused(status: int, host: str) -> str:
    """An answer with an HTTP status that tells of an error."""
    if status in (401, 403):
        return f"and {host} refuses it (status {status}): set HF_TOKEN to a key that may read it"
    if status == 429:
        return f"and {host} answers too many requests (status 429): wait, or set HF_TOKEN"
    return f"and {host} answers with status {status}: try again later, or give a local directory"


def is_offline() -> bool:
    return bool(constants.is_offline_mode())


def hub_token() -> str | bool:
    """The key of the environment; False, so that the library looks nowhere else, if there is
    none."""
    return os.environ.get("HF_TOKEN", "").strip() or False
