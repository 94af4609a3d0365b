"""Tokens of a streamed chunk: the setting, or what the run's slots ask for.

Each chunk is an event of the journal, which costs the coordinator some 15 to 40 µs whatever its
tokens. So with more slots a chunk has more tokens. The price of a larger chunk: tokens arrive
later, and a rollout actor that is killed loses up to a chunk of each slot.
"""

from __future__ import annotations

from asyncrl.config.schema import Config

SHORTEST, LONGEST = 8, 256
SLOTS = 64
"""Slots for each token of a chunk. So there are at most `SLOTS` chunks for each decode step: at 50
steps a second 3,200 events a second, with any number of engines below `SLOTS * LONGEST` slots."""


def chunk_tokens(config: Config) -> int:
    """Return the decode steps between two streamed chunks: `engine.chunk_tokens`, or where that is
    0 a power of two, at least `SHORTEST` and at most `LONGEST`.

    >>> from asyncrl.config import load
    >>> engines = ["rollout.actors=8", "engine.slots=256"]
    >>> [chunk_tokens(load(None, sets, {})) for sets in ([], engines, ["engine.chunk_tokens=5"])]
    [8, 32, 5]
    """
    slots = config.rollout.actors * config.engine.slots
    followed = 1 << (-(-slots // SLOTS) - 1).bit_length()
    return config.engine.chunk_tokens or min(LONGEST, max(SHORTEST, followed))
