"""A conversation is refused where its ids are more than the context, and nowhere else, however much
of it is known already."""

from __future__ import annotations

import numpy as np
import pytest
import trio
from gateway_world import MODEL
from hypothesis import example, given
from hypothesis import strategies as st

from asyncrl.agents.gateway.errors import GatewayError
from asyncrl.agents.gateway.gateway_settings import Settings
from asyncrl.agents.gateway.known_text import KnownText
from asyncrl.agents.gateway.model_format import ModelFormat
from asyncrl.agents.gateway.prompt_reader import PromptReader
from asyncrl.bundled.bundled_model import VOCABULARY, write_tokenizer
from asyncrl.runtime.ipc.waits import Waits
from asyncrl.tasks.text import Tokenizer

CONTEXT = 16
SAYS = rf"context of {CONTEXT} tokens \(engine.context_tokens\)"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    path = tmp_path_factory.mktemp("model")
    write_tokenizer(path)
    return Tokenizer(path)


@example(sampled=6, behind=10)
@example(sampled=6, behind=11)
@example(sampled=16, behind=0)
@example(sampled=17, behind=0)
@given(sampled=st.integers(1, 20), behind=st.integers(0, 20))
def test_what_was_sampled_counts_as_much_as_what_is_read(
    sampled: int, behind: int, tokenizer: Tokenizer
) -> None:
    async def main() -> None:
        settings = Settings(MODEL, CONTEXT, VOCABULARY, calls=2, call_s=20.0, body_s=9.0)
        reader = PromptReader(tokenizer, settings, Waits(), ModelFormat())
        ids = np.full(sampled, 65, np.int32)
        if sampled + behind <= CONTEXT:
            assert (
                await reader._behind(ids.tobytes(), "b" * behind) == [65] * sampled + [98] * behind
            )
        else:
            with pytest.raises(GatewayError, match=SAYS):
                await reader._behind(ids.tobytes(), "b" * behind)
        reader._due = 0.0
        if behind <= CONTEXT:
            found = await reader._prompt(KnownText(), "b" * behind, "prompt")
            assert found.ids == [98] * behind
        else:
            with pytest.raises(GatewayError, match=SAYS):
                await reader._prompt(KnownText(), "b" * behind, "prompt")

    trio.run(main)
