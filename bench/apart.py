"""Two machines on this one: network namespaces, and a wire between them that delays packets, loses
some, and can be cut.

    namespace "near", 10.77.0.1 ── tun ── Wire (a thread) ── tun ── "far", 10.77.0.2

All that passes between them is IP packets, so links, weights and their stores pass alike.
"""

from __future__ import annotations

import fcntl
import os
import random
import selectors
import struct
import subprocess
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

NEAR, FAR = "10.77.0.1", "10.77.0.2"
TUN = Path("/dev/net/tun")
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
"""Of linux/if_tun.h: packets of IP without a head."""
PACKET_BYTES = 2**16


class Wire(threading.Thread):
    """Carries packets between two devices, `delay_s` seconds each way. Of a hundred it loses
    `loss` × 100, and all of them while it is `cut`."""

    def __init__(self, ends: tuple[int, int], delay_s: float, loss: float) -> None:
        super().__init__(daemon=True)
        self._other = {ends[0]: ends[1], ends[1]: ends[0]}
        self._delay_s, self._loss, self._draw = delay_s, loss, random.Random(0)
        self._underway: deque[tuple[float, int, bytes]] = deque()
        self._told_to_end, self._tell = os.pipe()
        self.cut = False
        self.carried = self.lost = 0

    def run(self) -> None:
        selector = selectors.DefaultSelector()
        for end in (*self._other, self._told_to_end):
            selector.register(end, selectors.EVENT_READ)
        while True:
            wait = max(0.0, self._underway[0][0] - time.monotonic()) if self._underway else None
            for key, _ in selector.select(wait):
                if key.fd == self._told_to_end:
                    return
                self._take(key.fd)
            while self._underway and self._underway[0][0] <= time.monotonic():
                _, end, packet = self._underway.popleft()
                with suppress(OSError):  # the device is not up
                    os.write(end, packet)

    def _take(self, end: int) -> None:
        packet = os.read(end, PACKET_BYTES)
        if self.cut or self._draw.random() < self._loss:
            self.lost += 1
        else:
            self.carried += 1
            self._underway.append((time.monotonic() + self._delay_s, self._other[end], packet))

    def stop(self) -> None:
        os.write(self._tell, b"x")
        self.join()
        os.close(self._tell)
        os.close(self._told_to_end)


class Apart:
    """The two namespaces and their wire."""

    def __init__(self, names: tuple[str, str], wire: Wire) -> None:
        self._names, self.wire = names, wire

    def near(self, argv: list[str]) -> list[str]:
        """The command, in the namespace of 10.77.0.1."""
        return _inside(self._names[0], argv)

    def far(self, argv: list[str]) -> list[str]:
        """The command, in the namespace of 10.77.0.2."""
        return _inside(self._names[1], argv)


def _inside(name: str, argv: list[str]) -> list[str]:
    return ["nsenter", f"--net=/run/netns/{name}", *argv]


def reason_against() -> str:
    """The reason why this machine can have no namespaces; empty if it can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if not TUN.exists():
        return f"there is no {TUN} for a wire between network namespaces"
    try:
        name = f"asyncrl-{os.getpid()}-try"
        _ip("netns", "add", name)
        _ip("netns", "del", name)
    except (OSError, subprocess.CalledProcessError) as error:
        return f"network namespaces cannot be made here: {error}"
    return ""


@contextmanager
def apart(delay_s: float = 0.02, loss: float = 0.01) -> Iterator[Apart]:
    """Have both for the length of the block."""
    with ExitStack() as stack:
        ends, names = list[int](), list[str]()
        for side, own, other in (("a", NEAR, FAR), ("b", FAR, NEAR)):
            name, device = f"asyncrl-{os.getpid()}-{side}", f"wire{os.getpid()}{side}"
            _ip("netns", "add", name)
            stack.callback(_ip, "netns", "del", name)
            end = os.open(TUN, os.O_RDWR | os.O_NONBLOCK)
            stack.callback(os.close, end)
            request = struct.pack("16sH22x", device.encode(), IFF_TUN | IFF_NO_PI)
            fcntl.ioctl(end, TUNSETIFF, request)
            _ip("link", "set", device, "netns", name)
            _ip("-n", name, "addr", "add", own, "peer", other, "dev", device)
            for each in ("lo", device):
                _ip("-n", name, "link", "set", each, "up")
            ends.append(end)
            names.append(name)
        wire = Wire((ends[0], ends[1]), delay_s, loss)
        wire.start()
        stack.callback(wire.stop)
        yield Apart((names[0], names[1]), wire)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)
