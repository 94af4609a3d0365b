"""What a run waits for most likely, and whose it is, in one sentence. Invariant: it follows from
one status alone.

What cannot be waited out comes first: a disk, an actor that is gone or silent, a publication. Then
the tokens are followed: an idle trainer waits for what verifiers or engines have, idle engines wait
for admission, which waits for the trainer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from asyncrl.config.derived import size
from asyncrl.ipc.messages import Role
from asyncrl.observe.run_status import ActorStatus, RunStatus

SILENT_S = 5.0
"""An actor reports every second (where there are many, every few); one that says nothing for so
long hangs, is stopped, or gets no core."""
LONG_S = 5.0
"""A publication that is worth a word."""
IDLE = 0.3
"""The share of idle time from which a side waits for the other. Below it both work."""
NAMES = 4


def diagnose(s: RunStatus) -> str:
    """What the run waits for most likely, and whose it is: one sentence."""
    return next(_candidates(s))


def _candidates(s: RunStatus) -> Iterator[str]:
    """Explanations, the most pressing first; the last always holds."""
    yield from _broken(s)
    if s.phase in ("drain", "stop"):
        yield f"It drains, and waits for {_waits(s) or 'nobody'}."
    trainer, rollout = idle(s, "trainer") or 0.0, idle(s, "rollout") or 0.0
    stands = min(s.token_s, s.verdict_s, s.step_s) > SILENT_S
    if trainer >= max(IDLE, rollout) or (stands and not s.rollouts.get("taken")):
        yield from _trainer_waits(s)
    if rollout >= IDLE or stands:
        yield from _engines_wait(s)
    if stands:
        yield f"Nobody says what it waits for but by name: {_waits(s) or 'nothing'}."
    yield "Both sides work, and neither waits long for the other."


def _broken(s: RunStatus) -> Iterator[str]:
    """What does not go away by waiting."""
    if s.journal.trouble:
        yield (
            "The journal waits for the disk, and all else for the journal: "
            f"{s.journal.trouble}; {size(s.journal.pending_bytes)} wait."
        )
    absent = [actor for actor in s.actors if not actor.here]
    if s.phase == "init" and absent:
        longest = max(actor.seconds for actor in absent)
        yield (
            f"It waits for {_names(absent)} to come, for {duration(longest)} by now; what "
            "they do is in their logs."
        )
    for gone in (actor for actor in absent if actor.role == "trainer"):
        yield f"{gone.name} is gone, {duration(gone.seconds)} ago, and the run ends with it."
    if silent := [
        actor for actor in s.actors if actor.here and actor.seconds > max(SILENT_S, 3 * s.report_s)
    ]:
        longest = max(actor.seconds for actor in silent)
        yield (
            f"{_names(silent)} {_has(silent)} said nothing for {duration(longest)}, though "
            "connected: hung, stopped, or without a core "
            f"(process {', '.join(str(actor.pid) for actor in silent[:NAMES])})."
        )
    if (
        (p := s.publication) is not None
        and p.waiting_for
        and (p.seconds > LONG_S or _awaited_by_all(s))
    ):
        yield (
            f"Publication {p.number}, of version {p.version}, waits for {p.waiting_for}: it is "
            f"in {p.phase} for {duration(p.seconds)} in "
            f"all, and gives up on whoever is silent in {duration(p.left_s)}."
        )
    if s.phase == "ready":
        yield (
            "Every actor is there, and the first publication is to come: it waits for "
            f"{_waits(s) or 'the trainer'}."
        )


def _trainer_waits(s: RunStatus) -> Iterator[str]:
    """An idle trainer waits for experience: where is it?"""
    leased, sealed, groups = s.rollouts.get("leased", 0), s.rollouts.get("sealed", 0), s.groups
    for role, does in (("rollout", "generates"), ("reward", "judges")):
        absent = [actor for actor in s.actors if actor.role == role and not actor.here]
        present = [actor for actor in s.actors if actor.role == role and actor.here]
        if absent and (not present or len(absent) >= len(present)):
            yield (
                "The trainer waits for experience, and "
                f"{'nobody' if not present else f'only {_names(present)}'} {does}: "
                f"{_names(absent)} "
                f"{'is' if len(absent) == 1 else 'are'} gone, for "
                f"{duration(max(a.seconds for a in absent))}, and started again "
                f"({s.restarts.get(role, 0)} restarts so far)."
            )
    if groups.filtered > max(1, groups.max_live):
        yield (
            f"The trainer waits for groups that teach: the last {groups.filtered} were all "
            f"filtered ({groups.patience} end the run); "
            "the task is too easy, too hard, or its verifier gives no verdicts."
        )
    if sealed > leased:
        judges = [actor for actor in s.actors if actor.role == "reward" and actor.here]
        yield (
            f"The trainer waits for verdicts: verifiers are the slow side. {sealed} answers "
            f"wait, {sum(a.holds for a in judges)} of them "
            f"with {_names(judges) or 'nobody'}, and {leased} responses are still being "
            "generated; the last verdict came "
            f"{duration(s.verdict_s)} ago."
        )
    if _awaits_weights(s):
        yield (
            "The trainer waits for experience, and engines wait for weights: version "
            f"{s.committed} is what they were given last."
        )
    if s.evaluating is not None and not groups.live:
        yield (
            f"The trainer has nothing to do, and waits until version {s.evaluating} is "
            f"evaluated: {leased + sealed} answers to come."
        )
    if leased:
        mute = [
            a
            for a in s.actors
            if a.role == "rollout" and a.here and a.holds and (a.streamed_s or s.seconds) > SILENT_S
        ]
        if mute:
            longest = max(actor.streamed_s or s.seconds for actor in mute)
            yield (
                f"The trainer waits for experience, and {_names(mute)} {_has(mute)} streamed "
                f"nothing for {duration(longest)}, with "
                f"{sum(actor.holds for actor in mute)} rollouts held: "
                f"{_awaited(s, {actor.name for actor in mute})}."
            )
        yield (
            f"The trainer waits for experience: generation is the slow side. {leased} rollouts "
            "are with engines, which sample "
            f"{s.generated_per_s:,.0f} tokens/s; the oldest is {_awaited(s)}."
        )


def _engines_wait(s: RunStatus) -> Iterator[str]:
    """Idle engines wait for weights, or for something to do: what holds admission back?"""
    sealed, taken, groups = s.rollouts.get("sealed", 0), s.rollouts.get("taken", 0), s.groups
    if _awaits_weights(s):
        yield (
            "Rollout actors wait for weights, and the next publication has not begun: the "
            "trainer is still at its step."
        )
    if groups.max_live and groups.live >= groups.max_live:
        full = f"admission is full: {groups.live} groups of at most {groups.max_live} are live"
        if sealed > taken:
            yield (
                f"Rollout actors are idle because {full}, and {sealed} of their answers wait "
                "for a verdict: verifiers are the slow side."
            )
        yield (
            f"Rollout actors are idle because {full}, {groups.complete} of them wait for the "
            f"trainer, and {taken} rollouts are with it: "
            f"the trainer is the slow side. Its last step was {duration(s.step_s)} ago."
        )
    yield (
        f"Rollout actors are idle, and nothing is to be generated: {taken} rollouts are with "
        "the trainer."
    )


# ------------------------------------------------------------------------------------------- words


def idle(s: RunStatus, role: Role) -> float | None:
    """A role's idle share; None where nobody of it has reported."""
    causes = s.idle.get(role)
    if causes is None:
        return None
    if (
        role == "rollout"
        and s.phase == "run"
        and not s.rollouts.get("leased")
        and s.committed is not None
    ):
        return 1.0  # an engine counts a wait when it ends
    return min(1.0, sum(causes.values()))


