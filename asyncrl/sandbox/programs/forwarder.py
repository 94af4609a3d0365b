"""Runs a program beside a forwarder, in the sandbox: data sent to a port of loopback goes to a Unix
socket. So a program that speaks TCP reaches the gateway, and nothing else.

    python -I forwarder.py PORT SOCKET COMMAND …

It is one of the program's files and imports nothing of asyncrl. It ends with the command, and with
its exit code.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys

_PIECE = 2**16


async def main(port: int, socket: str, command: list[str]) -> int:
    """Return the command's exit code, or 128 + the number of the signal that ended it."""

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer), contextlib.suppress(OSError):
            there, back = await asyncio.open_unix_connection(socket)
            with contextlib.closing(back):
                await asyncio.gather(_copy(reader, back), _copy(there, writer))

    server = await asyncio.start_server(forward, "127.0.0.1", port)
    process = await asyncio.create_subprocess_exec(*command)
    code = await process.wait()
    server.close()  # without waiting: what the command left behind may be connected
    return code if code >= 0 else 128 - code


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Pass on what is read, and its end."""
    while piece := await reader.read(_PIECE):
        writer.write(piece)
        await writer.drain()
    writer.write_eof()


if __name__ == "__main__":
    sys.exit(asyncio.run(main(int(sys.argv[1]), sys.argv[2], sys.argv[3:])))
