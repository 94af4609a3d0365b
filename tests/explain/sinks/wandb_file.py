"""Reader of a W&B file (`run-*.wandb`): the history of a run as it was logged. The file is a
LevelDB log of protobuf records behind seven bytes of its own."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

BLOCK, HEAD = 2**15, struct.Struct("<IHB")
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4


def history(path: Path) -> list[dict[str, Any]]:
    """Figures as they were logged, one table for each call of `log`."""
    from wandb.proto.wandb_internal_pb2 import Record

    found = []
    for data in _records(path.read_bytes()):
        record = Record.FromString(data)
        if record.WhichOneof("record_type") == "history":
            items = record.history.item
            found.append(
                {
                    item.key or ".".join(item.nested_key): json.loads(item.value_json)
                    for item in items
                }
            )
    return found


def _records(file: bytes) -> Iterator[bytes]:
    at, data = 7, b""
    while at + HEAD.size <= len(file):
        if BLOCK - at % BLOCK < HEAD.size:  # too little is left of the block for a record
            at += BLOCK - at % BLOCK
            continue
        _, size, kind = HEAD.unpack_from(file, at)
        at += HEAD.size
        data = (b"" if kind in (FULL, FIRST) else data) + file[at : at + size]
        at += size
        if kind in (FULL, LAST):
            yield data
