from array import array

from after_a_line import NEWLINE, AfterALine

from asyncrl.algorithms.selection.fork import ForkPoint


def test_it_forks_after_a_line() -> None:
    rule, logs = AfterALine(1), array("f", [-1.0, -1.0])
    assert rule.forks(ForkPoint(array("i", [5, NEWLINE]), logs))
    assert not rule.forks(ForkPoint(array("i", [NEWLINE, 5]), logs))
