"""TLS below a link between machines. Invariant: nothing passes in the clear, and both ends hold a
certificate of one authority.

TLS 1.3 alone, each end verified against `authority` and nothing else, the server also by its name.
The run's key is proved inside, over both certificates: a party that decrypts between two machines
of the authority cannot pass the proof of one on to the other.
"""

from __future__ import annotations

import contextlib
import hashlib
import ssl
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from asyncrl.runtime.ipc.pipes import Bytes, SocketPipe

_RECORDS = 2**16  # bytes encrypted or decrypted at a time


class Tls(msgspec.Struct, frozen=True):
    """PEM files of this machine: its `certificate` (with the chain to the authority, its own
    first), the certificate's private `key`, and the certificate of the `authority` that issued
    the certificates of all machines of the run."""

    certificate: Path
    key: Path
    authority: Path

    @classmethod
    def of(cls, folder: Path) -> Tls:
        """The files of a run's directory for them."""
        return cls(folder / "certificate.pem", folder / "key.pem", folder / "authority.pem")

    def read(self, end: Literal["client", "server"]) -> Credentials:
        """The files, for one end of a link. Raises ValueError if one cannot be used."""
        context = ssl.SSLContext(
            ssl.PROTOCOL_TLS_CLIENT if end == "client" else ssl.PROTOCOL_TLS_SERVER
        )
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.verify_mode = ssl.CERT_REQUIRED
        if end == "server":
            context.num_tickets = 0  # a link is not resumed
        for what, path in (
            ("certificate", self.certificate),
            ("key", self.key),
            ("authority", self.authority),
        ):
            try:
                path.read_bytes()
            except OSError as error:
                raise ValueError(
                    f"the TLS {what} {path} cannot be read: {error.strerror}"
                ) from None
        if (mode := stat.S_IMODE(self.key.stat().st_mode)) & 0o077:
            raise ValueError(
                f"others may open the TLS key {self.key} (mode {mode:o}); make it `chmod 600`"
            )
        try:
            context.load_verify_locations(self.authority)
        except ssl.SSLError as error:
            raise ValueError(
                f"the TLS authority {self.authority} is not a certificate in PEM: {_words(error)}"
            ) from None
        try:
            context.load_cert_chain(self.certificate, self.key, password=_refuse_password)
            own = ssl.PEM_cert_to_DER_cert(_first(self.certificate.read_text("ascii", "replace")))
        except ssl.SSLError as error:
            raise ValueError(
                f"the TLS certificate {self.certificate} and key {self.key} do not belong "
                f"together: {_words(error)}"
            ) from None
        except ValueError as error:
            raise ValueError(
                f"the TLS certificate {self.certificate} and key {self.key} cannot be used: {error}"
            ) from None
        return Credentials(context, own)


class Credentials(NamedTuple):
    """Contents of the files of a `Tls`, for one end of a link."""

    context: ssl.SSLContext
    own: bytes
    """This end's certificate, in DER."""

    def secure(self, pipe: SocketPipe, host: str | None) -> TlsPipe:
        """A pipe over `pipe`, which it takes over, before its handshake. `host` is the name
        that the server's certificate must have, None at the server's end."""
        return TlsPipe(pipe, self, host)


class TlsPipe:
    """A pipe inside TLS. An end without TLS's own closing alert is a failure, so that no party
    between the two can end a stream unseen."""

    def __init__(self, pipe: SocketPipe, credentials: Credentials, host: str | None) -> None:
        self.torn = False
        self._pipe = pipe
        self._own = credentials.own
        self._server = host is None
        self._arrived, self._leaving = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = credentials.context.wrap_bio(
            self._arrived, self._leaving, server_side=self._server, server_hostname=host
        )
        self._ahead = memoryview(bytearray(_RECORDS))

    @property
    def blocked_s(self) -> float:
        return self._pipe.blocked_s

    async def shake(self) -> bytes:
        """Shake hands, before anything else; returns digests of this connection's two certificates.
        Raises `pipes.FAILURES`; ssl.SSLError means that the other end is not trusted."""
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                await self._flush()
                await self._fetch()
            else:
                await self._flush()
                break
        theirs = self._tls.getpeercert(binary_form=True) or b""
        first, second = (self._own, theirs) if self._server else (theirs, self._own)
        return hashlib.sha256(first).digest() + hashlib.sha256(second).digest()

    async def send(self, parts: Sequence[Bytes]) -> None:
        await self._pipe.writable()  # before anything is encrypted: encrypted data must be sent
        self.torn = True
        for part in parts:
            for at in range(0, len(part), _RECORDS):
                self._tls.write(memoryview(part)[at : at + _RECORDS])
                await self._flush()
        self.torn = False

    async def receive_into(self, view: memoryview) -> int:
        filled = 0
        while filled < len(view):
            try:
                room = view[filled:]
                # bytes without a buffer
                count: int = self._tls.read(len(room), room)  # type: ignore[assignment]
            except ssl.SSLWantReadError:
                if filled:
                    break
                await self._fetch()
                continue
            if not count:
                break
            filled += count
        return filled

    async def aclose(self) -> None:
        if not self.torn:
            # if it failed, the alert that says why is sent
            with contextlib.suppress(ssl.SSLError, ValueError):
                self._tls.unwrap()
            if data := self._leaving.read():
                self._pipe.send_now(data)
        await self._pipe.aclose()

    async def _flush(self) -> None:
        if data := self._leaving.read():
            await self._pipe.send([data])

    async def _fetch(self) -> None:
        if count := await self._pipe.receive_into(self._ahead):
            self._arrived.write(self._ahead[:count])
        else:
            self._arrived.write_eof()


def why(error: ssl.SSLError) -> str:
    """A few words for a sentence about what went wrong."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate was refused ({error.verify_message})"
    return f"the two did not agree on TLS ({_words(error)})"


def _words(error: ssl.SSLError) -> str:
    return (error.reason or str(error)).replace("_", " ").lower()


def _first(text: str) -> str:
    """The first certificate in a PEM file. Raises ValueError."""
    begin, end = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
    start, stop = text.find(begin), text.find(end)
    if start < 0 or stop < start:
        raise ValueError("there is no certificate in it")
    return text[start : stop + len(end)]


def _refuse_password() -> str:
    raise ValueError(
        "the key needs a password, which cannot be entered here: decrypt it into a file of mode 600"
    )
