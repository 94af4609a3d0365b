"""The run's key, and the proof of it before any frame. Invariant: nothing a peer sent is decoded
until it has proved the key.

Challenge and response over fixed-length raw bytes, each side proving itself over both nonces, its
own role (so that no answer can be reflected) and the channel (so that no answer given
inside one TLS connection fits another; empty without TLS): server → client `magic, nonce`; client →
server `nonce, HMAC-SHA256`; server → client `HMAC-SHA256`.
"""

from __future__ import annotations

import contextlib
import errno
import hmac
import os
import secrets
import ssl
import stat
from collections.abc import Iterator
from pathlib import Path

import trio

from asyncrl.runtime.ipc.errors import LinkError
from asyncrl.runtime.ipc.pipes import FAILURES, Pipe
from asyncrl.runtime.ipc.tls import why

KEY_BYTES = 32
_MAGIC = b"asyncrl\x01"
_NONCE_BYTES = 32
_PROOF_BYTES = 32


def new_key() -> bytes:
    """A fresh key: 32 random bytes."""
    return secrets.token_bytes(KEY_BYTES)


def write_key(path: Path, key: bytes) -> None:
    """Write `key` to a new file of mode 0600, which replaces an old one."""
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(key)


def read_private(path: Path, most: int) -> bytes:
    """Read at most `most` bytes of a file that is this user's alone: not a link, not another
    user's, and not one that others may open. Raises ValueError if it is one of these, and
    OSError."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise ValueError(f"the key {path} is a symbolic link; start a new run") from None
    try:
        # of the opened file: its name may belong to another one by now
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
            raise ValueError(
                f"the key {path} is not a file of this user (it belongs to user {status.st_uid}); "
                "start a new run"
            )
        if (mode := stat.S_IMODE(status.st_mode)) & 0o077:
            raise ValueError(
                f"others may open the key {path} (mode {mode:o}); make it `chmod 600`, or start "
                "a new run"
            )
        return os.read(descriptor, most)
    finally:
        os.close(descriptor)


def read_key(path: Path) -> bytes:
    """The run's key in `path`. Raises ValueError as `read_private`, or if it is not a key."""
    key = read_private(path, KEY_BYTES + 1)
    if len(key) != KEY_BYTES:
        raise ValueError(
            f"{path} does not hold the {KEY_BYTES} bytes of a run's key; start the run again to "
            "write it again"
        )
    return key


async def prove_to_client(pipe: Pipe, key: bytes, *, peer: str, channel: bytes) -> None:
    """The server's side; call it inside `proving`. Raises LinkError; the caller closes the
    pipe."""
    nonce = secrets.token_bytes(_NONCE_BYTES)
    await pipe.send([_MAGIC + nonce])
    answer = await _exactly(pipe, _NONCE_BYTES + _PROOF_BYTES)
    if answer is None:
        raise LinkError("key", f"{peer} closed the connection instead of proving the run's key")
    theirs, proof = answer[:_NONCE_BYTES], answer[_NONCE_BYTES:]
    if not hmac.compare_digest(proof, _proof(key, b"client", nonce, theirs, channel)):
        raise LinkError("key", f"{peer} does not have this run's key")
    await pipe.send([_proof(key, b"server", nonce, theirs, channel)])


async def prove_to_server(pipe: Pipe, key: bytes, *, peer: str, channel: bytes) -> None:
    """The client's side; call it inside `proving`. Raises LinkError; the caller closes the
    pipe."""
    challenge = await _exactly(pipe, len(_MAGIC) + _NONCE_BYTES)
    if challenge is None or not challenge.startswith(_MAGIC):
        raise LinkError("key", f"the server at {peer} runs another version of asyncrl")
    nonce, mine = challenge[len(_MAGIC) :], secrets.token_bytes(_NONCE_BYTES)
    await pipe.send([mine + _proof(key, b"client", nonce, mine, channel)])
    proof = await _exactly(pipe, _PROOF_BYTES)
    if proof is None:
        raise LinkError("key", f"{peer} closed the connection: it has another run's key")
    if not hmac.compare_digest(proof, _proof(key, b"server", nonce, mine, channel)):
        raise LinkError("key", f"{peer} does not have this run's key")


@contextlib.contextmanager
def proving(peer: str, deadline_s: float) -> Iterator[None]:
    """Turn failures and timeouts of all that comes before the first frame into LinkError."""
    try:
        with trio.CancelScope(deadline=trio.current_time() + deadline_s) as scope:
            yield
    except ssl.SSLEOFError as error:
        raise LinkError("broken", f"{peer} went away before TLS was agreed on") from error
    except ssl.SSLError as error:
        raise LinkError(
            "certificate",
            f"{peer} is not trusted: {why(error)}; both ends need certificates of one authority",
        ) from error
    except FAILURES as error:
        raise LinkError(
            "broken",
            f"{peer} went away before the run's key was proved: {error or type(error).__name__}",
        ) from error
    if scope.cancelled_caught:
        raise LinkError("silent", f"{peer} did not prove the run's key within {deadline_s:g} s")


def _proof(key: bytes, role: bytes, servers: bytes, clients: bytes, channel: bytes) -> bytes:
    return hmac.digest(key, role + servers + clients + channel, "sha256")


async def _exactly(pipe: Pipe, size: int) -> bytes | None:
    """`size` bytes, and no more; None if the stream ends before."""
    data = bytearray(size)
    filled = 0
    while filled < size:
        count = await pipe.receive_into(memoryview(data)[filled:])
        if not count:
            return None
        filled += count
    return bytes(data)
