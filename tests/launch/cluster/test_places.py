"""Cores and GPUs of the actors on one machine, whoever comes and goes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.config.errors import ConfigError
from asyncrl.launch.cluster.places import Place, Places


@given(
    cores=st.integers(1, 9),
    room=st.integers(1, 5),
    each=st.integers(1, 4),
    spare=st.integers(0, 3),
    many=st.integers(1, 5),
    steps=st.lists(st.integers(0, 7), max_size=30),
)
def test_nobody_shares_a_gpu_and_who_leaves_gives_it_back(
    cores: int, room: int, each: int, spare: int, many: int, steps: list[int]
) -> None:
    gpus = many * each + min(spare, each - 1)
    places, held = Places(range(cores), room, gpus, each), dict[int, Place]()
    assert places.count == many
    for actor in steps:
        if actor in held:
            del held[actor]
            places.leave(actor)
        elif (place := places.take(actor)) is None:
            assert len(held) == many
        else:
            held[actor] = place
        used = [gpu for place in held.values() for gpu in place.gpus]
        assert len(set(used)) == len(used) == each * len(held) and max(used, default=0) < gpus
        assert all(place.cores and set(place.cores) <= set(range(cores)) for place in held.values())


def test_cores_are_shared_where_more_come_than_were_expected() -> None:
    places = Places([4, 5], room=2, gpus=0, each=0)
    assert places.count is None
    assert [places.take(actor) for actor in "abc"] == [
        Place((4,), ()),
        Place((5,), ()),
        Place((4,), ()),
    ]
    places.leave("b")
    assert places.take("d") == Place((5,), ())


@pytest.mark.parametrize(("gpus", "said"), [(0, "it has no GPU that"), (1, "it has 1 GPU that")])
def test_a_machine_with_too_few_gpus_says_so(gpus: int, said: str) -> None:
    with pytest.raises(ConfigError, match=f"{said} it may use, and a rollout actor needs 2"):
        Places([0], 1, gpus, 2)


def test_a_machine_of_the_trainer_needs_a_gpu_for_each_of_its_ranks() -> None:
    needs = {"least": 4, "who": "a machine of the trainer"}
    with pytest.raises(ConfigError, match=r"has 3 GPUs .* and a machine of the trainer needs 4"):
        Places(range(8), 4, 3, 1, **needs)  # type: ignore[arg-type]
    places = Places(range(8), 4, 4, 1, **needs)  # type: ignore[arg-type]
    assert [places.take(rank) for rank in "abcde"] == [
        Place((0, 1), (0,)),
        Place((2, 3), (1,)),
        Place((4, 5), (2,)),
        Place((6, 7), (3,)),
        None,
    ]


def test_an_actor_sees_its_gpus_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert Place((0,), ()).environment == {}
    assert Place((0,), (2, 3)).environment == {"CUDA_VISIBLE_DEVICES": "2,3"}
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,GPU-8,6")
    assert Place((0,), (1, 2)).environment == {"CUDA_VISIBLE_DEVICES": "GPU-8,6"}
