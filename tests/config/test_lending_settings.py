"""Settings of lending: who is lent, and what contradicts it."""

from __future__ import annotations

import pytest

from asyncrl.config import ConfigError, load
from asyncrl.config.derived import derived
from asyncrl.config.lending import is_lent, lendable, lent_actors

LENT = ("rollout.actors=2", "rollout.lent_actors=1")
SERVERS = (
    "engine.kind=sglang",
    'engine.sglang.launch=["python3"]',
    "engine.sglang.device=cuda",
    "model.dtype=bfloat16",
)
SWITCH = (*LENT, "rollout.lending=switch", "train.device=cuda")


@pytest.mark.parametrize(
    ("sets", "said"),
    [
        (["rollout.lent_actors=-1"], "must be a whole number at least 0"),
        (["rollout.lent_actors=1"], "raise actors, or lower lent_actors"),
        (["rollout.actors=2", "rollout.lent_actors=2"], "needs devices of its own"),
        ([*LENT, "train.device=cuda"], "decodes on cores"),
        ([*LENT, "rollout.lending=switch", "train.device=cuda"], "decodes on cores"),
        ([*LENT, "rollout.lending=often"], "priority, switch"),
        ([*LENT, "rollout.lending=switch", "staleness.finish_on=own"], "set finish_on to mixed"),
        ([*SERVERS, "train.device=cuda", *LENT], "set lending to switch"),
        ([*SERVERS, *LENT, "rollout.lending=switch"], "set both to the same kind of device"),
        ([*SERVERS, *SWITCH, "engine.sglang.backend=nccl"], "set backend to gloo"),
        (
            [*SERVERS, *SWITCH, "train.ranks=3", "engine.sglang.tensor_parallel=4"],
            "raise ranks, or lower lent_actors",
        ),
        ([*LENT, "cluster.kind=agents"], "set kind to local"),
        (
            [
                "engine.kind=sglang",
                "engine.sglang.urls=['http://a:1', 'http://b:1']",
                "engine.sglang.host=10.0.0.1",
                *LENT,
            ],
            "set lending to switch",
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
    (cores, lending) = (row for row in derived(config, 2) if row[0] in ("cores", "lending"))
    assert lending.meaning == "rollout-1 to rollout-2 on the trainer's devices, at a low priority"
    assert cores.meaning == "trainer 1; rollout actors 1, 1, 1; 2 of these the trainer's"
    assert not is_lent(load(None, [], {}), 0)


def test_those_that_are_switched_are_known_by_name() -> None:
    sets = ["rollout.actors=3", "rollout.lent_actors=2"]
    assert lent_actors(load(None, [*sets, "rollout.lending=switch"], {})) == {
        "rollout-1",
        "rollout-2",
    }
    assert not lent_actors(load(None, sets, {}))


@pytest.mark.parametrize(
    ("ranks", "parallel", "lent"), [(4, 2, 2), (3, 2, 1), (1, 2, 0), (9, 1, 3)]
)
def test_a_trainer_has_gpus_for_so_many_servers(ranks: int, parallel: int, lent: int) -> None:
    sets = ["rollout.actors=4", "rollout.lent_actors=3", "rollout.lending=switch"]
    size = f"engine.sglang.tensor_parallel={parallel}"
    config = load(None, [*SERVERS, "train.device=cuda", *sets, size], {})
    assert lendable(config, ranks) == lent
    assert lendable(load(None, sets, {}), ranks) == 3  # cores
