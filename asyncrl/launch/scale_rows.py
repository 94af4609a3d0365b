"""Rows of the first table about what a large model or many engines ask of the machines: the time of
hashes, host memory, kernels, and the rate of chunks. Pure but for `scale_rows`. No torch here."""

from __future__ import annotations

import math
import os
import shutil
import tempfile

from asyncrl.config import Config, ConfigError
from asyncrl.config.chunk_tokens import chunk_tokens
from asyncrl.config.cluster import local_rollouts
from asyncrl.config.derived import Row
from asyncrl.config.engines import capabilities
from asyncrl.config.published import publication_s, sent_bytes
from asyncrl.runtime.processes.machine import memory_bytes
from asyncrl.words import count, size

HASHED = 0.27e9
"""Bytes a second that one thread hashes in host memory."""
EVENT_S = 41e-6
"""Most seconds that the coordinator takes for a chunk; with many slots an engine a third of it
(bench/README.md)."""
SLOT_TOKENS = 40.0
"""Tokens a second of a slot on a GPU that decodes many at a time."""
COMPILERS = ("cc", "gcc", "clang")
NO_KERNELS = "so no kernel of attention can be compiled, and tables are used, which are slower"


def scale_rows(config: Config) -> list[Row]:
    """The rows of a run. Raises ConfigError where a kernel that is asked for cannot be compiled."""
    rows = list[Row]()
    weight_bytes = sent_bytes(config)
    if capabilities(config.engine.kind).serves_apart:
        rows += chunk_rows(config)
        if weight_bytes:
            rows += hash_rows(config, weight_bytes, publication_s(config))
    if weight_bytes:
        rows += host_rows(config, weight_bytes, memory_bytes())
    if config.train.device == "cuda":
        rows += kernel_rows(config, lacking())
    return rows


def layouts(config: Config) -> int:
    """Ways in which a server may hold a tensor that is hashed: whole, by rows, by columns."""
    servers = config.engine.servers
    return 3 if servers is not None and servers.settings.tensor_parallel > 1 else 1


def hash_rows(config: Config, weight_bytes: int, deadline_s: float) -> list[Row]:
    """The time of the hashes that a server's are compared with, and a phase's deadline."""
    ways = layouts(config)
    seconds = ways * weight_bytes / HASHED
    first = f", {ways} ways the first time" if ways > 1 else ""
    means = f"of {deadline_s:,.0f} s for a phase of a publication: by one thread of a host{first}"
    rows = [Row("weights' hashes", f"≤ {seconds:,.0f} s", means)]
    if seconds > deadline_s:
        rows.append(Row("note", "publication.deadline_s", f"raise it by {seconds:,.0f}"))
    return rows


def host_bytes(config: Config, weight_bytes: int) -> dict[str, int]:
    """Host memory for weights on this machine beside the trainer's own, by holder. Several ranks
    hand theirs over tensor by tensor, and hold them whole nowhere.

    Example: eight actors that stage 16 GB for their servers have 2 × 8 × 16 = 256 GB.
    """
    direct, apart = (
        config.publication.path == "direct",
        capabilities(config.engine.kind).serves_apart,
    )
    copies = (0 if direct else 2) if apart else (1 if direct else 2)
    kept = config.publication.full_every > 1
    parts = {
        "rollout actors": copies * local_rollouts(config) * weight_bytes,
        "the last that was sent": weight_bytes * kept * (1 + local_rollouts(config)),
    }
    return {name: part for name, part in parts.items() if part}


def host_rows(config: Config, weight_bytes: int, has: int) -> list[Row]:
    """Host memory for weights, and whether this machine, or this container, `has` it (0: not
    known)."""
    parts = host_bytes(config, weight_bytes)
    if not (total := sum(parts.values())):
        return []
    each = ", ".join(f"{name} {size(part)}" for name, part in parts.items())
    known = f"; this machine has {size(has)}" if has else ""
    rows = [Row("host memory", size(total), f"for weights, beside the trainer's: {each}{known}")]
    if 0 < has < total:
        staged = config.publication.path == "staged"
        way = (
            "set publication.path to direct, which holds no second copy"
            if staged and capabilities(config.engine.kind).direct_transport
            else "run fewer rollout actors on this machine"
        )
        rows.append(Row("note", "host memory", f"more than this machine has: {way}"))
    return rows


def lacking() -> str:
    """The reason why no kernel can be compiled here, in words; empty where there is none."""
    if not any(map(shutil.which, COMPILERS)):
        return "there is no C compiler"
    folder = tempfile.gettempdir()
    if os.statvfs(folder).f_flag & os.ST_NOEXEC:
        return f"{folder} is mounted noexec"
    return ""


def kernel_rows(config: Config, lacks: str) -> list[Row]:
    """The kernels that a trainer on a GPU compiles at its start. Raises ConfigError where it must,
    and cannot."""
    if not lacks:
        return [Row("kernels", "compiled", "attention by blocks, at the trainer's start")]
    if config.train.attention == "blocks":
        raise ConfigError(
            f"train.attention is blocks, but {lacks}, {NO_KERNELS}: install gcc and the C "
            "library's headers, mount the temporary directory with exec, or set train.attention to "
            "auto."
        )
    return [Row("note", "train.attention", f"{lacks}, {NO_KERNELS}")]


def chunk_rows(config: Config) -> list[Row]:
    """The tokens a second that the coordinator keeps up with, by its time for a chunk, and the
    chunks that this many slots on GPUs ask for."""
    chunk = chunk_tokens(config)
    means = f"of all engines: what one coordinator takes at least, in chunks of {chunk}"
    rows = [Row("tokens/s", f"≥ {count(chunk / EVENT_S)}", means)]
    slots = config.rollout.actors * config.engine.slots
    needed = math.ceil(slots * SLOT_TOKENS * EVENT_S)
    if chunk < needed:
        rows.append(
            Row(
                "note",
                "engine.chunk_tokens",
                f"{slots:,} slots on GPUs may decode {count(slots * SLOT_TOKENS)} tokens/s: set it "
                f"to {needed} or more",
            )
        )
    return rows
