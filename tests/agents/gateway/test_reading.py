"""From ids to what an agent reads, however they come."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from asyncrl.agents.gateway.call_record import CallRecord
from asyncrl.agents.gateway.dialects.chat import Chat
from asyncrl.agents.gateway.dialects.chat import read as read_chat
from asyncrl.agents.gateway.formats.hermes import Hermes
from asyncrl.agents.gateway.gateway_settings import Settings
from asyncrl.agents.gateway.generation import GeneratedPiece
from asyncrl.agents.gateway.inner_call import AnswerFacts, AnswerPart, CallEnd
from asyncrl.agents.gateway.reading import Detokenizer, ReplyReader, StopStrings
from asyncrl.agents.gateway.tools import Delta, PlainText, ToolCall
from asyncrl.bundled.bundled_model import END_ID, write_tokenizer
from asyncrl.tasks.text import Tokenizer


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    path = tmp_path_factory.mktemp("model")
    write_tokenizer(path)
    return Tokenizer(path)


TEXT = st.text(st.sampled_from(list("aé€😀 \n")), max_size=12).map(lambda text: list(text.encode()))
BYTES = st.one_of(
    st.lists(st.integers(0, 257), max_size=40),
    st.lists(st.sampled_from([0x80, 0xE2, 0x82, 0xF0, 0x9F, 65]), max_size=40),
    TEXT,
)


@given(ids=BYTES)
@example(ids=[0x80] * 6 + [*"😀".encode()])
def test_the_parts_are_the_text(tokenizer: Tokenizer, ids: list[int]) -> None:
    detokenizer = Detokenizer(tokenizer)
    parts = [detokenizer.push(token) for token in ids]
    assert "".join(parts) + detokenizer.end() == tokenizer.decode(ids)


@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=20))
def test_no_part_ends_within_a_character_and_none_waits_longer(
    tokenizer: Tokenizer, text: str
) -> None:
    assume("<|" not in text and "�" not in text)
    detokenizer, done = Detokenizer(tokenizer), ""
    for character in text:
        *first, last = character.encode()
        assert all(detokenizer.push(token) == "" for token in first)
        done += detokenizer.push(last)
    assert done == text and detokenizer.end() == ""


def test_broken_bytes_do_not_hold_up_the_rest(tokenizer: Tokenizer) -> None:
    detokenizer = Detokenizer(tokenizer)
    parts = [detokenizer.push(0x80) for _ in range(100)]
    assert len("".join(parts)) > 80


@given(
    text=st.text("abc", max_size=20),
    stops=st.lists(st.text("abc", min_size=1, max_size=4), max_size=3),
    data=st.data(),
)
def test_a_text_is_cut_before_the_first_stop(
    text: str, stops: list[str], data: st.DataObject
) -> None:
    one, found = StopStrings(stops), ""
    for character in text:
        found += one.push(character)
        if one.complete:
            break
    assert not any(stop in found for stop in stops)
    found += one.end()
    first = next(
        (end for end in range(len(text) + 1) if any(text[:end].endswith(stop) for stop in stops)),
        None,
    )
    assert one.complete == (first is not None)
    whole = (
        text
        if first is None
        else text[: min(at for stop in stops if (at := text[:first].find(stop)) >= 0)]
    )
    assert found == whole


CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": [2]}}\n</tool_call>'
ADD = ToolCall("add", '{"a": 1, "b": [2]}')


def read(text: str, sizes: list[int] | None = None) -> list[Delta]:
    parser, found, at = Hermes(), [], 0
    for size in sizes or [len(text)]:
        found += parser.push(text[at : at + size])
        at += size
    found += parser.push(text[at:])
    return _joined([*found, *parser.end()])


def _joined(deltas: list[Delta]) -> list[Delta]:
    """Adjacent texts as one."""
    found: list[Delta] = []
    for delta in deltas:
        last = found[-1] if found else None
        if isinstance(delta, str) and isinstance(last, str):
            found[-1] = last + delta
        else:
            found.append(delta)
    return found


@pytest.mark.parametrize(
    ("text", "deltas"),
    [
        ("", []),
        ("plain  \n", ["plain  \n"]),
        (CALL, [ADD]),
        (f"I add.\n{CALL}", ["I add.", ADD]),
        (f"{CALL}\n{CALL}\n", [ADD, ADD]),
        (f"{CALL} and\n", [ADD, "and\n"]),
        ("<tool_call>{no json}</tool_call> x", ["<tool_call>{no json}</tool_call> x"]),
        (
            '<tool_call>{"name": "f", "arguments": [1]}</tool_call>',
            ['<tool_call>{"name": "f", "arguments": [1]}</tool_call>'],
        ),
        ('a <tool_call>{"name": "f"', ['a <tool_call>{"name": "f"']),
        (f"<tool_call>{CALL}", ["<tool_call>", ADD]),
        ("1 < 2 <tool", ["1 < 2 <tool"]),
    ],
)
def test_calls_of_tools(text: str, deltas: list[Delta]) -> None:
    assert read(text) == deltas


@given(
    parts=st.lists(
        st.sampled_from(
            [CALL, "<tool_call>", "</tool_call>", "<tool", "x", " ", "\n", '{"name"', "é"]
        ),
        max_size=8,
    ),
    data=st.data(),
)
def test_how_a_text_comes_changes_nothing(parts: list[str], data: st.DataObject) -> None:
    text = "".join(parts)
    assert read(text, data.draw(st.lists(st.integers(0, 9), max_size=30))) == read(text)
    if "</tool_call>" not in text:
        assert "".join(str(delta) for delta in read(text)) == text


@given(ids=BYTES, stops=st.lists(st.sampled_from(["a", "€", "\n", "  "]), max_size=2))
def test_an_answer_is_read_to_its_stop(
    tokenizer: Tokenizer, ids: list[int], stops: list[str]
) -> None:
    reading, deltas = ReplyReader(tokenizer, stops, PlainText()), []
    for token in [*ids, END_ID]:
        if not reading.stopped:
            deltas += reading.push(token)
    deltas += reading.end()
    text = tokenizer.decode(ids)
    cut = min((at for stop in stops if (at := text.find(stop)) >= 0), default=len(text))
    assert "".join(str(delta) for delta in deltas) == text[:cut]


def test_the_first_and_the_last_id_of_the_vocabulary_are_of_it(tokenizer: Tokenizer) -> None:
    for token, broken in [(0, False), (255, False), (256, True), (-1, True)]:
        record = CallRecord(ReplyReader(tokenizer, [], PlainText()), tokenizer, 256, scored=False)
        ids, behaviour = np.array([token], np.int32), np.zeros(1, np.float32)
        record.take(GeneratedPiece(ids, behaviour, 0))
        assert bool(record.broken) is broken


def test_a_stream_tells_its_usage_where_that_is_asked_for_and_is_choice_0() -> None:
    for options, usage in [({}, False), ({"include_usage": False}, False)]:
        body = {"model": "m", "messages": [{"role": "user", "content": "a"}]}
        sent = msgspec.json.encode(body | {"stream_options": options})
        asked = read_chat(sent, Settings("m", context_tokens=99, vocabulary=9))
        assert asked.usage is usage
    chat = Chat(asked, AnswerFacts("1", 0, 1))
    for sent in (chat.part(0, AnswerPart(["a"])), chat.last(0, CallEnd("stop", 1, 1))):
        (choice,) = msgspec.json.decode(sent.removeprefix(b"data: "))["choices"]
        assert choice["index"] == 0
