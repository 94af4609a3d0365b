"""Strangers at the ports of a real run: its metrics, its page, its agents' endpoint, and the port
at which machines join. They have no key. Each sends bytes of its own; afterwards each server must
answer an honest client, and the run's logs and its end tell what was raised.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import socket
import ssl
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from stranger_kit.attempt import Found

START_S, ANSWER_S, END_S = 240.0, 20.0, 120.0
GAP_S = 3.0
"""Seconds that a stranger stays who says nothing."""
SETTINGS = {
    "task.name": "spell_backward",
    "task.eval_size": 0,
    "train.steps": 1_000_000,
    "train.batch_groups": 2,
    "train.eval_every": 0,
    "rollout.group_size": 4,
    "rollout.max_new_tokens": 8,
    "rollout.filter": "none",
    "engine.slots": 8,
    "engine.compile": "false",
    "agent.run": "http",
    "supervision.stall_s": 3600,
}
WORDS = (
    *(b"GET ", b"POST ", b"PUT ", b"CONNECT ", b"\xff ", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b""),
)
PLACES = (
    *(b"/", b"/metrics", b"/v1/chat/completions", b"/v1/episodes", b"/sessions/x/v1/completions"),
    *(b"/../../etc/passwd", b"/%00", b"/%ff%fe", b"/%2e%2e/%2e%2e/x", b"http://other/x", b"*"),
    *(b"/rollouts?prompt=%27", b"/?key=x", b"/" + b"x" * 9000, b"\x1b[2J", b"//", b"/ready"),
)
HEADERS = (
    *(b"host: a", b"host: a\r\nhost: b", b"host: \xff", b"authorization: Bearer x", b"x" * 70_000),
    *(b"content-length: 5", b"content-length: -1", b"content-length: " + b"9" * 5000),
    *(b"transfer-encoding: chunked", b"content-length: 3\r\ntransfer-encoding: chunked"),
    *(b"accept: application/openmetrics-text; version=x", b"accept: \xff;q=,", b"a:b\r\n" * 500),
    *(
        b"upgrade: h2c\r\nconnection: upgrade, http2-settings\r\nhttp2-settings: a",
        b": x",
        b"\0: x",
    ),
    *(b"expect: 100-continue", b"connection: close", b"cookie: key=" + b"k" * 4000),
)
BODIES = (
    *(b"", b"{}", b"x" * 5, b"5\r\nhello\r\n0\r\n\r\n", b"ffffffffffffffff\r\n", b"[" * 100_000),
    *(b'{"model": "policy", "messages": [{"role": "user", "content": "\\ud800"}]}', b"\0" * 10**6),
)


def sent(draw: random.Random) -> list[bytes]:
    """The pieces that a stranger sends."""
    kind = draw.randrange(8)
    if kind == 0:
        return [draw.randbytes(draw.choice([1, 16, 300, 70_000]))]
    if kind == 1:
        return [struct.pack(">I", draw.choice([0, 1, 2**31, 2**32 - 1])) + draw.randbytes(40)]
    if kind == 2:
        return []  # silence
    request = (
        draw.choice(WORDS) + draw.choice(PLACES) + draw.choice([b" HTTP/1.1", b" HTTP/9", b""])
    )
    heads = draw.sample(HEADERS, draw.randint(0, 3))
    whole = b"\r\n".join([request, *heads, b"", draw.choice(BODIES)])
    if kind == 3:
        return [whole[: draw.randrange(1, len(whole) + 1)]]
    if kind == 4:
        return [whole] * 20
    if kind == 5:
        return [bytes([byte]) for byte in whole[:60]]
    return [whole]


def stranger(draw: random.Random, port: int) -> None:
    """Connect, say something, and go."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 5) as link:
        if draw.random() < 0.15:
            context = ssl.create_default_context()
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            link.settimeout(GAP_S)
            link = context.wrap_socket(link)
        pieces = sent(draw)
        for piece in pieces:
            link.sendall(piece)
        link.settimeout(GAP_S if draw.random() < 0.2 else 0.3)
        while link.recv(1 << 16):
            pass
        if draw.random() < 0.3:
            link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def answers(port: int, head: bytes) -> str:
    """An honest client's answer; empty where it has none in time."""
    end = time.monotonic() + ANSWER_S
    while time.monotonic() < end:
        try:
            with socket.create_connection(("127.0.0.1", port), 5) as link:
                link.settimeout(5)
                link.sendall(head + b"\r\nhost: 127.0.0.1:%d\r\nconnection: close\r\n\r\n" % port)
                if data := link.recv(12):
                    return data.decode(errors="replace")
        except OSError:
            pass
        time.sleep(0.5)
    return ""


def free_ports(count: int) -> list[int]:
    """Ports of loopback that were free a moment ago."""
    with contextlib.ExitStack() as stack:
        taken = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [server.getsockname()[1] for server in taken]


@contextlib.contextmanager
def running(
    folder: Path, ports: dict[str, int], **more: object
) -> Iterator[subprocess.Popen[bytes]]:
    """A run with these ports, until the end of the block."""
    settings = SETTINGS | ports | {"run.dir": folder / "run"} | more
    argv = [sys.executable, "-m", "asyncrl", "train"]
    argv += [f"--set={key}={value}" for key, value in settings.items()]
    with (folder / "said").open("wb") as said:
        process = subprocess.Popen(argv, stdout=said, stderr=said, start_new_session=True)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def visited(draw: random.Random, folder: Path, count: int, *, cluster: bool) -> Found:
    """So many strangers at the ports of a run; what was wrong then."""
    found = Found([], [], [], [], [])
    names = ["cluster.port"] if cluster else ["metrics.port", "run.page_port", "agent.port"]
    ports = dict(zip(names, free_ports(len(names)), strict=True))
    more = {"cluster.kind": "agents", "agent.run": ""} if cluster else {}
    with running(folder, ports, **more) as process:
        end = time.monotonic() + START_S
        while not all(map(_listens, ports.values())) and time.monotonic() < end:
            if process.poll() is not None:
                found.hangs.append(f"the run ended: {(folder / 'said').read_text()[-600:]}")
                return found
            time.sleep(1)
        for _ in range(count):
            stranger(draw, draw.choice([*ports.values()]))
        for name, port in ports.items():
            if cluster:
                if not _listens(port):
                    found.hangs.append(f"{name} no longer takes connections")
                continue
            place = {"metrics.port": b"/metrics", "agent.port": b"/ready"}.get(name, b"/")
            if not (said := answers(port, b"GET " + place + b" HTTP/1.1")).startswith("HTTP/1.1 2"):
                found.hangs.append(f"{name} answers an honest client with {said!r}")
        if process.poll() is not None:
            found.differences.append(f"the run ended with {process.returncode}")
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            found.hangs.append("the run did not end on SIGTERM")
    for log in [folder / "said", *(folder / "run" / "logs").glob("*")]:
        text = log.read_text(errors="replace")
        if at := re.search(r"Traceback \(most recent|Exception Group|never awaited", text):
            found.tracebacks.append(f"{log.name}: {text[at.start() : at.start() + 900]}")
        if log.stat().st_size > 3000 * count:
            found.differences.append(f"{log.name} has {log.stat().st_size:,} bytes")
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if os.fsencode(folder / "run") in path.read_bytes().split(b"\0"):
                found.processes.append(f"{path.parent.name} is left")
                os.kill(int(path.parent.name), signal.SIGKILL)
    return found


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False
