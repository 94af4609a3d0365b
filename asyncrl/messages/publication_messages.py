"""Messages of a publication of weights."""

from __future__ import annotations

from asyncrl.messages.parts import Message


class Publish(Message, frozen=True):
    """Coordinator to trainer: send the current weights to the `world - 1` engines of `epoch`, and
    with `average` then the average of the weights (`train.ema`) as it is at that version. With
    `direct` join them, say so, and send when `Transfer` comes."""

    publication: int
    epoch: int
    world: int
    average: bool = False
    direct: bool = False


class Prepare(Message, frozen=True):
    """Coordinator to rollout actor: receive `version` into staging, while decoding continues, and
    with `average` its average after it. With `direct` join the others and confirm; pause when
    `Quiesce` comes, and receive into the engine's own weights."""

    publication: int
    version: int
    epoch: int
    rank: int
    world: int
    store: str
    average: bool = False
    direct: bool = False


class Joined(Message, frozen=True):
    """Trainer or rollout actor to coordinator, of a direct publication: it is in the group, whose
    members all have the same plan. Nothing has changed yet."""

    publication: int


class Quiesce(Message, frozen=True):
    """Coordinator to rollout actor: pause decoding at the next token boundary; the engine's weights
    will be written."""

    publication: int


class Quiesced(Message, frozen=True):
    """Rollout actor to coordinator: its engine is paused."""

    publication: int


class Transfer(Message, frozen=True):
    """Coordinator to trainer: every engine is paused; send."""

    publication: int


class Resend(Message, frozen=True):
    """Coordinator to rollout actor or trainer: this sending is over, and the weights will be sent
    again. The written weights are torn: the engine stays paused until they have come."""

    publication: int


class Transferred(Message, frozen=True):
    """Trainer to coordinator: what was sent, one checksum a bucket (those of an average last), in
    `sent_bytes` to each engine, and where engines compare it the `canary` of the version; or
    `error`, and nothing counts."""

    publication: int
    version: int
    checksums: list[int]
    sent_bytes: int
    seconds: float
    error: str
    canary: list[float] = []


class Prepared(Message, frozen=True):
    """Rollout actor to coordinator: what was received; or `error`, and nothing is staged."""

    publication: int
    checksums: list[int]
    error: str


class Commit(Message, frozen=True):
    """Coordinator to rollout actor: swap to the staged weights between two decode steps. With
    `pin`, keep a copy of them for evaluation until `Unpin`; where an average is staged, keep that
    in its place. The trainer's `canary` of the version is for an engine that compares it."""

    publication: int
    version: int
    pin: bool
    canary: list[float] = []


class Abort(Message, frozen=True):
    """Coordinator to rollout actor or trainer: drop the staged weights; the old version stays."""

    publication: int


class Committed(Message, frozen=True):
    """Rollout actor to coordinator: it decodes with `version`; decoding was paused for
    `pause_seconds`."""

    publication: int
    version: int
    pause_seconds: float


class Unpin(Message, frozen=True):
    """Coordinator to rollout actor: evaluation of `version` is over."""

    version: int
