"""The one form of what is trained: arrays, spans and mask agree, wherever it comes from, and what
travels of it is enough to tell what it was."""

from __future__ import annotations

import struct

from hypothesis import given
from hypothesis import strategies as st

from asyncrl.experience import events as e
from asyncrl.experience.experience import Experience
from asyncrl.experience.sequence import TrainingSequence, joined_behaviour, joined_ids
from asyncrl.messages import Sample, Scored, Span


def ints(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}i", *values)


def floats(*values: float) -> bytes:
    return struct.pack(f"<{len(values)}f", *values)


EXAMPLE = TrainingSequence(
    ids=ints(50, 51, 10, 11, 12, 70, 13, 14),
    mask=bytes([0, 0, 1, 1, 1, 0, 1, 1]),
    behaviour=floats(0, 0, -1, -2, -1, 0, -3, -1),
    spans=(Span(3, 2, 5), Span(3, 6, 7), Span(4, 7, 8)),
)
"""That of the docstring."""


def test_the_example_of_the_docstring() -> None:
    assert (EXAMPLE.tokens, EXAMPLE.trained) == (8, 5)
    assert (EXAMPLE.prompt_tokens, EXAMPLE.response_tokens) == (2, 6)
    sample = EXAMPLE.sample(7, 1, 0.5, member=2)
    assert sample == Sample(7, 1, 2, 6, 0.5, list(EXAMPLE.spans), None, 2)
    assert sample.sampled_tokens == 5
    assert joined_ids([EXAMPLE]) == EXAMPLE.ids
    assert joined_behaviour([EXAMPLE]) == floats(-1, -2, -1, -3, -1)


def test_a_rollout_and_its_copy_in_the_replay_buffer_are_one_sequence() -> None:
    """A prompt and one stretch of sampled tokens, of two versions, the last routed."""
    x = Experience()
    x.apply(e.Published(0))
    x.apply(e.Admitted(0, 0, 1, "train", 0, ints(8, 9), 16))
    x.apply(e.Leased(0, "rollout-0", 1))
    x.apply(e.Extended(0, 1, 0, 0, ints(1, 2), floats(-1, -2)))
    x.apply(e.Extended(0, 1, 1, 2, ints(3), floats(-3), b"xy"))
    x.apply(e.Sealed(0, 1, "stop"))
    x.apply(e.Judged(0, Scored(1.0)))
    group = x.groups[0]
    expected = TrainingSequence(
        ints(8, 9, 1, 2, 3),
        bytes([0, 0, 1, 1, 1]),
        floats(0, 0, -1, -2, -3),
        (Span(0, 2, 4), Span(1, 4, 5)),
        "stop",
        routing=b"\xff\xff\xff\xffxy",
    )
    assert group.sequences(x.rollouts[0]) == [expected]
    x.apply(e.Taken(1, [0]))
    x.apply(e.StoredForReplay(0, 2))
    x.apply(e.Trained(0, 3, {}))
    kept = x.replay_buffer.kept[0]
    assert kept.sequences(kept.members[0]) == [expected]
    assert expected.sample(0, 0, 1.0).finish == "stop"


def test_a_response_without_tokens_is_a_prompt() -> None:
    sequence = TrainingSequence.single_turn(ints(8, 9), b"", b"", [])
    assert (sequence.tokens, sequence.trained) == (2, 0)
    assert (sequence.prompt_tokens, sequence.response_tokens) == (2, 0)
    assert joined_ids([sequence]) == ints(8, 9) and joined_behaviour([sequence]) == b""


@given(
    st.lists(
        st.lists(st.tuples(st.integers(1, 4), st.none() | st.integers(0, 3)), max_size=6),
        max_size=4,
    )
)
def test_what_travels_tells_what_every_sequence_was(
    every: list[list[tuple[int, int | None]]],
) -> None:
    """Each is made of stretches of tokens, sampled under a version or given. Ids up to the last
    sampled token, the behaviour of sampled ones, and the spans give all of it back but for what
    was given after the last."""
    sequences, token = [], 0
    for stretches in every:
        ids, mask, behaviour, spans = [1000], [0], [0.0], []
        for tokens, version in stretches:
            if version is not None:
                spans.append(Span(version, len(ids), len(ids) + tokens))
            for _ in range(tokens):
                token += 1
                ids.append(token)
                mask.append(int(version is not None))
                behaviour.append(-float(token) if version is not None else 0.0)
        sequences.append(
            TrainingSequence(ints(*ids), bytes(mask), floats(*behaviour), tuple(spans))
        )
    samples = [sequence.sample(n, 0, 0.0) for n, sequence in enumerate(sequences)]
    ids_there = list(struct.iter_unpack("<i", joined_ids(sequences)))
    logs_there = list(struct.iter_unpack("<f", joined_behaviour(sequences)))
    for sequence, sample in zip(sequences, samples, strict=True):
        end = sample.prompt_tokens + sample.response_tokens
        there, ids_there = ids_there[:end], ids_there[end:]
        assert [id for (id,) in there] == list(struct.unpack(f"<{end}i", sequence.ids[: 4 * end]))
        behaviour = [0.0] * sequence.tokens
        for span in sample.spans:
            for at in range(span.start, span.end):
                (behaviour[at],) = logs_there.pop(0)
        assert floats(*behaviour) == sequence.behaviour
        marked = [any(s.start <= at < s.end for s in sample.spans) for at in range(sequence.tokens)]
        assert bytes(marked) == sequence.mask
        assert sample.sampled_tokens == sequence.trained and not any(marked[end:])
    assert not ids_there and not logs_there
