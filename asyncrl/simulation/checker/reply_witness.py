"""Messages to agents about their episodes. Invariant: each attempt that is to be played was begun;
each answer has the tokens that were sampled, and an end that its call had.

A frame is judged when it is really sent, which may be some time after the coordinator decided on
it: it is compared with what was recorded by then of its attempt, over or not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from asyncrl.experience import events as e
from asyncrl.messages import Message, Play, Reply, StopPlaying
from asyncrl.simulation.checker.attempt_witness import AttemptRecords, EpisodesRun


class ReplyWitness:
    """Compares what is sent with the `records`. `temperature` is that of a group."""

    def __init__(
        self,
        run: EpisodesRun,
        records: AttemptRecords,
        temperature: Callable[[e.Admitted], float],
    ) -> None:
        self._run, self._records, self._temperature = run, records, temperature

    def told(self, start: str, message: Message, buffers: Sequence[object]) -> None:
        """The coordinator sends this to the actor `start`."""
        match message:
            case Play():
                self._told_to_play(start.partition("/")[0], message)
            case Reply():
                self._replied(message, *(bytes(buffer) for buffer in buffers))  # type: ignore[call-overload]
            case StopPlaying(rollout, attempt):
                live = self._run.reference.episode(rollout)
                self._run.hold(
                    "once",
                    (rollout, attempt) in self._records.attempts
                    and (live is None or (live.status, live.attempt) != ("played", attempt)),
                    "{}, and the attempt goes on, or never began",
                    message,
                )
            case _:
                pass

    def _told_to_play(self, holder: str, message: Play) -> None:
        attempt = self._records.attempts.get((message.rollout, message.attempt))
        told = attempt is not None and (attempt.holder, attempt.notes) == (holder, message.notes)
        self._run.hold("replay", told, "{} is played by {}, and is not so begun", message, holder)
        if (episode := self._run.reference.episode(message.rollout)) is None:
            return
        admitted = episode.rollout.group.event
        due = (
            admitted.split,
            admitted.prompt_index,
            episode.seed,
            episode.budget,
            self._temperature(admitted),
        )
        said = (
            message.split,
            message.prompt_index,
            message.seed,
            message.max_new_tokens,
            message.temperature,
        )
        self._run.hold("replay", said == due, "{}, and due is {}", message, due)

    def _replied(self, message: Reply, ids: bytes, behaviour: bytes) -> None:
        attempt = self._records.attempts.get((message.rollout, message.attempt))
        if attempt is None or message.number >= len(attempt.calls):
            return self._run.violated("answers", f"{message} answers what nobody asked")
        number, call = message.number, attempt.calls[message.number]
        self._run.hold("answers", number not in attempt.closed, "{} comes after the end", message)
        if message.refused:  # that a call may be that was not made was checked when it was
            attempt.closed.add(number)
            self._run.hold("answers", self._given_up(message, call), "{}, and it lives", message)
            return None
        if call is None:
            return self._run.violated("answers", f"{message} answers what was refused")
        sampled, start = self._records.sampled[call], attempt.said.get(number, 0)
        attempt.said[number] = end = start + len(ids) // 4
        same = (
            bytes(sampled.ids[4 * start : 4 * end]) == ids
            and bytes(sampled.behaviour[4 * start : 4 * end]) == behaviour
            and set(sampled.versions[start:end]) <= {message.version}
        )
        self._run.hold(
            "answers",
            same,
            "call {} is answered with other tokens than were sampled: {}",
            call,
            message,
        )
        if message.finish:
            attempt.closed.add(number)
            cut = ("length",) if message.attempt in sampled.spent else ("stop", "length")
            self._run.hold(
                "answers",
                any(
                    tokens == end and message.finish in ((by,) if by else cut)
                    for tokens, by in sampled.ends
                ),
                "{} ends an answer after {} tokens, and its ends were {}",
                message,
                end,
                sampled.ends,
            )
        return None

    def _given_up(self, message: Reply, call: int | None) -> bool:
        """True if no call was made, or the engines have failed at it, or its episode is over."""
        episode = self._run.reference.episode(message.rollout)
        live = None if episode is None or call is None else episode.calls.get(call)
        return live is None or live.buried
