"""Common pieces of messages and events: spans and verdicts."""

from __future__ import annotations

from typing import Literal, get_args

import msgspec

Role = Literal["coordinator", "rollout", "agents", "reward", "trainer", "launcher"]
ROLES: dict[str, Role] = {role: role for role in get_args(Role)}
Split = Literal["train", "evaluation"]
Finish = Literal["", "stop", "length", "interrupted", "refused"]
"""The reason why a rollout's chunk is its last under this lease; empty for any other chunk. An
engine that `refused` a request would refuse it each time."""
Source = Literal["own", "file", "pool", "run"]
"""Origins of tokens: the run's policy sampled them; or they are *foreign*, from a file of answers,
from the run's own old successes, or from another run."""
LEAST_LOGPROB = -3.4e38
"""Log-probabilities below this are no number in float32."""


def role_of(actor: str) -> Role:
    """The role in an actor's name.

    >>> role_of("rollout-3")
    'rollout'
    """
    return ROLES[actor.rpartition("-")[0]]


class Message(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A message on a link. Its class name is its tag."""


class Part(msgspec.Struct, frozen=True, array_like=True):
    """A piece of a message or of an event."""


class Span(Part, frozen=True, repr_omit_defaults=True):
    """Tokens `[start, end)`, sampled under `version`. Positions count from the first token of a
    response in a rollout and a chunk, and from the first token of all in a training sequence.

    Tokens of another `source` than the run's policy are as old as `version`, which did not sample
    them, unless they are from its pool.

    Example: `Span(7, 3, 5)`: version 7 sampled the fourth and the fifth token.
    """

    version: int
    start: int
    end: int
    source: Source = "own"


class ForeignAnswer(Part, frozen=True):
    """An answer that joins a group from elsewhere: from `origin` (a line of a file, a group of a
    run) in `source`. `ids` are `int32`, and `behaviour` the `float32` log-probabilities of these
    tokens where they were sampled; empty where that is not known. They are as old as `version` of
    the run. Such an answer may have any length up to a response's budget, and at least a token."""

    source: Source
    origin: str
    version: int
    ids: bytes
    behaviour: bytes = b""
    finish: Finish = "stop"


RIGHT = 1.0
"""The least reward of a fully right answer."""


class Scored(Part, frozen=True, tag=True):
    """The reward that is trained; `parts` are the rewards that it is made of, where there are
    several (GDPO), in the task's order. `score` is the verifier's own number where the reward is
    another one, because a penalty was added; None: it is the reward. `errors` are the response
    tokens [start, end) that the verifier found wrong: they stay out of the loss. Of an episode it
    sees the last reply; from the coordinator on they count among the tokens of all turns. `figures`
    are what the verifier logs of the answer, by name."""

    reward: float
    parts: list[float] = []
    score: float | None = None
    errors: list[tuple[int, int]] = []
    figures: dict[str, float] = {}

    def fits(self, tokens: int) -> bool:
        """True if its errors lie in a response of this many tokens, ascend, and do not overlap."""
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
        return Scored(self.reward + penalty, parts, self.reward, self.errors, self.figures)


class NoVerdict(Part, frozen=True, tag=True):
    """The verifier gave no reward; never to be read as a reward of zero."""

    reason: str


Verdict = Scored | NoVerdict
