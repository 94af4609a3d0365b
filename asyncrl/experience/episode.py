"""An agent's episode, while it is played. Invariant: a call's context never changes, and an attempt
has only the calls that its own agent made.

An episode is a rollout, and its calls are leased. An agent that dies is played again from the top:
its repeated calls are recognized by their keys, and answered with the existing tokens (`Reused`).
Calls that the last attempt did not repeat are `orphaned` when the episode is sealed. After that,
only its turns, in the order in which they were made, and their strands remain. `call_tree.py` draws
the tree of an episode's tokens and defines its words.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from hashlib import sha256
from itertools import accumulate, count, pairwise

import msgspec

from asyncrl.experience.call import Call, ImpossibleEvent
from asyncrl.experience.call_tree import CallTree, common, joined
from asyncrl.experience.sequence import ID_BYTES, TrainingSequence, with_routing
from asyncrl.experience.turns_above import TurnsAbove
from asyncrl.messages import Finish, Span

AfterCall = tuple[int, int]
"""A call, and a number of its tokens from the start, given and sampled."""


class AgentCall(Call, kw_only=True):
    """A call of the agent that plays `rollout`. The fields are those of `Called`; the `role` is
    that of the attempt which made it last."""

    rollout: int
    after: AfterCall | None
    given: bytes
    key: int
    temperature: float
    role: str = ""


class Turn(msgspec.Struct, frozen=True, array_like=True):
    """A call of an ended episode: the number of its sampled tokens, its finish (empty where its
    agent did not wait for it), its reward by the agent, the tool whose failed call it was, else
    empty, its key by the agent, else empty, the turns directly above it (`turns_above.py`; None:
    the one before, if there is one), and the role that its agent called in, else empty."""

    tokens: int
    finish: Finish
    reward: float | None = None
    failed: str = ""
    key: str = ""
    above: tuple[int, ...] | None = None
    role: str = ""


class Strand(msgspec.Struct, frozen=True, array_like=True):
    """A strand of the tree (`call_tree.py`): it hangs after the first `tokens` tokens of the path
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
    `holder` is the actor that has the present one, empty without one. `calls` are all calls, in the
    order in which they were first made, and `used` the numbers of those that this attempt made, in
    its order. `rewards` are this attempt's, by call; that of the whole is under None. `failed` has
    the tools of failed calls, by call, and `keys` the keys of turns. `notes` are results noted by
    any attempt. `images` are the hashes of those in its calls, by their numbers."""

    attempt: int = 0
    failures: int = 0
    holder: str = ""
    calls: list[AgentCall] = msgspec.field(default_factory=list)
    used: list[int] = msgspec.field(default_factory=list)
    notes: dict[str, bytes] = msgspec.field(default_factory=dict)
    rewards: dict[int | None, float] = msgspec.field(default_factory=dict)
    failed: dict[int, str] = msgspec.field(default_factory=dict)
    keys: dict[int, str] = msgspec.field(default_factory=dict)
    images: list[str] = msgspec.field(default_factory=list)

    @property
    def tokens(self) -> int:
        """Sampled tokens of all calls."""
        return sum(call.tokens for call in self.calls)

    def find(self, number: int) -> AgentCall:
        """The call of this number. Raises ImpossibleEvent where there is none."""
        for call in self.calls:
            if call.id == number:
                return call
        raise ImpossibleEvent(f"call {number} is not in this episode")

    def next_key(self, rollout_key: int, asked: bytes) -> int:
        """The key of a call with this `asked` (its context and sampling settings): the n-th equal
        call has the same key in each attempt. Equal calls of one attempt have different keys, and
        so different draws."""
        keys = {call.key for call in self.calls if call.id in self.used}
        for occurrence in count():
            text = b"%d/%d/" % (rollout_key, occurrence) + asked
            key = int.from_bytes(sha256(text).digest()[:8], "little") >> 1
            if key not in keys:
                return key
        raise AssertionError("keys do not run out")

    def context(self, call: AgentCall) -> bytes:
        """The whole context of a call: `int32` ids."""
        pieces, after = [call.given], call.after
        while after is not None:
            parent, tokens = self.find(after[0]), after[1]
            before = 0 if parent.after is None else parent.after[1]
            if tokens > before:
                own = parent.given + parent.ids
                pieces.append(own[: (tokens - before) * ID_BYTES])
                after = parent.after
            else:
                assert parent.after is not None, "the first token has no predecessor"
                after = parent.after[0], tokens
        return b"".join(reversed(pieces))

    def needed(self, call: AgentCall) -> int:
        """The number of a call's sampled tokens that the contexts of other calls include."""
        context_tokens = len(self.context(call)) // ID_BYTES
        ends = (c.after[1] for c in self.calls if c.after is not None and c.after[0] == call.id)
        return max(0, max(ends, default=0) - context_tokens)

    def locate(self, context: bytes) -> tuple[AfterCall | None, bytes]:
        """Position in the tree of a call with this context: the `after` and the `given` of its
        `Called`. Of calls that share equally much with it, the first counts.

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
) -> tuple[bytearray, bytearray, list[Span], list[Turn], list[Strand], bytearray]:
    """Result of an episode, from the calls that its agent used: the sampled tokens, one turn after
    another (ids, behaviour, spans, and routing at the end), the turns, and the strands. Each turn
    is in one strand; calls that sampled nothing are omitted.

    Example: call 9 was given [1, 2] and sampled [3, 4]; call 10 continued with [5] and sampled [6].

        ids [3, 4, 6], turns of 2 and 1 tokens, strands [Strand(None, 0, [[1, 2], 0, [5], 1])]
    """
    ids, behaviour, spans, turns = bytearray(), bytearray(), list[Span](), list[Turn]()
    tree, tree_above, places = CallTree(), TurnsAbove(), []
    routing = bytearray()
    for call in [episode.find(number) for number in episode.used]:
        if not call.tokens:
            continue
        routing = with_routing(routing, len(ids) // ID_BYTES, call.routing, call.tokens)
        context = episode.context(call)
        places.append(tree.add(context, bytes(call.ids)))
        at = len(ids) // ID_BYTES
        ids += call.ids
        behaviour += call.behaviour
        spans += [Span(span.version, at + span.start, at + span.end) for span in call.spans]
        reward, failed = episode.rewards.get(call.id), episode.failed.get(call.id, "")
        key = episode.keys.get(call.id, "")
        above = tree_above.add(context, bytes(call.ids))
        turns.append(Turn(call.tokens, call.finish, reward, failed, key, above, call.role))
    lie = tree.strands(places, [turn.tokens for turn in turns]) if turns else ()
    strands = [Strand(*strand) for strand in lie]
    return ids, behaviour, joined(spans), turns, strands, routing


def turn_rewards(turns: Sequence[Turn]) -> list[float]:
    """The reward of each turn; 0 for one without."""
    return [0.0 if turn.reward is None else turn.reward for turn in turns]


def turn_keys(turns: Sequence[Turn]) -> list[str]:
    """The keys of the turns, of one without a key its role; none where no turn has either.

    >>> turn_keys([Turn(2, "stop", key="a"), Turn(3, "stop")]), turn_keys([Turn(2, "stop")])
    (['a', ''], [])
    >>> turn_keys([Turn(2, "stop", key="a", role="critic"), Turn(3, "stop", role="critic")])
    ['a', 'critic']
    """
    keys = [turn.key or turn.role for turn in turns]
    return keys if any(keys) else []


def turns_above(turns: Sequence[Turn]) -> list[list[int]]:
    """The turns directly above each turn; none where each lies below the one before it.

    >>> turns_above([Turn(2, "stop"), Turn(3, "stop"), Turn(3, "stop", above=(0,))])
    [[], [0], [0]]
    """
    if all(turn.above is None for turn in turns):
        return []
    return [
        [number - 1] * (number > 0) if turn.above is None else list(turn.above)
        for number, turn in enumerate(turns)
    ]


def unrewarded_end(turns: Sequence[Turn]) -> int | None:
    """The first end (turn with nothing below it) without a reward; None if there is none, or only
    one end. An end whose answer the agent cut, or did not wait for, needs no reward.

    >>> forked = [Turn(2, "stop"), Turn(3, "stop", 1.0), Turn(3, "stop", above=(0,))]
    >>> unrewarded_end(forked), unrewarded_end(forked[:1])
    (2, None)
    """
    above = turns_above(turns)
    inner = {turn for over in above for turn in over}
    ends = [number for number in range(len(above)) if number not in inner]
    lacking = (n for n in ends if turns[n].reward is None and turns[n].finish)
    return next(lacking, None) if len(ends) > 1 else None


def turn_tokens(turns: Sequence[Turn], strand: Strand) -> list[tuple[int, int]]:
    """The turns of a strand, in its order: their numbers, and their numbers of sampled tokens.

    >>> turn_tokens([Turn(2, "stop"), Turn(3, "stop")], Strand(None, 0, [bytes(8), 1]))
    [(1, 3)]
    """
    return [(piece, turns[piece].tokens) for piece in strand.pieces if isinstance(piece, int)]


def failed_tokens(
    turns: Sequence[Turn], strand: Strand, tools: Collection[str]
) -> tuple[tuple[int, int], ...]:
    """The sampled tokens [start, end) of a strand, counted from its first one, of failed calls of
    these `tools`; `*` stands for all.

    >>> turns = [Turn(2, "stop"), Turn(3, "stop", failed="search")]
    >>> failed_tokens(turns, Strand(None, 0, [bytes(8), 0, 1]), ["search"])
    ((2, 5),)
    """
    ranges, at = list[tuple[int, int]](), 0
    for turn, tokens in turn_tokens(turns, strand):
        tool = turns[turn].failed
        if tool and (tool in tools or "*" in tools):
            ranges.append((at, at + tokens))
        at += tokens
    return tuple(ranges)


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
    ranges, at = list[tuple[int, int]](), 0
    for turn, tokens in turn_tokens(turns, strand):
        moved = at - starts[turn]
        for start, end in errors:
            low, high = max(start, starts[turn]), min(end, starts[turn] + tokens)
            if low < high:
                ranges.append((low + moved, high + moved))
        at += tokens
    return tuple(ranges)


def path_counts(turns: Sequence[Turn], strands: Sequence[Strand]) -> list[list[tuple[int, int]]]:
    """The sampled tokens of each strand in runs: the number of paths that include a run, and its
    tokens.

    Example: another strand hangs after the first 4 tokens of a strand [2 given, a turn of 3], so
    two of the sampled tokens are in both paths.

    >>> some = [Turn(3, "stop"), Turn(2, "stop")]
    >>> path_counts(some, [Strand(None, 0, [bytes(8), 0]), Strand(0, 4, [bytes(4), 1])])
    [[(2, 2), (1, 1)], [(1, 2)]]
    """
    paths, hanging = [1] * len(strands), [list[tuple[int, int]]() for _ in strands]
    for number in reversed(range(len(strands))):  # a strand hangs from an earlier one
        if (parent := strands[number].parent) is not None:
            paths[parent] += paths[number]
            hanging[parent].append((strands[number].tokens, paths[number]))
    counts = list[list[tuple[int, int]]]()
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
        counts.append(runs)
    return counts


def rewritten(turns: Sequence[Turn], strands: Sequence[Strand]) -> int:
    """The number of strands that leave their parent inside a reply: it came back with other tokens
    than sampled, because it was edited or cut, or because the chat template renders it differently.
    A strand that samples again from the start of a reply is a retry.

    Example: turn 0 samples two tokens after two of the prompt. A call with the prompt, one of them
    and another token is rewritten; so is one with the prompt and other tokens.

    >>> some = [Turn(2, "stop"), Turn(1, "stop"), Turn(1, "stop")]
    >>> first = Strand(None, 0, [bytes(8), 0])
    >>> rewritten(some, [first, Strand(0, 3, [bytes(4), 1]), Strand(0, 2, [bytes(4), 2])])
    2
    >>> rewritten(some, [first, Strand(0, 1, [bytes(4), 1]), Strand(0, 2, [2])])  # fork, retry
    0
    """

    def before(number: int, at: int) -> int | None:
        """The tokens of its turn before this token of a path; None where it was given."""
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

    Example: of a strand [2 given, a turn of 3] and one after its first 4 tokens, [1 given, a turn
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
    routing: bytes | bytearray = b"",
) -> list[TrainingSequence]:
    """One sequence for each strand, from the root to its leaf. Only the sequence of its own strand
    marks a sampled token in its mask. The arguments are results of `gathered`, and the `errors`
    that a verifier found, [start, end) of the tokens of all turns.

    Example: of the strands above, with `prompt` and `other` of two tokens each, `tool_result` of
    one, and turns of two, one and three tokens, the masks are 001101 and 0000000111.
    """
    starts = [0, *accumulate(turn.tokens for turn in turns)]
    built: list[TrainingSequence] = []
    width = ID_BYTES * len(routing) // len(ids) if routing else 0
    for strand in strands:
        experts = bytearray()
        parent = b"" if strand.parent is None else built[strand.parent].ids
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
            experts += routing[start * width : end * width]
            mask += b"\x01" * (end - start)
            finish = turns[piece].finish
        built.append(
            TrainingSequence(
                bytes(path),
                bytes(mask),
                bytes(logprobs),
                tuple(joined(placed)),
                finish,
                errors_in(turns, strand, errors),
                bytes(experts),
            )
        )
    return built


def last_context(ids: bytes | bytearray, turns: Sequence[Turn], strands: Sequence[Strand]) -> bytes:
    """The ids before the last turn, from the root of its strand: the context of its call. The
    arguments are results of `gathered`.

    >>> strands = [Strand(None, 0, [bytes(8), 0, b"tool", 1])]
    >>> last_context(b"aaaabbbbcccc", [Turn(2, "stop"), Turn(1, "stop")], strands)
    b'\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00aaaabbbbtool'
    """
    starts = [0, *accumulate(turn.tokens for turn in turns)]
    paths: list[bytes] = []
    for strand in strands:
        parent = b"" if strand.parent is None else paths[strand.parent]
        path = bytearray(parent[: strand.tokens * ID_BYTES])
        for piece in strand.pieces:
            if isinstance(piece, bytes):
                path += piece
            elif piece == len(turns) - 1:
                return bytes(path)
            else:
                path += ids[starts[piece] * ID_BYTES : starts[piece + 1] * ID_BYTES]
        paths.append(bytes(path))
    raise AssertionError("each turn is in a strand")
