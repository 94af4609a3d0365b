from until_solved import UntilSolved

from asyncrl.algorithms.selection.growth import GrowingGroup
from asyncrl.algorithms.selection.judged_group import JudgedMember


def test_a_group_doubles_until_a_member_is_right() -> None:
    rule, wrong = UntilSolved(4, 12), JudgedMember(0.0)
    assert rule.grow(GrowingGroup(4, [wrong] * 4)) == 8
    assert rule.grow(GrowingGroup(8, [wrong] * 8)) == 12
    assert rule.grow(GrowingGroup(8, [wrong] * 7 + [JudgedMember(1.0, right=True)])) == 8
