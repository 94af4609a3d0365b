"""The bundled model: ordinary Hugging Face files, and a tokenizer whose frame tokens change no
text."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from asyncrl.bundled.bundled_model import (
    END_ID,
    PADDING_ID,
    VOCABULARY,
    frame,
    model_config,
    new_model,
    tokenizer,
    write_tokenizer,
)
from asyncrl.tasks.text import Tokenizer
from asyncrl.training.models import load_model

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@given(texts=st.lists(st.text("ab", max_size=5), min_size=1), before=TEXTS, after=TEXTS)
def test_a_frame_is_what_all_prompts_share_at_their_ends(
    texts: list[str], before: str, after: str
) -> None:
    prompts = [before + text + after for text in texts]
    shared = frame(prompts)
    for prompt in prompts:
        rest = prompt
        if shared and prompt.startswith(shared[0]):
            rest = rest[len(shared[0]) :]
        assert all(rest.endswith(text) for text in shared[1:])
    if len(before) > 1:
        assert shared
        assert shared[0].startswith(before)


def test_a_frame_is_never_longer_than_the_shortest_prompt() -> None:
    assert frame(["aa", "aaa", "aaaa"]) == ["aa"]
    assert frame(["abc"]) == ["abc"]
    assert frame(["x1y", "x2y"]) == []
    assert frame(["", "abc"]) == []


@given(text=TEXTS)
def test_frame_tokens_change_no_text(text: str) -> None:
    fast = tokenizer(["Spell: ", ".\n"])
    ids = fast.encode(f"Spell: {text}.\n").ids
    assert fast.decode(ids, skip_special_tokens=False) == f"Spell: {text}.\n"
    assert ids[0] == 258
    assert ids[-1] == 259
    if "." not in text and "<" not in text and "Spell" not in text:
        assert ids[1:-1] == list(text.encode())


def test_its_files_are_ordinary(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, ["Spell: ", ".\n"])
    new_model(0).save_pretrained(tmp_path)
    ours, theirs = Tokenizer(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    assert ours.encode("Spell: ab.\n") == theirs("Spell: ab.\n").input_ids == [258, *b"ab", 259]
    assert (theirs.eos_token_id, theirs.pad_token_id, ours.stop_ids) == (
        END_ID,
        PADDING_ID,
        (END_ID,),
    )
    model = load_model(tmp_path)
    assert model.config.model_type == "qwen3"
    assert model.generation_config is not None
    assert model.generation_config.eos_token_id == END_ID
    assert ours.vocabulary <= VOCABULARY == model.get_input_embeddings().num_embeddings


def test_its_weights_are_a_function_of_the_seed_and_disturb_no_other_draw() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    one = new_model(1)
    assert torch.equal(torch.rand(3), expected)
    for (name, first), second, other in zip(
        one.named_parameters(), new_model(1).parameters(), new_model(2).parameters(), strict=True
    ):
        assert torch.equal(first, second)
        assert "norm" in name or not torch.equal(first, other)


@pytest.mark.parametrize("size", ["hidden_size", "num_hidden_layers"])
def test_it_is_small(size: str) -> None:
    assert getattr(model_config(), size) <= 256
    assert sum(p.numel() for p in new_model(0).parameters()) < 1_500_000
