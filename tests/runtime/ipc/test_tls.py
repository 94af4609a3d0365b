"""Between machines nothing passes in the clear, and only who has a certificate of the run's
authority is talked to."""

from __future__ import annotations

import functools
import ipaddress
import os
import random
import ssl
from pathlib import Path

import pytest
import trio
import trustme
from test_link import KEY, Refusals, echo, frame_of

from asyncrl import messages
from asyncrl.messages.address import TcpAddress, UnixAddress
from asyncrl.runtime.ipc.endpoints import connect, serve
from asyncrl.runtime.ipc.errors import EndOfStream, LinkBroken, LinkError
from asyncrl.runtime.ipc.keys import new_key
from asyncrl.runtime.ipc.link import Link
from asyncrl.runtime.ipc.pipes import SocketPipe
from asyncrl.runtime.ipc.sockets import dial
from asyncrl.runtime.ipc.tls import Tls

HERE = TcpAddress("127.0.0.1", 0)


def issue(authority: trustme.CA, folder: Path, *names: str) -> Tls:
    """The files of one machine."""
    folder.mkdir()
    tls = Tls(folder / "certificate.pem", folder / "key.pem", folder / "authority.pem")
    leaf = authority.issue_cert(*names)
    tls.certificate.write_bytes(b"".join(pem.bytes() for pem in leaf.cert_chain_pems))
    tls.key.write_bytes(leaf.private_key_pem.bytes())
    tls.key.chmod(0o600)
    authority.cert_pem.write_to_path(str(tls.authority))
    return tls


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def machine(authority: trustme.CA, tmp_path: Path) -> Tls:
    return issue(authority, tmp_path / "machine", "127.0.0.1")


@pytest.fixture
def other_machine(authority: trustme.CA, tmp_path: Path) -> Tls:
    return issue(authority, tmp_path / "other", "10.0.0.7")


@pytest.fixture
async def serving(nursery: trio.Nursery, machine: Tls):
    refusals = Refusals()
    bound = await nursery.start(
        functools.partial(serve, HERE, KEY, echo, refused=refusals.refused, tls=machine)
    )
    return bound, refusals


# ------------------------------------------------------------------------------------ who may talk


async def test_messages_go_both_ways_inside_tls(serving, other_machine):
    bound, refusals = serving
    async with await connect(bound, KEY, tls=other_machine) as link:
        for size in (0, 10, 100_000, 5_000_000):
            data = os.urandom(size)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(link.send, messages.CloseStep(size), data)
                message, (buffer,) = await link.receive()
            assert message == messages.CloseStep(size) and bytes(buffer) == data
        for step in range(1000):
            await link.send(messages.CloseStep(step))
        assert [(await link.receive())[0].step for _ in range(1000)] == list(range(1000))
    assert not refusals


async def test_nothing_passes_in_the_clear(nursery, machine, other_machine):
    """Bytes that a listener on the wire between the two gets to see."""
    seen = bytearray()
    bound = await nursery.start(
        functools.partial(serve, HERE, KEY, echo, refused=print, tls=machine)
    )

    async def copy(source: trio.SocketStream, sink: trio.SocketStream) -> None:
        async for data in source:
            seen.extend(data)
            await sink.send_all(data)

    async def wire(client: trio.SocketStream) -> None:
        server = await dial(bound)
        async with trio.open_nursery() as both:
            both.start_soon(copy, client, server)
            both.start_soon(copy, server, client)

    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    nursery.start_soon(trio.serve_listeners, wire, [listener])
    link = await connect(
        TcpAddress("127.0.0.1", listener.socket.getsockname()[1]), KEY, tls=other_machine
    )
    await link.send(messages.Saved(1, "plain words"), b"plain bytes")
    await link.receive()
    assert seen and b"plain" not in seen and b"asyncrl" not in seen and b"Saved" not in seen


