import struct

from in_circles import InCircles

from asyncrl.algorithms.selection.live_group import LiveGroup, LiveMember
from asyncrl.algorithms.selection.prune import Ending


def test_a_response_in_circles_is_cut() -> None:
    behaviour = struct.pack("<12f", *[-1.0] * 12)
    circles, straight = ([5, 6, 7] * 4, [*range(12)])
    for ids, due in ((circles, Ending("circles", 12)), (straight, None)):
        member = LiveMember("live", 12, struct.pack("<12i", *ids), behaviour)
        assert InCircles(0.5).ends(LiveGroup([member], 0)) == due
