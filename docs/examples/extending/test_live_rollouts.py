from live_rollouts import LiveRollouts
from test_admission import Work  # of tests/staleness

from asyncrl.staleness.admission import AdmissionSettings


def test_a_large_group_fills_as_much_as_two() -> None:
    """4 groups may be live, which are 32 rollouts of groups of 8. While 20 are live there is room
    for no group of 16; while 16 are, for one."""
    settings = AdmissionSettings(
        depth=1, batch_groups=2, sizing="difficulty", group_size=8, group_size_max=16
    )
    rule = LiveRollouts(settings)
    assert rule.may_start(Work(groups_live=2, rollouts_live=20)) == 0
    assert rule.may_start(Work(groups_live=1, rollouts_live=16)) == 1
    assert not list(rule.contradictions())