@pytest.mark.parametrize(
    "host",
    [
        "10.1.2.3",
        "0.0.0.0",
        "::",
        "192.168.0.1",
        "example.org",
        "",
        "localhost.example.org",
        "127.0.0.1.example.org",
    ],
)
async def test_another_machine_is_refused_without_tls_at_both_ends(host, monkeypatch):
    async def nothing_is_sent(*args: object) -> None:
        raise AssertionError("the network was asked")

    monkeypatch.setattr("asyncrl.runtime.ipc.endpoints.dial", nothing_is_sent)
    monkeypatch.setattr("asyncrl.runtime.ipc.endpoints.listening", nothing_is_sent)
    with pytest.raises(ValueError, match="links between machines need TLS"):
        await connect(TcpAddress(host, 1), KEY)
    with pytest.raises(ValueError, match="links between machines need TLS"):
        await serve(TcpAddress(host, 0), KEY, echo, refused=print)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.10", "::1", "localhost"])
def test_this_machine_needs_no_tls(host):
    assert TcpAddress(host, 1).loopback


def test_loopback_is_what_the_standard_library_says():
    for number in range(0, 2**32, 2**32 // 4999):
        address = ipaddress.ip_address(number)
        assert TcpAddress(str(address), 1).loopback == (
            address in ipaddress.ip_network("127.0.0.0/8")
        )


async def test_a_unix_socket_has_no_tls(nursery, tmp_path, machine):
    address = UnixAddress(tmp_path / "s")
    await nursery.start(functools.partial(serve, address, KEY, echo, refused=print, tls=machine))
    async with await connect(address, KEY) as link:
        await link.send(messages.Drain())
        assert (await link.receive())[0] == messages.Drain()


async def test_a_client_of_another_authority_is_refused(serving, machine, tmp_path):
    bound, refusals = serving
    stranger = issue(trustme.CA(), tmp_path / "stranger", "127.0.0.1")
    trusting = Tls(
        stranger.certificate, stranger.key, machine.authority
    )  # it believes the server, which does not believe it
    with pytest.raises(LinkError) as caught:
        await connect(bound, KEY, tls=trusting)
    assert caught.value.reason in ("certificate", "broken")
    await refusals.reach(1)
    assert refusals == {"certificate": 1}


async def test_a_client_without_a_certificate_is_refused(serving, machine):
    bound, refusals = serving
    context = ssl.create_default_context(cafile=str(machine.authority))
    stream = trio.SSLStream(await dial(bound), context, server_hostname="127.0.0.1")
    with pytest.raises((trio.BrokenResourceError, OSError)):
        await stream.receive_some()
        await stream.receive_some()
    await trio.aclose_forcefully(stream)
    await refusals.reach(1)
    assert refusals == {"certificate": 1}


async def test_a_server_of_another_authority_is_refused(nursery, machine, tmp_path):
    refusals = Refusals()
    stranger = issue(trustme.CA(), tmp_path / "stranger", "127.0.0.1")
    bound = await nursery.start(
        functools.partial(serve, HERE, KEY, echo, refused=refusals.refused, tls=stranger)
    )
    with pytest.raises(LinkError, match="its certificate was refused") as caught:
        await connect(bound, KEY, tls=machine)
    assert caught.value.reason == "certificate"
    await refusals.reach(1)
    assert refusals == {"certificate": 1}


async def test_a_server_of_another_name_is_refused(nursery, machine, other_machine):
    """A machine of the authority cannot pass for another one."""
    bound = await nursery.start(
        functools.partial(serve, HERE, KEY, echo, refused=lambda reason: None, tls=other_machine)
    )
    with pytest.raises(LinkError, match=r"not valid for '127\.0\.0\.1'"):
        await connect(bound, KEY, tls=machine)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2])
async def test_older_tls_is_refused(serving, machine, other_machine, version):
    bound, refusals = serving
    context = ssl.create_default_context(cafile=str(machine.authority))
    context.maximum_version = version
    context.load_cert_chain(other_machine.certificate, other_machine.key)
    stream = trio.SSLStream(await dial(bound), context, server_hostname="127.0.0.1")
    with pytest.raises(trio.BrokenResourceError):
        await stream.do_handshake()
    await trio.aclose_forcefully(stream)
    await refusals.reach(1)
    assert refusals == {"certificate": 1}


async def test_the_key_is_proved_inside_tls(serving, other_machine):
    bound, refusals = serving
    with pytest.raises(LinkError, match="another run's key"):
        await connect(bound, new_key(), tls=other_machine)
    await refusals.reach(1)
    assert refusals == {"key": 1}


