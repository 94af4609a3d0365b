"""Messages between the coordinator and a rollout actor or a reward actor."""

from __future__ import annotations

from asyncrl.messages.parts import Finish, Message, Part, Split, Verdict


class EngineReady(Message, frozen=True):
    """Rollout actor to coordinator, once: its engine can take `slots` rollouts at a time. It holds
    no weights yet."""

    slots: int


class Leaving(Message, frozen=True):
    """Rollout actor to coordinator, once: its process was told to end. The coordinator gives it no
    more work, takes back what it holds, and drains it."""


class Lease(Part, frozen=True):
    """One rollout to generate. `prefix_tokens` of its response are known already (it is resumed);
    at most `max_new_tokens` more may be sampled. `key` and a token's index decide that token's
    draw, independently of other rollouts. `version` pins the weights (evaluation); None: the
    current ones. `images` are the hashes of those that its prompt's placeholders stand for; of an
    agent's call, a part of image `n` of them is the id `-1 - n`."""

    rollout: int
    attempt: int
    key: int
    split: Split
    prompt_tokens: int
    prefix_tokens: int
    max_new_tokens: int
    temperature: float
    version: int | None
    images: tuple[str, ...] = ()


class Leases(Message, frozen=True):
    """Coordinator to rollout actor. Buffer 0: `int32` ids, for each lease its prompt and then its
    prefix."""

    leases: list[Lease]


class Images(Message, frozen=True):
    """Coordinator to rollout actor on another machine: images that the leases behind it show, which
    are kept as they are. Buffer 0: one after the other, each of so many bytes."""

    sizes: list[int]


class Interrupt(Message, frozen=True):
    """Coordinator to rollout actor: stop these rollouts at the next token boundary (their last
    chunk says `interrupted`)."""

    rollouts: list[int]


class ChunkHead(Part, frozen=True):
    """`count` tokens of a rollout from response index `start`, all sampled under `version`. `why`
    is the engine's own reason for an end that it was not asked for, in one sentence. `routed`
    tokens before index `start + count` come with their routing."""

    rollout: int
    attempt: int
    version: int
    start: int
    count: int
    finish: Finish
    why: str = ""
    routed: int = 0


class Chunks(Message, frozen=True):
    """Rollout actor to coordinator: one frame for all slots. Buffer 0: `int32` ids. Buffer 1:
    `float32` behaviour log-probabilities. Buffer 2, if there is one: `uint8`, the routing of the
    `routed` tokens of each head (`Chunk.routing`), as many bytes for each."""

    heads: list[ChunkHead]


class ScoreRequest(Message, frozen=True):
    """Coordinator to reward actor: judge a response to the prompt at `prompt_index` of the task's
    split; `finish` says how it ended. Buffer 0: `int32` response ids. Buffer 1: `int32` ids of what
    the model continued."""

    rollout: int
    split: Split
    prompt_index: int
    finish: Finish


class GroupScoreRequest(Message, frozen=True):
    """Coordinator to reward actor: judge these responses to one prompt together. Buffer 0: the
    `int32` ids of all responses, each of `tokens`; buffer 1: those of what the model continued,
    each of `continued`."""

    rollouts: list[int]
    split: Split
    prompt_index: int
    finishes: list[Finish]
    tokens: list[int]
    continued: list[int]


class GroupScoreResult(Message, frozen=True):
    """Reward actor to coordinator: the verdict of each rollout that was to be judged together.
    `seconds` is what they took."""

    verdicts: list[tuple[int, Verdict]]
    seconds: float


class ScoreResult(Message, frozen=True):
    """Reward actor to coordinator. `seconds` is what the verifier took."""

    rollout: int
    verdict: Verdict
    seconds: float
