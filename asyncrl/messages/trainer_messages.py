"""Messages between the coordinator and the trainer, but for the publication of weights."""

from __future__ import annotations

from typing import Literal

from asyncrl.messages.parts import Finish, Message, Part, Span


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
    number in the rollout and its tokens; empty where there is one turn. `path_counts` are runs
    of these tokens: the number of paths that each is in, as often as which it counts
    (`train.branches`), and how many tokens the run has; empty: all count once. Of an episode, an id
    `-1 - n` is a part of image `n` of `images`, by their hashes.

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
    path_counts: list[tuple[int, int]] = []
    images: tuple[str, ...] = ()

    @property
    def sampled_tokens(self) -> int:
        """Tokens that the spans cover."""
        return sum(span.end - span.start for span in self.spans)


STALE_TOKEN, TRAINABLE_TOKEN, TRUNCATED_TOKEN, ERROR_TOKEN = range(4)
"""Values of a mask: the token is too old; it may enter the loss; its response was cut at its budget
(`rollout.truncated = mask`); its verifier found it wrong (`Scored.errors`)."""


class PromptFacts(Part, frozen=True):
    """Facts of a prompt at the admission of its group: its `index` in its task's split
    (negative: not known), its task's `label` (empty where there is one task), the mean of the
    rewards of earlier visits and their weight (`prior`; (0, 0) without any), and the parameters
    (a, b) of the Beta posterior of the chance that a rollout solves it; `longest` is the number of
    tokens of its longest right answer, 0 where there was none; `images` are the hashes of its
    images.

    >>> PromptFacts(7, posterior=(2.0, 6.0)).solve_rate
    0.25
    """

    index: int = -1
    label: str = ""
    prior: tuple[float, float] = (0.0, 0.0)
    posterior: tuple[float, float] = (1.0, 1.0)
    longest: int = 0
    images: tuple[str, ...] = ()

    @property
    def solve_rate(self) -> float:
        """The mean of the posterior."""
        a, b = self.posterior
        return a / (a + b)


class DrawnMembers(Part, frozen=True):
    """The chances with which the members of a group that have a reward went on to their end
    (`rollout.prune`), in the order of their rewards. `started` counts them, and those that a rule
    ended with nothing kept."""

    started: int
    chances: list[float]


class ForkedMembers(Part, frozen=True):
    """Trees of the members of a group that have a reward (`rollout.fork`), in the order of their
    rewards: the number of each one's tree, the leaves that it stands for, and which others continue
    tokens of it: their indexes, and how many of its own sampled tokens each has.

    Example: member 1 is of a tree of its own, and member 2 continues the first 8 tokens that member
    0 has sampled: `ForkedMembers([0, 1, 0], [1, 2, 1], [[(2, 8)], [], []])`.
    """

    trees: list[int]
    leaves: list[int]
    below: list[list[tuple[int, int]]]


class MicroBatch(Message, frozen=True):
    """Coordinator to trainer: train on these now; `rewards` has the rewards of all members with a
    verdict, for every group named, or, where advantages are relative to the batch, for every group
    of the step; `parts` their parts, where there are any, in the same order, `lengths` their
    sampled tokens, where advantages are relative to the batch, `turns` the rewards of their
    turns, where agents played, `keys` the keys of these, where any has one, and `above` the turns
    directly above each, where an episode has branches. `prompts` has what is known of the prompt of
    each group named, `drawn` the groups of which a rule might have ended members, `forked` those
    whose members might have forked. Buffer 0: `int32` ids, for each sample its prompt and then its
    response. Buffer 1: `float32` behaviour log-probabilities of the sampled tokens. Buffer 2:
    `uint8` mask of the sampled tokens: `TRAINABLE_TOKEN` where the token may enter the loss, else
    the reason why not. Buffer 3, if there is one: the routing of the sampled tokens, as many bytes
    for each, 255 where unknown."""

    step: int
    index: int
    samples: list[Sample]
    rewards: dict[int, list[float]]
    parts: dict[int, list[list[float]]] = {}
    lengths: dict[int, list[int]] = {}
    turns: dict[int, list[list[float]]] = {}
    keys: dict[int, list[list[str]]] = {}
    prompts: dict[int, PromptFacts] = {}
    above: dict[int, list[list[list[int]]]] = {}
    drawn: dict[int, DrawnMembers] = {}
    forked: dict[int, ForkedMembers] = {}


class ScoreProximal(Message, frozen=True):
    """Coordinator to trainer, before the step is closed (`proximal = boundary`): score tokens that
    were sampled under the current version, and late ones under earlier versions, and keep the
    scores until they are trained. `live` are all rollouts whose scores may still be needed; the
    others' are dropped. `oldest` is the oldest version from which more tokens may come: its weights
    and later ones are held. None: that of the step. `images` are the hashes of those of each
    group's prompt. Buffer 0: `int32` ids, for each sample its prompt and then what there is of its
    response."""

    step: int
    samples: list[Sample]
    live: list[int]
    oldest: int | None = None
    images: dict[int, tuple[str, ...]] = {}


class ScoredProximal(Message, frozen=True):
    """Trainer to coordinator: the scores that one `ScoreProximal` of `step` asked for are kept."""

    step: int


class MeasureLoss(Message, frozen=True):
    """Coordinator to trainer, in a supervised run: measure the loss of held-out samples under the
    present weights, which do not change. Buffer 0: as of `MicroBatch`."""

    index: int
    samples: list[Sample]


class MeasuredLoss(Message, frozen=True):
    """Trainer to coordinator: the sum of the losses of the marked tokens (nats), and their
    number."""

    index: int
    nats: float
    tokens: int


class TokenCount(Part, frozen=True):
    """Counts of one sequence's sampled tokens: `trained` entered a loss, the rest was left out, by
    reason. Example: `TokenCount(7, 90, {"stale": 6, "icepop": 4})` of 100 tokens. `strand` is the
    sample's; `places` are the first of those that were left out, [start, end) of its sampled
    tokens, by reason."""

    rollout: int
    trained: int
    discarded: dict[str, int]
    strand: int = 0
    places: dict[str, list[tuple[int, int]]] = {}


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


class LastRank(Part, frozen=True):
    """The `rank` that others wait for, and its `machine`: they waited longer than it by so much of
    the step's computing, `waited` (0 to 1), and it took so many `times` as long for the same work.
    """

    rank: int
    machine: str
    waited: float
    times: float


class Stepped(Message, frozen=True):
    """Trainer to coordinator: `version` exists. `metrics` are means over the step's trained tokens
    unless their name says otherwise. `counts` are of the micro-batches that were held. `last_rank`
    is None for a trainer of one rank."""

    version: int
    seconds: float
    metrics: dict[str, float]
    counts: list[TokenCount] = []
    last_rank: LastRank | None = None


class Save(Message, frozen=True):
    """Coordinator to trainer: write a checkpoint of the current version, which is copied at once
    and written beside the commands that follow; no other Save comes before the answer. `cursor` is
    the number of the last journalled event it belongs to; it is kept in the checkpoint for
    `--resume`. After the run's last step the models for use elsewhere are written `too`, or `alone`
    if the checkpoint is there."""

    cursor: int
    models: Literal["no", "too", "alone"] = "no"


class Saved(Message, frozen=True):
    """Trainer to coordinator: the checkpoint of `version`, the one that was copied, is complete at
    `path`; or `error`, and there is none. The trainer may hold a later version by now."""

    version: int
    path: str
    error: str = ""
