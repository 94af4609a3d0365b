"""Rows of figures: the same figure has the same label and the same words in each view."""

from __future__ import annotations

from pathlib import Path

import pytest
from look_support import evaluation, make_run, status, step
from report_support import Parsed

from asyncrl.cli import main
from asyncrl.explain import summary
from asyncrl.explain.display import line
from asyncrl.explain.rows import figure_rows, summary_rows, update_rows
from asyncrl.explain.run_figures import run_figures
from asyncrl.explain.run_files import RunFiles
from asyncrl.explain.views.report import report
from asyncrl.explain.views.top import update_of
from asyncrl.messages import StatusUpdate
from asyncrl.runtime.run_dir import SUMMARY

LAST = step(
    5,
    reward=0.126,
    lag_mean=0.75,
    lag_max=2,
    idle_trainer=0.256,
    idle_rollout=0.031,
    pause_seconds=0.0123,
    metrics={"exact": 0.25, "truncated": 0.125, "response_tokens": 19.5, "entropy": 0.625},
)
ENDED = summary.Summary(
    ok=True,
    reason="done",
    steps=5,
    seconds=75.0,
    lag=summary.Lag(0.75, 2),
    idle=summary.Idle(0.256, 0.031),
    responses=summary.Responses(0.126, 0.25, 0.125, 19.5, 0.625),
    publication=summary.Publications(2, 1.0, 0.0246),
)
SHARED = {
    "reward": "0.13",
    "responses": "25% exact, 12% cut",
    "length": "19.5 tokens",
    "entropy": "0.62 nats a token",
    "lag": "0.75 mean, 2 max",
    "idle": "26% trainer, 3% rollout",
    "pause": "12.3 ms",
}
"""Words of each view for the same numbers."""


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return make_run(tmp_path / "r", [evaluation(0, 0.5), LAST], status=status())


def now() -> StatusUpdate:
    found = status(idle={"trainer": {"command": 0.256}, "rollout": {"requests": 0.031}})
    return update_of(found, LAST, None, 0.0)


def test_a_figure_has_one_label_and_one_rounding(run: Path) -> None:
    told = {
        "live": dict(update_rows(now())),
        "ended": dict(summary_rows(ENDED)),
        "any": dict(figure_rows(run_figures(RunFiles(run)))),
    }
    for view, rows in told.items():
        shared = {label: said for label, said in rows.items() if label in SHARED}
        assert shared == {label: SHARED[label] for label in shared}, view
    assert [len(rows.keys() & SHARED.keys()) for rows in told.values()] == [7, 7, 3]
    assert told["live"]["tokens/s"] == "1,234 generated, 1,200 trained"


def test_no_label_comes_twice(run: Path) -> None:
    for rows in (update_rows(now()), summary_rows(ENDED), figure_rows(run_figures(RunFiles(run)))):
        assert len(dict(rows)) == len(rows)


def test_each_view_has_the_rows_as_they_are(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = figure_rows(run_figures(RunFiles(run)))
    assert all(f"  {label} {said}" in line(now()) for label, said in update_rows(now()))
    html = Parsed(report(run, 1e9)).text
    assert all(f"{label}{said}" in html for label, said in rows)
    assert main(["compare", str(run)]) == 0
    compared = [text.split("  ", 1) for text in capsys.readouterr().out.splitlines()]
    said = {cells[0]: cells[-1].strip() for cells in compared}
    assert dict(rows).items() <= said.items()
    summary.write(ENDED, run / SUMMARY)
    html = Parsed(report(run, 1e9)).text
    assert all(f"{label}{said}" in html for label, said in summary_rows(ENDED))