async def test_who_has_a_certificate_cannot_pass_on_anothers_proof(
    nursery, authority, tmp_path, machine, other_machine
):
    """A machine of the authority between the two, with a certificate for the server's very name,
    that decrypts and encrypts again."""
    refusals = Refusals()
    bound = await nursery.start(
        functools.partial(serve, HERE, KEY, echo, refused=refusals.refused, tls=machine)
    )
    between = issue(authority, tmp_path / "between", "127.0.0.1")

    async def relay(client: trio.SocketStream) -> None:
        ends = [between.read("server").secure(SocketPipe(client), None)]
        await ends[0].shake()
        ends.append(between.read("client").secure(SocketPipe(await dial(bound)), "127.0.0.1"))
        await ends[1].shake()

        async def copy(source: int) -> None:
            view = memoryview(bytearray(1000))
            while count := await ends[source].receive_into(view):
                await ends[1 - source].send([bytes(view[:count])])
            await ends[1 - source].aclose()

        try:
            async with trio.open_nursery() as both:
                both.start_soon(copy, 0)
                both.start_soon(copy, 1)
        except* (OSError, trio.ClosedResourceError):
            pass

    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    nursery.start_soon(trio.serve_listeners, relay, [listener])
    with pytest.raises(LinkError, match="key"):
        await connect(
            TcpAddress("127.0.0.1", listener.socket.getsockname()[1]), KEY, tls=other_machine
        )
    await refusals.reach(1)
    assert refusals == {"key": 1}


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        bytes(64),
        b"\x16\x03\x01\x00\x05hello",
        random.Random(0).randbytes(3000),
    ],
)
async def test_what_is_not_tls_is_refused(serving, data):
    bound, refusals = serving
    stream = await dial(bound)
    await stream.send_all(data)
    with trio.fail_after(60):
        try:
            while await stream.receive_some():
                pass
        except trio.BrokenResourceError:
            pass
    await refusals.reach(1)
    assert set(refusals) <= {"certificate", "broken"}


async def test_a_plain_end_and_a_tls_end_do_not_meet(nursery, serving, other_machine, monkeypatch):
    monkeypatch.setattr(
        "asyncrl.runtime.ipc.endpoints.AUTHENTICATION_S", 1.0
    )  # each waits for the other to begin
    bound, refusals = serving
    with pytest.raises(LinkError):
        await connect(bound, KEY)
    plain = await nursery.start(functools.partial(serve, HERE, KEY, echo, refused=refusals.refused))
    with pytest.raises(LinkError, match="did not agree on TLS"):
        await connect(plain, KEY, tls=other_machine)


async def test_a_peer_that_is_silent_in_the_handshake_is_refused_in_time(serving, monkeypatch):
    monkeypatch.setattr("asyncrl.runtime.ipc.endpoints.AUTHENTICATION_S", 0.05)
    bound, refusals = serving
    stream = await dial(bound)
    await refusals.reach(1)
    assert refusals == {"silent": 1}
    await stream.aclose()


# -------------------------------------------------------------------------- ends and interruptions


async def pair(nursery: trio.Nursery, server: Tls, client: Tls) -> tuple[Link, Link, Refusals]:
    """Both ends of a link inside TLS, and what the server refused."""
    ends: list[Link] = []
    refusals = Refusals()

    async def keep(link: Link) -> None:
        ends.append(link)
        await trio.sleep_forever()

    bound = await nursery.start(
        functools.partial(serve, HERE, KEY, keep, refused=refusals.refused, tls=server)
    )
    link = await connect(bound, KEY, tls=client)
    await trio.testing.wait_all_tasks_blocked()
    return link, ends[0], refusals


async def test_an_end_between_frames_is_an_end_of_stream(nursery, machine, other_machine):
    one, other, _ = await pair(nursery, machine, other_machine)
    await one.send(messages.Drain(), b"last words")
    await one.aclose()
    assert (await other.receive())[0] == messages.Drain()
    with pytest.raises(EndOfStream):
        await other.receive()


