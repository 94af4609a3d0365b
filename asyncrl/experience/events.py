"""Events: all that can happen to experience. Invariant: the state is a fold of these events alone.

The journal stores events. They hold no clock and no choice: the coordinator decides, and an event
records the decision. Token arrays are bytes: `int32` ids and `float32` log-probabilities,
little-endian.
"""

from __future__ import annotations

import msgspec

from asyncrl.messages import Finish, ForeignAnswer, Source, Split, Verdict


class Event(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Base of events. Its class name is its tag in the journal."""


class Admitted(Event, frozen=True):
    """A prompt became group `group` of `size` rollouts, numbered from `first`.

    `prompt_index` is the prompt's position in its split of the task, and `prompt` its `int32` ids.
    `version` pins the weights (evaluation). `restarts` is the group, discarded as stale, whose
    prompt restarts here: such a group does not move the cursor over the prompts. `key` seeds the
    draws of its first rollout, and each later one adds 1. `cursor` is the position in the stream of
    prompts from which the next training prompt is searched. The answers to a held-out prompt are
    `sampled`, or greedy. With `played` its rollouts are episodes of an agent, each of at most
    `max_new_tokens` sampled tokens in total. A group with `most` over `size` may grow to that
    (`Grown`). At most `imports` foreign answers of `source` join it (`Imported`). `images` are the
    hashes (sha256) of those that its placeholders stand for. Each of its rollouts is a root, which
    may become `leaves` rollouts (`Forked`).

    Example: `Admitted(3, 24, 8, "train", 17, ids, 512)`: the prompt at 17 became group 3, with
    rollouts 24 to 31 of at most 512 tokens each.
    """

    group: int
    first: int
    size: int
    split: Split
    prompt_index: int
    prompt: bytes
    max_new_tokens: int
    version: int | None = None
    restarts: int | None = None
    key: int = 0
    cursor: int = 0
    sampled: bool = False
    played: bool = False
    most: int = 0
    imports: int = 0
    source: Source = "own"
    images: tuple[str, ...] = ()
    leaves: int = 1


class Forked(Event, frozen=True):
    """A rollout forks after the first `at` tokens of its response: a new rollout of its group,
    numbered `first`, continues these. They were generated once, and stay the parent's: to the fork
    they are context, as the prompt is. It gets half of the leaves that the parent may still have.
    With `at` 0 a rollout whose response is complete forks no more.

    Example: rollout 4 has 40 tokens. `Forked(4, 32, 12)` makes rollout 12 of its first 32.
    """

    rollout: int
    at: int
    first: int


class Grown(Event, frozen=True):
    """A group whose members are all judged or buried has `size` rollouts from now on, the new ones
    numbered from `first`. With its present size it does not grow, and is complete.

    Example: a group of 8 has verdicts alone. `Grown(3, 12, 40)` adds the rollouts 40 to 43; when
    they are judged, `Grown(3, 12, 52)` completes it.
    """

    group: int
    size: int
    first: int


class Imported(Event, frozen=True):
    """Foreign answers join a group whose own members are all judged or buried, and which does not
    grow: its members from `first` on, which wait for verdicts. Without any it is complete.

    Example: a group of the rollouts 8 to 11 has its verdicts. `Imported(2, 12, [answer])` makes an
    answer of a file its fifth member, and when that is judged the group is complete.
    """

    group: int
    first: int
    answers: list[ForeignAnswer] = []


class Leased(Event, frozen=True):
    """A rollout, or a call of an agent's, is leased to the actor `holder`, which generates it, for
    the `attempt`-th time (from 1)."""

    rollout: int
    holder: str
    attempt: int


class Extended(Event, frozen=True):
    """The holder's engine sampled these tokens under `version`; they follow the first `start`
    tokens. Example: `start` 4 and 12 bytes of ids add the response tokens 4, 5 and 6."""

    rollout: int
    attempt: int
    version: int
    start: int
    ids: bytes
    behaviour: bytes
    routing: bytes = b""


class RoutingKnown(Event, frozen=True):
    """The experts of `tokens` response tokens from token `start` on, which the rollout has since
    earlier events: its engine learns them at the end of a response (`Call.routing`)."""

    rollout: int
    attempt: int
    start: int
    tokens: int
    routing: bytes


class Sealed(Event, frozen=True):
    """The response is complete, by a stop id or by its token budget, and waits for a verdict. Of an
    episode: its agent has ended, or was cut off (`length`); the calls that the `attempt`-th agent
    used are kept, and the others are discarded as `orphaned`."""

    rollout: int
    attempt: int
    finish: Finish


class Begun(Event, frozen=True):
    """An agent at the actor `holder` begins to play a rollout, for the `attempt`-th time (from
    1)."""

    rollout: int
    holder: str
    attempt: int


class Called(Event, frozen=True):
    """The agent of this attempt made call `call` to the model, numbered among the rollouts, of at
    most `max_new_tokens` tokens.

    Its context is the first `tokens` given and sampled tokens of call `after[0]`, for `after =
    (call, tokens)`, and then the `int32` ids `given`; with None, these alone. `key` seeds its
    draws. It is derived from the rollout's key, the context and the sampling settings, so the next
    attempt recognizes the call by it. `role` is what the agent calls as; empty: it does not say.
    `images` are the hashes of those in `given` that no call of the episode had before: they follow
    its others, and an id `-1 - n` is a part of its image `n` (`image_marks.py`).

    Example: call 9 was given 10 tokens and sampled 4. `Called(3, 1, 10, (9, 14), ids, …)` continues
    where it ended, with the `ids` of a tool's result.
    """

    rollout: int
    attempt: int
    call: int
    after: tuple[int, int] | None
    given: bytes
    key: int
    max_new_tokens: int
    temperature: float
    role: str = ""
    images: tuple[str, ...] = ()


class Answered(Event, frozen=True):
    """A leased call is complete, by a stop id or by its token budget."""

    call: int
    attempt: int
    finish: Finish


class Cut(Event, frozen=True):
    """The agent of a call needs only its first `tokens` sampled tokens. The call was requeued
    before, and is answered with these; the sampled tokens after them are discarded as `unused`."""

    rollout: int
    attempt: int
    call: int
    tokens: int


class Reused(Event, frozen=True):
    """The agent of this attempt repeated a call of an earlier attempt, in this `role`: the existing
    tokens are its answer, and it continues from there if it is not complete."""

    rollout: int
    attempt: int
    call: int
    role: str = ""


class Noted(Event, frozen=True):
    """The agent of this attempt noted a result (of a tool, say) under a name: later attempts get
    it, and do not compute it again."""

    rollout: int
    attempt: int
    name: str
    value: bytes


class Rewarded(Event, frozen=True):
    """The agent of this attempt gave a reward: for the turn of one of its calls, or, with None, for
    the whole episode; that one is its verdict. `key` is the turn's; empty: none."""

    rollout: int
    attempt: int
    call: int | None
    reward: float
    key: str = ""


class ToolFailed(Event, frozen=True):
    """The agent of this attempt reported that one of its calls was a failed call of the tool
    `tool`."""

    rollout: int
    attempt: int
    call: int
    tool: str


class Left(Event, frozen=True):
    """The agent of this attempt left without ending its episode. Its calls were requeued before.
    The rollout waits for the next attempt; with `failed` this counts as a failure of the
    rollout."""

    rollout: int
    attempt: int
    reason: str
    failed: bool = False


class Requeued(Event, frozen=True):
    """An unfinished rollout, or call, was requeued with its tokens. It is resumed under another
    lease, before any new one is leased, for the named reason; with `failed` this counts as a
    failure of it."""

    rollout: int
    attempt: int
    reason: str
    failed: bool = False


class Buried(Event, frozen=True):
    """A rollout failed for good. Its tokens are discarded under `reason`, and its group can
    complete without it. Of a call: its tokens are discarded, and its agent is told."""

    rollout: int
    reason: str


class Spared(Event, frozen=True):
    """A rule was asked about a rollout of one turn that had `tokens` tokens or more, by the first
    `tokens` of them, and lets it go on (`rollout.prune`). It did so with this `chance` (over 0, up
    to 1): by a draw, if it is below 1."""

    rollout: int
    tokens: int
    chance: float


class Pruned(Event, frozen=True):
    """A rule ended a rollout of one turn before its response was complete, for the named `reason`
    (`rollout.prune`). Its first `kept` tokens are a response that was cut at its budget, and wait
    for a verdict; the others are discarded under the reason. With 0 it has none, and its group can
    complete without it.

    Example: of a response of 40 tokens so far, `Pruned(9, "pruned_longest", 32)` keeps 32, and
    `Pruned(9, "pruned_unlikely", 0)` none.
    """

    rollout: int
    reason: str
    kept: int


class LateTokens(Event, frozen=True):
    """Tokens arrived for a rollout that their sender no longer holds: generated, and discarded as
    `late`."""

    tokens: int


class Judged(Event, frozen=True):
    """A sealed rollout has its verdict."""

    rollout: int
    verdict: Verdict


class Taken(Event, frozen=True):
    """These rollouts with rewards went to the trainer together, for the step that makes version
    `step + 1`. The rollouts `left_out`, of complete groups of theirs, were not chosen
    (`train.keep`), and are discarded."""

    step: int
    rollouts: list[int]
    left_out: list[int] = []


class Trained(Event, frozen=True):
    """The optimizer step that took a rollout is done: `trained` tokens entered the loss,
    `discarded` ones did not, by reason. `places` are the first of these, [start, end) of its
    sampled tokens, by reason; nothing follows from them."""

    rollout: int
    trained: int
    discarded: dict[str, int]
    places: dict[str, list[tuple[int, int]]] = {}


class StoredForReplay(Event, frozen=True):
    """A group that a step has taken is kept when it is over, to be replayed (trained once more) by
    step `until` at the latest."""

    group: int
    until: int


class Replayed(Event, frozen=True):
    """`step` trains these kept groups once more, and they are not kept any more."""

    step: int
    groups: list[int]


class Discarded(Event, frozen=True):
    """A judged rollout that no step has taken was dropped untrained, for the named reason
    (filtered, too few verdicts, stale)."""

    rollout: int
    reason: str


class Dropped(Event, frozen=True):
    """A whole group was dropped untrained, for the named reason (filtered, too few verdicts, stale,
    evaluation, …). With `restart`, its prompt is admitted again, before any new one."""

    group: int
    reason: str
    restart: bool = False


class Published(Event, frozen=True):
    """The publication of `version` is decided: engines continue with it, and the groups trained for
    it are no longer live."""

    version: int


class Checkpointed(Event, frozen=True):
    """A complete checkpoint of `version` belongs to the state at this event."""

    version: int
    path: str


AnyEvent = (
    Admitted
    | Forked
    | Grown
    | Imported
    | Leased
    | Extended
    | RoutingKnown
    | Sealed
    | Begun
    | Called
    | Answered
    | Cut
    | Reused
    | Noted
    | Rewarded
    | ToolFailed
    | Left
    | Requeued
    | Buried
    | Spared
    | Pruned
    | LateTokens
    | Judged
    | Taken
    | Trained
    | StoredForReplay
    | Replayed
    | Discarded
    | Dropped
    | Published
    | Checkpointed
)
