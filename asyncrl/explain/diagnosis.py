"""Diagnosis of a run: one sentence that says what the run waits for most likely, and for whom. It
follows from one run status alone.

What does not go away by waiting comes first: a disk, an actor that is gone or silent, a
publication. Then the tokens are followed: an idle trainer waits for what verifiers or engines have;
idle engines wait for admission, which waits for the trainer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from asyncrl.explain.conditions.condition import RunFacts
from asyncrl.explain.conditions.disks import HOLDS
from asyncrl.explain.conditions.sides import IDLE
from asyncrl.explain.conditions.starts import in_words
from asyncrl.explain.conditions.table import findings
from asyncrl.explain.run_status import ActorStatus, RunStatus
from asyncrl.messages import Busy, Role, Wait
from asyncrl.words import count, duration, size

SILENT_S = 5.0
"""Seconds after which a silent actor hangs, is stopped, or gets no core. An actor reports every
second; where there are many, every few."""
LONG_S = 5.0
"""Seconds after which a publication is worth a sentence."""
STUCK_S = 30.0
"""Seconds without a verdict after which a verifier with answers is stuck."""
TEACHES_NOTHING = (
    "judge_away",
    "failed_attempts",
    "failed_tools",
    "unread_calls",
    "no_verdict",
    "all_zero",
    "too_hard",
    "too_easy",
    "equal_rewards",
    "filtered_in_a_row",
)
"""Conditions for which a trainer waits however much is generated, the most pressing first."""
WELL = "Both sides work, and neither waits long for the other."
NAMES = 4
"""Most names in one sentence."""
COORDINATOR = "coordinator"


def diagnose(status: RunStatus) -> str:
    """Say in one sentence what the run waits for most likely, and for whom."""
    return next(_candidates(status))


def _candidates(status: RunStatus) -> Iterator[str]:
    """Explanations, the most pressing first; the last always holds."""
    yield from _broken(status)
    if status.phase in ("drain", "stop") and status.ok is None:
        yield f"It is draining, and waits for {_waits(status) or 'nothing'}."
    if status.sft is not None:
        yield _supervised(status)
    trainer, rollout = idle(status, "trainer") or 0.0, idle(status, "rollout") or 0.0
    still = stands_still(status)
    if trainer >= max(IDLE, rollout) or (still and not status.rollouts.get("taken")):
        yield from _trainer_waits(status)
    if rollout >= IDLE or still:
        yield from _engines_wait(status)
    if still:
        yield f"No cause is known. Open waits: {_waits(status) or 'none'}."
    yield from _found(status, *TEACHES_NOTHING)
    yield WELL


def _supervised(status: RunStatus) -> str:
    """Say what a supervised run waits for: it has the trainer alone."""
    if status.evaluating is not None:
        return f"The trainer measures the held-out loss of version {status.evaluating}."
    if (idle(status, "trainer") or 0.0) >= IDLE:
        return (
            "The trainer waits for the coordinator, which packs its rows: raise "
            "train.batch_groups, or give the model longer rows."
        )
    return "The trainer computes, and waits for nothing: a supervised run has no other side."


def _broken(status: RunStatus) -> Iterator[str]:
    """Explanations that do not go away by waiting."""
    if status.journal.trouble:
        yield (
            "The journal waits for the disk, and everything else for the journal: "
            f"{status.journal.trouble}; {size(status.journal.pending_bytes)} wait."
        )
    if status.unwritten >= HOLDS:
        yield from _found(status, "checkpoint_unwritten")
    absent = [actor for actor in status.actors if not actor.here and not actor.removed]
    if status.phase == "init" and absent:
        longest = max(actor.seconds for actor in absent)
        yield (
            f"It has waited for {_names(absent)} to connect for {duration(longest)}; see their "
            "logs."
        )
    # Once the run ends, its trainer goes; it was lost if the reason of the end names it.
    ends = status.phase in ("drain", "stop")
    for gone in (actor for actor in absent if actor.role == "trainer"):
        if ends and gone.name not in status.reason:
            continue
        yield f"{gone.name} was lost {duration(gone.seconds)} ago, and the run ends with it."
    for agents in status.failing[:1]:
        yield (
            f"All of the last {agents.episodes} episodes of {agents.name} failed, the last one by "
            f"`{agents.reason}`; the next ones start one at a time."
        )
    if silent := [
        actor
        for actor in status.actors
        if actor.here and actor.seconds > max(SILENT_S, 3 * status.report_s)
    ]:
        longest = max(actor.seconds for actor in silent)
        yield (
            f"{_names(silent)} {_has(silent)} not reported for {duration(longest)}, though "
            "connected: hung, stopped, or starved of processor time "
            f"(process {', '.join(str(actor.pid) for actor in silent[:NAMES])})."
        )
    if (
        (p := status.publication) is not None
        and p.waiting_for
        and (p.seconds > LONG_S or _awaited_by_all(status))
    ):
        yield (
            f"Publication {p.number}, of version {p.version}, waits for {p.waiting_for}: it has "
            f"taken {duration(p.seconds)} so far, is in {p.phase}, and gives up on silent actors "
            f"in {duration(p.left_s)}."
        )
    if busy := at_work(status):
        yield (
            f"The trainer has been at one {busy.command} for {duration(busy.seconds)}: the trainer "
            "is the slow side."
        )
    if status.phase == "ready":
        yield (
            "Every actor is connected, and the first publication has not begun: it waits for "
            f"{_waits(status) or 'the trainer'}."
        )


def _trainer_waits(status: RunStatus) -> Iterator[str]:
    """Explanations of an idle trainer: it waits for experience, which is somewhere."""
    leased, sealed = status.rollouts.get("leased", 0), status.rollouts.get("sealed", 0)
    yield from _actors_gone(status)
    yield from _found(status, *TEACHES_NOTHING)
    judges = [actor for actor in status.actors if actor.role == "reward" and actor.here]
    with_them = f"{sum(a.holds for a in judges)} of them with {_names(judges) or 'no actor'}"
    if sealed and status.verdict_s > STUCK_S and (sealed > leased or status.token_s < SILENT_S):
        yield (
            f"No verdict has come for {duration(status.verdict_s)}: verifiers are the slow side, "
            f"and may be stuck. {sealed} answers wait, {with_them}: look at the judge's server "
            "(judge.url), or at what task.verifier waits for; task.verdict_s bounds each verdict."
        )
    if sealed > leased:
        yield (
            f"The trainer waits for verdicts: verifiers are the slow side. {sealed} answers "
            f"wait, {with_them}, and {leased} responses are still being "
            f"generated; the last verdict came {duration(status.verdict_s)} ago. To judge more "
            "at a time, raise reward.actors or reward.concurrency."
        )
    if _held_by_evaluation(status):
        yield (
            f"The evaluation of version {status.evaluating} holds the publication of version "
            f"{status.step}, and the trainer waits for that: lower task.eval_size or "
            "evaluation.hold_s."
        )
    if _awaits_weights(status):
        yield (
            "The trainer waits for experience, and engines wait for weights: the last version "
            f"that they got is {status.committed}."
        )
    if status.evaluating is not None and not status.groups.live:
        yield (
            f"The trainer has nothing to do until version {status.evaluating} is evaluated: "
            f"{leased + sealed} answers to come; lower task.eval_size."
        )
    if _with_agents(status):
        yield f"The trainer waits for experience, and agents are the slow side: {_episodes(status)}"
    if leased:
        yield from _mute(status)
        yield from _by_shares(status, "both_idle")
        yield (
            f"The trainer waits for experience: generation is the slow side. {leased} rollouts "
            "are with engines, which sample "
            f"{count(status.generated_per_s)} tokens/s; the oldest is {_awaited(status)}. To "
            "generate more, raise rollout.actors, engine.slots or rollout.lent_actors."
        )
    yield from _by_shares(status, "trainer_idle")


def _actors_gone(status: RunStatus) -> Iterator[str]:
    """Explanations by roles of which as many actors are gone as are there."""
    for role, does in (("rollout", "generates"), ("reward", "judges"), ("agents", "plays")):
        every = [actor for actor in status.actors if actor.role == role]
        absent = [actor for actor in every if not actor.here and not actor.removed]
        present = [actor for actor in every if actor.here]
        if absent and len(absent) >= len(present):
            yield (
                "The trainer waits for experience, and "
                f"{f'only {_names(present)}' if present else 'no actor'} {does}: {_names(absent)} "
                f"{_has(absent)} been gone for "
                f"{duration(max(actor.seconds for actor in absent))}, and will restart "
                f"({status.restarts.get(role, 0)} restarts so far)."
            )


def _mute(status: RunStatus) -> Iterator[str]:
    """An explanation by rollout actors that hold rollouts, and stream nothing."""
    silent = {
        actor.name: actor.streamed_s or status.seconds
        for actor in status.actors
        if actor.role == "rollout" and actor.here and actor.holds
    }
    mute = [a for a in status.actors if silent.get(a.name, 0.0) > SILENT_S]
    if mute:
        yield (
            f"The trainer waits for experience, and {_names(mute)} {_has(mute)} streamed "
            f"nothing for {duration(max(silent[actor.name] for actor in mute))}, holding "
            f"{sum(actor.holds for actor in mute)} rollouts: "
            f"{_awaited(status, {actor.name for actor in mute})}."
        )


def _engines_wait(status: RunStatus) -> Iterator[str]:
    """Explanations of idle engines: they wait for weights, or for admission."""
    sealed, taken = status.rollouts.get("sealed", 0), status.rollouts.get("taken", 0)
    groups = status.groups
    if _awaits_weights(status):
        yield (
            "Rollout actors wait for weights, and the next publication has not begun: the "
            "trainer is still at its step."
        )
    if _with_agents(status):
        yield f"Rollout actors are idle, and agents are the slow side: {_episodes(status)}"
    if groups.max_live and groups.live >= groups.max_live:
        full = f"admission is full: {groups.live} groups of at most {groups.most} are live"
        if sealed > taken:
            yield (
                f"Rollout actors are idle because {full}, and {sealed} of their answers wait "
                "for a verdict: verifiers are the slow side; raise reward.actors."
            )
        yield from _by_shares(status, "both_idle")
        yield (
            f"Rollout actors are idle because {full}, {groups.complete} of them wait for the "
            f"trainer, and {taken} rollouts are with it: "
            f"the trainer is the slow side. Its last step was {duration(status.step_s)} ago. To "
            "train faster, raise train.ranks or machine.trainer_cores."
        )
    yield (
        f"Rollout actors are idle, because there is nothing to generate: {taken} rollouts are "
        "with the trainer."
    )


def _found(status: RunStatus, *names: str) -> Iterator[str]:
    """The sentences of the conditions of these names that hold, in the order of the names."""
    held = findings(facts_of(status))
    for name in names:
        yield from (found.sentence for found in held if found.name == name)


def _by_shares(status: RunStatus, name: str) -> Iterator[str]:
    """The sentence about the idle shares, if work goes on: a stalled run has none worth a word."""
    if not stands_still(status):
        yield from _found(status, name)


# ------------------------------------------------------------------------------------------- words


def facts_of(status: RunStatus) -> RunFacts:
    """The facts of the last seconds."""
    return msgspec.structs.replace(
        outside_facts(status),
        idle_trainer=idle(status, "trainer"),
        idle_rollout=idle(status, "rollout"),
        filtered=status.groups.filtered,
        patience=status.groups.patience,
        max_live=status.groups.max_live,
        answers=status.verdicts.answers,
        unjudged=status.verdicts.without,
        unjudged_reason=status.verdicts.reason,
        starts=status.episodes.starts,
        tool_replies=status.tool_replies,
        unread_calls=status.unread_calls,
        recent=status.recent,
    )


def outside_facts(status: RunStatus) -> RunFacts:
    """The facts that raise an alarm outside of steps."""
    return RunFacts(
        unwritten=status.unwritten,
        unwritten_why=status.unwritten_why,
        journal_why=status.journal.trouble,
        judge_missed=status.judge_missed,
        judge_why=status.judge_why,
        recent=status.recent.alarming,
    )


def stands_still(status: RunStatus) -> bool:
    """True if nothing has happened for long: no token, no verdict, no step."""
    return min(status.token_s, status.verdict_s, status.step_s) > SILENT_S


def idle(status: RunStatus, role: Role) -> float | None:
    """Idle share of a role, 0 to 1; None if no actor of it has reported."""
    causes = status.idle.get(role)
    return None if causes is None else min(1.0, sum(causes.values()))


def at_work(status: RunStatus) -> Busy | None:
    """The work at which the trainer has been for long, if all wait for it: nothing else happens,
    or the first publication is to come."""
    found = [actor.busy for actor in status.actors if actor.busy is not None]
    found += [
        Busy("checkpoint", actor.saving_s) for actor in status.actors if actor.saving_s is not None
    ]
    if not (stands_still(status) or status.phase == "ready"):
        return None
    return next((busy for busy in found if busy.seconds > LONG_S), None)


def _awaited_by_all(status: RunStatus) -> bool:
    """True if all wait for the publication: it is the first one, or engines stand still without
    it."""
    return status.phase == "ready" or (status.phase == "run" and _awaits_weights(status))


def _awaits_weights(status: RunStatus) -> bool:
    return status.idle.get("rollout", {}).get("weights", 0.0) >= IDLE


def _held_by_evaluation(status: RunStatus) -> bool:
    """True if a version is made and not published, and nothing but an evaluation is under way."""
    made = status.committed is not None and status.step > status.committed
    return made and status.publication is None and status.evaluating is not None


def _with_agents(status: RunStatus) -> bool:
    """True if engines are idle while most episodes are with their agents."""
    idle_engines = (idle(status, "rollout") or 0.0) >= IDLE
    return idle_engines and 2 * status.episodes.thinking > status.episodes.live


def _episodes(status: RunStatus) -> str:
    """Say how many episodes are with their agents, and what allows more."""
    episodes = status.episodes
    if (starts := episodes.starts) is not None and starts.waiting:
        return f"{in_words(starts)}."
    return (
        f"{episodes.thinking} of {episodes.live} episodes are with their agents, and engines could "
        f"serve {count(episodes.most)} at once; to have more, raise agent.concurrency or "
        "staleness.depth."
        if episodes.live < episodes.most
        else f"{episodes.thinking} of {episodes.live} episodes are with their agents; more begin "
        "once it is known how long agents take."
    )


def _awaited(status: RunStatus, holders: Iterable[str] | None = None) -> str:
    """Name a few rollouts, the oldest leases first; without `holders` the oldest alone."""
    found = [a for a in status.awaited if holders is None or a.holder in holders]
    if holders is None:
        found = found[:1]
    return "; ".join(
        f"rollout {a.rollout} with {a.holder} for {duration(a.seconds)}, {a.tokens} tokens long"
        for a in found[:NAMES]
    ) or ("none of them old")


def _waits(status: RunStatus) -> str:
    """Name the waits, the oldest first, at most `NAMES`."""
    return "; ".join(
        f"{wait.owner if process == COORDINATOR else process} for {wait.name} "
        f"({duration(wait.seconds)})"
        for process, wait in longest_waits(status)[:NAMES]
    )


def longest_waits(status: RunStatus) -> list[tuple[str, Wait]]:
    """Every wait with the process that it is in, the longest first."""
    found = [(COORDINATOR, wait) for wait in status.waits]
    found += [(actor.name, wait) for actor in status.actors for wait in actor.waits]
    return sorted(found, key=lambda item: -item[1].seconds)


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
