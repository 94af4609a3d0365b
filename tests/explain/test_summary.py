"""summary.json has the promised keys, is JSON for any reader, and comes back."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import msgspec
import pytest

from asyncrl.experience.ledger import Ledger
from asyncrl.explain.json_files import decoded
from asyncrl.explain.summary import (
    Accuracy,
    Alarmed,
    Idle,
    Lag,
    Publications,
    RolloutTotals,
    SlowestVerifier,
    Summary,
    TokenTotals,
    read,
    write,
)

FULL = Summary(
    ok=True,
    reason="All steps were taken.",
    steps=3,
    seconds=4.5,
    accuracy=Accuracy(0.25, 0.875),
    evaluated={"avg@4": 0.5},
    tokens=TokenTotals(
        generated=100, trained=60, discarded={"filtered": 30, "evaluation": 4}, live=6
    ),
    rollouts=RolloutTotals(admitted=10, trained=6, discarded={"filtered": 3}, live=1),
    lag=Lag(0.5, 2),
    alarms={"staleness": Alarmed(2, "The policy has moved away.")},
    bias={"length": 0.125},
    idle=Idle(0.1, 0.2),
    publication=Publications(4, 1.5, 0.01),
    restarts={"rollout": 1},
    removed={"rollout-1": "was killed by SIGKILL, and its restarts are spent"},
    slowest_verifier=SlowestVerifier(7, 1.25, "deadline"),
)


def test_it_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "summary.json"
    write(FULL, path)
    assert read(path) == FULL and list(tmp_path.iterdir()) == [path]


def test_it_has_its_name_when_all_of_it_is_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, forced = tmp_path / "summary.json", list[int]()

    def fsync(descriptor: int) -> None:
        assert not path.exists()
        forced.append(os.fstat(descriptor).st_size)

    monkeypatch.setattr(os, "fsync", fsync)
    write(FULL, path)
    assert forced == [path.stat().st_size]


def test_the_keys_are_the_promised_ones(tmp_path: Path) -> None:
    write(FULL, tmp_path / "s")
    tree = json.loads((tmp_path / "s").read_text())
    shape = {key: set(value) if isinstance(value, dict) else None for key, value in tree.items()}
    assert shape == {
        "ok": None, "reason": None, "steps": None, "seconds": None, "training_seconds": None,
        "accuracy": {"start", "end", "weights", "asked", "prompts"}, "evaluated": {"avg@4"},
        "tokens": {"generated", "trained", "discarded", "live"},
        "rollouts": {"admitted", "trained", "discarded", "live", "pruned"},
        "foreign": {"imported", "foreign_trained", "discarded", "live"},
        "lag": {"mean", "max"},
        "responses": {"reward", "exact", "truncated", "tokens", "entropy"},
        "idle": {"trainer", "rollout"}, "alarms": {"staleness"}, "bias": {"length"},
        "publication": {"count", "seconds", "pause_seconds", "sent_bytes"},
        "published_gap": None,
        "restarts": {"rollout"},
        "removed": {"rollout-1"},
        "slowest_verifier": {"prompt_index", "seconds", "reason"},
        "verdicts": {"answers", "without", "reasons"},
        "sft": None,
    }  # fmt: skip
    assert tree["tokens"]["discarded"] == {"filtered": 30, "evaluation": 4}


def test_what_does_not_exist_is_null(tmp_path: Path) -> None:
    def no_constant(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    path = tmp_path / "summary.json"
    write(
        Summary(
            ok=False,
            reason="It failed.",
            steps=0,
            seconds=0.0,
            lag=Lag(math.nan, 0),
            idle=Idle(math.inf, None),
        ),
        path,
    )
    tree = json.loads(path.read_text(), parse_constant=no_constant)
    assert (
        tree["accuracy"]
        == {"start": None, "end": None, "weights": "current", "asked": 0, "prompts": 0}
        and tree["lag"]["mean"] is None
        and tree["idle"]["trainer"] is None
    )
    assert read(path) == Summary(ok=False, reason="It failed.", steps=0, seconds=0.0)


def test_it_takes_the_ledger_as_it_is(tmp_path: Path) -> None:
    ledger = Ledger()
    ledger.rollouts.enter(3)
    ledger.tokens.enter(30)
    ledger.tokens.train(10)
    ledger.tokens.discard(5, "late")
    counts = ledger.summary()
    summary = Summary(
        ok=True,
        reason="",
        steps=0,
        seconds=0.0,
        tokens=msgspec.convert(counts["tokens"], TokenTotals),
        rollouts=msgspec.convert(counts["rollouts"], RolloutTotals),
    )
    assert (
        summary.tokens == TokenTotals(30, 10, {"late": 5}, 15)
        and summary.rollouts.live == 3
        and summary.balances()
    )


@pytest.mark.parametrize("lost", [FULL.tokens, FULL.rollouts])
def test_a_lost_one_is_noticed(lost: TokenTotals | RolloutTotals) -> None:
    assert FULL.balances()
    thing = "tokens" if isinstance(lost, TokenTotals) else "rollouts"
    assert not msgspec.structs.replace(
        FULL, **{thing: msgspec.structs.replace(lost, live=lost.live - 1)}
    ).balances()


def test_a_failed_write_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "summary.json"
    write(FULL, path)
    with pytest.raises(TypeError):
        write(msgspec.structs.replace(FULL, restarts=object()), path)
    assert read(path) == FULL


@pytest.mark.parametrize(
    ("number", "fits"), [(2**63 - 1, True), (-(2**62), True), (2**63, False), (-(2**63), False)]
)
def test_a_number_of_64_bits_can_be_reckoned_with(number: int, fits: bool) -> None:
    data = msgspec.json.encode({"a": [number]})
    if fits:
        assert decoded(data, dict) == {"a": [number]}
    else:
        with pytest.raises(msgspec.ValidationError, match="bounds"):
            decoded(data, dict)
