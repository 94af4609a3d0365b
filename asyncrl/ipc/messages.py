"""Every struct that crosses a process boundary. Invariant: a message is plain data, and its
docstring says which buffers travel with it.

A frame on a link is one message and zero or more raw buffers (`asyncrl.ipc.link`). Arrays never
enter a message: they travel as buffers, little-endian and C-contiguous, `int32` for token ids,
`float32` for log-probabilities and `uint8` for masks. A message that names several rollouts carries
the concatenation of their arrays, in the order of its list. Example: `Leases` of two leases with 5
and 3 tokens of prompt, and no prefix, has a buffer of 32 bytes.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal

import msgspec

Role = Literal["coordinator", "rollout", "agents", "reward", "trainer", "launcher"]
Split = Literal["train", "evaluation"]
Finish = Literal["", "stop", "length", "interrupted"]
"""The reason why a rollout's chunk is its last under this lease; empty while it goes on."""


class Message(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A message on a link. Its class name is its tag."""


# ------------------------------------------------------------------------------------------- parts


class Part(msgspec.Struct, frozen=True, array_like=True):
    """A piece of a message or of an event."""


class Span(Part, frozen=True):
    """Tokens `[start, end)`, sampled under `version`. Positions count from the first token of a
    response in a rollout and a chunk, and from the first token of all in a training sequence.

    Example: `Span(7, 3, 5)`: version 7 sampled the fourth and the fifth token.
    """

    version: int
    start: int
    end: int


RIGHT = 1.0
"""The reward of a fully right answer, at least."""


class Scored(Part, frozen=True, tag=True):
    """The reward that is trained; `parts` are the rewards that it is made of, where there are
    several (GDPO), in the task's order. `score` is the verifier's own number where the reward is
    another one, because a penalty was added; None: it is the reward. `errors` are the response
    tokens [start, end) that the verifier found wrong: they stay out of the loss."""

    reward: float
    parts: list[float] = []
    score: float | None = None
    errors: list[tuple[int, int]] = []

    def fits(self, tokens: int) -> bool:
        """True if its errors lie in a response of so many tokens, ascend, and do not overlap."""
        bounds = [bound for error in self.errors for bound in error]
        within = not bounds or (bounds[0] >= 0 and bounds[-1] <= tokens)
        return (
            within and bounds == sorted(bounds) and all(start < end for start, end in self.errors)
        )

    @property
    def exact(self) -> bool:
        """True if the answer is fully right."""
        return (self.reward if self.score is None else self.score) >= RIGHT

    def penalized(self, penalty: float) -> Scored:
        """The verdict with a penalty added, which is one part more where there are parts."""
        parts = [*self.parts, penalty] if self.parts else []
        return Scored(self.reward + penalty, parts, self.reward, self.errors)


class NoVerdict(Part, frozen=True, tag=True):
    """The verifier gave no reward; never to be read as a reward of zero."""

    reason: str


Verdict = Scored | NoVerdict


# --------------------------------------------------------------------------------------- all links


class Hello(Message, frozen=True):
    """The first message of every actor. `incarnation` counts the starts of this actor, from 0."""

    role: Role
    index: int
    incarnation: int
    pid: int


class Drain(Message, frozen=True):
    """Coordinator to actor: no more work will come; finish or park what you hold, answer `Drained`,
    and end. Launcher to coordinator: end the run early, keeping everything."""


class Drained(Message, frozen=True):
    """Actor to coordinator: the end of its stream; nothing follows."""


Duration = Annotated[float, msgspec.Meta(ge=0, le=1e10)]
"""Seconds; no number at all, a negative or an endless one does not parse."""


class Wait(Part, frozen=True):
    """One row of the table of waits: `owner` has waited `seconds` for `name`."""

    name: str
    owner: str
    seconds: Duration
    deadline_s: Duration


Increase = Annotated[float, msgspec.Meta(ge=0)]
"""Of a counter, which cannot go down: another one does not parse."""


Command = Literal["micro-batch", "proximal scores", "optimizer step", "checkpoint"]
"""The work that a trainer is told to do, one at a time."""


class Busy(Part, frozen=True):
    """A trainer has been at `command` for so many seconds. Those in which its process stood still
    are not among them."""

    command: Command
    seconds: Duration


class Report(Message, frozen=True):
    """Actor to coordinator, about once a second: its work since the last report.

    `idle` maps a cause to seconds spent waiting for it; `counts` maps a counter to its increase;
    `waits` is the table now. `busy` is what a trainer is at; None: it waits for a command.
    """

    seconds: Duration
    idle: dict[str, Duration]
    counts: dict[str, Increase]
    waits: list[Wait]
    busy: Busy | None = None


# ----------------------------------------------------------------------------------------- rollout


class EngineReady(Message, frozen=True):
    """Rollout actor to coordinator, once: its engine can take `slots` rollouts at a time. It holds
    no weights yet."""

    slots: int


class Lease(Part, frozen=True):
    """One rollout to generate. `prefix_tokens` of its response are known already (it is resumed);
    at most `max_new_tokens` more may be sampled. `key` and a token's index decide that token's
    draw, whoever the neighbours are. `version` pins the weights (evaluation), or is None: whatever
    is current."""

    rollout: int
    attempt: int
    key: int
    split: Split
    prompt_tokens: int
    prefix_tokens: int
    max_new_tokens: int
    temperature: float
    version: int | None


class Leases(Message, frozen=True):
    """Coordinator to rollout actor. Buffer 0: `int32` ids, for each lease its prompt and then its
    prefix."""

    leases: list[Lease]


class Interrupt(Message, frozen=True):
    """Coordinator to rollout actor: stop these rollouts at the next token boundary (their last
    chunk says `interrupted`)."""

    rollouts: list[int]


class ChunkHead(Part, frozen=True):
    """`count` tokens of a rollout from response index `start`, all sampled under `version`."""

    rollout: int
    attempt: int
    version: int
    start: int
    count: int
    finish: Finish


class Chunks(Message, frozen=True):
    """Rollout actor to coordinator: one frame for all slots. Buffer 0: `int32` ids. Buffer 1:
    `float32` behaviour log-probabilities."""

    heads: list[ChunkHead]


# ------------------------------------------------------------------------------------------ reward


class ScoreRequest(Message, frozen=True):
    """Coordinator to reward actor: judge a response to the prompt at `prompt_index` of the task's
    split; `finish` says how it ended. Buffer 0: `int32` response ids."""

    rollout: int
    split: Split
    prompt_index: int
    finish: Finish


class ScoreResult(Message, frozen=True):
    """Reward actor to coordinator. `seconds` is what the verifier took."""

    rollout: int
    verdict: Verdict
    seconds: float


# ------------------------------------------------------------------------------------------ agents


class Play(Message, frozen=True):
    """Coordinator to agents actor: have an agent play this rollout, for the `attempt`-th time.
    `seed` is the same in each attempt. The agent may sample `max_new_tokens` in all. `notes` are
    what earlier attempts have noted."""

    rollout: int
    attempt: int
    split: Split
    prompt_index: int
    seed: int
    max_new_tokens: int
    temperature: float
    notes: dict[str, bytes]


class Ask(Message, frozen=True):
    """Agents actor to coordinator: the agent of this attempt asks the model, at the temperature of
    its `Play`; `number` counts its calls from 0. `stops` are the strings that end the answer for
    it. Buffer 0: `int32` context."""

    rollout: int
    attempt: int
    number: int
    max_new_tokens: int
    stops: list[str] = []


class Reply(Message, frozen=True):
    """Coordinator to agents actor: the next tokens of an answer, all sampled under `version`;
    `finish` is empty while it goes on. With `refused`, a sentence, there is no answer, or no more
    of it; with `length` there is none for any other call either, because the episode is as long as
    it may be. Buffer 0: `int32` ids. Buffer 1: `float32` behaviour log-probabilities."""

    rollout: int
    attempt: int
    number: int
    version: int
    finish: Finish
    refused: str = ""


class Enough(Message, frozen=True):
    """Agents actor to coordinator: the agent has what it needs of an answer, its first `tokens`
    tokens."""

    rollout: int
    attempt: int
    number: int
    tokens: int


class Note(Message, frozen=True):
    """Agents actor to coordinator: keep this result for later attempts."""

    rollout: int
    attempt: int
    name: str
    value: bytes


class GiveReward(Message, frozen=True):
    """Agents actor to coordinator: a reward for the turn of call `number`, or, with None, for the
    whole episode."""

    rollout: int
    attempt: int
    number: int | None
    reward: float


class Played(Message, frozen=True):
    """Agents actor to coordinator: the agent has ended, by itself (`stop`) or cut off (`length`).
    With `failed`, the name of a reason, it has not: another attempt is due."""

    rollout: int
    attempt: int
    finish: Finish
    failed: str = ""


class StopPlaying(Message, frozen=True):
    """Coordinator to agents actor: this attempt is over; end its agent, and say nothing more of
    it."""

    rollout: int
    attempt: int


# ----------------------------------------------------------------------------------------- trainer


class TrainerReady(Message, frozen=True):
    """Trainer to coordinator, once: it holds `version` (0, or the checkpoint's), and engines find
    its weight store at the address `store`."""

    version: int
    store: str


class Sample(Part, frozen=True):
    """The head of one training sequence in a micro-batch (`TrainingSequence.sample`).

    `prompt_tokens` (at least 1) lie before its first sampled token, and `response_tokens` from
    there to its last sampled one. `spans` are its sampled tokens, by their positions in the
    sequence; the others of the response were given, and are context only. `baseline` is subtracted
    from its reward, where the coordinator knows it (`unit = rollout`); None: the trainer derives it
    from the group's rewards. `member` is its place among the rewards of its group in the
    micro-batch; None: any of those equal to its own. `finish` says how its response ended; empty
    where it has not, or that is not known. An episode has a sequence for each of its strands, all
    in one micro-batch: `strand` is the number of this one, and `share` (0 to 1) its part of the
    rollout's sampled tokens. `turns` are the turns that these are of, in their order, each with its
    number in the rollout and its tokens; empty where there is one turn.

    Example: 2 prompt tokens, 3 sampled, 1 given, 2 sampled: `prompt_tokens` 2, `response_tokens` 6,
    `spans` (3, 2, 5) and (4, 6, 8), `sampled_tokens` 5.
    """

    rollout: int
    group: int
    prompt_tokens: int
    response_tokens: int
    reward: float
    spans: list[Span]
    baseline: float | None = None
    member: int | None = None
    finish: Finish = ""
    strand: int = 0
    share: float = 1.0
    turns: list[tuple[int, int]] = []

    @property
    def sampled_tokens(self) -> int:
        """Tokens that the spans cover."""
        return sum(span.end - span.start for span in self.spans)


STALE_TOKEN, TRAINABLE_TOKEN, TRUNCATED_TOKEN, ERROR_TOKEN = range(4)
"""Values of a mask: the token is too old; it may enter the loss; its response was cut at its budget
(`rollout.truncated = mask`); its verifier found it wrong (`Scored.errors`)."""


class MicroBatch(Message, frozen=True):
    """Coordinator to trainer: train on these now; `rewards` has the rewards of all members with a
    verdict, for every group named, or, where advantages are relative to the batch, for every group
    of the step; `parts` their parts, where there are any, in the same order, `lengths` their
    sampled tokens, where advantages are relative to the batch, and `turns` the rewards of their
    turns, where agents played. Buffer 0: `int32` ids,
    for each sample its prompt and then its response. Buffer 1: `float32` behaviour
    log-probabilities of the sampled tokens. Buffer 2: `uint8` mask of the sampled tokens:
    `TRAINABLE_TOKEN` where the token may enter the loss, else the reason why not."""

    step: int
    index: int
    samples: list[Sample]
    rewards: dict[int, list[float]]
    parts: dict[int, list[list[float]]] = {}
    lengths: dict[int, list[int]] = {}
    turns: dict[int, list[list[float]]] = {}


class ScoreProximal(Message, frozen=True):
    """Coordinator to trainer, before the step is closed (`proximal = boundary`): score what was
    sampled under the version there is, and late under earlier ones, and keep it for when it is
    trained. `live` are all the rollouts whose scores may still be asked for; the others' are
    forgotten. `oldest` is the oldest version that more tokens may come of: its weights and those
    since are held. None: that of the step. Buffer 0: `int32` ids, for each sample its prompt and
    then what there is of its response."""

    step: int
    samples: list[Sample]
    live: list[int]
    oldest: int | None = None


class ScoredProximal(Message, frozen=True):
    """Trainer to coordinator: the scores that one `ScoreProximal` of `step` asked for are kept."""

    step: int


class TokenCount(Part, frozen=True):
    """Counts of one sequence's sampled tokens: `trained` entered a loss, the rest was left out, by
    reason. Example: `TokenCount(7, 90, {"stale": 6, "icepop": 4})` of 100 tokens."""

    rollout: int
    trained: int
    discarded: dict[str, int]


class Consumed(Message, frozen=True):
    """Trainer to coordinator: the micro-batch's gradients are accumulated. Without `counts` it is
    held until the step is closed."""

    step: int
    index: int
    counts: list[TokenCount]
    seconds: float


class CloseStep(Message, frozen=True):
    """Coordinator to trainer: every micro-batch of `step` is sent; take the optimizer step, which
    makes version `step + 1`."""

    step: int


class Stepped(Message, frozen=True):
    """Trainer to coordinator: `version` exists. `metrics` are means over the step's trained tokens
    unless their name says otherwise. `counts` are of the micro-batches that were held."""

    version: int
    seconds: float
    metrics: dict[str, float]
    counts: list[TokenCount] = []


class Save(Message, frozen=True):
    """Coordinator to trainer: write a checkpoint of the current version. `cursor` is the number of
    the last journalled event it belongs to; it is kept in the checkpoint for `--resume`."""

    cursor: int


class Saved(Message, frozen=True):
    """Trainer to coordinator: the checkpoint of `version` is complete at `path`; or `error`, and
    there is none."""

    version: int
    path: str
    error: str = ""


# ------------------------------------------------------------------------------------- publication


class Publish(Message, frozen=True):
    """Coordinator to trainer: send the current weights to the `world - 1` engines of `epoch`."""

    publication: int
    epoch: int
    world: int


class Prepare(Message, frozen=True):
    """Coordinator to rollout actor: receive `version` into a staging place, while decoding goes
    on."""

    publication: int
    version: int
    epoch: int
    rank: int
    world: int
    store: str


class Transferred(Message, frozen=True):
    """Trainer to coordinator: what was sent, one checksum a bucket; or `error`, and nothing
    counts."""

    publication: int
    version: int
    checksums: list[int]
    seconds: float
    error: str


class Prepared(Message, frozen=True):
    """Rollout actor to coordinator: what was received; or `error`, and nothing is staged."""

    publication: int
    checksums: list[int]
    error: str


class Commit(Message, frozen=True):
    """Coordinator to rollout actor: swap to the staged weights between two decode steps. With
    `pin`, keep a copy of them for evaluation until `Unpin`."""

    publication: int
    version: int
    pin: bool


class Abort(Message, frozen=True):
    """Coordinator to rollout actor or trainer: forget what is staged; the old version stays."""

    publication: int


class Committed(Message, frozen=True):
    """Rollout actor to coordinator: it decodes with `version`; decoding stood still for
    `pause_seconds`."""

    publication: int
    version: int
    pause_seconds: float


class Unpin(Message, frozen=True):
    """Coordinator to rollout actor: evaluation of `version` is over."""

    version: int


# ---------------------------------------------------------------------------------------- launcher


class Exited(Message, frozen=True):
    """Launcher to coordinator: this actor's process ended; `restarting` says whether another takes
    its place."""

    role: Role
    index: int
    code: int
    restarting: bool


class Replace(Message, frozen=True):
    """Coordinator to launcher: this start of an actor is cut off; end its process, and start
    another within the restart budget."""

    role: Role
    index: int
    incarnation: int
    reason: str


class Draining(Message, frozen=True):
    """Coordinator to launcher: the run is over and drains; an actor whose process ends from now on
    is not started again."""


class Progress(Part, frozen=True):
    """Something that takes long: `what`, so much `done` `of` so much (0 of 0: it is not counted),
    in so many seconds. `left_s` are those still to come, None where nobody knows."""

    what: str
    done: float
    of: float
    seconds: float
    left_s: float | None = None
    note: str = ""

    @property
    def counted(self) -> bool:
        """True if it is known how much there is to do."""
        return self.of > 0


class StatusUpdate(Message, frozen=True):
    """Coordinator to launcher, about once a second: what the display shows. Rates are over the last
    seconds; shares are 0 to 1. `evaluated` are figures of sampled answers, by name. Of the last
    step's responses there are the mean `reward`, the shares that are `exact` and `truncated`, their
    mean length and their entropy (nats a token); NaN before there are any."""

    seconds: float
    phase: str
    step: int
    steps: int
    reward: float
    accuracy: float
    accuracy_version: int
    generated_per_s: float
    trained_per_s: float
    lag_mean: float
    lag_max: int
    queue_items: int
    queue_bytes: int
    idle_trainer: float
    idle_rollout: float
    pause_seconds: float
    note: str
    evaluated: dict[str, float] = {}
    exact: float = math.nan
    truncated: float = math.nan
    response_tokens: float = math.nan
    entropy: float = math.nan
    progress: list[Progress] = []


class RunFinished(Message, frozen=True):
    """Coordinator to launcher: the run is over, `summary.json` is written; `reason` is one
    sentence, `ok` decides the exit code."""

    ok: bool
    reason: str


def _tagged(base: type[Message]) -> tuple[type[Message], ...]:
    return tuple(base.__subclasses__())


ALL: tuple[type[Message], ...] = _tagged(Message)
"""Every message there is: what a link may decode, and nothing else."""
