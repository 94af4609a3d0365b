"""A hub on loopback that speaks the part of the public API that `huggingface_hub` uses: a model's
list, the tree of a commit, and files, in parts where asked for.

Its faults are attributes, which a test sets: statuses, lies about sizes, a connection that breaks.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class HubDouble:
    """A hub with one model; `seen` are the requests that came, as method, path and Range."""

    files: dict[str, bytes]
    repository: str = "org/name"
    commit: str = COMMIT
    refs: dict[str, str] = field(default_factory=dict)
    token: str = ""
    """The key without which it refuses; its model is gated then."""
    status: int = 0
    """The status of each answer, if it is not 0."""
    listed: dict[str, int] = field(default_factory=dict)
    """Sizes in its list that are not true, and files that are not there."""
    served: dict[str, bytes] = field(default_factory=dict)
    """Files that are other than their sizes and tags say."""
    etags: dict[str, str] = field(default_factory=dict)
    breaks: dict[str, int] = field(default_factory=dict)
    """Files of which so many bytes come, once, before the connection breaks."""
    ignores_range: bool = False
    seen: list[tuple[str, str, str]] = field(default_factory=list)
    sent: int = 0
    url: str = ""

    def asked_for(self, name: str) -> list[str]:
        """The ranges in which a file was asked for."""
        return [part for method, path, part in self.seen if method == "GET" and name in path]


@contextmanager
def serving(hub: HubDouble) -> Iterator[HubDouble]:
    """Serve on a free port of loopback."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *args: Any) -> None:
            pass

        def do_HEAD(self) -> None:
            _answer(self, hub)

        def do_GET(self) -> None:
            _answer(self, hub)

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        hub.url = f"http://127.0.0.1:{server.server_port}"
        try:
            yield hub
        finally:
            server.shutdown()
            thread.join()


def model_files(directory: Path) -> dict[str, bytes]:
    """The files of a model directory."""
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def _answer(handler: BaseHTTPRequestHandler, hub: HubDouble) -> None:
    path, wanted = unquote(urlsplit(handler.path).path), handler.headers.get("Range", "")
    hub.seen.append((handler.command, path, wanted))
    if hub.status:
        return _end(handler, hub.status)
    if hub.token and handler.headers.get("Authorization") != f"Bearer {hub.token}":
        return _end(handler, 401, {"X-Error-Code": "GatedRepo"})
    api = f"/api/models/{hub.repository}"
    if found := re.fullmatch(rf"{api}(?:/revision/(.+))?", path):
        if not (commit := _commit(hub, found[1] or "main")):
            return _end(handler, 404, {"X-Error-Code": "RevisionNotFound"})
        siblings = [{"rfilename": name, "size": count} for name, count in _listed(hub).items()]
        return _json(handler, {"id": hub.repository, "sha": commit, "siblings": siblings})
    if re.fullmatch(rf"{api}/tree/(.+)", path):
        entries = [
            {"type": "file", "path": name, "size": count, "oid": _tag(hub, name)}
            for name, count in _listed(hub).items()
        ]
        return _json(handler, entries)
    if found := re.fullmatch(rf"/{hub.repository}/resolve/([^/]+)/(.+)", path):
        if not _commit(hub, found[1]) or found[2] not in hub.files:
            return _end(handler, 404, {"X-Error-Code": "EntryNotFound"})
        return _file(handler, hub, found[2], wanted)
    return _end(handler, 404, {"X-Error-Code": "RepoNotFound"})


def _file(handler: BaseHTTPRequestHandler, hub: HubDouble, name: str, wanted: str) -> None:
    data, begin, status = hub.served.get(name, hub.files[name]), 0, 200
    end = len(data)
    headers = {"ETag": f'"{_tag(hub, name)}"', "X-Repo-Commit": hub.commit}
    if handler.command == "HEAD":
        return _end(handler, 200, headers | {"Content-Length": str(len(hub.files[name]))}, b"")
    if (found := re.fullmatch(r"bytes=([0-9]+)-([0-9]*)", wanted)) and not hub.ignores_range:
        begin, status = int(found[1]), 206
        end = min(end, int(found[2]) + 1) if found[2] else end
        headers["Content-Range"] = f"bytes {begin}-{end - 1}/{len(data)}"
    headers["Content-Length"] = str(end - begin)
    body = data[begin:end]
    if (most := hub.breaks.get(name)) and len(body) > most:
        del hub.breaks[name]
        body = body[:most]
        handler.close_connection = True
    hub.sent += len(body)
    return _end(handler, status, headers, body)


def _json(handler: BaseHTTPRequestHandler, value: object) -> None:
    body = json.dumps(value).encode()
    headers = {"Content-Type": "application/json", "Content-Length": str(len(body))}
    _end(handler, 200, headers, body)


def _end(
    handler: BaseHTTPRequestHandler,
    status: int,
    headers: dict[str, str] | None = None,
    body: bytes = b"",
) -> None:
    handler.send_response(status)
    for name, value in ({"Content-Length": "0"} | (headers or {})).items():
        handler.send_header(name, value)
    handler.end_headers()
    if handler.command != "HEAD":
        try:
            handler.wfile.write(body)
        except OSError:  # its reader has enough
            handler.close_connection = True


def _listed(hub: HubDouble) -> dict[str, int]:
    return {name: len(data) for name, data in hub.files.items()} | hub.listed


def _tag(hub: HubDouble, name: str) -> str:
    return hub.etags.get(name) or hashlib.sha1(hub.files.get(name, b"")).hexdigest()


def _commit(hub: HubDouble, revision: str) -> str:
    if revision in (hub.commit, "main"):
        return hub.commit
    return hub.refs.get(revision, "")
