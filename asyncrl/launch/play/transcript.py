"""The transcript of an episode, printed as it happens: what the model is given and says, with the
names of its special tokens, as it is trained. Foreign text is escaped."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from asyncrl.actors.agent_pool import AgentAttempt
from asyncrl.agents.endings import AgentFailed
from asyncrl.escape import escaped, escaped_lines
from asyncrl.launch.play.one_episode import PlayedTurn
from asyncrl.messages import GiveFailure, GiveReward, Note, NoVerdict, Play, Verdict

LINE = 10_000
"""Characters of a line that are shown, at most."""


class Transcript:
    """Prints by `say` what happens in an episode; `decode` gives the text of ids, with the names of
    special tokens."""

    def __init__(self, say: Callable[[str], None], decode: Callable[[Sequence[int]], str]) -> None:
        self._say, self._decode = say, decode
        self._seen: list[NDArray[np.int32]] = []

    def begin(self, play: Play, task: str) -> None:
        """Print which episode is played."""
        self._say(f"{task}: prompt {play.prompt_index} of {play.split}, seed {play.seed}")

    def context(self, turn: PlayedTurn) -> None:
        """Print what a call gives the model, from the first token that no earlier call had."""
        known = max((_common(seen, turn.context) for seen in self._seen), default=0)
        self._seen.append(turn.context)
        role = f" ({turn.role})" if turn.role else ""
        of_call = f"call {turn.number}{role}: context of {_tokens(len(turn.context))}"
        self._head(of_call + (f", from token {known} on" if known else ""))
        new = turn.context[known:]
        self._text(self._decode(new[new >= 0].tolist()))  # the others are parts of images

    def response(self, turn: PlayedTurn) -> None:
        """Print what the model said."""
        self._seen.append(np.concatenate([turn.context, turn.response]))
        ending = {"stop": "", "length": ", cut at its budget", "refused": ", refused"}
        self._head(
            f"call {turn.number}: response of {_tokens(len(turn.response))}"
            + ending.get(turn.finish, f", {turn.finish}")
        )
        self._text(self._decode(turn.response.tolist()))

    def refused(self, number: int, why: str) -> None:
        """Print that a call got no response."""
        self._head(f"call {number}: refused: {escaped(why)}")

    def error(self, request: str, status: int, body: bytes) -> None:
        """Print a request that the gateway refused."""
        self._head(f"error {status} at {escaped(request, 200)}: {_message(body)}")

    def note(self, message: Note | GiveReward | GiveFailure) -> None:
        """Print what the agent says of its episode."""
        match message:
            case Note():
                value = escaped(message.value.decode(errors="replace"), LINE)
                self._head(f"noted {escaped(message.name, 200)}: {value}")
            case GiveReward(number=None):
                self._head(f"reward of the episode: {message.reward:g}")
            case GiveReward():
                key = f", key {escaped(message.key, 200)}" if message.key else ""
                self._head(f"reward of call {message.number}: {message.reward:g}{key}")
            case GiveFailure():
                self._head(f"call {message.number}: its tool {escaped(message.tool, 200)} failed")

    def ended(self, attempt: AgentAttempt) -> None:
        """Print the end of the agent, and its own output."""
        if attempt.output.strip():
            self._head("the end of the agent's output")
            self._text(attempt.output.rstrip())
        if isinstance(attempt.end, AgentFailed):
            self._head(f"the agent failed: {attempt.end.kind}: {escaped(attempt.end.text)}")
        else:
            self._head(f"the agent ended after {attempt.seconds:.1f} s of its own")

    def warned(self, sentence: str) -> None:
        """Print what went wrong beside the episode."""
        self._head(sentence)

    def verdict(self, verdict: Verdict) -> None:
        """Print what the task's verifier said."""
        if isinstance(verdict, NoVerdict):
            self._head(f"no verdict of the task's verifier: {escaped(verdict.reason)}")
        else:
            self._head(f"reward by the task's verifier: {verdict.reward:g}")

    def _head(self, text: str) -> None:
        self._say(f"── {text}")

    def _text(self, text: str) -> None:
        self._say(escaped_lines(text, LINE))


def _tokens(count: int) -> str:
    return f"{count} token{'s' * (count != 1)}"


def _common(one: NDArray[np.int32], other: NDArray[np.int32]) -> int:
    """The number of tokens with which both begin."""
    most = min(len(one), len(other))
    differ = np.flatnonzero(one[:most] != other[:most])
    return int(differ[0]) if len(differ) else most


class _Error(msgspec.Struct):
    message: str


class _Refusal(msgspec.Struct):
    error: _Error


def _message(body: bytes) -> str:
    """The sentence of a refusal, or the body where it is none."""
    try:
        return escaped(msgspec.json.decode(body, type=_Refusal).error.message)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return escaped(body.decode(errors="replace"))
