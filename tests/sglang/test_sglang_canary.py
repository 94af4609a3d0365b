from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.bundled.bundled_model import new_model
from asyncrl.engines import canary
from asyncrl.engines.canary import CanaryDied, compare, reference, text


@given(st.integers(4, 5000), st.data())
def test_the_text_is_the_same_every_time_and_of_ordinary_ids_alone(
    vocab_size: int, data: st.DataObject
) -> None:
    special = data.draw(st.sets(st.integers(0, vocab_size - 1), max_size=vocab_size - 3))
    ids = text(vocab_size, special)
    assert ids.dtype == np.int32 and len(ids) == canary.TOKENS
    assert ids.min() >= 0 and ids.max() < vocab_size - 1 and not special & set(ids.tolist())
    assert np.array_equal(ids, text(vocab_size, special))


def test_a_vocabulary_without_ordinary_ids() -> None:
    with pytest.raises(ValueError, match="is too small for a canary text"):
        text(4, {1, 2})


def test_the_reference_is_that_of_the_weights_and_not_of_the_model_they_are_computed_with() -> None:
    shell, model = new_model(0), new_model(1)
    shell.eval(), model.eval()
    before = {name: parameter.clone() for name, parameter in shell.named_parameters()}
    ids = text(260, {256, 257})
    found = reference(shell, dict(model.named_parameters()), ids)
    with torch.no_grad():
        logits = model(torch.from_numpy(ids).long()[None]).logits[0].double()
    expected = [float(torch.log_softmax(logits[i], -1)[ids[i + 1]]) for i in range(len(ids) - 1)]
    assert found == pytest.approx(expected, abs=1e-5)
    assert all(torch.equal(parameter, before[name]) for name, parameter in shell.named_parameters())
    assert shell.lm_head.weight is shell.model.embed_tokens.weight


def test_compare() -> None:
    assert compare(7, [-1.0, -2.0], [-1.0, -2.25], 0.25) == 0.25
    with pytest.raises(
        CanaryDied,
        match=(
            r"version 7: .* differ by 0.5 .*\(token 2 of the canary: -2.5 for -2; 0.25 is "
            r"rounding\)"
        ),
    ):
        compare(7, [-1.0, -2.0], [-1.0, -2.5], 0.25)
    for bad in (float("nan"), float("inf"), float("-inf")):
        with pytest.raises(CanaryDied, match=r"token 2 of the canary"):
            compare(7, [-1.0, -2.0], [-1.0, bad], 1e9)
    with pytest.raises(CanaryDied, match="1 log-probabilities came for the canary's 2"):
        compare(7, [-1.0, -2.0], [-1.0], 1.0)
