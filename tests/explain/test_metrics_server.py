"""The metrics, and who means harm to them: a run goes on, and is no slower for it."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import trio
from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from trio.testing import MockClock

from asyncrl.explain.metrics import ACTORS, CAUSES, MEASURED, Metrics
from asyncrl.explain.metrics_server import LIMITS, REST, _format, _Pages
from asyncrl.messages import Report
from asyncrl.runtime.ipc.waits import Waits
from asyncrl.runtime.processes.machine import free_port

PATIENCE_S = 300.0
MADE_S = 0.4


def ask(port: int, sent: bytes) -> bytes:
    """All of the answer, on a connection of its own."""
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as connection:
        connection.sendall(sent)
        said = b""
        while data := connection.recv(1 << 16):
            said += data
    return said


def scrape(port: int) -> bytes:
    return ask(port, b"GET /metrics HTTP/1.1\r\nhost: a\r\n\r\n")


def descriptors() -> int:
    return len([*Path("/proc/self/fd").iterdir()])


def lines(metrics: Metrics) -> int:
    return sum(len(family.samples) for family in metrics.registry.collect())


def test_silent_clients_take_no_threads_and_few_descriptors() -> None:
    """488 threads were there after 80 s of them."""
    metrics, port = Metrics(), free_port()
    with metrics.serve(port), ExitStack() as stack:
        threads, before = threading.active_count(), descriptors()
        ours = [
            stack.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(120)
        ]
        assert scrape(port).startswith(b"HTTP/1.1 200")
        assert threading.active_count() <= threads  # an earlier test's may end
        theirs = descriptors() - before - len(ours)
        assert theirs <= LIMITS.strangers + 2, "the others were closed"
        assert metrics.registry.get_sample_value(
            "asyncrl_refused_connections_total", {"reason": "metrics_crowded"}
        )


@pytest.mark.explore
def test_a_silent_client_is_closed_in_time() -> None:
    metrics, port = Metrics(), free_port()
    with metrics.serve(port):
        begun = time.monotonic()
        assert ask(port, b"GET /metr").startswith(b"HTTP/1.1 408")
        assert time.monotonic() - begun >= LIMITS.head_s - 0.5


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"GET / HTTP/1.1\r\nhost: a\r\n\r\n", b"404"),
        (b"GET /metrics/../x HTTP/1.1\r\nhost: a\r\n\r\n", b"404"),
        (b"POST /metrics HTTP/1.1\r\nhost: a\r\ncontent-length: 1\r\n\r\nx", b"405"),
        (b"GET /metrics HTTP/1.1\r\nhost: a\r\naccept: \xff;q=x,,;\r\n\r\n", b"200"),
        (b"GET /metrics?name[]=x HTTP/1.1\r\nhost: a\r\n\r\n", b"200"),
        (b"HEAD /metrics HTTP/1.1\r\nhost: a\r\n\r\n", b"200"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"505"),
        (b"\xff\r\n\r\n", b"400"),
    ],
)
def test_whatever_is_asked_it_goes_on(sent: bytes, status: bytes) -> None:
    metrics, port = Metrics(), free_port()
    with metrics.serve(port):
        assert ask(port, sent).split()[1] == status
        assert scrape(port).startswith(b"HTTP/1.1 200")


def test_a_page_is_kept_for_two_formats_whatever_is_asked() -> None:
    """A cache by the client's own words grew without bound, and some were a traceback each."""
    registry = Metrics().registry
    kinds = {
        _format(f"application/openmetrics-text; version={version}; escaping={escaping}")[1]
        for version in ("x", "1.0.0", "1.0.7", "9" * 500, "", "0.0.1")
        for escaping in ("allow-utf-8", "y")
    }
    assert (
        len(kinds) == 1 and len({_format(a)[1] for a in ("", "*/*", "text/plain;version=2")}) == 1
    )
    for accepted, end in (("application/openmetrics-text", b"# EOF\n"), ("", b"\n")):
        assert _format(accepted)[0](registry).endswith(end)


def test_nothing_is_told_that_is_not_for_everybody() -> None:
    """The run's path was."""
    metrics, port = Metrics(), free_port()
    metrics.describe(task="t", engine="scripted")
    with metrics.serve(port):
        said = scrape(port)
    assert b'asyncrl_run_info{engine="scripted",task="t"} 1.0' in said


def test_one_report_makes_few_series() -> None:
    """20,000 causes made 40,000 lines."""
    metrics = Metrics()
    before = lines(metrics)
    causes = {f"cause {n}": 1.0 for n in range(20_000)}
    metrics.reported("rollout", 0, Report(1.0, causes, dict(causes), []))
    metrics.reported("rollout", 0, Report(1.0, {"x" * 10_000: 1.0}, {}, []))
    assert lines(metrics) - before <= 4 * (CAUSES + 1) + 1
    spent = metrics.registry.get_sample_value(
        "asyncrl_idle_seconds_total", {"role": "rollout", "actor": "0", "cause": "other"}
    )
    assert spent == 20_001 - CAUSES, "and nothing is left out"


def test_actors_and_measurements_without_end_make_few_series() -> None:
    metrics = Metrics()
    before = lines(metrics)
    for index in range(3 * ACTORS):
        metrics.reported("rollout", index, Report(1.0, {}, {}, []))
    metrics.stepped(1.0, {f"measured {n}": 1.0 for n in range(20_000)})
    assert lines(metrics) - before <= ACTORS + MEASURED + 2


class Slow(Collector):
    """A page that takes `MADE_S` of virtual time, and has the number of times it was made."""

    def __init__(self, clock: MockClock) -> None:
        self.made, self._clock = 0, clock

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        self.made += 1
        self._clock.jump(MADE_S)
        yield GaugeMetricFamily("made", "How often.", value=self.made)


async def test_many_who_ask_share_a_page_that_is_not_older_than_their_question(
    mock_clock: MockClock,
) -> None:
    registry, slow = CollectorRegistry(), Slow(mock_clock)
    registry.register(slow)
    pages, answers = _Pages(registry, Waits()), list[tuple[float, float]]()
    mock_clock.autojump_threshold = 0

    async def one(after: float) -> None:
        await trio.sleep(after)
        asked, said = trio.current_time(), b""

        async def send(event: dict[str, object]) -> None:
            nonlocal said
            said += event.get("body", b"")  # type: ignore[operator]

        await pages({"path": "/metrics", "method": "GET", "headers": []}, _never, send)  # type: ignore[arg-type]
        answers.append((asked, float(said.split()[-1])))

    async with trio.open_nursery() as nursery:
        for n in range(100):
            nursery.start_soon(one, n / 20)
    assert slow.made == 2, "those who came before a page was begun have it"
    assert trio.current_time() >= MADE_S * (1 + REST)
    assert sorted(answers)[0][1] == 1 and {made for _, made in sorted(answers)[1:]} == {2}


async def _never() -> dict[str, object]:
    raise AssertionError("nobody asked for a body")
