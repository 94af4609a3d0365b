"""The flow of a run as a picture: the stages that tokens pass, with what is at each, and who waits
for whom. It follows from one run status alone.
"""

from __future__ import annotations

from collections.abc import Iterator

from asyncrl.explain.conditions.sides import IDLE
from asyncrl.explain.diagnosis import idle, longest_waits
from asyncrl.explain.run_status import ActorStatus, RunStatus
from asyncrl.explain.views.html_page import Html, joined, meter, table, tag
from asyncrl.messages import Role, Wait
from asyncrl.words import NONE, count, duration, share, size

WAITS = 20
"""Waits that are shown, the longest first."""
UNBOUNDED_S = 1e8
"""Seconds of a wait that has no deadline in practice, three years."""
ACTORS = 64
"""Actors that are shown."""


def flow(status: RunStatus) -> Html:
    """The stages in a row, from prompts to weights, and below it the way back of the weights."""
    return joined(
        tag(
            "div",
            tag("ol", *_stages(status), class_="flow"),
            tag("p", _back(status), class_="back"),
            class_="loop",
        ),
        tag("p", _journal(status), class_="dim"),
    )


def who_waits(status: RunStatus) -> Html:
    """The waits and the actors behind the flow."""
    waits = joined() if status.ok is not None else _waits(status)
    return joined(waits, tag("h3", "Actors"), _actors(status))


def _stages(status: RunStatus) -> Iterator[Html]:
    groups, episodes = status.groups, status.episodes
    full = groups.max_live > 0 and groups.live >= groups.max_live
    rollouts = status.rollouts
    then = " at the end" if status.ok is not None else ""
    says = "at the limit" if full else "more may start"
    yield _stage(
        "Prompts",
        "empty" if status.ok is not None else "works",
        "ended" if status.ok is not None else says,
        [
            f"{groups.live} groups in flight (limit {groups.most})",
            f"{groups.filtered} filtered in a row",
        ],
        None,
    )
    yield _of_role(
        status,
        "rollout",
        "Engines",
        [
            f"{rollouts.get('leased', 0)} decoding, {rollouts.get('waiting', 0)} waiting",
            f"{count(status.generated_per_s)} tokens/s{then}",
        ],
    )
    if any(actor.role == "agents" for actor in status.actors):
        yield _of_role(
            status,
            "agents",
            "Agents",
            [f"{episodes.live} episodes", f"{episodes.thinking} at their agents' turn"],
        )
    yield _of_role(status, "reward", "Verifiers", [f"{rollouts.get('sealed', 0)} to be judged"])
    waiting = rollouts.get("judged", 0)
    yield _stage(
        "Queue",
        "works" if groups.complete else "empty",
        "has work" if groups.complete else "empty",
        [f"{groups.complete} complete groups", f"{waiting} judged rollouts"],
        None,
    )
    yield _of_role(
        status,
        "trainer",
        "Trainer",
        [
            f"step {status.step} of {status.steps}",
            f"{rollouts.get('taken', 0)} rollouts taken",
            f"{count(status.trained_per_s)} tokens/s{then}",
        ],
    )
    if (publication := status.publication) is not None:
        yield _stage(
            "Publication",
            "works",
            f"{publication.phase}, version {publication.version}",
            [
                f"waits for {publication.waiting_for}" if publication.waiting_for else "",
                f"for {duration(publication.seconds)}",
            ],
            None,
        )
    else:
        version = "none yet" if status.committed is None else f"version {status.committed}"
        yield _stage("Publication", "empty", "none under way", [version], None)


