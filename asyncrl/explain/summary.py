"""Summary of a run, `summary.json`. Invariant: it is written whole or not at all, and its tokens
and rollouts balance.

A number that does not exist (the accuracy of a run without evaluation, the lag if nothing was
trained) is None here and null in the file; NaN becomes null, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from asyncrl.experience.ledger import Account, Ledger
from asyncrl.explain.curve import Curve
from asyncrl.explain.evaluation_figures import EvaluatedWeights
from asyncrl.explain.json_files import read_json, write_json
from asyncrl.explain.sft_figures import SftFigures
from asyncrl.runtime.reasons import same

UNREPORTED = "the run was ended before it could report why"
"""The reason in the launcher's own summary of a run whose coordinator was killed."""


class Accuracy(msgspec.Struct, frozen=True):
    """Share of held-out prompts answered right, greedily: of the first version, and of the last;
    by the version's own `weights`, or their average at that version (`evaluation.weights`). It is
    over the `asked` ones of these `prompts`: the others cannot be answered. None if no answer has a
    verdict."""

    start: float | None = None
    end: float | None = None
    weights: EvaluatedWeights = "current"
    asked: int = 0
    prompts: int = 0

    @classmethod
    def of(cls, curve: Curve) -> Accuracy:
        found, versions = curve.accuracy, curve.figures
        first, last = (found.get(end(versions, default=-1)) for end in (min, max))
        return cls(first, last, curve.evaluated_weights, curve.asked, curve.prompts)


class TokenTotals(msgspec.Struct, frozen=True):
    """Response tokens: `generated = trained + Σ discarded + live`. `discarded` is by reason."""

    generated: int = 0
    trained: int = 0
    discarded: dict[str, int] = {}
    live: int = 0

    @classmethod
    def of(cls, account: Account) -> TokenTotals:
        return cls(
            account.total, account.trained, dict(sorted(account.discarded.items())), account.live
        )


class RolloutTotals(msgspec.Struct, frozen=True):
    """Rollouts: `admitted = trained + Σ discarded + live`. `discarded` is by reason. A rule ended
    those in `pruned` early, by reason; of some of them tokens were kept, and may be trained."""

    admitted: int = 0
    trained: int = 0
    discarded: dict[str, int] = {}
    live: int = 0
    pruned: dict[str, int] = {}

    @classmethod
    def of(cls, ledger: Ledger) -> RolloutTotals:
        account, pruned = ledger.rollouts, dict(sorted(ledger.pruned.items()))
        discarded = dict(sorted(account.discarded.items()))
        return cls(account.total, account.trained, discarded, account.live, pruned)


class ForeignTotals(msgspec.Struct, frozen=True):
    """Tokens that the policy did not sample: `imported = foreign_trained + Σ discarded + live`."""

    imported: int = 0
    foreign_trained: int = 0
    discarded: dict[str, int] = {}
    live: int = 0

    @classmethod
    def of(cls, account: Account) -> ForeignTotals:
        return cls(
            account.total, account.trained, dict(sorted(account.discarded.items())), account.live
        )

    def share(self, trained: int) -> float:
        """Their share of all trained tokens, where `trained` are the run's own.

        >>> ForeignTotals(30, 20).share(60)
        0.25
        """
        both = self.foreign_trained + trained
        return self.foreign_trained / both if both else 0.0


class Lag(msgspec.Struct, frozen=True):
    """Lag of trained tokens, in versions."""

    mean: float | None = None
    max: int = 0


class Alarmed(msgspec.Struct, frozen=True):
    """Alarms of one cause: the number of steps that raised it, and the last sentence of it."""

    steps: int
    last: str


class Responses(msgspec.Struct, frozen=True):
    """Responses of the last step, whether they were trained or not: the mean `reward`, the shares
    that are `exact` (fully right) and `truncated` (cut at their budget), the mean number of
    `tokens`, and the `entropy` of what was sampled, nats a token."""

    reward: float | None = None
    exact: float | None = None
    truncated: float | None = None
    tokens: float | None = None
    entropy: float | None = None

    @classmethod
    def of(cls, metrics: Mapping[str, float]) -> Responses:
        names = ("reward", "exact", "truncated", "response_tokens", "entropy")
        return cls(*map(metrics.get, names))


class Idle(msgspec.Struct, frozen=True):
    """Idle shares of the run's seconds, 0 to 1."""

    trainer: float | None = None
    rollout: float | None = None


