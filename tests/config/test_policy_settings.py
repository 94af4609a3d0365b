"""Settings of reference and teacher: what contradicts itself is refused in a sentence, and `check`
says what they cost."""

from __future__ import annotations

import pytest

from asyncrl.config import ConfigError, load
from asyncrl.config.derived import derived


def refusal(*sets: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(None, sets, {})
    text = str(caught.value)
    assert text.endswith(".") and text.isprintable()
    return text


REWARD = ("reference.coefficient=0.1", "reference.kl_in=reward", "rollout.filter=none")


@pytest.mark.parametrize(
    ("sets", "said"),
    [
        (["teacher.coefficient=1"], "there is no teacher"),
        (["teacher.path=m"], "with coefficient 0 the teacher does nothing"),
        (["reference.server=http://h:1"], "with coefficient 0 the reference does nothing"),
        (["reference.api_key_file=k"], "a key is for a server"),
        (["teacher.coefficient=1", "teacher.path=m", "teacher.server=h:1"], "http://host:port"),
        (
            ["reference.coefficient=1", "reference.server=http://h:1", "rollout.temperature=0.7"],
            "at temperature 1",
        ),
        (
            ["reference.coefficient=1", "reference.reset_every=5", "reference.path=m"],
            "starts as the run's model",
        ),
        ([*REWARD, "rollout.filter=zero_variance"], "the filter would drop their groups"),
        ([*REWARD, "train.advantage=reinforce_pp"], "reinforce_pp compares rewards of other"),
        ([*REWARD, "train.unit=rollout", "train.advantage=first_k"], "set unit to group"),
        ([*REWARD, "rollout.group_size=64"], "raise micro_tokens to 16384"),
    ],
)
def test_contradictions_are_refused(sets: list[str], said: str) -> None:
    assert said in refusal(*sets)


@pytest.mark.parametrize("setting", ["estimator=k4", "kl_in=nowhere", "coefficient=-1"])
def test_what_is_no_such_setting_is_refused(setting: str) -> None:
    assert f"reference.{setting.partition('=')[0]}" in refusal(f"reference.{setting}")


def test_check_says_what_they_cost() -> None:
    def rows(*sets: str) -> dict[str, tuple[str, str]]:
        return {row.name: (row.value, row.meaning) for row in derived(load(None, sets, {}), 2)}

    assert not {"reference policy", "teacher"} & rows().keys()
    value, meaning = rows(*REWARD, "reference.reset_every=50")["reference policy"]
    assert value == "the initial policy" and "subtracted from the rollout's reward" in meaning
    assert "every 50 steps" in meaning and "memory holds its weights too" in meaning
    served = rows("teacher.coefficient=1", "teacher.path=m", "teacher.server=http://h:1")["teacher"]
    assert served[0] == "http://h:1" and "waits for its server" in served[1]
