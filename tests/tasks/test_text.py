"""Text and ids: what the model's own files say, without torch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Fast
from tokenizers.processors import TemplateProcessing
from transformers import AutoTokenizer

from asyncrl.bundled.bundled_model import END, END_ID, write_tokenizer
from asyncrl.tasks import TaskError, foreign_process
from asyncrl.tasks.prompt import ChatPrompt
from asyncrl.tasks.text import Tokenizer


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    write_tokenizer(path)
    return path


@pytest.fixture(scope="module")
def tokenizer(directory: Path) -> Tokenizer:
    return Tokenizer(directory)


@given(text=st.text(st.characters(exclude_categories=["Cs"])))
def test_a_byte_is_its_id_and_text_comes_back(tokenizer: Tokenizer, text: str) -> None:
    assume("<|" not in text)  # a special token is no text, and is left out of an answer
    ids = tokenizer.encode(text)
    assert ids == list(text.encode())
    assert tokenizer.decode(ids) == text


def test_a_directory_may_have_a_name_that_is_no_utf_8(tmp_path: Path) -> None:
    """As a run's; its texts were shown as ids."""
    folder = tmp_path / os.fsdecode(b"\xff\xfe")
    write_tokenizer(tmp_path / "model")
    (tmp_path / "model").rename(folder)
    assert Tokenizer(folder).decode([97, 98]) == "ab"


def test_special_tokens_are_not_part_of_an_answer(tokenizer: Tokenizer) -> None:
    assert tokenizer.decode([*b"ab", END_ID]) == "ab"
    assert tokenizer.encode(END) == [END_ID]
    assert tokenizer.vocabulary == 258


def test_a_response_has_its_special_tokens_but_for_its_end(tmp_path: Path) -> None:
    """`<think>` of many models is a special token, so plain text does not have it."""
    write_tokenizer(tmp_path)
    file = Fast.from_file(str(tmp_path / "tokenizer.json"))
    file.add_special_tokens(["<think>", "</think>"])
    file.save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer(tmp_path)
    ids = tokenizer.encode("<think>1</think>2" + END)
    assert tokenizer.decode(ids) == "12"
    assert tokenizer.decode_response(ids) == "<think>1</think>2"
    assert tokenizer.decode_response(ids[:-1]) == "<think>1</think>2"
    assert tokenizer.decode_response([END_ID]) == tokenizer.decode_response([]) == ""


def test_a_prompt_begins_as_the_model_begins_a_text_and_does_not_end(tmp_path: Path) -> None:
    """Tokenizers of supervised training (add_eos_token) end each text, also a prompt."""
    write_tokenizer(tmp_path)
    assert Tokenizer(tmp_path).ending == ""
    file = Fast.from_file(str(tmp_path / "tokenizer.json"))
    form = TemplateProcessing(single=f"{END} $A {END}", special_tokens=[(END, END_ID)])
    file.post_processor = form
    file.save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer(tmp_path)
    assert tokenizer.encode("ab") == tokenizer.ids_within("ab", 9, start=True) == [END_ID, *b"ab"]
    assert tokenizer.encode("ab" + END) == [END_ID, *b"ab", END_ID], "a text may name it"
    assert tokenizer.ids("ab") == [*b"ab"] and tokenizer.ending == END


def test_ids_are_those_of_transformers(directory: Path, tokenizer: Tokenizer) -> None:
    reference = AutoTokenizer.from_pretrained(directory)
    for text in ["plain", "Größe 😀\n\t ", ""]:
        assert tokenizer.encode(text) == reference(text).input_ids
        assert reference.decode(tokenizer.encode(text)) == text


def test_a_saved_truncation_or_padding_changes_no_prompt(directory: Path, tmp_path: Path) -> None:
    """Scripts for supervised training save theirs with the tokenizer."""
    file = json.loads((directory / "tokenizer.json").read_text())
    file["truncation"] = {
        "max_length": 8,
        "stride": 0,
        "direction": "Right",
        "strategy": "LongestFirst",
    }
    file["padding"] = {
        "strategy": {"Fixed": 32},
        "direction": "Left",
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": "a",
    }
    (tmp_path / "tokenizer.json").write_text(json.dumps(file))
    text = "Ann has twelve apples"
    saved = Tokenizer(tmp_path)
    assert saved.encode(text) == saved.ids_within(text, 99) == list(text.encode())


