"""An agent's episode, while it is played. Invariant: a call's context never changes, and the agent
of an attempt has only the calls that it made itself.

An episode is a rollout, and its calls are what is leased. An agent that dies is played again from
the top: the calls that it makes again are known by their keys, and are answered with what there is
(`Reused`). What no attempt makes again is `orphaned` when the episode is sealed. Then nothing is
left of it but its turns, in the order in which they were made, and the strands in which they lie.
`call_tree.py` draws the tree of an episode's tokens and defines its words.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from hashlib import sha256
from itertools import accumulate, count, pairwise

import msgspec

from asyncrl.experience.call import Call, ImpossibleEvent
from asyncrl.experience.call_tree import CallTree, common, joined
from asyncrl.experience.sequence import ID_BYTES, TrainingSequence
from asyncrl.messages import Finish, Span

AfterCall = tuple[int, int]
"""A call, and a number of tokens of what it was given and sampled, from the start."""


class AgentCall(Call, kw_only=True):
    """A call of the agent that plays `rollout`. The fields are those of `Called`."""

    rollout: int
    after: AfterCall | None
    given: bytes
    key: int
    temperature: float


class Turn(msgspec.Struct, frozen=True, array_like=True):
    """A call of an episode that is over: how many tokens it sampled, how it ended (empty where its
    agent did not wait for that), the reward that its agent gave it, and the tool whose failed call
    it was, empty where it was none."""

    tokens: int
    finish: Finish
    reward: float | None = None
    failed: str = ""


class Strand(msgspec.Struct, frozen=True, array_like=True):
    """A strand of the tree (`call_tree.py`): it hangs behind the first `tokens` tokens of the path
    of strand `parent` (None: from the root). Its `pieces` are tokens that were given (`int32` ids)
    and turns, by their numbers.

    Example: turn 0 and turn 1 of one conversation, and turn 2, which shares the first five tokens.

        Strand(None, 0, [prompt, 0, tool_result, 1]), Strand(0, 5, [other, 2])
    """

    parent: int | None
    tokens: int
    pieces: list[bytes | int]


class Episode(msgspec.Struct):
    """An episode that is not sealed. `attempt` counts its agents, `failures` those that failed, and
    `holder` is the actor that has the present one, empty while there is none. `calls` are all there
    are, in the order in which they were made first, and `used` the numbers of those that this
    attempt has made, in its order. `rewards` are this attempt's, by call; that of the whole is
    under None. `failed` has the tools of its calls that failed, by call. `notes` are results that
    any attempt has noted."""

    attempt: int = 0
    failures: int = 0
    holder: str = ""
    calls: list[AgentCall] = msgspec.field(default_factory=list)
    used: list[int] = msgspec.field(default_factory=list)
    notes: dict[str, bytes] = msgspec.field(default_factory=dict)
    rewards: dict[int | None, float] = msgspec.field(default_factory=dict)
    failed: dict[int, str] = msgspec.field(default_factory=dict)

    @property
    def tokens(self) -> int:
        """Sampled tokens of all calls."""
        return sum(call.tokens for call in self.calls)

    def find(self, number: int) -> AgentCall:
        """The call of this number. Raises ImpossibleEvent where there is none."""
        for call in self.calls:
            if call.id == number:
                return call
        raise ImpossibleEvent(f"call {number} is none of this episode")

    def next_key(self, rollout_key: int, asked: bytes) -> int:
        """The key of a call that is `asked` for so (its context and how it is sampled): the same in
        each attempt that asks so as often. Equal calls of one attempt have different keys, and so
        different draws."""
        keys = {call.key for call in self.calls if call.id in self.used}
        for occurrence in count():
            text = b"%d/%d/" % (rollout_key, occurrence) + asked
            key = int.from_bytes(sha256(text).digest()[:8], "little") >> 1
            if key not in keys:
                return key
        raise AssertionError("there is always another key")

    def context(self, call: AgentCall) -> bytes:
        """All that a call was given: `int32` ids."""
        pieces, after = [call.given], call.after
        while after is not None:
            parent, tokens = self.find(after[0]), after[1]
            before = 0 if parent.after is None else parent.after[1]
            if tokens > before:
                own = parent.given + parent.ids
                pieces.append(own[: (tokens - before) * ID_BYTES])
                after = parent.after
            else:
                assert parent.after is not None, "nothing lies before the first token"
                after = parent.after[0], tokens
        return b"".join(reversed(pieces))

    def needed(self, call: AgentCall) -> int:
        """The number of sampled tokens of a call that the contexts of others go on from."""
        given = len(self.context(call)) // ID_BYTES
        ends = (c.after[1] for c in self.calls if c.after is not None and c.after[0] == call.id)
        return max(0, max(ends, default=0) - given)

    def place(self, context: bytes) -> tuple[AfterCall | None, bytes]:
        """Place of a call with this context: the `after` and the `given` of its `Called`. Of calls
        that share as much with it the first counts.

        Example: call 9 was given [1, 2] and sampled [3]. The context [1, 2, 3, 4] is after (9, 3),
        with [4] given.
        """
        paths: dict[int, bytes] = {}
        best, after = 0, None
        for call in self.calls:
            before = b"" if call.after is None else paths[call.after[0]]
            kept = 0 if call.after is None else call.after[1] * ID_BYTES
            paths[call.id] = path = before[:kept] + call.given + call.ids
            if (shared := common(path, 0, context, 0)) > best:
                best, after = shared, (call.id, shared // ID_BYTES)
        return after, context[best:]


def gathered(
    episode: Episode,
) -> tuple[bytearray, bytearray, list[Span], list[Turn], list[Strand]]:
    """Result of an episode. Of the calls that its agent used: the sampled tokens, one turn
    after another (ids, behaviour, spans), the turns, and the strands. Each turn is in one strand;
    calls that sampled nothing are left out.

    Example: call 9 was given [1, 2] and sampled [3, 4]; call 10 went on with [5] and sampled [6].

        ids [3, 4, 6], turns of 2 and 1 tokens, strands [Strand(None, 0, [[1, 2], 0, [5], 1])]
    """
    ids, behaviour, spans, turns = bytearray(), bytearray(), list[Span](), list[Turn]()
    tree, places = CallTree(), []
    for call in [episode.find(number) for number in episode.used]:
        if not call.tokens:
            continue
        places.append(tree.add(episode.context(call), bytes(call.ids)))
        at = len(ids) // ID_BYTES
        ids += call.ids
        behaviour += call.behaviour
        spans += [Span(span.version, at + span.start, at + span.end) for span in call.spans]
        reward, failed = episode.rewards.get(call.id), episode.failed.get(call.id, "")
        turns.append(Turn(call.tokens, call.finish, reward, failed))
    lie = tree.strands(places, [turn.tokens for turn in turns]) if turns else ()
    strands = [Strand(*strand) for strand in lie]
    return ids, behaviour, joined(spans), turns, strands


def turn_rewards(turns: Sequence[Turn]) -> list[float]:
    """The reward of each turn; 0 for one that was given none."""
    return [0.0 if turn.reward is None else turn.reward for turn in turns]


def turn_tokens(turns: Sequence[Turn], strand: Strand) -> list[tuple[int, int]]:
    """The turns that lie in a strand, in its order: their numbers, and how many tokens each
    sampled.

    >>> turn_tokens([Turn(2, "stop"), Turn(3, "stop")], Strand(None, 0, [bytes(8), 1]))
    [(1, 3)]
    """
    return [(piece, turns[piece].tokens) for piece in strand.pieces if isinstance(piece, int)]


def failed_tokens(
    turns: Sequence[Turn], strand: Strand, tools: Collection[str]
) -> tuple[tuple[int, int], ...]:
    """The sampled tokens [start, end) of a strand, counted from its first one, of turns that were
    failed calls of these `tools`; `*` stands for all.

    >>> turns = [Turn(2, "stop"), Turn(3, "stop", failed="search")]
    >>> failed_tokens(turns, Strand(None, 0, [bytes(8), 0, 1]), ["search"])
    ((2, 5),)
    """
    found, at = list[tuple[int, int]](), 0
    for turn, tokens in turn_tokens(turns, strand):
        tool = turns[turn].failed
        if tool and (tool in tools or "*" in tools):
            found.append((at, at + tokens))
        at += tokens
    return tuple(found)


def errors_in(
    turns: Sequence[Turn], strand: Strand, errors: Iterable[tuple[int, int]]
) -> tuple[tuple[int, int], ...]:
    """The part of `errors`, [start, end) of the tokens of all turns, that lies in a strand, counted
    from its first sampled token.

    >>> turns = [Turn(2, "stop"), Turn(3, "stop"), Turn(4, "stop")]
    >>> errors_in(turns, Strand(None, 0, [bytes(8), 0, 2]), [(1, 3), (6, 8)])
    ((1, 2), (3, 5))
    """
    starts = [0, *accumulate(turn.tokens for turn in turns)]
    found, at = list[tuple[int, int]](), 0
    for turn, tokens in turn_tokens(turns, strand):
        moved = at - starts[turn]
        for start, end in errors:
            low, high = max(start, starts[turn]), min(end, starts[turn] + tokens)
            if low < high:
                found.append((low + moved, high + moved))
        at += tokens
    return tuple(found)


def path_counts(turns: Sequence[Turn], strands: Sequence[Strand]) -> list[list[tuple[int, int]]]:
    """Of each strand, its sampled tokens in runs: the number of paths that a run is in, and its
    tokens.

    Example: of a strand [2 given, a turn of 3], behind whose first 4 tokens another one hangs, two
    of the sampled tokens are in both paths.

    >>> some = [Turn(3, "stop"), Turn(2, "stop")]
    >>> path_counts(some, [Strand(None, 0, [bytes(8), 0]), Strand(0, 4, [bytes(4), 1])])
    [[(2, 2), (1, 1)], [(1, 2)]]
    """
    paths, hanging = [1] * len(strands), [list[tuple[int, int]]() for _ in strands]
    for number in reversed(range(len(strands))):  # a strand hangs from an earlier one
        if (parent := strands[number].parent) is not None:
            paths[parent] += paths[number]
            hanging[parent].append((strands[number].tokens, paths[number]))
    found = list[list[tuple[int, int]]]()
    for strand, others in zip(strands, hanging, strict=True):
        runs, at = list[tuple[int, int]](), strand.tokens
        for piece in strand.pieces:
            if isinstance(piece, bytes):
                at += len(piece) // ID_BYTES
                continue
            end = at + turns[piece].tokens
            bounds = sorted({at, end, *(position for position, _ in others if at < position < end)})
            for low, high in pairwise(bounds):
                through = 1 + sum(count for position, count in others if position >= high)
                if runs and runs[-1][0] == through:
                    runs[-1] = through, runs[-1][1] + high - low
                else:
                    runs.append((through, high - low))
            at = end
        found.append(runs)
    return found


def rewritten(turns: Sequence[Turn], strands: Sequence[Strand]) -> int:
    """The number of strands that leave their parent inside a reply: it came back with other tokens
    than were sampled, because it was edited, cut, or because the chat template renders it in
    another way. One that samples again from where a reply begins is a retry.

    Example: turn 0 samples two tokens behind two of the prompt. A call that is given the prompt,
    one of them and another token is rewritten; so is one that has the prompt and other tokens.

    >>> some = [Turn(2, "stop"), Turn(1, "stop"), Turn(1, "stop")]
    >>> first = Strand(None, 0, [bytes(8), 0])
    >>> rewritten(some, [first, Strand(0, 3, [bytes(4), 1]), Strand(0, 2, [bytes(4), 2])])
    2
    >>> rewritten(some, [first, Strand(0, 1, [bytes(4), 1]), Strand(0, 2, [2])])  # fork, retry
    0
    """

    def before(number: int, at: int) -> int | None:
        """The tokens of its turn that lie before this token of a path; None where it was given."""
        strand = strands[number]
        if at < strand.tokens and strand.parent is not None:
            return before(strand.parent, at)
        at -= strand.tokens
        for piece in strand.pieces:
            tokens = turns[piece].tokens if isinstance(piece, int) else len(piece) // ID_BYTES
            if at < tokens:
                return at if isinstance(piece, int) else None
            at -= tokens
        return None

    def inside(strand: Strand) -> bool:
        sampled = None if strand.parent is None else before(strand.parent, strand.tokens)
        return sampled is not None and (sampled > 0 or isinstance(strand.pieces[0], bytes))

    return sum(map(inside, strands))


def path_tokens(turns: Sequence[Turn], strands: Sequence[Strand]) -> int:
    """The tokens of all strands, each from the root to its leaf.

    Example: of a strand [2 given, a turn of 3] and one behind its first 4 tokens, [1 given, a turn
    of 2], these are 5 + 7.
    """
    return sum(
        strand.tokens
        + sum(
            len(piece) // ID_BYTES if isinstance(piece, bytes) else turns[piece].tokens
            for piece in strand.pieces
        )
        for strand in strands
    )


def sequences(
    ids: bytes | bytearray,
    behaviour: bytes | bytearray,
    spans: Sequence[Span],
    turns: Sequence[Turn],
    strands: Sequence[Strand],
    errors: Sequence[tuple[int, int]] = (),
) -> list[TrainingSequence]:
    """One sequence for each strand, from the root to its leaf. The mask of one alone marks a
    sampled token: that of its own strand. The arguments are what `gathered` gives, and the `errors`
    that a verifier found, [start, end) of the tokens of all turns.

    Example: of the strands above, with `prompt` and `other` of two tokens each, `tool_result` of
    one, and turns of two, one and three tokens, the masks are 001101 and 0000000111.
    """
    starts = [0, *accumulate(turn.tokens for turn in turns)]
    found: list[TrainingSequence] = []
    for strand in strands:
        parent = b"" if strand.parent is None else found[strand.parent].ids
        path = bytearray(parent[: strand.tokens * ID_BYTES])
        mask, logprobs = bytearray(strand.tokens), bytearray(strand.tokens * ID_BYTES)
        placed: list[Span] = []
        finish: Finish = ""
        for piece in strand.pieces:
            if isinstance(piece, bytes):
                path += piece
                mask += bytes(len(piece) // ID_BYTES)
                logprobs += bytes(len(piece))
                continue
            start, end = starts[piece], starts[piece + 1]
            moved = len(mask) - start
            placed += [
                Span(span.version, max(span.start, start) + moved, min(span.end, end) + moved)
                for span in spans
                if span.start < end and start < span.end
            ]
            path += ids[start * ID_BYTES : end * ID_BYTES]
            logprobs += behaviour[start * ID_BYTES : end * ID_BYTES]
            mask += b"\x01" * (end - start)
            finish = turns[piece].finish
        found.append(
            TrainingSequence(
                bytes(path),
                bytes(mask),
                bytes(logprobs),
                tuple(joined(placed)),
                finish,
                errors_in(turns, strand, errors),
            )
        )
    return found
