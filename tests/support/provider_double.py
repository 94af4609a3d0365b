"""Doubles of the public APIs of E2B and Daytona on loopback. A sandbox is a folder of this machine.

`faults` are ways in which the whole provider misbehaves.
"""

from __future__ import annotations

import base64
import json
import struct
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from email import message_from_bytes
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

KEY = "key-of-the-provider"


class ProviderDouble:
    """The state of a provider: its sandboxes by id, what was asked, and its fault."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.sandboxes: dict[str, dict[str, Any]] = {}
        self.asked: list[tuple[str, str, Any]] = []
        self.fault = ""
        self.url = ""
        self.busy = 0
        self.over = threading.Event()
        self.commands: dict[int, subprocess.Popen[bytes]] = {}

    def create(self, told: dict[str, Any]) -> str:
        name = f"id{len(self.asked)}"
        (self.folder / name).mkdir(parents=True)
        self.sandboxes[name] = told
        return name


def _handler(double: ProviderDouble) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *words: object) -> None:
            pass

        def _body(self) -> bytes:
            return self.rfile.read(int(self.headers.get("content-length") or 0))

        def _send(self, status: int, body: bytes = b"", kind: str = "application/json") -> None:
            self.send_response(status)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def _json(self, status: int, value: object) -> None:
            self._send(status, json.dumps(value).encode())

        def _any(self) -> None:
            url = urlsplit(self.path)
            asked = {name: values[0] for name, values in parse_qs(url.query).items()}
            body = self._body()
            double.asked.append((self.command, url.path, body))
            if double.busy:
                double.busy -= 1
                return self._json(429, {"message": "slow down"})
            match double.fault:
                case "500":
                    return self._json(500, {"message": f"broken, by {KEY}"})
                case "garbage":
                    return self._send(200, b"<html>\xff")
                case "endless":
                    return self._send(200, b'"' + b"a" * 2_000_000)
                case "hangs":
                    double.over.wait(30)
                    self.close_connection = True
                    return None
            if not self._known():
                return self._json(401, {"message": f"wrong key, {KEY}"})
            return self._answer(self.command, url.path.strip("/").split("/"), asked, body)

        do_GET = do_POST = do_DELETE = _any

        def _known(self) -> bool:
            told = self.headers
            return (
                KEY in (told.get("x-api-key"), told.get("x-access-token"))
                or told.get("authorization") == f"Bearer {KEY}"
            )

        def _answer(self, method: str, path: list[str], asked: dict[str, str], body: bytes) -> None:
            match method, path:
                case "POST", ["sandboxes"]:
                    name = double.create(json.loads(body))
                    self._json(201, {"sandboxID": name, "envdAccessToken": KEY, "clientID": "c"})
                case "GET", ["v2", "sandboxes"]:
                    (wanted,) = parse_qs(asked["metadata"]).items()
                    self._json(
                        200,
                        [
                            {"sandboxID": name, "metadata": told["metadata"]}
                            for name, told in double.sandboxes.items()
                            if told["metadata"].get(wanted[0]) == wanted[1][0]
                        ],
                    )
                case "DELETE", ["sandboxes" | "sandbox", name]:
                    names = [
                        one
                        for one, told in double.sandboxes.items()
                        if name in (one, told.get("name"))
                    ]
                    for one in names:
                        del double.sandboxes[one]
                    self._send(204 if names else 404)
                case "POST", ["sandbox"]:
                    name = double.create(json.loads(body))
                    self._json(200, {"id": name, "state": "creating"})
                case "GET", ["sandbox"]:
                    wanted = json.loads(asked["labels"])
                    found = double.sandboxes.items()
                    self._json(
                        200,
                        [{"id": one, **told} for one, told in found if told["labels"] == wanted],
                    )
                case "GET", ["sandbox", name]:
                    toolbox = f"{double.url}/box"
                    self._json(200, {"id": name, "state": "started", "toolboxProxyUrl": toolbox})
                case _, ["box", name, *rest] if name in double.sandboxes:
                    self._in_box(method, double.folder / name, rest, asked, body)
                case _:
                    self._json(404, {"message": "no such thing"})

        def _in_box(
            self, method: str, folder: Path, path: list[str], asked: dict[str, str], body: bytes
        ) -> None:
            file = folder / asked.get("path", "-")
            match method, path:
                case "POST", ["files" | "files", *_]:
                    kind = self.headers["content-type"].encode()
                    form = message_from_bytes(b"content-type: " + kind + b"\r\n\r\n" + body)
                    file.parent.mkdir(parents=True, exist_ok=True)
                    parts: Any = form.get_payload()
                    file.write_bytes(parts[0].get_payload(decode=True))
                    self._json(200, [])
                case "GET", ["files", *_]:
                    if not file.is_file():
                        self._json(404, {"message": "file not found"})
                    else:
                        self._send(200, file.read_bytes(), "application/octet-stream")
                case "POST", ["process", "execute"]:
                    self._execute(folder, json.loads(body))
                case "POST", ["process.Process", "Start"]:
                    self._start(folder, json.loads(body[5:])["process"])
                case "POST", ["process.Process", "SendSignal"]:
                    double.commands[json.loads(body)["process"]["pid"]].kill()
                    self._json(200, {})
                case _:
                    self._json(404, {"message": "no such thing"})

        def _execute(self, folder: Path, told: dict[str, Any]) -> None:
            """Daytona: a command line, and both outputs as one text."""
            try:
                ran = subprocess.run(
                    told["command"],
                    shell=True,
                    cwd=folder / told.get("cwd", "."),
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    timeout=told["timeout"],
                    check=False,
                )
            except subprocess.TimeoutExpired:
                return self._json(408, {"message": "command execution timeout"})
            return self._json(200, {"exitCode": ran.returncode, "result": ran.stdout.decode()})

        def _start(self, folder: Path, told: dict[str, Any]) -> None:
            """E2B: a stream of events in envelopes."""
            self.send_response(200)
            self.send_header("content-type", "application/connect+json")
            self.send_header("transfer-encoding", "chunked")
            self.end_headers()
            try:
                process = subprocess.Popen(
                    [told["cmd"], *told.get("args", ())],
                    cwd=folder / told.get("cwd", "."),
                    env={"PATH": "/usr/bin:/bin", **told.get("envs", {})},
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                )
            except OSError:
                said = {"error": {"code": "invalid_argument", "message": "no such file"}}
                return self._envelope(said, 2, last=True)
            double.commands[process.pid] = process
            assert process.stdout and process.stderr
            errors = process.stderr
            try:
                self._envelope({"event": {"start": {"pid": process.pid}}})
                while piece := process.stdout.read1(2**16):
                    self._envelope({"event": {"data": {"stdout": _base64(piece)}}})
                if said_too := errors.read():
                    self._envelope({"event": {"data": {"stderr": _base64(said_too)}}})
                code = process.wait()
                end = {"exited": code >= 0, "status": f"exit status {code}"}
                end |= {"exitCode": code} if code else {}
                self._envelope({"event": {"end": end}})
                self._envelope({}, 2, last=True)
            except (BrokenPipeError, ConnectionResetError):  # the client left
                self.close_connection = True
            return None

        def _envelope(self, value: object, flags: int = 0, *, last: bool = False) -> None:
            text = json.dumps(value).encode()
            data = struct.pack(">BI", flags, len(text)) + text
            half = len(data) // 2  # in two pieces: a reader must not take a chunk for a message
            for piece in (data[:half], data[half:]):
                self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
                self.wfile.flush()
            if last:
                self.wfile.write(b"0\r\n\r\n")

    return Handler


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


@contextmanager
def provider_double(folder: Path) -> Iterator[ProviderDouble]:
    """A double that answers in the block."""
    double = ProviderDouble(folder)
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(double))
    server.daemon_threads = True
    double.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield double
    finally:
        double.over.set()
        for process in double.commands.values():
            process.kill()
        server.shutdown()
        server.server_close()
        thread.join(5)
        time.sleep(0)
