"""Points that a sink is sent: each version once, whatever was killed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from look_support import evaluation, make_run, step

from asyncrl.explain import curve
from asyncrl.explain.sinks.sink_feed import SinkFeed
from asyncrl.explain.sinks.sink_figures import figures_of
from asyncrl.runtime.run_dir import METRICS, SINKS


class Noting:
    """A sink that notes what it is sent, and knows the run by a name that it gave it."""

    def __init__(self, sent: list[tuple[int, Mapping[str, float]]], identity: str) -> None:
        self.sent, self.identity = sent, identity or "mine"
        self.closed = False

    def add(self, version: int, at: float, figures: Mapping[str, float]) -> None:
        self.sent.append((version, figures))

    def close(self) -> None:
        self.closed = True


def feed_of(run: Path, sent: list[tuple[int, Mapping[str, float]]]) -> SinkFeed:
    def open_noting(run: Path, settings: Mapping[str, Any], identity: str) -> Noting:
        assert settings["train"]["steps"] == 3 and identity in ("", "mine")
        return Noting(sent, identity)

    return SinkFeed(run, "wandb", open_noting)


TOML = "[train]\nsteps = 3\n"


@settings(deadline=None)
@example(["step", "evaluate", "send", "resume", "evaluate"])
@example(["step", "send", "resume", "resume", "evaluate", "step"])
@given(st.lists(st.sampled_from(["step", "evaluate", "send", "kill", "resume"]), max_size=30))
def test_each_version_is_sent_once(
    tmp_path_factory: pytest.TempPathFactory, acts: list[str]
) -> None:
    run = make_run(tmp_path_factory.mktemp("run") / "run", toml=TOML)
    sent: list[tuple[int, Mapping[str, float]]] = []
    feed, made, most, evaluated = feed_of(run, sent), 0, 0, set[int]()
    for act in acts:
        match act:
            case "step":
                made += 1
                most = max(most, made)
                append(run, step(made))
            case "evaluate" if made not in evaluated:
                evaluated.add(made)
                append(run, evaluation(made, 0.5))
            case "send":
                feed.send()
            case "kill":
                feed = feed_of(run, sent)
            case "resume":  # from the last checkpoint, which is at every third version
                made = min(made, made - made % 3)
                curve.trim(run / METRICS, made, made)
                evaluated = {version for version in evaluated if version <= made}
    feed.close()
    steps = [version for version, figures in sent if "train/reward" in figures]
    evaluations = [version for version, figures in sent if "evaluation/accuracy" in figures]
    assert steps == sorted(set(steps)) and len(evaluations) == len(set(evaluations))
    points = [*curve.read(run / METRICS)]
    assert {p.version for p in points if isinstance(p, curve.StepPoint)} <= set(steps)
    assert {p.version for p in points if isinstance(p, curve.EvaluationPoint)} <= set(evaluations)
    assert len(steps) + len(evaluations) == len(sent) and set(steps) <= set(range(1, most + 1))


def append(run: Path, point: curve.Point) -> None:
    with (run / METRICS).open("ab") as file:
        file.write(curve.line_of(point))


def test_a_line_that_is_being_written_waits(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", [step(1)], TOML)
    sent: list[tuple[int, Mapping[str, float]]] = []
    feed = feed_of(run, sent)
    line = curve.line_of(step(2))
    with (run / METRICS).open("ab") as file:
        file.write(line[:20])
    assert feed.send() == 1
    with (run / METRICS).open("ab") as file:
        file.write(line[20:])
    assert (feed.send(), feed.send()) == (1, 0)
    assert [version for version, _ in sent] == [1, 2]


def test_a_note_that_is_damaged_is_an_error(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", toml=TOML)
    feed_of(run, [])
    (run / SINKS / "wandb.json").write_text('{"step": "many"}')
    with pytest.raises(msgspec.ValidationError, match="step"):
        feed_of(run, [])


def test_figures_have_the_places_that_people_look_for() -> None:
    metrics = {"loss": 0.5, "grad_norm": None, "k3_at_lag_2": 0.25}
    found = figures_of(step(3, metrics=metrics, discarded={"icepop": 7}, idle_trainer=None))
    assert found["train/loss"] == 0.5 and found["at_lag_2/k3"] == 0.25
    assert found["discarded/icepop"] == 7 and "train/grad_norm" not in found
    assert "flow/idle_trainer" not in found and found["run/seconds"] == 13.0
    assert all(type(value) is float for value in found.values())
