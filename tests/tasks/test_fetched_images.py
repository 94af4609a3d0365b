"""Images that prompts name by a URL: from hosts that settings list, once, and within bounds."""

from __future__ import annotations

import io
import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import msgspec
import pytest

from asyncrl.config import Config, ConfigError
from asyncrl.config.load import load
from asyncrl.config.schema import RunConfig, TaskConfig
from asyncrl.launch.image_fetching import fetch_run_images
from asyncrl.runtime.run_dir import FETCHED, IMAGES
from asyncrl.tasks import TaskError, open_task
from asyncrl.tasks.images import fetching
from asyncrl.tasks.images.fetched_images import FetchedImages
from asyncrl.tasks.images.fetching import fetched
from asyncrl.tasks.images.image_source import ImageSource, is_listed
from asyncrl.tasks.images.kept_images import KeptImages
from asyncrl.tasks.prompt import ChatPrompt

Image = pytest.importorskip("PIL.Image", reason="images need Pillow (the extra vision)")


class Host(ThreadingHTTPServer):
    """A host at a port of loopback, with answers by their paths: bytes, a place, or a status."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answers)
        self.answers = dict[str, bytes | str | int]()
        self.asked = list[str]()
        self.origin = f"http://127.0.0.1:{self.server_address[1]}"


class _Answers(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        assert isinstance(self.server, Host)
        self.server.asked.append(self.path)
        answer = self.server.answers.get(self.path, 404)
        moved = isinstance(answer, str)
        self.send_response(302 if moved else answer if isinstance(answer, int) else 200)
        if isinstance(answer, str):
            self.send_header("Location", answer)
        data = answer if isinstance(answer, bytes) else b""
        # a path may promise more than it gives
        self.send_header("Content-Length", str(len(data) + 9 * ("short" in self.path)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def host() -> Iterator[Host]:
    with Host() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def png(colour: str = "red") -> bytes:
    data = io.BytesIO()
    Image.new("RGB", (4, 4), colour).save(data, "PNG")
    return data.getvalue()


def test_bytes_of_a_listed_host_are_fetched(host: Host) -> None:
    host.answers |= {"/a.png?x=1": png(), "/moved": "/a.png?x=1"}
    assert fetched(f"{host.origin}/moved", [host.origin]) == png()
    assert host.asked == ["/moved", "/a.png?x=1"]


def test_what_is_not_fetched_is_one_sentence(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "IMAGE_BYTES", 100)
    host.answers |= {
        "/away": "http://127.0.0.1:1/a.png",
        "/file": "file:///etc/passwd",
        "/round": "/round",
        "/short": b"half",
        "/large": bytes(101),
    }
    for path, says in {
        "away": r"leads to http://127\.0\.0\.1:1/a\.png, whose host is not in task\.image_hosts",
        "file": "whose host is not in",
        "round": "redirected more than 4 times",
        "short": "ended within it",
        "large": "more than 100 bytes",
        "none": "the host answers 404",
        "\r\nX: y": "cannot be fetched",
    }.items():
        with pytest.raises(LookupError, match=says) as caught:
            fetched(f"{host.origin}/{path}", [host.origin])
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("address", ["127.0.0.1", "10.0.0.7", "169.254.169.254", "::1", "fd00::1"])
def test_a_name_does_not_lead_into_a_private_network(
    host: Host, monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    """Not even where one of its addresses is public."""
    port = host.server_address[1]
    found = [
        (socket.AF_INET, socket.SOCK_STREAM, 6, "", (one, port)) for one in ("1.1.1.1", address)
    ]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    monkeypatch.setattr(socket, "create_connection", lambda *_: pytest.fail("it was connected to"))
    with pytest.raises(LookupError, match=f"cdn.example is {address}, an address of a private"):
        fetched("https://cdn.example/a.png", ["cdn.example"])


def test_a_slow_host_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "FETCH_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        origin = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(LookupError, match=r"took more than 0\.2 s"):
            fetched(f"{origin}/a.png", [origin])


def test_hosts_are_compared_as_a_browser_does() -> None:
    assert is_listed("https://EXAMPLE.org:443/a", ["example.org"])
    assert is_listed("http://10.0.0.5:8000/a", ["http://10.0.0.5:8000"])
    for url in (
        "http://example.org/a", "https://example.org:8443/a", "https://a.example.org/a",
        "https://example.org@evil.org/a", "https://user@example.org/a", "https://example.org.evil.org",
        "https://evil.org/example.org", "https:///a", "https://example.org:x/a", "https://[::1/a",
    ):  # fmt: skip
        assert not is_listed(url, ["example.org"]), url


@pytest.mark.parametrize("entry", ["", "ftp://example.org", "example.org/a", "a b", "a@b", "*"])
def test_an_entry_that_is_no_host_is_refused(entry: str) -> None:
    with pytest.raises(ConfigError, match="image_hosts"):
        load(None, [f"task.image_hosts={json.dumps([entry])}"], {})


def written(folder: Path, *urls: str) -> str:
    rows = [{"prompt": f"Which {n}?", "image": url, "answer": "a"} for n, url in enumerate(urls)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(folder / "rows.jsonl")


def test_a_run_fetches_each_image_once(host: Host, tmp_path: Path) -> None:
    host.answers |= {"/a.png": png(), "/b.png": png("blue"), "/text": b"no image"}
    paths = ("a.png", "b.png", "a.png", "text", "gone")
    path = written(tmp_path, *(f"{host.origin}/{one}" for one in paths))
    task = TaskConfig(name="data", path=path, eval_size=1, image_hosts=(host.origin,))
    config, run = Config(task=task, run=RunConfig(dir=str(tmp_path))), tmp_path / "run"
    run.mkdir()
    note = fetch_run_images(config, run)
    assert note.startswith("2 of 4 images were not fetched, and their prompts are dropped; the fir")
    assert "/text cannot be decoded" in note and sorted(host.asked) == sorted(
        f"/{one}" for one in dict.fromkeys(paths)
    )
    assert len([*(run / IMAGES).iterdir()]) == 2
    host.asked.clear()
    assert fetch_run_images(config, run).startswith("2 of 2 images") and len(host.asked) == 2
    images = FetchedImages(run / FETCHED, KeptImages(run / IMAGES))
    prompt = open_task(task, 0).prompt("train", 0)
    assert isinstance(prompt, ChatPrompt)
    assert images.bytes_of(prompt.images[0]).startswith(b"\x89PNG")
    with pytest.raises(LookupError, match="gone was not fetched when the run began"):
        images.bytes_of(ImageSource(url=f"{host.origin}/gone"))
    other = msgspec.structs.replace(task, image_hosts=("example.org",))
    with pytest.raises(TaskError, match=r"line 1: its image is the URL .*not in task\.image_hosts"):
        open_task(other, 0)
