"""Figures of a run as rows for a person: a label, and what it says. Invariant: a figure has one
label and one rounding, whoever shows it; display, comparison, report, page and card lay rows out.

What others wrote is in them as it is.
"""

from __future__ import annotations

from collections.abc import Mapping

from asyncrl.explain.evaluation_figures import said
from asyncrl.explain.run_figures import RunFigures
from asyncrl.explain.summary import Accuracy, ForeignTotals, RolloutTotals, Summary, TokenTotals
from asyncrl.messages import StatusUpdate
from asyncrl.words import NONE, clock, count, duration, number, share, size

FigureRow = tuple[str, str]
"""A label and what it says."""
REASONS = 3
"""Most reasons named for which tokens were discarded, the largest first."""
OF_WEIGHTS = {"current": "", "ema": ", of the average of weights"}
"""Words behind an accuracy, by the weights that it is of."""


def update_rows(now: StatusUpdate) -> list[FigureRow]:
    """Rows of a live run: rates and idle shares of the last seconds, else figures of the last step
    and of the last evaluation."""
    if (sft := now.sft) is not None:
        return [
            ("loss", f"{number(sft.loss)} nats a token"),
            ("held-out loss", _at(sft.held_out, sft.held_out_version)),
            ("tokens/s", f"{count(now.trained_per_s)} trained"),
            ("epochs", number(sft.epochs)),
        ]
    accuracy = _at(now.accuracy, now.accuracy_version)
    accuracy += OF_WEIGHTS[now.accuracy_weights] * (accuracy != NONE)
    over = _over(now.accuracy_asked, now.accuracy_prompts)
    return [
        ("reward", _reward(now)),
        ("held-out accuracy", accuracy + over),
        *_responses(
            now.judged_exact if now.exact is None else now.exact,
            now.truncated,
            now.response_tokens,
            now.entropy,
        ),
        *([] if now.filtered is None else [("filtered", f"{share(now.filtered)} of groups")]),
        _rates(now.generated_per_s, now.trained_per_s),
        _lag(now.lag_mean, now.lag_max),
        ("queue", f"{count(now.queue_items)} rollouts, {size(now.queue_bytes)}"),
        _idle(now.idle_trainer, now.idle_rollout),
        ("pause", duration(now.pause_seconds)),
        *_evaluated(now.evaluated),
    ]


def summary_rows(summary: Summary) -> list[FigureRow]:
    """A run that has ended."""
    s, publication = summary, summary.publication
    if (sft := s.sft) is not None:
        return [
            ("result", s.reason),
            ("steps", count(s.steps)),
            ("time", clock(s.seconds)),
            ("loss", f"{number(sft.loss)} nats a token"),
            ("held-out loss", _losses(sft.held_out_first, sft.held_out)),
            ("tokens", f"{count(s.tokens.trained)} trained"),
            ("epochs", number(sft.epochs)),
        ]
    rows = [
        ("result", s.reason),
        ("steps", count(s.steps)),
        ("time", clock(s.seconds)),
        _accuracy(s.accuracy),
        *_evaluated(s.evaluated),
        ("reward", number(s.responses.reward)),
        *_responses(
            s.responses.exact, s.responses.truncated, s.responses.tokens, s.responses.entropy
        ),
        ("tokens", f"{count(s.tokens.generated)} generated = {_balance(s.tokens)}"),
        ("rollouts", f"{count(s.rollouts.admitted)} admitted = {_balance(s.rollouts)}"),
        *([("ended early", ended_early(s.rollouts.pruned))] if s.rollouts.pruned else []),
        _lag(s.lag.mean, s.lag.max),
        _idle(s.idle.trainer, s.idle.rollout),
        (
            "publications",
            f"{count(publication.count)} in {duration(publication.seconds)}, "
            f"{size(publication.sent_bytes)} to each engine",
        ),
        (
            "pause",
            duration(publication.pause_seconds / publication.count if publication.count else None),
        ),
    ]
    if s.foreign.imported:
        rows.append(("foreign", foreign_said(s.foreign, s.tokens.trained)))
    if not s.balances():
        bug = "this is a bug of asyncrl; please report it with the run's journal"
        rows.append(("ledger", f"DOES NOT BALANCE: {bug}"))
    if s.restarts:
        roles = ", ".join(f"{role} {each}" for role, each in sorted(s.restarts.items()))
        rows.append(("restarts", f"{count(sum(s.restarts.values()))}: {roles}"))
    if s.removed:
        rows.append(("removed", ", ".join(f"{name} {why}" for name, why in s.removed.items())))
    if s.verdicts.without:
        of = f"{count(s.verdicts.without)} of {count(s.verdicts.answers)} answers"
        reasons = [f"{count(each)} {why}" for why, each in s.verdicts.reasons.items()][:REASONS]
        rows.append(("no verdict", f"{of}: {'; '.join(reasons)}"))
    if slowest := s.slowest_verifier:
        reason = f": {slowest.reason}" if slowest.reason else ""
        took = f"{duration(slowest.seconds)}, prompt {slowest.prompt_index}{reason}"
        rows.append(("slowest verdict", took))
    return rows


