"""Rates and idle shares over the last ten seconds, against sums over a list of everything
reported."""

from __future__ import annotations

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from memory_link import memory_links

from asyncrl.actors.coordinator.peers import Peer
from asyncrl.actors.coordinator.statistics import WINDOW_S, RunStatistics
from asyncrl.experience.ledger import Account
from asyncrl.messages import Hello, Report

SECOND = st.tuples(st.integers(0, 500), st.floats(0, 1), st.floats(0, 1))


@given(st.lists(SECOND, min_size=1, max_size=40))
def test_recent_shares_and_rates_are_those_of_the_window(
    seconds: list[tuple[int, float, float]],
) -> None:
    async def main() -> None:
        progress, tokens = RunStatistics(), Account()
        trainer = Peer(Hello("trainer", 0, 0, 1), memory_links()[0])
        engine = Peer(Hello("rollout", 0, 0, 1), memory_links()[0])
        assert progress.recent() == {} and progress.rates == (0.0, 0.0) and progress.window_s == 0.0
        progress.tick(tokens)
        for count, idle, weights in seconds:
            await trio.sleep(1.0)
            tokens.enter(count)
            tokens.train(count // 3)
            progress.on_report(
                trainer, Report(1.0, {"command": idle, "something else": 1.0}, {}, []), True
            )
            progress.on_report(
                engine, Report(1.0, {"requests": idle / 2, "weights": weights / 2}, {}, []), True
            )
            progress.tick(tokens)
        last = seconds[-round(WINDOW_S) :]
        assert progress.window_s == pytest.approx(len(last))
        assert progress.rates[0] == pytest.approx(sum(count for count, _, _ in last) / len(last))
        trained = sum(count // 3 for count, _, _ in last)
        assert progress.rates[1] == pytest.approx(trained / len(last))
        recent = progress.recent()
        assert recent["trainer"] == {
            "command": pytest.approx(sum(idle for _, idle, _ in last) / len(last))
        }
        assert recent["rollout"]["weights"] == pytest.approx(
            sum(w for _, _, w in last) / 2 / len(last)
        )
        assert recent["rollout"]["requests"] == pytest.approx(
            sum(idle for _, idle, _ in last) / 2 / len(last)
        )
        assert progress.idle("trainer") == pytest.approx(
            sum(idle for _, idle, _ in seconds) / len(seconds)
        )
        assert progress.idle("rollout") == pytest.approx(
            sum(idle + weights for _, idle, weights in seconds) / 2 / len(seconds)
        )
        assert progress.idle("reward") is None and "reward" not in recent
        assert progress.seconds == pytest.approx(len(seconds))

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


async def test_the_longest_pass_is_that_of_the_last_second(
    autojump_clock: trio.testing.MockClock,
) -> None:
    progress = RunStatistics()
    for seconds in (0.1, 0.3, 0.2):
        progress.pumped(seconds)
    progress.tick(Account())
    assert progress.pump_s == 0.3
    progress.tick(Account())
    assert progress.pump_s == 0.0


async def test_nobody_is_idle_before_the_run_works(autojump_clock: trio.testing.MockClock) -> None:
    progress = RunStatistics()
    peer = Peer(Hello("trainer", 0, 0, 1), memory_links()[0])
    progress.on_report(peer, Report(1.0, {"command": 1.0}, {}, []), False)
    progress.tick(Account())
    assert (
        progress.idle("trainer") is None and progress.recent() == {} and peer.report.seconds == 1.0
    )


async def test_after_a_long_silence_the_window_is_the_silence(
    autojump_clock: trio.testing.MockClock,
) -> None:
    progress, tokens = RunStatistics(), Account()
    for seconds in (1.0, 1.0, 100.0):
        await trio.sleep(seconds)
        tokens.enter(50)
        progress.tick(tokens)
    assert progress.window_s == 100.0 and progress.rates == (0.5, 0.0)
