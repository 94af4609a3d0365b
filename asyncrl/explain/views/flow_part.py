"""The flow of a run as a picture: the stages that tokens pass, with what is at each, and who waits
for whom. It follows from one run status alone.
"""

from __future__ import annotations

from collections.abc import Iterator

from asyncrl.config.derived import size
from asyncrl.explain.conditions.sides import IDLE
from asyncrl.explain.diagnosis import duration, idle
from asyncrl.explain.run_status import ActorStatus, RunStatus
from asyncrl.explain.views.html_page import Html, joined, tag
from asyncrl.messages import Role, Wait

WAITS = 20
"""Waits that are shown, the longest first."""
ACTORS = 64
"""Actors that are shown."""


def flow(status: RunStatus) -> Html:
    """The stages, from prompts to weights, and the actors and waits behind them."""
    return joined(
        tag("ol", *_stages(status), class_="flow"),
        tag("p", _back(status), class_="dim"),
        tag("h3", "Who waits for whom"),
        _waits(status),
        tag("h3", "Actors"),
        _actors(status),
    )


def _stages(status: RunStatus) -> Iterator[Html]:
    groups, episodes = status.groups, status.episodes
    full = groups.max_live > 0 and groups.live >= groups.max_live
    rollouts = status.rollouts
    says = "admission is full" if full else "may start more"
    yield _stage(
        "Prompts",
        "empty" if status.ok is not None else "waits" if full else "works",
        "have ended" if status.ok is not None else says,
        [f"{groups.live} of {groups.max_live} groups live", f"{groups.filtered} filtered in a row"],
        groups.live / groups.max_live if groups.max_live else 0.0,
    )
    yield _of_role(
        status,
        "rollout",
        "Engines",
        [
            f"{rollouts.get('leased', 0)} decoding, {rollouts.get('waiting', 0)} waiting",
            f"{status.generated_per_s:,.0f} tokens/s",
        ],
    )
    if any(actor.role == "agents" for actor in status.actors):
        yield _of_role(
            status,
            "agents",
            "Agents",
            [f"{episodes.live} episodes live", f"{episodes.thinking} with the ball"],
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
            f"{status.trained_per_s:,.0f} tokens/s",
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
    counted = f"{here} of {every} here" if here < every else f"{every} here"
    share = idle(status, role)
    causes = status.idle.get(role, {})
    cause = max(causes, key=lambda one: causes[one], default="")
    if status.ok is not None:
        state, says = "empty", "has ended"
    elif every and not here:
        state, says = "waits", "gone"
    elif share is None:
        state, says = "empty", "has not reported"
    elif share >= IDLE:
        state, says = "waits", f"idle {share:.0%}, waits for {cause or 'work'}"
    else:
        state, says = "works", f"works, idle {share:.0%}"
    return _stage(name, state, says, [counted, *facts], share)


def _stage(name: str, state: str, says: str, facts: list[str], share: float | None) -> Html:
    """One stage; `share` is a part of a whole, 0 to 1, that is idle or full."""
    said = [tag("span", fact) for fact in facts if fact]
    meter = [] if share is None else [_meter(name, share)]
    return tag("li", tag("b", name), tag("span", says, class_="state"), *said, *meter, class_=state)


def _meter(name: str, share: float) -> Html:
    whole = min(1.0, max(0.0, share))
    what = "live groups" if name == "Prompts" else "idle share"
    return tag("meter", f"{share:.0%}", value=f"{whole:.4f}", aria_label=f"{name}: {what}")


def _back(status: RunStatus) -> str:
    """The way back of weights, and what the journal has."""
    serving = [
        f"{actor.name} {actor.version}"
        for actor in status.actors
        if actor.role == "rollout" and actor.version is not None
    ]
    more = f" and {len(serving) - 8} more" if len(serving) > 8 else ""
    served = f"Versions go back to the engines: {', '.join(serving[:8])}{more}. " if serving else ""
    journal = status.journal
    trouble = f": {journal.trouble}" if journal.trouble else ""
    return (
        f"{served}The journal has {journal.appended:,} events; {size(journal.pending_bytes)} wait "
        f"for the disk{trouble}."
    )


def _bound(wait: Wait) -> str:
    """The end of a wait, in words: `of 300` seconds, or `until the link ends`."""
    return f"until {wait.bound}" if isinstance(wait.bound, str) else f"of {wait.bound:,.0f}"


def _waits(status: RunStatus) -> Html:
    every = [
        *(("coordinator", wait) for wait in status.waits),
        *((actor.name, wait) for actor in status.actors for wait in actor.waits),
    ]
    every.sort(key=lambda one: -one[1].seconds)
    rows = [
        tag(
            "tr",
            tag("td", f"{owner}: {wait.owner}"),
            tag("td", wait.name),
            tag("td", f"{wait.seconds:.1f} s {_bound(wait)}"),
        )
        for owner, wait in every[:WAITS]
    ]
    rows += [
        tag(
            "tr",
            tag("td", f"rollout {one.rollout}"),
            tag("td", f"{one.holder}, attempt {one.attempt}, {one.tokens} tokens"),
            tag("td", f"{one.seconds:.1f} s of {one.deadline_s:,.0f}"),
        )
        for one in status.awaited
    ]
    if not rows:
        return tag("p", "Nobody waits.", class_="dim")
    return table(("who", "waits for", "seconds, of its deadline"), rows)


def _actors(status: RunStatus) -> Html:
    rows = [
        tag(
            "tr",
            tag("td", actor.name),
            tag("td", _standing(actor)),
            tag("td", f"{actor.holds}"),
            tag("td", "–" if actor.version is None else f"{actor.version}"),
            tag("td", _causes(actor)),
        )
        for actor in status.actors[:ACTORS]
    ]
    more = len(status.actors) - ACTORS
    note = [tag("p", f"And {more} more.", class_="dim")] if more > 0 else []
    shown = table(("actor", "is", "holds", "version", "idle, by cause"), rows)
    return joined(shown, *note) if rows else tag("p", "None has come yet.", class_="dim")


def _standing(actor: ActorStatus) -> str:
    if actor.removed:
        return f"removed: {actor.removed}"
    if actor.busy is not None:
        return f"at one {actor.busy.command} for {duration(actor.busy.seconds)}"
    if actor.here:
        return "here"
    if actor.incarnation < 0:
        return "has not come yet"
    return f"gone {duration(actor.seconds)} ago"


def _causes(actor: ActorStatus) -> str:
    largest = sorted(actor.idle.items(), key=lambda item: -item[1])
    return ", ".join(f"{cause} {share:.0%}" for cause, share in largest[:3]) or "–"


def table(names: tuple[str, ...], rows: list[Html]) -> Html:
    """Rows under the names of their columns."""
    head = tag("tr", *(tag("th", name, scope="col") for name in names))
    return tag("table", head, *rows)