def _of_role(status: RunStatus, role: Role, name: str, facts: list[str]) -> Html:
    """The stage of the actors of a role."""
    here = sum(actor.here for actor in status.actors if actor.role == role)
    every = sum(actor.role == role for actor in status.actors)
    counted = f"{here} of {every} running" if here < every else f"{every} running"
    if status.ok is not None:
        counted = f"{every} of them"
    part = idle(status, role)
    causes = status.idle.get(role, {})
    cause = max(causes, key=lambda one: causes[one], default="")
    if status.ok is not None:
        state, says = "empty", "ended"
    elif every and not here:
        state, says = "waits", "gone"
    elif part is None:
        state, says = "empty", "has not reported"
    elif part >= IDLE:
        state, says = "waits", f"{share(part)} idle, waits for {cause or 'work'}"
    else:
        state, says = "works", f"busy, {share(part)} idle"
    return _stage(name, state, says, [counted, *facts], part)


def _stage(name: str, state: str, says: str, facts: list[str], part: float | None) -> Html:
    """One stage; a `part` of it, 0 to 1, is idle."""
    said = [tag("span", fact) for fact in facts if fact]
    bar = [] if part is None else [meter(part, aria_label=f"{name}: idle share")]
    return tag("li", tag("b", name), tag("span", says, class_="state"), *said, *bar, class_=state)


def _back(status: RunStatus) -> str:
    """The way back of weights."""
    serving = [
        f"{actor.name} {actor.version}"
        for actor in status.actors
        if actor.role == "rollout" and actor.version is not None
    ]
    more = f" and {len(serving) - 8} more" if len(serving) > 8 else ""
    if not serving:
        return "weights go back to the engines"
    return f"weights go back to the engines; versions there: {', '.join(serving[:8])}{more}"


def _journal(status: RunStatus) -> str:
    """The length of the journal, and what of it is not on the disk."""
    journal = status.journal
    trouble = f": {journal.trouble}" if journal.trouble else ""
    return (
        f"The journal has {count(journal.appended)} events; "
        f"{size(journal.pending_bytes)} wait for the disk{trouble}."
    )


def _bound(wait: Wait) -> str:
    """The end of a wait, in words."""
    if isinstance(wait.bound, str):
        return f"until {wait.bound}"
    return f"of {duration(wait.bound)}" if wait.bound < UNBOUNDED_S else "no deadline"


def _waits(status: RunStatus) -> Html:
    rows = [
        (
            f"{process}: {wait.owner}",
            wait.name,
            f"{duration(wait.seconds)} {_bound(wait)}",
        )
        for process, wait in longest_waits(status)[:WAITS]
    ]
    rows += [
        (
            f"rollout {one.rollout}",
            f"{one.holder}, attempt {one.attempt}, {one.tokens} tokens",
            f"{duration(one.seconds)} of {duration(one.deadline_s)}",
        )
        for one in status.awaited
    ]
    if not rows:
        return tag("p", "Nobody waits.", class_="dim")
    return table(rows, ("who", "waits for", "waited, and deadline"))


def _actors(status: RunStatus) -> Html:
    rows = [
        (
            actor.name,
            _standing(actor, ended=status.ok is not None),
            count(actor.holds),
            NONE if actor.version is None else f"{actor.version}",
            _causes(actor),
        )
        for actor in status.actors[:ACTORS]
    ]
    if not rows:
        return tag("p", "None has come yet.", class_="dim")
    more = len(status.actors) - ACTORS
    note = [tag("p", f"And {more} more.", class_="dim")] if more > 0 else []
    return joined(table(rows, ("actor", "is", "holds", "version", "idle, by cause")), *note)


def _standing(actor: ActorStatus, *, ended: bool) -> str:
    if actor.removed:
        return f"removed: {actor.removed}"
    if actor.busy is not None:
        return f"at one {actor.busy.command} for {duration(actor.busy.seconds)}"
    if actor.here:
        return "running"
    if actor.incarnation < 0:
        return "has not come yet"
    if ended:
        return "ended"
    return f"gone {duration(actor.seconds)} ago"


def _causes(actor: ActorStatus) -> str:
    largest = sorted(actor.idle.items(), key=lambda item: -item[1])
    return ", ".join(f"{cause} {share(part)}" for cause, part in largest[:3]) or NONE
