import random

from short_right import ShortRight

from asyncrl.algorithms.selection.judged_group import JudgedMember


def test_short_right_answers_are_kept() -> None:
    some = [JudgedMember(1.0, right=True, tokens=tokens) for tokens in (9, 4, 6, 30)]
    wrong = [JudgedMember(0.0, tokens=5), JudgedMember(0.0, tokens=7)]
    chosen = ShortRight().choose([*some, *wrong], 4, random.Random(0))
    assert sorted(chosen) == [1, 2, 4, 5]
