"""The join token of a run: the one file that a machine needs in order to take part.

A launch makes an authority for itself, has it certify two keys, the head's and the agents', and
forgets the authority's own key, so that a third cannot be certified. The token holds the agents'
side, and a key of its own, which is proved inside TLS; a peer that has proved it is sent the
launch's key. It is as secret as the run: its holder may act as an actor.

The certificates are valid at any time, because nothing may depend on clocks that agree. They end
with the run, which removes its token; the next run makes another. A launcher that was killed leaves
it, and its successor takes it up, so that machines can join again with the token that they have.
"""

from __future__ import annotations

import datetime
import ipaddress
import socket
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from asyncrl.config import ConfigError
from asyncrl.config.errors import installs
from asyncrl.messages.address import TcpAddress, tcp_address
from asyncrl.runtime.ipc.keys import KEY_BYTES, read_private, write_key
from asyncrl.runtime.ipc.tls import Tls
from asyncrl.runtime.run_dir import JOIN_TOKEN, TLS

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

AGENT = "asyncrl-agent"
"""The name in the agents' certificate, which no client connects to."""
TOKEN_BYTES = 2**16
"""Room for a token; one has about 2 KB."""
FROM = datetime.datetime(1970, 1, 2, tzinfo=datetime.UTC)
UNTIL = datetime.datetime(9999, 12, 31, 23, 59, 59, tzinfo=datetime.UTC)
"""No end, as RFC 5280 writes it (4.1.2.5)."""


class Pem(msgspec.Struct, frozen=True):
    """The contents of the files of a `Tls`."""

    certificate: str
    key: str
    authority: str

    def write(self, run: Path) -> None:
        """Write them to the directory of a run, readable by its user alone."""
        folder = run / TLS
        folder.mkdir(mode=0o700, exist_ok=True)
        files = Tls.of(folder)
        write_key(files.certificate, self.certificate.encode())
        write_key(files.key, self.key.encode())
        write_key(files.authority, self.authority.encode())


class JoinToken(msgspec.Struct, frozen=True):
    """Address of the launcher, the key that allows to join, and the agents' side of TLS."""

    address: str
    key: bytes
    tls: Pem

    @property
    def launcher(self) -> TcpAddress:
        """The launcher's address. Raises ValueError."""
        return tcp_address(self.address)

    def write(self, path: Path) -> None:
        """Write it to a file that is its user's alone."""
        write_key(path, msgspec.json.encode(self))

    @classmethod
    def read(cls, path: Path) -> JoinToken:
        """The token in a file. Raises ConfigError if there is none, or others may read it."""
        try:
            return cls.parsed(read_private(path, TOKEN_BYTES), str(path))
        except OSError as error:
            raise ConfigError(f"{path}: the join token cannot be read: {error.strerror}.") from None
        except ValueError as error:
            raise _no_token(str(path), error) from None

    @classmethod
    def parsed(cls, written: bytes, named: str) -> JoinToken:
        """The token of these bytes, `named` so in errors. Raises ConfigError."""
        try:
            token = msgspec.json.decode(written, type=cls)
            if len(token.key) != KEY_BYTES:
                raise ValueError("its key has another length")
            token.launcher  # noqa: B018  # it parses, or raises
        except ValueError as error:
            raise _no_token(named, error) from None
        return token


def _no_token(named: str, error: ValueError) -> ConfigError:
    return ConfigError(
        f"{named} is not a join token ({error}): copy the run's join.token to this machine."
    )


def left_token(run: Path, host: str, port: int) -> JoinToken | None:
    """The token that a killed launcher left in `run`, if machines can still join by it: at this
    `host`, and at `port` or, if that is 0, at the same port as before, which is free."""
    try:
        token = JoinToken.read(run / JOIN_TOKEN)
        mine = Tls.of(run / TLS)
        for file in (mine.certificate, mine.key, mine.authority):
            read_private(file, TOKEN_BYTES)
        address = token.launcher
        if address.host != host or port not in (0, address.port):
            return None
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.create_server((host, address.port), family=family):
            return token
    except (ConfigError, ValueError, OSError):
        return None


def certify(host: str) -> tuple[Pem, Pem]:
    """The head's files for TLS, whose certificate names `host`, and the agents'. Raises
    ConfigError if the package that makes certificates is missing."""
    try:
        from cryptography import x509
        from cryptography.x509.oid import ExtendedKeyUsageOID
    except ImportError:
        raise ConfigError(
            'cluster.kind = "agents" needs the package cryptography, which makes certificates: '
            f"{installs('cluster')}."
        ) from None
    try:
        named: x509.GeneralName = x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        named = x509.DNSName(host)
    authority = _Authority()
    return (
        authority.certify(named, ExtendedKeyUsageOID.SERVER_AUTH),
        authority.certify(x509.DNSName(AGENT), ExtendedKeyUsageOID.CLIENT_AUTH),
    )


class _Authority:
    """The authority of one run, whose key is gone when both ends have their certificates."""

    NAME = "asyncrl-run"
    NOT_ITS_USE = (
        *("digital_signature", "content_commitment", "key_encipherment", "data_encipherment"),
        *("key_agreement", "crl_sign", "encipher_only", "decipher_only"),
    )

    def __init__(self) -> None:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import ec

        self._key = ec.generate_private_key(ec.SECP256R1())
        signs = dict.fromkeys(self.NOT_ITS_USE, False)
        own = (
            self._begun(self.NAME, self._key)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(x509.KeyUsage(key_cert_sign=True, **signs), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self._certificate = _pem(own)

    def certify(self, name: x509.GeneralName, usage: x509.ObjectIdentifier) -> Pem:
        """The files of one end, with a key of its own."""
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec

        key = ec.generate_private_key(ec.SECP256R1())
        certificate = (
            self._begun("asyncrl-end", key)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName([name]), critical=False)
            .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        private = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        return Pem(_pem(certificate), private.decode(), self._certificate)

    def _begun(self, name: str, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        from cryptography import x509
        from cryptography.x509.oid import NameOID

        def common(text: str) -> x509.Name:
            return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])

        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        subject = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
        return (
            x509.CertificateBuilder()
            .subject_name(common(name))
            .issuer_name(common(self.NAME))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(FROM)
            .not_valid_after(UNTIL)
            .add_extension(issuer, critical=False)
            .add_extension(subject, critical=False)
        )


def _pem(certificate: x509.Certificate) -> str:
    from cryptography.hazmat.primitives import serialization

    return certificate.public_bytes(serialization.Encoding.PEM).decode()
