"""SIGKILL all over a run of agents' episodes (`bench/kill_agents.py`), and that its follower finds
what may never happen."""

from __future__ import annotations

import sys
from pathlib import Path

import kill_agents
import kill_matrix
import numpy as np
import pytest
import warm_process
from episode_follower import EpisodeFollower
from follower import Wrong

from asyncrl.experience import events as e


def ids(*tokens: int) -> bytes:
    return np.array(tokens, np.int32).tobytes()


def called(attempt: int, call: int) -> e.Called:
    return e.Called(0, attempt, call, None, ids(1, 2), 7 + call, 8, 1.0)


def extended(call: int, start: int) -> e.Extended:
    return e.Extended(call, 1, 0, start, ids(5), np.float32([-1.0]).tobytes())


ANSWERED = [
    e.Admitted(0, 0, 1, "train", 0, ids(1, 2), 16, cursor=1, played=True),
    e.Begun(0, "agents-0", 1),
    called(1, 1),
    e.Leased(1, "rollout-0", 1),
    extended(1, 0),
    e.Answered(1, 1, "stop"),
    e.Noted(0, 1, "tool", b"3"),
]
LEFT = [*ANSWERED, e.Left(0, 1, "actor_lost"), e.Begun(0, "agents-0", 2)]
SEALED = [*LEFT, e.Reused(0, 2, 1), e.Sealed(0, 2, "stop")]


def followed(events: list[e.AnyEvent]) -> EpisodeFollower:
    follower = EpisodeFollower(Path("nowhere"))
    for number, event in enumerate(events, 1):
        follower.take(number, event)
        follower.events.append(event)
    return follower


def test_a_later_attempt_is_answered_with_what_was_sampled() -> None:
    found = followed(SEALED)
    assert found.ended_early == found.dropped == {"actor_lost": 1}
    assert (found.calls, found.calls_reused, found.reused, found.sealed) == (1, 1, 1, {0})
    assert found.responses == {(0, 0): [(ids(5), np.float32([-1.0]).tobytes())]}


@pytest.mark.parametrize(
    ("before", "event", "what"),
    [
        pytest.param(LEFT, called(2, 2), "again", id="a call anew in place of one answered"),
        pytest.param(ANSWERED, extended(1, 1), "again", id="an answered call sampled on"),
        pytest.param(
            [*LEFT, e.Reused(0, 2, 1)], e.Leased(1, "rollout-0", 2), "again", id="leased again"
        ),
        pytest.param(ANSWERED[:4], extended(1, 1), "lost", id="a token missing"),
        pytest.param(LEFT, extended(1, 1), "lost", id="a call that nobody waits for"),
        pytest.param(ANSWERED, e.Begun(0, "agents-1", 2), "twice", id="played twice at a time"),
        pytest.param(ANSWERED, e.Noted(0, 1, "tool", b"4"), "twice", id="noted twice"),
        pytest.param(SEALED, e.Sealed(0, 2, "stop"), "twice", id="sealed twice"),
        pytest.param([*SEALED, e.Taken(0, [0])], e.Taken(1, [0]), "twice", id="taken twice"),
        pytest.param(
            [*SEALED, e.Taken(0, [0]), e.Trained(0, 1, {})],
            e.Trained(0, 1, {}),
            "twice",
            id="trained twice",
        ),
    ],
)
def test_what_may_never_happen_is_found(
    before: list[e.AnyEvent], event: e.AnyEvent, what: str
) -> None:
    follower = followed(before)
    with pytest.raises(Wrong) as wrong:
        follower.take(len(before) + 1, event)
    assert wrong.value.what == what


def test_a_life_takes_again_what_a_crash_undid() -> None:
    trained = [e.Taken(0, [0]), e.Trained(0, 1, {}), e.Published(1)]
    follower = followed([*SEALED, *trained])
    assert (follower.account.tokens_trained, follower.account.tokens_live) == (1, 0)
    undone = range(len(SEALED) + 1, len(SEALED) + len(trained) + 1)
    follower.go_on(undone)
    assert (follower.account.tokens_trained, follower.account.tokens_live) == (0, 1)
    assert follower.redone == [(0, [0])]
    with pytest.raises(Wrong, match="had to be taken again first"):
        follower.take(len(follower.events) + 1, e.Taken(1, [0]))


@pytest.mark.processes
@pytest.mark.explore
def test_a_kill_of_each_part_loses_nothing_and_samples_nothing_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Does as `bench/kill_agents.py`, by forks of the warm process."""
    monkeypatch.setattr(kill_matrix, "subprocess", warm_process)
    words = ["--kills", "5", "--weights", "0", "--seed", "1", "--run", str(tmp_path / "run")]
    monkeypatch.setattr(sys, "argv", ["kill_agents.py", *words])
    failed = kill_agents.main()
    out, err = capsys.readouterr()
    assert not failed, out + err
    for line in ("lost   0", "again  0", "twice  0", "hang   0"):
        assert line in out.splitlines()
    for role in ("worker", "agents", "rollout", "coordinator", "everything"):
        assert f"{role} " in out
