"""Version truth: however a server cuts a response into events, and whenever its weights change,
each token comes out once, in order, under the version that sampled it."""

from __future__ import annotations

from itertools import groupby

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.engines.servers.server_types import FinishReason, ServerSpan, StreamEvent
from asyncrl.engines.servers.spans import SpanError, SpanStream, TokenRun

END = FinishReason("stop")


def event(
    start: int,
    count: int,
    version: object,
    *,
    ending: FinishReason | None = None,
    spans: list[tuple[object, int, int]] | None = None,
) -> StreamEvent:
    """Tokens whose id is their index, and whose log-probability is minus their index."""
    indices = np.arange(start, start + count)
    told = None if spans is None else tuple(ServerSpan(str(v), a, b) for v, a, b in spans)
    return StreamEvent(
        start, indices.astype(np.int32), -indices.astype(np.float32), str(version), ending, told
    )


def spans_of(versions: list[int]) -> list[tuple[object, int, int]]:
    found: list[tuple[object, int, int]] = []
    for version, run in groupby(versions):
        start = found[-1][2] if found else 0
        found.append((version, start, start + len(list(run))))
    return found


@st.composite
def responses(draw: st.DrawFn) -> tuple[int, list[int], list[int]]:
    """The version at which a request is sent, that of each token, and where events end (the last
    may bring nothing but the end)."""
    sent = draw(st.integers(0, 3))
    versions = [sent + rise for rise in sorted(draw(st.lists(st.integers(0, 3), max_size=25)))]
    ends = (
        sorted(draw(st.lists(st.integers(1, max(1, len(versions))), max_size=8, unique=True)))
        if versions
        else []
    )
    return sent, versions, [end for end in ends if end <= len(versions)] + [len(versions)]


def events_of(versions: list[int], ends: list[int], served: int) -> list[StreamEvent]:
    """As the server says them: each with its newest version, `served` where there is no token."""
    starts = [0, *ends[:-1]]
    found = []
    for place, (a, b) in enumerate(zip(starts, ends, strict=True)):
        served = versions[b - 1] if b > a else served
        last = place == len(ends) - 1
        found.append(
            event(
                a,
                b - a,
                served,
                ending=END if last else None,
                spans=spans_of(versions) if last else None,
            )
        )
    return found


def told(pieces: list[TokenRun]) -> list[tuple[int, int]]:
    """(version, index) of each token."""
    assert all(len(p.ids) == len(p.behaviour) > 0 for p in pieces)
    assert all(
        p.ids[0] == p.start and np.array_equal(p.behaviour, -p.ids.astype(np.float32))
        for p in pieces
    )
    return [(p.version, int(i)) for p in pieces for i in p.ids]


@given(responses())
def test_version_truth_each_token_once_in_order_under_its_version(
    response: tuple[int, list[int], list[int]],
) -> None:
    sent, versions, ends = response
    stream, out = SpanStream(sent), []
    for e in events_of(versions, ends, sent):
        out += stream.feed(e)
        known = told(out)
        assert known == [
            (versions[i], i) for i in range(len(known))
        ]  # never anything but the truth, and never with a gap
    assert len(told(out)) == len(versions) and stream.held == 0


@given(responses())
def test_nothing_is_held_back_before_the_weights_change_under_an_event(
    response: tuple[int, list[int], list[int]],
) -> None:
    sent, versions, ends = response
    stream, straddled, before = SpanStream(sent), False, sent
    for e in events_of(versions, ends, sent)[:-1]:
        straddled |= len(e.ids) > 1 and int(e.version) != before
        before = int(e.version)
        assert bool(stream.feed(e)) != straddled
        assert (stream.held > 0) == straddled


@given(responses(), st.data())
def test_an_end_that_says_otherwise_is_named(
    response: tuple[int, list[int], list[int]], data: st.DataObject
) -> None:
    sent, versions, ends = response
    *early, last = events_of(versions, ends, sent)
    stream, out = SpanStream(sent), []
    for e in early:
        out += stream.feed(e)
    known = told(out)
    if not known:
        return
    index = data.draw(st.integers(0, len(known) - 1))
    other = data.draw(st.integers(0, 9).filter(lambda version: version != versions[index]))
    lied = [*versions[:index], other, *versions[index + 1 :]]
    with pytest.raises(SpanError, match="for which it reported"):
        stream.feed(
            event(last.start, len(last.ids), last.version, ending=END, spans=spans_of(lied))
        )


@pytest.mark.parametrize(
    "spans",
    [
        [],
        [(1, 0, 3)],
        [(1, 0, 5)],
        [(1, 1, 4)],
        [(1, 0, 2), (1, 3, 4)],
        [(1, 0, 3), (2, 2, 4)],
        [(1, -1, 4)],
        [(2, 3, 4), (1, 0, 3)],
    ],
)
def test_spans_that_do_not_tile_are_named(spans: list[tuple[object, int, int]]) -> None:
    stream = SpanStream(1)
    stream.feed(event(0, 2, 1))
    with pytest.raises(SpanError, match="do not tile its 4"):
        stream.feed(event(2, 2, 1, ending=END, spans=spans))


def test_an_end_without_spans_is_enough_where_nothing_is_held() -> None:
    stream = SpanStream(1)
    assert told(stream.feed(event(0, 2, 1)) + stream.feed(event(2, 0, 1, ending=END))) == [
        (1, 0),
        (1, 1),
    ]
    stream = SpanStream(1)
    assert not stream.feed(event(0, 2, 2))
    with pytest.raises(SpanError, match="its last 2 tokens"):
        stream.feed(event(2, 0, 2, ending=END))
    assert SpanStream(1).feed(event(0, 0, 2, ending=END)) == []


def test_an_empty_span_says_nothing() -> None:
    assert SpanStream(1).feed(event(0, 0, 2, ending=END, spans=[(2, 0, 0)])) == []


@pytest.mark.parametrize("name", ["default", "", "-1", "1.0", "٣", "9" * 30])
def test_weights_that_this_run_did_not_load_are_named(name: str) -> None:
    with pytest.raises(SpanError, match="this run did not load"):
        SpanStream(0).feed(event(0, 1, name))
    with pytest.raises(SpanError, match="this run did not load"):
        SpanStream(0).feed(event(0, 1, 0, ending=END, spans=[(name, 0, 1)]))
