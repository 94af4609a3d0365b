"""Frames between two processes: asyncrl's link against a bare trio socket (send_all, recv_into) and
`multiprocessing.Pipe` (send_bytes).

The bare socket moves the same bytes without frames, types or a key, into one buffer that it uses
again and again: the limit. The link sends a message with one buffer, and the receiver gets the
decoded message and memory of its own. The ways are interleaved within each repetition; the table
gives medians, and the last column the median over repetitions of link / bare, both of the same
repetition.
"""

from __future__ import annotations

import argparse
import functools
import multiprocessing
import statistics
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path

import trio

from asyncrl import messages
from asyncrl.messages.address import Address, TcpAddress, UnixAddress
from asyncrl.runtime.ipc.endpoints import connect, serve
from asyncrl.runtime.ipc.keys import new_key
from asyncrl.runtime.ipc.link import Link

SIZES = {"64 B": 64, "4 KB": 2**12, "64 KB": 2**16, "4 MB": 2**22}
MESSAGE = messages.CloseStep(7)


def counts(seconds: float) -> dict[str, int]:
    """Frames of each size that take very roughly `seconds`."""
    rates = {
        "64 B": 100_000,
        "4 KB": 80_000,
        "64 KB": 25_000,
        "4 MB": 400,
    }
    return {name: max(32, int(rate * seconds) // 32 * 32) for name, rate in rates.items()}


async def receive_bare(sock: trio.SocketStream, total: int, size: int) -> None:
    buffer = memoryview(bytearray(max(size, 2**16)))
    while total:
        got = await sock.socket.recv_into(buffer[: min(total, len(buffer))])
        assert got
        total -= got


async def receiver_main(control: Connection, pipe: Connection, unix: Path, key: bytes) -> None:
    """Told `(way, size name, frames)`, receives that and says so."""
    links: dict[str, Link] = {}
    bare: dict[str, trio.SocketStream] = {}
    taken = trio.Event()

    async def keep(name: str, link: Link) -> None:
        links[name] = link
        if len(links) == 2:
            taken.set()
        await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        ports: list[int] = []
        for name, address in (
            ("unix", UnixAddress(unix / "link")),
            ("tcp", TcpAddress("127.0.0.1", 0)),
        ):
            bound: Address = await nursery.start(
                functools.partial(serve, address, key, functools.partial(keep, name), refused=print)
            )
            if isinstance(bound, TcpAddress):
                ports.append(bound.port)
        listener = trio.socket.socket(trio.socket.AF_UNIX)
        await listener.bind(str(unix / "bare"))
        listener.listen()
        (tcp,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        ports.append(tcp.socket.getsockname()[1])
        control.send(ports)
        bare["tcp"] = await tcp.accept()
        bare["unix"] = trio.SocketStream((await listener.accept())[0])
        await taken.wait()
        control.send("ready")
        while True:
            way, size, total = control.recv()
            if way == "end":
                break
            kind, _, family = way.partition(" ")
            if kind == "pipe":
                for _ in range(total):
                    pipe.recv_bytes()
            elif kind == "bare":
                await receive_bare(bare[family], total * size, size)
            else:
                link = links[family]
                for _ in range(total):
                    await link.receive()
            control.send("done")
        nursery.cancel_scope.cancel()


def receiver(control: Connection, pipe: Connection, unix: Path, key: bytes) -> None:
    trio.run(receiver_main, control, pipe, unix, key)


async def sender_main(
    control: Connection, pipe: Connection, unix: Path, key: bytes, repetitions: int, seconds: float
) -> None:
    link_port, bare_port = control.recv()
    bare = {
        "tcp": await trio.open_tcp_stream("127.0.0.1", bare_port),
        "unix": await trio.open_unix_socket(str(unix / "bare")),
    }
    links = {
        "unix": await connect(UnixAddress(unix / "link"), key),
        "tcp": await connect(TcpAddress("127.0.0.1", link_port), key),
    }
    assert control.recv() == "ready"

    async def once(way: str, name: str, total: int) -> float:
        """Frames a second."""
        kind, _, family = way.partition(" ")
        size = SIZES[name]
        data = bytes(size)
        control.send((way, size, total))
        start = time.perf_counter()
        if kind == "pipe":
            for _ in range(total):
                pipe.send_bytes(data)
        elif kind == "bare":
            stream = bare[family]
            for _ in range(total):
                await stream.send_all(data)
        else:
            link = links[family]
            for _ in range(total):
                await link.send(MESSAGE, data)
        assert control.recv() == "done"
        return total / (time.perf_counter() - start)

    print(
        f"{'frames':18}{'':6}{'bare/s':>10}{'link/s':>10}{'pipe/s':>10}{'bare MB/s':>12}"
        f"{'link MB/s':>12}{'pipe MB/s':>12}{'link/bare':>11}"
    )
    for name, total in counts(seconds).items():
        ways = ["bare unix", "link unix", "pipe", "bare tcp", "link tcp"]
        rates: dict[str, list[float]] = {way: [] for way in ways}
        for repetition in range(repetitions + 1):
            for way in ways[repetition % 2 :] + ways[: repetition % 2]:
                rate = await once(way, name, total if repetition else 64)
                if repetition:
                    rates[way].append(rate)
        for family in ("unix", "tcp"):
            columns = [rates[f"bare {family}"], rates[f"link {family}"], rates["pipe"]]
            medians = [statistics.median(column) for column in columns]
            ratio = statistics.median(
                link / limit for limit, link in zip(columns[0], columns[1], strict=True)
            )
            print(
                f"{name:18}{family:6}"
                + "".join(f"{median:10,.0f}" for median in medians)
                + "".join(f"{median * SIZES[name] / 1e6:12,.0f}" for median in medians)
                + f"{ratio:11.2f}",
                flush=True,
            )
    control.send(("end", 0, 0))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument(
        "--seconds", type=float, default=0.3, help="very roughly, for each measurement"
    )
    options = parser.parse_args()
    spawn = multiprocessing.get_context("spawn")
    control, their_control = spawn.Pipe()
    pipe, their_pipe = spawn.Pipe()
    key = new_key()
    with tempfile.TemporaryDirectory() as directory:
        child = spawn.Process(
            target=receiver, args=(their_control, their_pipe, Path(directory), key)
        )
        child.start()
        trio.run(
            sender_main, control, pipe, Path(directory), key, options.repetitions, options.seconds
        )
        child.join()


if __name__ == "__main__":
    main()
