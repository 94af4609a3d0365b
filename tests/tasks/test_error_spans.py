"""Characters that a verifier found wrong, as tokens: always within the response."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.actors.verifier_process import VerifyRequest, judge
from asyncrl.bundled import bundled_model
from asyncrl.config.schema import TaskConfig
from asyncrl.messages import NoVerdict, Scored
from asyncrl.tasks import MaskedReward, NoReward, open_task
from asyncrl.tasks.error_spans import token_spans
from asyncrl.tasks.text import Tokenizer


@given(
    words=st.lists(st.text(max_size=4), max_size=12),
    data=st.data(),
)
def test_they_are_the_tokens_that_a_wrong_character_comes_from(
    words: list[str], data: st.DataObject
) -> None:
    text, ids = "".join(words), list(range(len(words)))

    def decode(ids: Sequence[int]) -> str:
        return "".join(words[n] for n in ids)

    bounds = st.tuples(st.integers(0, len(text)), st.integers(0, len(text)))
    errors = [(a, b) for a, b in data.draw(st.lists(bounds, max_size=4)) if a < b]
    wrong = {place for start, end in errors for place in range(start, end)}
    whose = [n for n, word in enumerate(words) for _ in word]
    found = token_spans(errors, text, ids, decode)
    marked = {place for start, end in found for place in range(start, end)}
    due = {whose[place] for place in wrong}
    assert due <= marked and all(not words[place] for place in marked - due)
    assert Scored(0.0, errors=found).fits(len(ids))


@pytest.mark.parametrize(
    "errors",
    [[(0, 99)], [(-1, 2)], [(2, 2)], [(3, 1)], [(0, 1.0)], [(True, 2)], [(0,)], ["01"], [None]],
)
def test_what_is_outside_the_answer_is_no_reward(errors: list[object]) -> None:
    with pytest.raises(NoReward, match=r"^error spans: "):
        token_spans(errors, "four", [0, 1], lambda ids: "four"[: 2 * len(ids)])
    with pytest.raises(NoReward, match="at most 64"):
        token_spans([(0, 1)] * 65, "four", [0], lambda ids: "four")


def test_a_verdict_fits_a_response_or_not() -> None:
    assert Scored(1.0).fits(0) and Scored(1.0, errors=[(0, 2), (2, 3)]).fits(3)
    for errors in ([(0, 4)], [(-1, 1)], [(1, 1)], [(2, 3), (0, 1)], [(0, 2), (1, 3)], [(2, 1)]):
        assert not Scored(1.0, errors=errors).fits(3), errors
    assert Scored(1.0, errors=[(0, 1)]).penalized(-0.5).errors == [(0, 1)]


JUDGE = """
from asyncrl.tasks import MaskedReward

def judge(answer, line):
    if "far" in answer:
        return MaskedReward(1.0, [(0, 999)])
    at = answer.find("oops")
    return MaskedReward(float(answer.endswith("4")), [(at, at + 4)] if at >= 0 else [])
"""


@pytest.mark.parametrize("reward", ["score", "exact"])
def test_a_verifier_of_lines_gives_them(
    reward: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "error_judge.py").write_text(JUDGE)
    monkeypatch.syspath_prepend(tmp_path)
    (path := tmp_path / "sums.jsonl").write_text('{"prompt": "2+2=", "answer": 4}\n' * 2)
    bundled_model.write_tokenizer(tmp_path, [])
    config = TaskConfig(
        name="jsonl", path=str(path), eval_size=0, verifier="error_judge:judge", reward=reward
    )
    task, tokenizer = open_task(config, 0), Tokenizer(tmp_path)

    def verdict(text: str) -> object:
        ids = tokenizer.encode(text)
        import numpy as np

        request = VerifyRequest("train", 0, np.array(ids, np.int32).tobytes(), "stop")
        return judge(task, tokenizer, request).verdict

    assert verdict("ab oops 4") == Scored(1.0, errors=[(3, 7)])  # a token is a byte
    assert verdict("ü oops 4") == Scored(1.0, errors=[(3, 7)])  # of which ü has two
    assert verdict("5") == Scored(0.0)
    said = verdict("far 4")
    assert isinstance(said, NoVerdict) and said.reason.startswith("error spans: ")
    assert MaskedReward(1.0, []) == 1.0
