from not_too_easy import NotTooEasy

from asyncrl.algorithms.selection.judged_group import JudgedGroup


def test_what_is_nearly_solved_is_dropped() -> None:
    kept = [NotTooEasy().keeps(JudgedGroup([1.0] * n + [0.0] * (10 - n))) for n in (0, 5, 9, 10)]
    assert kept == [False, True, False, False]
