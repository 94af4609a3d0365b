"""The curve of a run, read on as it grows: what is seen is what a reader of the whole file sees."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from look_support import evaluation, make_run, step

from asyncrl.config import ConfigError
from asyncrl.explain.curve import Point, line_of
from asyncrl.explain.curve_reader import CurveReader
from asyncrl.explain.run_figures import run_figures
from asyncrl.explain.run_files import RunFiles
from asyncrl.explain.views.curve_columns import ROWS, CurveColumns
from asyncrl.explain.views.seen_curve import SeenCurve
from asyncrl.explain.views.seen_run import SeenRun
from asyncrl.runtime.run_dir import METRICS

POINTS = [evaluation(0, 0.25), *(step(v) for v in range(1, 31)), evaluation(30, 0.75)]


@given(cuts=st.lists(st.integers(0, 20_000), max_size=12))
def test_a_curve_that_grows_in_any_pieces_is_read_whole(
    cuts: list[int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Also where a piece ends amid a line."""
    run = make_run(tmp_path_factory.mktemp("grows") / "run")
    whole = b"".join(map(line_of, POINTS))
    curve, written = SeenCurve(run), 0
    with (run / METRICS).open("ab", buffering=0) as file:
        for cut in [*sorted(cut % len(whole) for cut in cuts), len(whole)]:
            file.write(whole[written:cut])
            written = cut
            seen = SeenRun(run, 0.0, curve)
            assert seen.figures == run_figures(RunFiles(run))
            drawn = SeenRun(run, 0.0).curves
            assert seen.curves.last == drawn.last
            assert (seen.curves.steps, seen.curves.evaluations) == (drawn.steps, drawn.evaluations)


LIVES = st.lists(
    st.tuples(st.sampled_from(["grows", "is cut", "is another", "is gone"]), st.integers(0, 31)),
    max_size=8,
)


@example(lives=[("grows", 30), ("is another", 12), ("is another", 31), ("is cut", 1)])
@example(lives=[("grows", 9), ("is gone", 0), ("grows", 9), ("is another", 9), ("grows", 12)])
@given(lives=LIVES)
def test_whatever_happens_to_the_file_it_is_read_as_by_who_sees_it_first(
    lives: list[tuple[str, int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Also after a resume, which cuts the file in its place, or puts a shorter, a longer or an
    equally long one there."""
    run = make_run(tmp_path_factory.mktemp("lives") / "run")
    curve, file = SeenCurve(run), run / METRICS
    written, life = list[Point](), 0
    for what, last in lives:
        match what:
            case "grows":
                first = max((point.version for point in written), default=0) + 1
                written += [step(v, at=1e9 + life) for v in range(first, last + 1)]
                written += [evaluation(last, life / 8)] * (first <= last)
            case "is cut":
                written = [point for point in written if point.version <= last]
            case "is another":
                life += 1
                written = [
                    step(v, reward=life / 8, at=1e9 + life, alarms=["ess"])
                    for v in range(1, last + 1)
                ]
                written += [evaluation(last, life / 8)]
            case "is gone":
                written = []
        lines = b"".join(map(line_of, written))
        if what == "is another":
            (run / "other").write_bytes(lines)
            (run / "other").replace(file)
        elif what == "is gone":
            file.unlink(missing_ok=True)
        else:
            file.write_bytes(lines)
        if what != "is gone":  # what was seen of a file that is gone stands
            seen, fresh = SeenRun(run, 0.0, curve), SeenRun(run, 0.0)
            assert seen.figures == fresh.figures and seen.curves.last == fresh.curves.last
            assert seen.curves.alarmed == fresh.curves.alarmed
            assert seen.curves.steps == fresh.curves.steps
            assert seen.curves.evaluations == fresh.curves.evaluations


def test_what_was_seen_stands_while_the_curve_goes_on(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", POINTS[:5])
    curve = SeenCurve(run)
    before = curve.lines()
    with (run / METRICS).open("ab") as file:
        file.write(line_of(step(5)))
    assert curve.lines().steps["version"] == [1, 2, 3, 4, 5]
    assert before.steps["version"] == [1, 2, 3, 4] and before.last[-1].version == 4


def test_each_point_is_read_once(tmp_path: Path) -> None:
    """The second look at a long curve reads no more than what was added."""
    run = make_run(tmp_path / "run", POINTS)
    reader = CurveReader(run / METRICS)
    assert reader.replaced() and len([*reader.added()]) == len(POINTS)
    assert not reader.replaced() and [*reader.added()] == []
    with (run / METRICS).open("ab") as file:
        file.write(line_of(step(31)))
    assert [point.version for point in reader.added()] == [31]


def test_a_curve_that_is_not_there_yet_or_cannot_be_read(tmp_path: Path) -> None:
    curve = SeenCurve(tmp_path)
    assert curve.lines().last == []
    (tmp_path / METRICS).mkdir()
    with pytest.raises(ConfigError, match="cannot be read"):
        curve.lines()


@given(st.lists(st.floats(-1e6, 1e6) | st.none(), max_size=300), st.integers(1, 30))
def test_columns_are_bounded_and_lose_no_part_of_the_whole(
    values: list[float | None], times: int
) -> None:
    """The mean of the rows is that of the points, and the last row is the last point's place."""
    values = values * times
    columns = CurveColumns(("version", "seconds", "value"))
    for place, value in enumerate(values):
        columns.add([place, 2.0 * place, value])
    found = columns.numbers()
    assert len(found["version"]) < 2 * ROWS
    assert found["seconds"] == [2.0 * (place or 0) for place in found["version"]]
    places = found["version"]
    assert places == sorted(set(places)) and (not values or places[-1] == len(values) - 1)
    known = [value for value in values if value is not None]
    drawn = [value for value in found["value"] if value is not None]
    assert bool(known) == bool(drawn)
    if known:
        slack = 1e-3 * max(map(abs, known))
        assert min(known) - slack <= min(drawn) and max(drawn) <= max(known) + slack


def test_idle_is_that_of_each_step_also_after_a_resume(tmp_path: Path) -> None:
    """A curve has idle shares since its process began: 10 s idle in 20, then none in 20 more."""
    points = [
        step(1, at=1e9, seconds=20.0, idle_trainer=0.5),
        step(2, at=1e9 + 20, seconds=40.0, idle_trainer=0.25),
        step(3, at=1e9 + 900, seconds=50.0, idle_trainer=0.75),  # a new life, ten seconds old
        step(4, at=1e9 + 910, seconds=60.0, idle_trainer=0.5),
    ]
    lines = SeenCurve(make_run(tmp_path / "run", points)).lines()
    assert lines.steps["idle_trainer"] == [0.5, 0.0, 0.75, 0.25]
    assert lines.left_s(4, 14, at=1e9 + 910) == pytest.approx(10 * 40 / 3)
