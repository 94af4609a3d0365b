"""`asyncrl compare`: the numbers of runs side by side, and the settings in which they differ."""

from __future__ import annotations

import fcntl
import json
import sys
from pathlib import Path

import msgspec
import pytest
from look_support import HOSTILE, evaluation, make_run, status, step

from asyncrl.cli import main
from asyncrl.explain import run_status
from asyncrl.explain.rows import figure_rows
from asyncrl.explain.run_figures import RunFigures, run_figures
from asyncrl.explain.run_files import RunFiles
from asyncrl.explain.summary import TokenTotals
from asyncrl.explain.views.compare import compare, differing, rows
from asyncrl.runtime.run_dir import LOCK, METRICS, STALL, STATUS, SUMMARY

POINTS = [evaluation(0, 0.25), *(step(v) for v in range(1, 31)), evaluation(20, 0.75)]


def figures_of(run: Path) -> RunFigures:
    return run_figures(RunFiles(run))


def test_the_numbers_of_a_run_follow_from_its_curve(tmp_path: Path) -> None:
    found = figures_of(make_run(tmp_path / "a", [*POINTS, evaluation(30, 0.5)]))
    assert (found.step, found.seconds, found.lag_max, found.alarms) == (30, 40.5, 2, 0)
    assert found.reward_first == pytest.approx(sum(range(1, 11)) / 1000)
    assert found.reward_last == pytest.approx(sum(range(21, 31)) / 1000)
    assert found.generated_per_s == 100.0 and found.trained_per_s == 40.0  # 29 steps in 29 seconds
    assert found.tokens == TokenTotals(3000, 1200, {"stale": 300})
    assert found.discarded_share == 0.1 and found.pause_seconds == 0.25
    assert found.best is not None and (found.best.version, found.best.accuracy) == (20, 0.75)
    assert [found.seconds_to(x) for x in (0.25, 0.5, 0.75, 0.76)] == [10.5, 30.5, 30.5, None]


def test_an_evaluation_without_an_accuracy_is_neither_the_best_nor_one_that_had_it(
    tmp_path: Path,
) -> None:
    none = msgspec.structs.replace(evaluation(30, 0.5), accuracy=None, asked=0, prompts=12)
    found = figures_of(make_run(tmp_path / "a", [*POINTS, none]))
    assert found.best is not None and found.best.version == 20
    assert found.seconds_to(0.0) == 10.5
    assert ("held-out accuracy", "0.250 → –, over 0 of 12 prompts") in figure_rows(found)


def test_a_mean_lag_counts_tokens_and_not_steps(tmp_path: Path) -> None:
    points = [step(1, lag_mean=0.0, trained=10), step(2, lag_mean=4.0, trained=30)]
    assert figures_of(make_run(tmp_path / "a", points)).lag_mean == 3.0


def test_a_run_without_a_point_has_no_number(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a")
    (run / METRICS).unlink()
    found = figures_of(run)
    assert (found.best, found.generated_per_s, found.lag_mean, found.discarded_share) == (None,) * 4
    assert "–" in str(rows(compare([run])))


def test_a_line_that_is_half_written_is_left_out(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", POINTS)
    with (run / METRICS).open("ab") as file:
        file.write(b'{"kind":"step","version":31')
    assert figures_of(run).step == 30


def test_how_a_run_stands(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a")
    assert figures_of(run).standing == "failed"
    with (run / LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert figures_of(run).standing == "begins"
        run_status.write(status(), run / STATUS)
        assert figures_of(run).standing == "goes on"
    assert figures_of(run).standing == "killed"
    run_status.write(status(ok=False, reason="x"), run / STATUS)
    assert figures_of(run).standing == "failed"
    run_status.write(status(ok=True, reason="x"), run / STATUS)
    assert figures_of(run).standing == "ended"
    run_status.write(status(), run / STALL)
    assert figures_of(run).standing == "stalled"


def test_settings_differ_by_value_and_not_by_place_or_name_of_the_run() -> None:
    same = {"train.lr": float("nan"), "a.b": [1, 2]}
    one, two = same | {"run.dir": "x", "c.d": True}, same | {"run.dir": "y", "c.d": 1}
    assert differing([one, two]) == {"c.d": [True, 1]}
    assert differing([one, same]) == {"c.d": [True, None]}
    assert differing([one]) == {}


def test_no_module_that_a_setting_names_is_imported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "planted.py").write_text("raise SystemExit('executed')\n")
    monkeypatch.syspath_prepend(tmp_path)
    runs = [make_run(tmp_path / n, POINTS, f"[task]\nname = 'planted:{n}'\n") for n in "ab"]
    assert main(["compare", *map(str, runs)]) == 0
    assert "'planted:a'" in capsys.readouterr().out and "planted" not in sys.modules


def test_runs_of_an_unknown_setting_are_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run of another version is one, too."""
    runs = [
        make_run(tmp_path / "a", POINTS, "[train]\nlr = 0.1\nunheard_of = 3\n"),
        make_run(tmp_path / "b", [evaluation(0, 0.5)], "[train]\nlr = 0.2\n"),
    ]
    assert main(["compare", *map(str, runs), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["differing"] == {"train.lr": [0.1, 0.2], "train.unheard_of": [3, None]}
    assert said["accuracy"] == 0.5  # what both had
    assert [run["seconds_to_accuracy"] for run in said["runs"]] == [30.5, 10.5]
    assert main(["compare", *map(str, runs), "--accuracy", "0.75"]) == 0
    shown = capsys.readouterr().out
    assert "until accuracy 0.750" in shown and "never" in shown


def test_what_others_wrote_is_shown_escaped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [
        make_run(tmp_path / "a\x1b[2J", [step(1, discarded={HOSTILE: 100})]),
        make_run(tmp_path / "b", [step(1)], '[task]\nname = "\\u001b[2J"\n'),
    ]
    assert main(["compare", *map(str, runs)]) == 0
    shown = capsys.readouterr().out
    assert all(one.isprintable() for one in shown.replace("\n", "")) and "\\x1b[2J" in shown
    assert main(["compare", *map(str, runs), "--json"]) == 0
    shown = capsys.readouterr().out
    assert all(one.isprintable() for one in shown.replace("\n", ""))
    assert HOSTILE in json.loads(shown)["runs"][0]["tokens"]["discarded"]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("run.toml", None, "no run.toml in it"),
        ("run.toml", b"[train\n", "not TOML"),
        ("run.toml", b"#" * 2**21, "is no run.toml"),
        (STATUS, b"{", "damaged, or of another asyncrl"),
        (SUMMARY, b'{"ok": 3}', "damaged, or of another asyncrl"),
    ],
)
def test_bad_input_is_one_sentence_and_status_2(
    name: str, content: bytes | None, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(tmp_path / "a", POINTS)
    if content is None:
        (run / name).unlink()
    else:
        (run / name).write_bytes(content)
    assert main(["compare", str(run)]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and said in err
    assert main(["compare", str(tmp_path / "nowhere")]) == 2
    assert "there is no such directory" in capsys.readouterr().err
