"""`python -m asyncrl.sandbox.boxes.image_pull` pulls one image; a `PullOrder` is its input.

It waits for the lock of the image, so that the second who wants it finds it there or learns why
there is none; then for one of the places of those who pull. Who started it kills it at a deadline,
with the client that it started, and the kernel gives back its locks. If that one was killed, it
ends by itself at the deadline: a registry that hangs must not keep a lock forever.
"""

from __future__ import annotations

import fcntl
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from asyncrl.files import write_whole
from asyncrl.sandbox.boxes.image_store import (
    PulledImage,
    PullOrder,
    evicted,
    failure_path,
    kept_images,
    lock_path,
    record_path,
)
from asyncrl.words import whole

ALONE_S = 10
"""Seconds after its deadline at which it ends, if nobody is left to kill it."""
SAID = 300
"""Characters of a client's error that are passed on."""


def main() -> int:
    """Pull the image that standard input says. Returns 0 if it is there, else 1, with the reason on
    standard error."""
    began = time.time()
    order = msgspec.json.decode(sys.stdin.buffer.read(), type=PullOrder)
    signal.alarm(math.ceil(order.seconds) + ALONE_S)
    folder = Path(order.folder)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _locked(lock_path(folder, order.image)):
        if _size(order) is not None:
            return 0
        failed = failure_path(folder, order.image)
        if failed.exists() and failed.stat().st_mtime >= began:
            image, _, why = failed.read_text(errors="replace").partition("\n")
            if image == order.image:  # who had the lock tried it while this one waited
                print(why, file=sys.stderr)
                return 1
        with _place(folder, order.at_a_time):
            pulled = subprocess.run(
                [order.client, "pull", "--quiet", order.image],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                check=False,
                timeout=max(0.0, order.seconds - (time.time() - began)) + ALONE_S / 2,
            )
        size = _size(order)
        if pulled.returncode or size is None:
            lines = pulled.stderr.decode(errors="replace").strip().splitlines()
            why = lines[-1][:SAID] if lines else f"{order.client} ended with {pulled.returncode}"
            write_whole(failed, f"{order.image}\n{why}", forced=False)
            print(why, file=sys.stderr)
            return 1
        record = msgspec.json.encode(PulledImage(order.image, size))
        write_whole(record_path(folder, order.image), record, forced=False)
    with _locked(folder / "evict.lock"):
        evicted(kept_images(folder), order.most_bytes, time.time(), lambda i: _removed(order, i))
    return 0


def _size(order: PullOrder) -> int | None:
    """The bytes of the image; None if it is not there."""
    found = subprocess.run(
        [order.client, "image", "inspect", "--format", "{{.Size}}", order.image],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    return None if found.returncode else whole(found.stdout.decode(errors="replace").strip())


def _removed(order: PullOrder, image: str) -> bool:
    """Remove an image, without force: the engine refuses one that a container has."""
    removed = subprocess.run(
        [order.client, "rmi", image], stdin=subprocess.DEVNULL, capture_output=True, check=False
    )
    gone = not removed.returncode or b"no such image" in removed.stderr.lower()
    if gone:
        record_path(Path(order.folder), image).unlink(missing_ok=True)
    return gone


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a lock in the block; waits for it, as long as this process lives."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def _place(folder: Path, places: int) -> Iterator[None]:
    """Hold one of the places of those who pull: a free one, else the next of one of them."""
    paths = [folder / f"place-{number}.lock" for number in range(places)]
    for path in paths:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            continue
        try:
            yield
        finally:
            os.close(descriptor)
        return
    with _locked(paths[os.getpid() % places]):
        yield


if __name__ == "__main__":
    sys.exit(main())
