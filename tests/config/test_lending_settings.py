"""Settings of lending: who is lent, and what contradicts it."""

from __future__ import annotations

import pytest

from asyncrl.config import ConfigError, load
from asyncrl.config.derived import derived
from asyncrl.config.lending import is_lent

LENT = ("rollout.actors=2", "rollout.lent_actors=1")


@pytest.mark.parametrize(
    ("sets", "said"),
    [
        (["rollout.lent_actors=-1"], "must be a whole number at least 0"),
        (["rollout.lent_actors=1"], "raise actors, or lower lent_actors"),
        (["rollout.actors=2", "rollout.lent_actors=2"], "needs cores of its own"),
        ([*LENT, "train.device=cuda"], "no priority"),
        ([*LENT, "cluster.kind=agents"], "set kind to local"),
        (
            ["engine.kind=sglang", "engine.sglang.urls=['http://a:1', 'http://b:1']", *LENT],
            "choose the embedded engine",
        ),
    ],
)
def test_contradictions_are_refused(sets: list[str], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(None, sets, {})
    assert said in str(caught.value)


def test_the_last_actors_are_lent_and_it_is_said() -> None:
    config = load(None, ["rollout.actors=3", "rollout.lent_actors=2"], {})
    assert [is_lent(config, index) for index in range(3)] == [False, True, True]
    (cores,) = (row for row in derived(config, 2) if row[0] == "cores")
    assert cores.meaning == "trainer 1; rollout actors 1, 1, 1; 2 of these the trainer's"
    assert not is_lent(load(None, [], {}), 0)
