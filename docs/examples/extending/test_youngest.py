from youngest import Youngest

from asyncrl.algorithms.selection.replay import Candidate


def test_the_youngest_comes_first() -> None:
    some = [Candidate(group, oldest, [(1.0, 0.0)]) for group, oldest in ((7, 2), (8, 4), (9, 3))]
    assert Youngest().choose(some, count=2) == [8, 9]
