"""Reports: each second of an actor once, and a bounded number of them for the coordinator."""

from __future__ import annotations

import pytest
import trio
from memory_link import memory_links
from scripted_world import configured

from asyncrl.actors.reporting import REPORT_S, REPORTS_PER_S, Reporter, report_s
from asyncrl.messages import Report
from asyncrl.runtime.ipc.waits import Waits


@pytest.mark.parametrize("actors", [1, 15, 16, 100, 2000])
def test_a_coordinator_is_sent_a_bounded_number_of_reports_a_second(actors: int) -> None:
    every_s = report_s(configured(rollout={"actors": actors}, reward={"actors": 1 + actors // 32}))
    reporting = actors + 1 + actors // 32
    assert every_s >= REPORT_S and reporting / every_s <= REPORTS_PER_S
    assert every_s == REPORT_S or reporting / every_s > REPORTS_PER_S - 1, (
        "and no more seldom than that asks for"
    )


async def test_every_second_and_every_count_is_reported_once(
    autojump_clock: trio.testing.MockClock,
) -> None:
    ours, theirs = memory_links()
    waits = Waits()
    reporter = Reporter(waits, 40.0)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(reporter.run, ours)
        for number in range(3):
            await trio.sleep(5.0)
            with waits.idle_for("requests"):
                await trio.sleep(5.0)
            reporter.count("sampled_tokens", 7.0 * number)
            with trio.fail_after(31.0):
                report, _ = await theirs.receive()
            assert isinstance(report, Report)
            assert report.seconds == pytest.approx(40.0)
            assert report.idle == pytest.approx({"requests": 5.0}) and report.counts == {
                "sampled_tokens": 7.0 * number
            }
        assert trio.current_time() == pytest.approx(120.0)
        nursery.cancel_scope.cancel()