@pytest.mark.parametrize(
    ("files", "stops"),
    [
        ({}, (END_ID,)),
        ({"config.json": {"eos_token_id": 7}}, (7, END_ID)),
        (
            {
                "config.json": {"eos_token_id": None},
                "generation_config.json": {"eos_token_id": [3, 4]},
            },
            (3, 4, END_ID),
        ),
        ({"tokenizer_config.json": {"eos_token": {"content": END}}}, (END_ID,)),
        ({"tokenizer_config.json": {}}, ()),
    ],
)
def test_every_end_that_the_models_files_name_stops_it(
    tmp_path: Path, files: dict[str, object], stops: tuple[int, ...]
) -> None:
    write_tokenizer(tmp_path)
    for name, content in files.items():
        (tmp_path / name).write_text(json.dumps(content))
    assert Tokenizer(tmp_path).stop_ids == stops


def test_a_chat_template_gives_the_form_where_asked(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    (tmp_path / "chat_template.jinja").unlink()
    with pytest.raises(TaskError, match="has no chat template"):
        Tokenizer(tmp_path, chat=True)
    (tmp_path / "chat_template.jinja").write_text(
        "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}{% if "
        "add_generation_prompt %}[me]{% endif %}"
    )
    assert Tokenizer(tmp_path, chat=True).encode("hi") == list(b"[user]hi[me]")
    assert Tokenizer(tmp_path).encode("hi") == list(b"hi")


def test_a_piece_of_text_and_a_conversation(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    plain = Tokenizer(tmp_path)
    assert (
        plain.ids(f"a{END}") == [ord("a"), END_ID]
        and plain.decode([ord("a"), END_ID], special=True) == f"a{END}"
    )
    chat = ChatPrompt([{"role": "user", "content": "hi"}], "hi: ")
    assert plain.has_template and plain.encode(chat) == list(b"hi\n")
    assert plain.encode([5, 6]) == [5, 6]
    (tmp_path / "chat_template.jinja").unlink()
    bare = Tokenizer(tmp_path)
    assert not bare.has_template and bare.encode(chat) == list(b"hi: ")
    with pytest.raises(TaskError, match="has no chat template"):
        bare.render(chat.messages)
    (tmp_path / "chat_template.jinja").write_text(
        "{{ messages[0].content }}{{ messages[0].content.no.thing if tools }}"
    )
    own = Tokenizer(tmp_path, chat=True)
    with pytest.raises(TaskError, match="cannot render this"):
        own.render([{"role": "user", "content": "hi"}], [{"name": "tool"}])


@pytest.mark.parametrize(
    ("template", "says"),
    [
        ("{% for part in messages[0].content %}{{ part.text }}{% endfor %}", "leaves the question"),
        ("<user>", "leaves the question"),
        ("{{ messages[0].content.no.such.thing }}", "cannot render this"),
        ("{{", "cannot render this"),
        ("{{ raise_exception('no') }}", "cannot render this: no"),
        ("{{ '\\ud800' }}{{ messages[0].content }}", "half of a surrogate pair"),
        ("{{ '%1000000000000d' % 1 }}", "it takes more memory than there is"),
        ("{{ 'x' * 10 ** 10 }}{{ messages[0].content }}", "it takes more memory than there is"),
        ("{{ messages[0].content * 10 ** 6 }}", "it gives more than 16,777,216 characters"),
        (
            "{% set n = namespace(x='xx') %}{% for i in range(99) %}{% set n.x = n.x ~ n.x %}"
            "{% endfor %}{{ messages[0].content }}",
            "it (takes more memory|computes)",
        ),
        ("{{ ([messages[0].content * 10 ** 5] * 10 ** 5) | join }}", "it takes more memory"),
        ("{{ 10 ** (10 ** 9) }}", "it computes for more than 0.5 s"),
        (
            "{% for i in range(9999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
            "{{ messages[0].content }}",
            "it computes for more than 0.5 s",
        ),
        (
            "{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}{{ messages[0].content }}",
            "recursion",
        ),
    ],
)
def test_a_chat_template_that_cannot_ask_is_refused_at_once(
    tmp_path: Path, template: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(foreign_process, "SECONDS", 0.5)
    write_tokenizer(tmp_path)
    (tmp_path / "chat_template.jinja").write_text(template)
    with pytest.raises(TaskError, match=says):
        Tokenizer(tmp_path, chat=True)


def test_an_expression_too_expensive_for_a_text_is_a_task_error(tmp_path: Path) -> None:
    """The library panics there, and a panic is no Exception: it would end any process."""
    write_tokenizer(tmp_path)
    said = json.loads((tmp_path / "tokenizer.json").read_text())
    split = {"type": "Split", "behavior": "Isolated", "invert": False}
    bomb = {"Regex": "(a+)+$"}
    said["pre_tokenizer"] = split | {"pattern": bomb}
    replace = {"type": "Replace", "pattern": bomb, "content": ""}
    said["decoder"] = {"type": "Sequence", "decoders": [{"type": "Fuse"}, replace]}
    (tmp_path / "tokenizer.json").write_text(json.dumps(said))
    tokenizer, text = Tokenizer(tmp_path), "a" * 40 + "!"
    for call in (tokenizer.encode, tokenizer.ids, lambda text: tokenizer.ids_within(text, 99)):
        with pytest.raises(TaskError, match="tokenizer fails at this text: Onig: Regex search"):
            call(text)
    with pytest.raises(TaskError, match="tokenizer fails at these ids: "):
        tokenizer.decode([*text.encode()])
    assert tokenizer.encode("b")


def test_a_tokenizer_that_contradicts_itself_is_a_task_error(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    said = json.loads((tmp_path / "tokenizer.json").read_text())
    parts = [
        {"SpecialToken": {"id": "none", "type_id": 0}},
        {"Sequence": {"id": "A", "type_id": 0}},
    ]
    pair = [{"Sequence": {"id": name, "type_id": 0}} for name in "AB"]
    said["post_processor"] = {
        "type": "TemplateProcessing",
        "single": parts,
        "pair": pair,
        "special_tokens": {},
    }
    (tmp_path / "tokenizer.json").write_text(json.dumps(said))
    with pytest.raises(TaskError, match="tokenizer"):
        Tokenizer(tmp_path).encode("1 + 1")


def test_a_directory_without_a_tokenizer_is_said(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match=r"has no tokenizer\.json"):
        Tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(TaskError, match="cannot be read"):
        Tokenizer(tmp_path)


def test_neither_a_task_nor_its_text_imports_torch() -> None:
    code = (
        "import sys; from asyncrl.tasks import open_task, text; from asyncrl.config.schema "
        "import TaskConfig\n"
    )
    code += "open_task(TaskConfig(), 0); assert not {'torch', 'transformers'} & {*sys.modules}"
    subprocess.run([sys.executable, "-c", code], check=True)


@given(
    pieces=st.lists(st.sampled_from(["ab", "a", "b", " ", "abab" * 50, "é", END]), max_size=20),
    most=st.integers(0, 60),
    start=st.booleans(),
)
def test_ids_within_are_the_ids_or_none(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[str], most: int, start: bool
) -> None:
    directory = tmp_path_factory.mktemp("model")
    write_tokenizer(directory, ["ab", "abab"])
    tokenizer, text = Tokenizer(directory), "".join(pieces)
    ids = tokenizer.ids(text, start=start)
    assert tokenizer.ids_within(text, most, start=start) == (ids if len(ids) <= most else None)


def test_a_text_that_cannot_fit_is_not_tokenized_to_its_end(tmp_path: Path) -> None:
    """One of long tokens that does fit is."""
    write_tokenizer(tmp_path, ["a" * 100])
    tokenizer = Tokenizer(tmp_path)
    characters, fast = 0, tokenizer._fast

    class Counting:
        def encode(self, text: str, **options: bool) -> object:
            nonlocal characters
            characters += len(text)
            return fast.encode(text, **options)

        get_vocab = staticmethod(fast.get_vocab)

    tokenizer._fast = Counting()
    for text in ("b" * 10_000_000, "b" * 90_000, "a" * 100_100):
        assert tokenizer.ids_within(text, 1000) is None
    assert characters < 300_000
    assert len(tokenizer.ids_within("a" * 90_000, 1000) or ()) == 900
