"""The witness must find what is planted: each test breaks the product in one place, and some seed of a few has to show it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import trio

from actors.coordinator.book import Book
from actors.coordinator.judgement import Judgement
from actors.coordinator.peers import Peer
from actors.coordinator.seats import Seats
from actors.coordinator.training import Training
from asyncrl import cli
from asyncrl.experience import events as e
from asyncrl.journal.writer import Journal
from asyncrl.messages import Judged, Purpose, Scored
from asyncrl.simulation.command import Tally, tally
from asyncrl.simulation.run import simulate
from weightsync.publication import Publication


def forgetting(what: type[e.Event], every: int) -> Callable[[Book, e.AnyEvent], None]:
    """A book that loses each so-many-th event of a kind."""
    record, seen = Book.record, [0]

    def lossy(self: Book, event: e.AnyEvent) -> None:
        if isinstance(event, what):
            seen[0] += 1
            if not seen[0] % every:
                return
        record(self, event)

    return lossy


def unread(self: Publication, *args: Any) -> Any:
    """Checksums that nobody compares."""
    sent = self._sent
    assert sent is not None
    mine = type("Any", (list,), {"__ne__": lambda a, b: False, "__eq__": lambda a, b: True, "__hash__": None})(sent.checksums)
    self._sent = type(sent)(sent.publication, sent.version, mine, sent.seconds, sent.error)
    return _verify(self, *args)


_verify = Publication._verify
_release = Seats.release
_on_judged = Judgement.on_judged


def leaking(self: Seats, name: str, rollout: int, purpose: Purpose) -> None:
    """Every seventh rollout keeps its slot."""
    if rollout % 7:
        _release(self, name, rollout, purpose)


def unsaid(self: Judgement, sender: Peer, message: Judged) -> None:
    """No verdict, no answer."""
    if isinstance(message.verdict, Scored):
        _on_judged(self, sender, message)


async def at_once(self: Journal) -> None:
    """A flush that does not wait for the disk."""
    await trio.lowlevel.checkpoint()


PLANTED: dict[str, tuple[object, str, object]] = {
    "a slot is not released": (Seats, "release", leaking),
    "late tokens are forgotten": (Book, "record", forgetting(e.Late, 1)),
    "a recycled rollout is forgotten": (Book, "record", forgetting(e.Recycled, 3)),
    "a verdict is forgotten": (Book, "record", forgetting(e.JudgedAs, 9)),
    "lag is counted from the next version": (Training, "_max_lag", property(lambda self: self._config.staleness.max_lag + 1)),
    "checksums are not compared": (Publication, "_verify", unread),
    "what is flushed is not on disk": (Journal, "flush", at_once),
    "an answer without a verdict is forgotten": (Judgement, "on_judged", unsaid),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_bug_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    where, attribute, broken = PLANTED[name]
    monkeypatch.setattr(where, attribute, broken)
    assert any(not simulate(seed).ok for seed in range(60)), name


def test_a_failing_seed_is_printed_with_the_command_that_replays_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Book, "record", forgetting(e.Sealed, 5))
    assert cli.main(["simulate", "--seeds", "4:6"]) == 1
    said = capsys.readouterr().out
    assert "seed 4 violates" in said and "again: asyncrl simulate --seed 4\n" in said
    assert cli.main(["simulate", "--seed", "4"]) == 1
    assert "seed 4 violates" in capsys.readouterr().out


def test_a_good_seed_is_counted(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["simulate", "--seed", "0"]) == 0
    assert "every invariant held" in capsys.readouterr().out


def test_tallies_add_up() -> None:
    whole, parts = tally(range(4)), Tally()
    for seed in range(4):
        parts.add(tally([seed]))
    assert whole == parts and whole.seeds == 4


@pytest.mark.parametrize("text", ["3", "5:5", "a:b", "-1:4"])
def test_wrong_seeds_are_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["simulate", f"--seeds={text}"])
    assert ended.value.code == 2 and "is not A:B" in capsys.readouterr().err
