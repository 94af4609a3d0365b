"""Settings of a judge that contradict each other, and what follows from them."""

from __future__ import annotations

from typing import Any

import pytest

from asyncrl.config import Config, ConfigError, load
from asyncrl.config.derived import derived
from asyncrl.config.judging import at_a_time, judge_s, most_held, share_of
from asyncrl.config.schema import JudgeConfig, RewardConfig, TaskConfig

GOOD = {"url": "http://127.0.0.1:8000/v1", "model": "m"}
TASK = TaskConfig(name="jsonl", path="a.jsonl", verifier="judge")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"url": "localhost:8000"}, "judge.url is 'localhost:8000': an address is http"),
        ({"url": "ftp://a/v1"}, "an address is http"),
        ({"url": "http://"}, "an address is http"),
        ({"url": "http://[::1/v1"}, "an address is http"),
        ({"url": "http://10.0.0.1/v1", "api_key_env": "K"}, "cross the network unencrypted"),
        ({"url": "http://a.org/v1", "api_key_file": "k"}, "judge.api_key_file is .*cross the netw"),
        ({"url": "http://localhost.a.org/v1", "api_key_env": "K"}, "cross the network"),
        ({"api_key_env": "K", "api_key_file": "k"}, "a server has one key: set only one of them"),
        ({"model": ""}, "a judge needs a model: name one"),
        ({"template": "{question}"}, "put {answer} in the template"),
        ({"marker": " "}, "name the word before it"),
        ({"params": {"stream": True}}, "stream is set by other settings of \\[judge\\]"),
        ({"requests_per_minute": 0}, "must be a whole number at least 1"),
        ({"tokens_per_minute": 0}, "must be a whole number at least 1"),
        ({"concurrency": 0}, "must be a whole number at least 1"),
        ({"timeout_s": 0.0}, "must be a number above 0"),
        ({"retries": -1}, "must be a whole number at least 0"),
        ({"highest": 0.0}, "must be a number above 0"),
        ({"kind": "classifier", "url": "http://127.0.0.1:1/v1"}, "without /v1"),
    ],
)
def test_what_cannot_be_a_judge_is_a_sentence(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said) as refused:
        Config(task=TASK, judge=JudgeConfig(**{**GOOD, **changes}))
    assert str(refused.value).endswith((".", ")."))


@pytest.mark.parametrize(
    "changes",
    [
        {"api_key_env": "sk-secret-1"},
        {"url": "https://me:sk-secret-1@a.org/v1"},
        {"url": "https://a.org/v1?key=sk-secret-1"},
        {"url": "https://a.org/v1#sk-secret-1"},
    ],
)
def test_a_key_in_the_wrong_place_is_refused_and_not_repeated(changes: dict[str, str]) -> None:
    with pytest.raises(ConfigError) as refused:
        JudgeConfig(**{**GOOD, **changes})
    assert "sk-secret-1" not in str(refused.value)
    assert "not shown here" in str(refused.value)


@pytest.mark.parametrize(
    "url", ["http://localhost:1/v1", "http://127.0.0.9/v1", "http://[::1]:1/v1", "https://a.org/v1"]
)
def test_a_key_goes_to_this_machine_or_by_https(url: str) -> None:
    Config(task=TASK, judge=JudgeConfig(**{**GOOD, "url": url}, api_key_env="KEY"))


def test_a_judge_and_its_verifier_need_each_other() -> None:
    with pytest.raises(ConfigError, match="there is no judge to ask"):
        Config(task=TASK)
    for task in (TaskConfig(), TaskConfig(name="jsonl", path="a.jsonl")):
        with pytest.raises(ConfigError, match="set verifier to judge, or remove \\[judge\\]"):
            Config(task=task, judge=JudgeConfig(**GOOD))
    mix = {"a": {"name": "jsonl", "path": "a", "verifier": "judge"}, "b": {"name": "chain_sum"}}
    mixed = TaskConfig(mix=mix, weights={"a": 0.5, "b": 0.5})
    assert at_a_time(Config(task=mixed, judge=JudgeConfig(**GOOD))) == JudgeConfig().concurrency


@pytest.mark.parametrize(
    ("judge", "rest", "said"),
    [
        (
            {"members": "scored", "kind": "classifier", "url": "http://127.0.0.1:8000"},
            {},
            "a classifier reads one answer",
        ),
        ({"group_template": "{answers} SCORES:"}, {}, "set members to scored or ranked"),
        ({"members": "scored", "group_template": "{answers}"}, {}, "begins with SCORES:"),
        ({"members": "ranked", "group_template": "RANKING:"}, {}, "must contain {answers}"),
        ({"members": "scored"}, {"train": {"unit": "rollout"}}, "set unit to group"),
        ({"members": "ranked"}, {"rollout": {"group_size": 1, "k_min": 1}}, "raise group_size"),
        ({"members": "ranked"}, {"rollout": {"sizing": "difficulty"}}, "sizing to fixed"),
        ({"members": "ranked"}, {"train": {"group_weight": "paced"}}, "group_weight to none"),
    ],
)
def test_a_judge_of_groups_is_refused_where_it_cannot_be(
    judge: dict[str, Any], rest: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        Config(task=TASK, judge=JudgeConfig(**{**GOOD, **judge}), **rest)
    for members in ("scored", "ranked"):
        Config(task=TASK, judge=JudgeConfig(**GOOD, members=members))


def test_a_reward_actor_has_room_for_the_largest_group() -> None:
    judge = JudgeConfig(**GOOD, members="scored", concurrency=2)
    rollout: dict[str, Any] = {"group_size": 8, "group_size_max": 90}
    small = RewardConfig(concurrency=1)
    assert most_held(Config(task=TASK, judge=judge, reward=small, rollout=rollout)) == 8
    sized = {**rollout, "sizing": "difficulty"}
    assert most_held(Config(task=TASK, judge=judge, reward=small, rollout=sized)) == 90
    assert most_held(Config(task=TASK, judge=JudgeConfig(**GOOD), rollout=sized)) == 64


def test_reward_actors_share_the_limits_and_a_verdict_is_bounded() -> None:
    judge = JudgeConfig(**GOOD, requests_per_minute=60)
    one, four = (Config(task=TASK, judge=judge, reward=RewardConfig(actors=n)) for n in (1, 4))
    assert 4 * share_of(60, four) == share_of(60, one) == 60
    assert judge_s(one) > 60 * judge.concurrency * (judge.retries + 1) / 60
    assert judge_s(four) > judge_s(one)
    assert judge_s(Config()) == 0.0


def test_check_says_what_will_be_asked_and_where_the_key_is() -> None:
    config = Config(task=TASK, judge=JudgeConfig(**GOOD, api_key_env="JUDGE_KEY"))
    [row] = [row for row in derived(config, 4) if row.name == "judge"]
    text = " ".join(row)
    for part in ("m at http://127.0.0.1:8000/v1", "600 requests", "1,000,000 tokens", "JUDGE_KEY"):
        assert part in text
    assert not [row for row in derived(Config(), 4) if row.name == "judge"]


def test_a_key_in_run_toml_is_refused_without_its_text(tmp_path: Any) -> None:
    (tmp_path / "run.toml").write_text('[judge]\napi_key = "sk-secret-1"\n')
    with pytest.raises(ConfigError, match="api_key") as refused:
        load(tmp_path / "run.toml", [], {})
    assert "sk-secret-1" not in str(refused.value)
