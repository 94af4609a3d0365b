"""Requests to judges, and the rewards in their replies."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from judge_world import about, said, settings

from asyncrl.judges.forms import (
    ChatForm,
    ClassifierForm,
    Unreadable,
    filled,
    form_of,
    keys_of,
)
from asyncrl.tasks.judge_request import JudgeRequest


@pytest.mark.parametrize(
    ("text", "reward"),
    [
        ("It is right.\nSCORE: 10", 1.0),
        ("**Score:** 7.5", 0.75),
        ("SCORE: 3/10", 0.3),
        ("score:`4`", 0.4),
        ("SCORE: 2, no: on second thoughts\nSCORE: 8.", 0.8),
        ("SCORE: 0", 0.0),
        ("score 5", None),
        ("SCORE: ten", None),
        ("SCORE: -1", None),
        ("SCORE: 10.5", None),
        ("SCORE: 1e5", 0.1),  # the number is 1, and e5 is no part of it
        ("10", None),
        ("", None),
    ],
)
def test_the_score_is_the_number_after_the_last_marker(text: str, reward: float | None) -> None:
    form, reply = ChatForm(settings()), said(text).content
    if reward is None:
        with pytest.raises(Unreadable):
            form.read(reply, about("a"))
    else:
        assert form.read(reply, about("a")).numbers == [pytest.approx(reward)]


@pytest.mark.parametrize(
    ("reply", "label", "reward"),
    [
        ({"embedding": [-1.5], "meta_info": {"prompt_tokens": 5}}, 0, -1.5),  # SGLang
        ([{"embedding": [0.25, 0.75]}], 1, 0.75),
        ({"data": [{"index": 0, "label": "LABEL_0", "probs": [0.9], "num_classes": 1}]}, 0, 0.9),
        ({"data": [{"index": 0, "object": "pooling", "data": [2.5]}]}, 0, 2.5),  # vLLM
        ({"data": [{"index": 0, "object": "pooling", "data": [[2.5, 3.5]]}]}, 1, 3.5),
        ({"data": [{"index": 0, "object": "pooling", "data": [[1.0], [2.0]]}]}, 0, None),
        ({"data": [{"index": 0, "probs": [0.9]}]}, 1, None),
        ({"data": []}, 0, None),
        ([], 0, None),
        ({"error": "no"}, 0, None),
    ],
)
def test_a_classifiers_reward_is_the_number_of_a_class(
    reply: Any, label: int, reward: float | None
) -> None:
    form = ClassifierForm(settings(kind="classifier", label=label))
    if reward is None:
        with pytest.raises(Unreadable):
            form.read(json.dumps(reply).encode(), about("a"))
    else:
        assert form.read(json.dumps(reply).encode(), about("a")).numbers == [reward]


@given(st.binary(max_size=200), st.sampled_from(["chat", "classifier"]))
def test_any_reply_is_a_reward_or_unreadable(reply: bytes, kind: str) -> None:
    with contextlib.suppress(Unreadable):
        form_of(settings(kind=kind)).read(reply, about("a"))


def test_a_classifier_is_asked_where_the_url_says() -> None:
    roots = ("http://h:1", "http://h:1/", "http://h:1/pooling", "http://h:1/classify")
    paths = [ClassifierForm(settings(kind="classifier", url=url)).path for url in roots]
    assert paths == ["/classify", "/classify", "", ""]
    body = ClassifierForm(settings(kind="classifier", template="<{question}|{answer}>")).body(
        about("a")
    )
    assert body == {"model": "m", "text": "<q|a>", "input": "<q|a>"}


def test_nothing_in_an_answer_is_taken_for_a_field_or_a_format() -> None:
    hostile = JudgeRequest("{answer}", "{expected} {0} {answer.__class__}", "secret")
    text = filled("{question}/{answer}/{other}", hostile)
    assert text == "{answer}/{expected} {0} {answer.__class__}/{other}"


def test_contents_have_one_key_and_what_changes_an_answer_another() -> None:
    judge = settings()
    form = form_of(judge)
    known = keys_of(form, judge, about("a"))
    for changes in (
        {"model": "n"},
        {"template": "{answer} {question}"},
        {"marker": "POINTS:"},
        {"highest": 5.0},
        {"params": {"temperature": 1.0}},
        {"max_tokens": 9},
        {"kind": "classifier"},
    ):
        other = settings(**changes)
        assert keys_of(form_of(other), other, about("a")) != known
    assert keys_of(form, judge, about("b")) != known
    for changes in ({"url": "http://127.0.0.1:8/v1"}, {"retries": 0}, {"timeout_s": 1.0}):
        other = settings(**changes)
        assert keys_of(form_of(other), other, about("a")) == known
