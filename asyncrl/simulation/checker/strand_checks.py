"""Checks of what is trained of a sealed episode. Invariant: the strands are compared with the calls
that its agent made, and with nothing that the product makes of them."""

from __future__ import annotations

from collections.abc import Iterable

from asyncrl.experience.episode import failed_tokens
from asyncrl.experience.experience import Experience
from asyncrl.experience.sequence import ID_BYTES, TrainingSequence
from asyncrl.simulation.checker.reference_rollouts import ReferenceAgentCall, ReferenceEpisode
from asyncrl.simulation.observer import WorldObserver


def check_sealed(run: WorldObserver, episode: ReferenceEpisode, experience: Experience) -> None:
    """Check what is trained of a sealed episode: each sampled token of each call that its agent
    made, once, behind its own context."""
    rollout = episode.id
    theirs = experience.rollouts[rollout]
    calls = episode.turns
    sampled = sum(len(call.versions) for call in calls)
    run.hold(
        "bounds",
        sampled <= episode.budget,
        "rollout {} has {} tokens, of {}",
        rollout,
        sampled,
        episode.budget,
    )
    run.hold(
        "rewards",
        theirs.agent_reward == episode.rewards.get(None)
        and [(turn.tokens, turn.reward, turn.key, turn.failed, turn.role) for turn in theirs.turns]
        == [
            (
                len(call.versions),
                episode.rewards.get(call.id),
                episode.keys.get(call.id, ""),
                episode.failed.get(call.id, ""),
                call.role,
            )
            for call in calls
        ],
        "rollout {} has the turns {}, and its agent gave {} with the keys {}, and said that {} "
        "failed",
        rollout,
        theirs.turns,
        episode.rewards,
        episode.keys,
        episode.failed,
    )
    if not calls:
        return
    sequences = experience.groups[theirs.group].sequences(theirs)
    left = list(calls)
    for sequence, strand in zip(sequences, theirs.strands, strict=True):
        there = take_calls(run, rollout, sequence, left)
        failed = b"".join(
            (b"\1" if episode.failed.get(call.id) == "search" else b"\0") * len(call.versions)
            for call in there
        )
        found = bytearray(len(failed))
        for start, end in failed_tokens(theirs.turns, strand, ["search"]):
            found[start:end] = b"\1" * (end - start)
        run.hold(
            "failed calls",
            found == failed,
            "rollout {} masks {} of a strand, and {} are of failed calls",
            rollout,
            found.hex(),
            failed.hex(),
        )
    run.hold("once", not left, "calls {} are not trained", [call.id for call in left])
    gone_on = {
        id(parent)
        for place, call in enumerate(calls)
        if (parent := _parent(call, calls[:place])) is not None
    }
    due = len(calls) - len(gone_on)
    run.hold(
        "strands",
        len(sequences) == due,
        "rollout {} has {} strands, and {} are enough",
        rollout,
        len(sequences),
        due,
    )


def check_contexts(run: WorldObserver, episode: ReferenceEpisode, experience: Experience) -> None:
    """Check that the calls of an episode that is played have the contexts that they were asked
    with."""
    theirs = experience.rollouts[episode.id].episode
    if theirs is None:
        return
    for call in theirs.calls:
        mine = episode.calls[call.id]
        run.hold(
            "contexts stay",
            theirs.context(call) == (mine.path if mine.buried else mine.context),
            "call {} has another context than it was asked with",
            call.id,
        )


def take_calls(
    run: WorldObserver, rollout: int, sequence: TrainingSequence, left: list[ReferenceAgentCall]
) -> list[ReferenceAgentCall]:
    """Find the call of each sampled token of a strand, and take it from those that are left.
    Returns these calls in their order."""
    versions = [-1] * len(sequence.mask)
    for span in sequence.spans:
        versions[span.start : span.end] = [span.version] * (span.end - span.start)
    at, there = 0, list[ReferenceAgentCall]()
    while (at := bytes(sequence.mask).find(1, at)) >= 0:
        found = [
            call
            for call in left
            if call.context == sequence.ids[: 4 * at]
            and bytes(call.ids) == sequence.ids[4 * at : 4 * (at + len(call.versions))]
            and bytes(call.behaviour)
            == bytes(sequence.behaviour[4 * at : 4 * (at + len(call.versions))])
        ]
        if not found:
            run.violated(
                "once", f"rollout {rollout}: token {at} of a strand is of no call that is left"
            )
            return there
        call = found[0]
        end = at + len(call.versions)
        run.hold(
            "masks",
            bytes(sequence.mask[at:end]) == b"\1" * (end - at)
            and versions[at:end] == call.versions,
            "call {} is masked {} at {}",
            call.id,
            bytes(sequence.mask[at:end]).hex(),
            versions[at:end],
        )
        left.remove(call)
        there.append(call)
        at = end
    return there


def _parent(
    call: ReferenceAgentCall, before: Iterable[ReferenceAgentCall]
) -> ReferenceAgentCall | None:
    """The earlier call that this one goes on from, behind its last token; None if there is none.

    Nor is there one where another call has more of this one's context: then this one hangs from
    that. Example: of two answers to [1], [2] and [2, 3], a call with [1, 2, 3] shares three tokens
    with the second, and so does not go on behind the first.
    """
    earlier = list(before)
    found = [other for other in earlier if call.context.startswith(other.path)]
    parent = max(found, key=lambda other: len(other.path), default=None)
    if parent is None or any(_shares_more(other, call, parent) for other in earlier):
        return None
    return parent


def _shares_more(
    other: ReferenceAgentCall, call: ReferenceAgentCall, parent: ReferenceAgentCall
) -> bool:
    """True if more tokens of the context of `call` are those of `other` than `parent` has."""
    more = len(parent.path) + ID_BYTES
    return call.context[:more] == other.path[:more] and len(call.context) >= more
