from oldest import Oldest

from asyncrl.algorithms.selection.league import PastVersion, drawn


def test_a_version_has_half_the_weight_of_the_one_before_it() -> None:
    past = [PastVersion(0), PastVersion(20), PastVersion(40, games=3, reward=1.0)]
    assert Oldest().weights(past) == [1.0, 0.5, 0.25]
    draws = [drawn(Oldest(), past, f"key {n}") for n in range(700)]
    assert abs(draws.count(0) - 400) < 60 and abs(draws.count(40) - 100) < 40
