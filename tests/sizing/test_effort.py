"""A quick forecast: it agrees with the one that simulates everything, stops when it knows enough,
and says how well it knows it."""

from __future__ import annotations

import io
import math
import os
import random
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from asyncrl import cli
from asyncrl.config import Config, ConfigError, write
from asyncrl.exit_status import INTERRUPTED
from asyncrl.sizing import sizing_command
from asyncrl.sizing.cluster_models import (
    ClusterModel,
    EngineModel,
    LengthModel,
    NetworkModel,
    TrainerModel,
    VerdictModel,
)
from asyncrl.sizing.effort import BLOCKS, QUICK, WHOLE, Effort, PrecisionStop, part_for, spread
from asyncrl.sizing.forecast import Cluster, forecast
from asyncrl.sizing.modelled import configured
from asyncrl.sizing.sizing_command import LINE_S, QUIET_S, SizingProgress, halting

BOUND = 0.06
"""Share by which a quick forecast may miss the whole one, as docs/sizing.md says."""


MODELS = ClusterModel(
    engine=EngineModel(decode_ms=[(1, 10.0), (64, 20.0)], prefill_tokens_per_s=2e4),
    length=LengthModel(mean=900.0, sigma=0.8, prompt=100),
    trainer=TrainerModel(token_us=220.0, step_s=0.5),
    network=NetworkModel(publication_s=0.5, swap_s=0.1),
    verdict=VerdictModel(seconds=0.2, accepted=0.8),
)


def run_of(groups: int = 12) -> Config:
    """A run of `groups` groups of 4 a step on engines of 8 slots, filtered."""
    return configured(
        4,
        8,
        2000,
        train={"batch_groups": groups, "micro_tokens": 10_000},
        rollout={"filter": "zero_variance", "group_size": 4},
        staleness={"depth": 1, "max_lag": 4},
    )


@pytest.mark.explore
def test_a_quick_forecast_agrees_with_the_whole_one() -> None:
    """Coarser chunks, beats and tempo lose nothing that is told."""
    config, cluster = run_of(), Cluster(4, 1, price=2.0)
    whole = forecast(config, MODELS, cluster, 0.25, effort=WHOLE)
    done: list[float] = []
    quick = forecast(
        config, MODELS, cluster, 2.0, effort=Effort(24_000, 0.005, step_s=4.0), say=done.append
    )
    assert quick.events < whole.events / 1.5
    assert quick.step_s == pytest.approx(whole.step_s, rel=BOUND)
    assert quick.generated_per_s == pytest.approx(whole.generated_per_s, rel=BOUND)
    for field in ("idle_trainer", "idle_engines", "busy_slots", "wasted"):
        assert getattr(quick, field) == pytest.approx(getattr(whole, field), abs=0.04), field
    assert quick.lag_mean == pytest.approx(whole.lag_mean, abs=0.12)
    error = abs(quick.step_s / whole.step_s - 1)
    assert quick.spread is not None and error < quick.spread < 0.1 and quick.whole
    assert quick.cost == pytest.approx(2 * quick.device_hours) and max(done, default=0) <= 1


def test_what_was_simulated_until_the_user_ended_it_is_a_forecast(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It says that it is not whole; ended at once, there is nothing to say."""
    toml, asked = tmp_path / "run.toml", iter(range(10**6))
    write(run_of(4), toml)

    @contextmanager
    def soon() -> Iterator[Callable[[], bool]]:
        yield lambda: next(asked) > 150

    monkeypatch.setattr(sizing_command, "halting", soon)
    argv = ["simulate", str(toml), "--models", "h100-1.5b", "--engines", "2", "--hours", "9"]
    assert cli.main([*argv, "--price", "2"]) == INTERRUPTED
    said = capsys.readouterr().out
    assert "ended by Ctrl-C" in said and "preset h100-1.5b" in said and "device-hours, " in said
    with pytest.raises(ConfigError, match="let it go on"):
        forecast(run_of(4), MODELS, Cluster(2, 1), 1.0, halted=lambda: True)


def test_the_spread_is_that_of_independent_steps() -> None:
    """By the law of large numbers: of n steps with a deviation of s it is about 2 s / sqrt(n)."""
    draw, found = random.Random(5), []
    for _ in range(200):
        at, moments = 0.0, [0.0]
        for _ in range(20 * BLOCKS):
            at += draw.gauss(1.0, 0.3)
            moments.append(at)
        found.append((spread(moments), abs(moments[-1] / (20 * BLOCKS) - 1.0)))
    within = sum(miss <= half for half, miss in found) / len(found)
    assert 0.9 < within <= 1.0 and 0.04 < sum(half for half, _ in found) / len(found) < 0.09
    assert spread([0.0, 1.0, 2.0]) == math.inf


def test_it_stops_when_it_knows_enough_or_has_worked_enough() -> None:
    even = [float(at) for at in range(100)]
    stop = PrecisionStop(Effort(1000, 0.01), ahead=2)
    assert not stop.enough(even[:20], 10) and stop.enough(even, 10)
    assert not PrecisionStop(Effort(1000, 0.01), ahead=2).enough(even[:2], 2000)
    assert PrecisionStop(Effort(1000, 0.01), ahead=2).enough(even[:6], 2000)
    assert not PrecisionStop(WHOLE, ahead=2).enough([at**1.1 for at in even], 10**9)


def test_a_large_cluster_is_simulated_in_part() -> None:
    large = run_of(512)
    assert part_for(run_of(), 4, QUICK) == 1 and part_for(large, 1000, WHOLE) == 1
    assert part_for(large, 1000, QUICK) > 1
    assert part_for(large, 12, QUICK) == 2, "no fewer than six engines"


class SizingTerminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("stream", [SizingTerminal(), io.StringIO()])
def test_progress_is_one_line_and_says_what_is_left(stream: io.StringIO) -> None:
    now = [0.0]
    progress = SizingProgress(stream, lambda: now[0])
    progress.share(0.01)
    assert stream.getvalue() == ""
    first = QUIET_S if stream.isatty() else LINE_S
    for share in (0.25, 0.5):
        now[0] += first
        progress.share(share)
        progress.share(share)
    progress.clear()
    said = stream.getvalue()
    left = f"50%, {2 * first:.0f} s left at most"
    if stream.isatty():
        assert "\n" not in said and left in said and said.endswith("\r")
    else:
        assert "\r" not in said and said.count("\n") == 2 and left in said


def test_the_first_interruption_is_noted_and_the_second_one_ends() -> None:
    with halting() as halted:
        assert not halted()
        os.kill(os.getpid(), signal.SIGINT)
        assert halted()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
