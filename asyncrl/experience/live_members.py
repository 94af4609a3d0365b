"""Facts about the members of a group during generation, by which a rule ends some of them.
Invariant: they follow from the journal alone."""

from __future__ import annotations

from asyncrl.algorithms.selection.beginnings import Beginning, beginning
from asyncrl.algorithms.selection.live_group import LiveGroup, LiveMember, State
from asyncrl.algorithms.selection.prompt_history import History
from asyncrl.experience.call import RolloutStatus
from asyncrl.experience.group import Group
from asyncrl.experience.rollout import Rollout
from asyncrl.messages import Scored


def beginning_of(group: Group, rollout: Rollout, tokens: int) -> Beginning:
    """The beginning of a response that has this many tokens or more."""
    first = 4 * tokens
    ids, behaviour = bytes(rollout.ids[:first]), bytes(rollout.behaviour[:first])
    return beginning(ids, behaviour, group.prompt_facts.solve_rate)


def live_group(group: Group, asked: Rollout, tokens: int, history: History) -> LiveGroup:
    """The group, as shown to a rule that is asked about the first `tokens` tokens of `asked`."""
    members = [_live(member, tokens) for member in group.members]
    place = group.place_of(asked.id)
    return LiveGroup(members, place, group.prompt_facts, history.judged, history.judged_count)


def _live(member: Rollout, tokens: int) -> LiveMember:
    scored = member.verdict if isinstance(member.verdict, Scored) else None
    return LiveMember(
        _STATES.get(member.status, "ended" if scored is None else "judged"),
        member.tokens,
        bytes(member.ids[: 4 * tokens]),
        bytes(member.behaviour[: 4 * tokens]),
        member.looked > 0,
        None if scored is None else scored.reward,
        scored is not None and scored.exact,
    )


_STATES: dict[RolloutStatus, State] = {
    RolloutStatus.WAITING: "live",
    RolloutStatus.LEASED: "live",
    RolloutStatus.SEALED: "sealed",
}