def figure_rows(
    figures: RunFigures, accuracy: float | None = None, *, losses: bool = False
) -> list[FigureRow]:
    """Any run so far; with an `accuracy`, also the time until an evaluation had it, and with
    `losses` the held-out loss of supervised runs."""
    first_loss, last_loss = figures.held_out_loss or (None, None)
    of, evaluations, best = figures.steps, figures.evaluations, figures.best
    accuracies = Accuracy()
    if evaluations:
        first, last = evaluations[0], evaluations[-1]
        accuracies = Accuracy(first.accuracy, last.accuracy, asked=last.asked, prompts=last.prompts)
    return [
        ("run", figures.standing),
        ("steps", count(figures.step) + ("" if of is None else f" of {count(of)}")),
        ("time", clock(figures.seconds)),
        _accuracy(accuracies),
        ("best accuracy", NONE if best is None else _at(best.accuracy, best.version)),
        *([] if accuracy is None else [_until(figures, accuracy)]),
        *([("held-out loss", _losses(first_loss, last_loss))] if losses else []),
        ("reward, first steps", number(figures.reward_first)),
        ("reward, last steps", number(figures.reward_last)),
        _rates(figures.generated_per_s, figures.trained_per_s),
        _lag(figures.lag_mean, figures.lag_max),
        _idle(figures.idle_trainer, figures.idle_rollout),
        ("pause", duration(figures.pause_seconds)),
        ("tokens discarded", _discarded(figures)),
        ("restarts", count(figures.restarts)),
        ("steps with alarms", count(figures.alarms)),
    ]


# ----------------------------------------------------------------------------------- single figures


def _losses(first: float | None, last: float | None) -> str:
    return f"{number(first, 3)} → {number(last, 3)}"


def _responses(
    exact: float | None, truncated: float | None, tokens: float | None, entropy: float | None
) -> list[FigureRow]:
    return [
        ("responses", f"{share(exact)} exact, {share(truncated)} cut"),
        ("length", f"{number(tokens, 1)} tokens"),
        ("entropy", f"{number(entropy)} nats a token"),
    ]


def _reward(now: StatusUpdate) -> str:
    """The mean reward of the last step; before the first one that of what is judged."""
    if now.reward is not None or now.judged_reward is None:
        return number(now.reward)
    return f"{number(now.judged_reward)} of {count(now.judged)} judged"


def _rates(generated: float | None, trained: float | None) -> FigureRow:
    return "tokens/s", f"{count(generated)} generated, {count(trained)} trained"


def _lag(mean: float | None, largest: int) -> FigureRow:
    return "lag", f"{number(mean)} mean, {largest} max"


def _idle(trainer: float | None, rollout: float | None) -> FigureRow:
    return "idle", f"{share(trainer)} trainer, {share(rollout)} rollout"


def _at(accuracy: float | None, version: int) -> str:
    """An accuracy and its version."""
    shown = number(accuracy, 3)
    return shown if shown == NONE else f"{shown} (version {version})"


def _accuracy(of: Accuracy) -> FigureRow:
    if of.start is None and of.end is None:
        return "held-out accuracy", "not evaluated"
    ends = f"{number(of.start, 3)} → {number(of.end, 3)}"
    return "held-out accuracy", ends + OF_WEIGHTS[of.weights] + _over(of.asked, of.prompts)


def _over(asked: int, prompts: int) -> str:
    """The prompts that an accuracy is over, in words, if they are not all.

    >>> _over(2, 12), _over(12, 12)
    (', over 2 of 12 prompts', '')
    """
    if asked == prompts:
        return ""
    return f", over {count(asked)} of {count(prompts)} prompts"


def _until(figures: RunFigures, accuracy: float) -> FigureRow:
    """The time until an evaluation had this accuracy."""
    seconds = figures.seconds_to(accuracy)
    return f"until accuracy {number(accuracy, 3)}", "never" if seconds is None else clock(seconds)


def _evaluated(figures: Mapping[str, float]) -> list[FigureRow]:
    return [("evaluated", said(figures))] if figures else []


def _balance(totals: TokenTotals | RolloutTotals) -> str:
    discarded = (f"{count(each)} {reason}" for reason, each in sorted(totals.discarded.items()))
    parts = (f"{count(totals.trained)} trained", *discarded, f"{count(totals.live)} live")
    return " + ".join(parts)


def ended_early(pruned: Mapping[str, int]) -> str:
    """The rollouts that a rule ended, by reason.

    >>> ended_early({"pruned_unlikely": 1200, "pruned_longest": 3})
    '1,200 pruned_unlikely, 3 pruned_longest'
    """
    by_count = sorted(pruned.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{count(each)} {why}" for why, each in by_count)


def foreign_said(foreign: ForeignTotals, trained: int) -> str:
    """Foreign tokens in words, where `trained` of the run's own were trained.

    >>> foreign_said(ForeignTotals(30, 20, {"stale": 10}), 60)
    '30 imported = 20 trained + 10 stale + 0 live: 25 % of all trained tokens'
    """
    totals = TokenTotals(0, foreign.foreign_trained, foreign.discarded, foreign.live)
    part = share(foreign.share(trained))
    return f"{count(foreign.imported)} imported = {_balance(totals)}: {part} of all trained tokens"


def _discarded(figures: RunFigures) -> str:
    """The share of the generated tokens that was discarded, and most of why."""
    generated = figures.tokens.generated
    largest = sorted(figures.tokens.discarded.items(), key=lambda item: (-item[1], item[0]))
    named = ", ".join(f"{share(each / generated)} {why}" for why, each in largest[:REASONS])
    return share(figures.discarded_share) + (f": {named}" if generated and named else "")