async def test_a_connection_cut_between_frames_is_a_failure(nursery, machine, other_machine):
    """Unlike a plain link's, an end that the peer did not sign is nobody's to make."""
    one, other, _ = await pair(nursery, machine, other_machine)
    await one.send(messages.Drain())
    await one._pipe._pipe.aclose()  # type: ignore[attr-defined]
    assert (await other.receive())[0] == messages.Drain()
    with pytest.raises(LinkBroken, match="broke"):
        await other.receive()


async def test_changed_bytes_break_the_link(nursery, machine, other_machine):
    one, other, _ = await pair(nursery, machine, other_machine)
    await one._pipe._pipe.send([b"\x17\x03\x03\x00\x20" + bytes(32)])  # type: ignore[attr-defined]
    with pytest.raises(LinkBroken):
        await other.receive()


async def test_a_send_cancelled_in_a_full_socket(nursery, machine, other_machine):
    """Before its first byte nothing was sent; in the middle of a frame the link is closed."""
    one, other, _ = await pair(nursery, machine, other_machine)
    full, sent = trio.CancelScope(), 0
    while not full.cancelled_caught:  # a socket that seems full takes more for a while
        full = trio.CancelScope(relative_deadline=2)
        with full:
            await one.send(messages.CloseStep(sent))
            sent += 1
    assert sent
    with trio.CancelScope() as scope:
        scope.cancel()
        await one.send(messages.CloseStep(-1))
    for step in range(sent):
        assert (await other.receive())[0] == messages.CloseStep(step)
    await one.send(messages.CloseStep(-2))
    assert (await other.receive())[0] == messages.CloseStep(-2)
    with trio.move_on_after(2):
        await one.send(messages.Drain(), bytes(2**25))
    with pytest.raises(LinkBroken, match="cancelled in the middle of a frame"):
        await one.send(messages.Drain())
    with pytest.raises(LinkBroken):
        await other.receive()


async def test_a_cancelled_receive_loses_nothing_inside_tls(nursery, machine, other_machine):
    one, other, _ = await pair(nursery, machine, other_machine)
    frame = await frame_of(messages.CloseStep(5), os.urandom(50_000))
    found = None
    for at in range(0, len(frame), 7_000):
        await one._pipe.send([frame[at : at + 7_000]])
        with trio.move_on_after(0.002):  # no checkpoint after it: what was received is kept
            found = await other.receive()
    message, (buffer,) = found or await other.receive()
    assert await frame_of(message, buffer) == frame


# ------------------------------------------------------------------------------------------- files


@pytest.mark.parametrize("what", ["certificate", "key", "authority"])
@pytest.mark.parametrize(
    "content",
    [
        None,
        b"",
        b"garbage",
        b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
        random.Random(0).randbytes(200),
    ],
)
@pytest.mark.parametrize("end", ["client", "server"])
def test_a_file_that_cannot_be_used_is_one_sentence(machine, what, content, end):
    path = getattr(machine, what)
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    with pytest.raises(ValueError, match=rf"TLS .*{path.name}") as caught:
        machine.read(end)
    assert "\n" not in str(caught.value)


def test_a_key_of_another_certificate(machine, other_machine):
    with pytest.raises(ValueError, match="do not belong together"):
        Tls(machine.certificate, other_machine.key, machine.authority).read("server")


def test_a_key_that_others_may_open(machine):
    machine.key.chmod(0o640)
    with pytest.raises(ValueError, match="chmod 600"):
        machine.read("client")


def test_a_key_under_a_password_asks_nobody(machine):
    from cryptography.hazmat.primitives import serialization as s

    key = s.load_pem_private_key(machine.key.read_bytes(), None)
    machine.key.write_bytes(
        key.private_bytes(
            s.Encoding.PEM, s.PrivateFormat.PKCS8, s.BestAvailableEncryption(b"secret")
        )
    )
    with pytest.raises(ValueError, match="needs a password"):
        machine.read("client")


async def test_files_are_read_before_anybody_is_called(machine, tmp_path):
    broken = Tls(tmp_path / "none", machine.key, machine.authority)
    with pytest.raises(ValueError, match="cannot be read"):
        await connect(TcpAddress("10.0.0.1", 1), KEY, tls=broken)
    with pytest.raises(ValueError, match="cannot be read"):
        await serve(TcpAddress("10.0.0.1", 1), KEY, echo, refused=print, tls=broken)