class Publications(msgspec.Struct, frozen=True):
    """Committed publications; `seconds` from preparation to commit, `pause_seconds` that decoding
    stood still, `sent_bytes` that each engine was sent, all of them in all."""

    count: int = 0
    seconds: float = 0.0
    pause_seconds: float = 0.0
    sent_bytes: int = 0


class JudgedAnswers(msgspec.Struct, frozen=True):
    """Answers that were judged since the coordinator started: how many there are, those `without` a
    verdict, and the most frequent `reasons` for that, each with its count."""

    answers: int = 0
    without: int = 0
    reasons: dict[str, int] = {}

    @property
    def share(self) -> float:
        """The share without a verdict, 0 to 1."""
        return self.without / self.answers if self.answers else 0.0

    @property
    def reason(self) -> str:
        """The most frequent reason; empty if all got a verdict."""
        return max(self.reasons, key=lambda text: self.reasons[text], default="")

    def since(self, before: JudgedAnswers) -> JudgedAnswers:
        """The answers that were judged after `before`. A reason whose newest text has other numbers
        is the same.

        >>> one = JudgedAnswers(9, 8, {"timeout": 8})
        >>> JudgedAnswers(20, 10, {"timeout": 8, "row 3": 2}).since(one)
        JudgedAnswers(answers=11, without=2, reasons={'row 3': 2})
        """
        known = {same(text): count for text, count in before.reasons.items()}
        grown = {text: count - known.get(same(text), 0) for text, count in self.reasons.items()}
        return JudgedAnswers(
            self.answers - before.answers,
            self.without - before.without,
            {text: count for text, count in grown.items() if count > 0},
        )


class SlowestVerifier(msgspec.Struct, frozen=True):
    """The verdict that took longest."""

    prompt_index: int
    seconds: float
    reason: str = ""


STOPPED_EARLY = "stopped early, as asked; continue with --resume"
"""The reason of a run that was drained before its last step."""


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """Summary of a run. `reason` is one sentence. `training_seconds` count from the first admission
    to the last step. `evaluated` are the figures of the last evaluation's sampled answers, by name
    (`pass@4`). `alarms` are by cause, `restarts` by role. `removed` are rollout actors that
    were not started again, and why. `published_gap` is what rounded weights change of
    log-probabilities after the last step (nats a token; None where engines are sent the trainer's
    own: `publication.dtype`). `bias` measures how far the trained rollouts are from the
    generated ones (`asyncrl.experience.audit`). `sft` is of a supervised run, None for any
    other."""

    ok: bool
    reason: str
    steps: int
    seconds: float
    training_seconds: float | None = None
    accuracy: Accuracy = Accuracy()
    evaluated: dict[str, float] = {}
    tokens: TokenTotals = TokenTotals()
    rollouts: RolloutTotals = RolloutTotals()
    foreign: ForeignTotals = ForeignTotals()
    lag: Lag = Lag()
    responses: Responses = Responses()
    alarms: dict[str, Alarmed] = {}
    bias: dict[str, float] = {}
    idle: Idle = Idle()
    publication: Publications = Publications()
    published_gap: float | None = None
    restarts: dict[str, int] = {}
    removed: dict[str, str] = {}
    slowest_verifier: SlowestVerifier | None = None
    verdicts: JudgedAnswers = JudgedAnswers()
    sft: SftFigures | None = None

    def balances(self) -> bool:
        """True if all ledgers balance."""
        tokens, rollouts, foreign = self.tokens, self.rollouts, self.foreign
        return (
            foreign.imported
            == foreign.foreign_trained + sum(foreign.discarded.values()) + foreign.live
            and tokens.generated == tokens.trained + sum(tokens.discarded.values()) + tokens.live
            and rollouts.admitted
            == rollouts.trained + sum(rollouts.discarded.values()) + rollouts.live
        )


def of_ledger(
    ledger: Ledger, reason: str, steps: int, seconds: float, accuracy: Accuracy
) -> Summary:
    """Make the summary of a run whose coordinator could not write one, from its ledger and its
    curve."""
    return Summary(
        ok=False,
        reason=reason,
        steps=steps,
        seconds=seconds,
        accuracy=accuracy,
        tokens=TokenTotals.of(ledger.tokens),
        rollouts=RolloutTotals.of(ledger),
        foreign=ForeignTotals.of(ledger.foreign.tokens),
    )


def write(summary: Summary, path: Path) -> None:
    """Write a summary, on the disk. Raises OSError."""
    write_json(summary, path, forced=True)


def read(path: Path) -> Summary:
    """Read the summary that `write` wrote. Raises OSError, msgspec.DecodeError (no JSON) or
    msgspec.ValidationError (no summary)."""
    return read_json(path, Summary)