def _awaited_by_all(s: RunStatus) -> bool:
    """A publication is what all wait for: the first one, or while the run trains, one without which
    engines stand still."""
    return s.phase == "ready" or (s.phase == "run" and _awaits_weights(s))


def _awaits_weights(s: RunStatus) -> bool:
    return s.idle.get("rollout", {}).get("weights", 0.0) >= IDLE


def _awaited(s: RunStatus, holders: Iterable[str] | None = None) -> str:
    """A few rollouts, the oldest leases."""
    found = [a for a in s.awaited if holders is None or a.holder in holders]
    if holders is None:
        found = found[:1]
    return "; ".join(
        f"rollout {a.rollout} with {a.holder} for {duration(a.seconds)}, {a.tokens} tokens long"
        for a in found[:NAMES]
    ) or ("none of them old")


def _waits(s: RunStatus) -> str:
    """Every named wait, the oldest first."""
    found = [(wait, wait.owner) for wait in s.waits] + [
        (wait, actor.name) for actor in s.actors for wait in actor.waits
    ]
    found.sort(key=lambda item: -item[0].seconds)
    return "; ".join(
        f"{owner} for {wait.name} ({duration(wait.seconds)})" for wait, owner in found[:NAMES]
    )


def listed(names: Sequence[str]) -> str:
    """A few of the names, and how many more there are."""
    return (
        ", ".join(names)
        if len(names) <= NAMES
        else f"{', '.join(names[:NAMES])} and {len(names) - NAMES} more"
    )


def _names(actors: Iterable[ActorStatus]) -> str:
    return listed([actor.name for actor in actors])


def _has(actors: list[ActorStatus]) -> str:
    return "has" if len(actors) == 1 else "have"


def duration(seconds: float) -> str:
    if seconds < 1:
        return "less than 1 s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
