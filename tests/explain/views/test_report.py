"""`asyncrl report`: one page about any run, with nothing of the run that a browser would obey."""

from __future__ import annotations

import json
import math
from base64 import b64encode
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hostile import HOSTILE_SUMMARY, hostile_status
from hypothesis import given
from hypothesis import strategies as st
from look_support import HOSTILE, make_run
from report_support import Parsed, whole_run

from asyncrl.cli import main
from asyncrl.config import ConfigError
from asyncrl.explain import summary
from asyncrl.explain.run_figures import RunFigures, run_figures
from asyncrl.explain.run_files import RunFiles
from asyncrl.explain.summary import TokenTotals
from asyncrl.explain.views import spark_line as spark
from asyncrl.explain.views.assets import SCRIPTS, asset
from asyncrl.explain.views.html_page import TEXT, lines, page, tag
from asyncrl.explain.views.report import report
from asyncrl.explain.views.spark_line import spark_line
from asyncrl.runtime.run_dir import JOURNAL, METRICS, STATUS, SUMMARY

ANY = st.text(st.characters(codec=None, exclude_categories=()))


def test_a_report_says_what_happened(tmp_path: Path) -> None:
    run = whole_run(tmp_path)
    tokens = TokenTotals(1000, 250, {"stale": 650}, 100)
    said = summary.Summary(ok=True, reason="all is done", steps=5, seconds=9.0, tokens=tokens)
    summary.write(said, run / SUMMARY)
    found = Parsed(report(run, 1e9 + 60))
    found.harmless()
    for text in (
        "ended early",
        "ended2001-09-09 01:46:40 UTC",
        "written at 2001-09-09 01:47:40 UTC",
        "65% of the generated tokens were too old",
        "all is done",
        "Held-out accuracy75%25% at first",
        "trainer waits for command",
        "most others: too old",
        "since its last start",
        "tokens/s at the end",
        "optimizer took",
        "stale650 (65%)",
        "rollout 0, train, prompt 7, group 0, reward 1, 2 tokens, version 3, stop, discarded: zero",
        "6 * 7sampled42versions 3",
    ):
        assert text in found.text, found.text
    assert " ago" not in found.text, "who reads it later knows no now"
    assert ("class", "v3 p0") in found.attributes and ("title", "version 3") in found.attributes
    [curves] = [value for name, value in found.attributes if name == "data-curves"]
    drawn = json.loads(curves or "")
    assert drawn["evaluations"] == {
        "version": [0, 5], "seconds": [10.5, 15.5], "accuracy": [0.25, 0.75]
    }  # fmt: skip
    assert drawn["steps"]["reward"] == [0.01, 0.02, 0.03, 0.04, 0.05]
    assert "k3" not in drawn["steps"], "nothing is known of it"


def test_what_is_no_run_is_refused_as_by_every_other_look(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for name in ("file", "nothing"):
        with pytest.raises(ConfigError, match="give the directory of a run"):
            report(tmp_path / name, 1e9)


def test_its_policy_allows_its_own_style_sheet_and_nothing_else(tmp_path: Path) -> None:
    found = Parsed(report(whole_run(tmp_path), 1e9))
    policies = [value for name, value in found.attributes if name == "content"]
    digests = [
        f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"
        for text in (found.style, *found.scripts)
    ]
    assert policies[0] == (
        f"default-src 'none'; style-src {digests[0]}; img-src data:; base-uri 'none'; "
        "form-action 'none'; "
        f"script-src {' '.join(digests[1:])}; require-trusted-types-for 'script'; "
        "trusted-types 'none'"
    )
    assert "url(" not in found.style and "@import" not in found.style
    assert found.scripts == [asset(name) for name in SCRIPTS]


def test_hostile_text_of_every_source_is_only_text(tmp_path: Path) -> None:
    run = whole_run(tmp_path, text="</pre><script>alert(1)</script>\x1b[2J\x7f")
    run_status_file = msgspec.structs.replace(hostile_status(), idle={"trainer": {HOSTILE: 0.5}})
    (run / STATUS).write_bytes(msgspec.json.encode(run_status_file))
    alarms = {HOSTILE: summary.Alarmed(2, HOSTILE)}
    said = msgspec.structs.replace(HOSTILE_SUMMARY, reason=HOSTILE, alarms=alarms)
    summary.write(said, run / SUMMARY)
    run = run.rename(tmp_path / "<script>alert(2)<script>"[:-8])
    found = Parsed(report(run, 1e9))
    found.harmless()
    assert "alert(1)" in found.text and "alert(2)" in found.text and "\\x1b[2J" in found.text


@given(ANY, ANY)
def test_no_text_and_no_attribute_breaks_out(text: str, value: str) -> None:
    source = page(text, "p{}", tag("p", text, title=value), tag("pre", lines(text)))
    source.encode()  # there are no surrogates left
    found = Parsed(source)
    found.harmless()
    assert found.tags[-2:] == ["p", "pre"] and found.tags.count("p") == 1


def test_long_text_is_cut_and_a_small_curve_is_bounded() -> None:
    assert len(lines("x\n" * TEXT)) == TEXT + 1
    drawn = spark_line([None, 1.0, math.nan, 2.0, 3.0, *range(10_000)])
    points = (dict(Parsed(drawn).attributes)["points"] or "").split()
    assert 2 < len(points) <= spark.POINTS
    assert points[0].startswith("2.0,") and points[-1] == "118.0,2.0"  # the largest is the last
    assert spark_line([]) == spark_line([1.0]) == spark_line([None, math.inf]) == ""
    assert dict(Parsed(spark_line([0.5, 0.5])).attributes)["points"] == "2.0,15.0 118.0,15.0"


FIGURES = RunFigures(
    run="r", standing="ended", step=9, steps=9, seconds=1.0, evaluations=[], reward_first=None,
    reward_last=None, generated_per_s=None, trained_per_s=None, idle_trainer=0.1, idle_rollout=0.1,
    lag_mean=None, lag_max=0, pause_seconds=None, tokens=TokenTotals(1000, 1000), restarts=0,
    alarms=0,
)  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, None),
        ({"idle_trainer": None}, None),
        ({"idle_trainer": 0.5}, "rollout.actors"),
        ({"idle_rollout": 0.5}, "machine.trainer_cores"),
        ({"idle_trainer": 0.5, "idle_rollout": 0.4}, "staleness.depth"),
        ({"tokens": TokenTotals(1000, 100, {"zero_variance": 900})}, "rollout.group_size"),
        ({"tokens": TokenTotals(1000, 900, {"stale": 100})}, "staleness.max_lag"),
        ({"raised": ["88% of the responses were cut"]}, "88% of the responses were cut"),
    ],
)
def test_what_to_change_follows_from_one_number(changes: dict[str, Any], said: str | None) -> None:
    found = msgspec.structs.replace(FIGURES, **changes).changes
    assert len(found) == (said is not None) and (said is None or said in found[0])


def test_a_run_of_which_little_is_known_has_a_report(tmp_path: Path) -> None:
    run = make_run(tmp_path / "r")
    (run / METRICS).unlink()
    found = Parsed(report(run, 1e9))
    found.harmless()
    assert found.text.count("this run has no status yet") == 1, "once is enough"
    assert "there is no journal" in found.text
    (run / JOURNAL).write_bytes(b"\xff" * 4096)
    assert "damaged, or not a journal" in Parsed(report(run, 1e9)).text
    assert run_figures(RunFiles(run)).standing == "failed"


def test_the_file_is_whole_and_an_earlier_one_is_replaced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = whole_run(tmp_path)
    for _ in range(2):
        assert main(["report", str(run)]) == 0
        assert capsys.readouterr().out == f"{run / 'report.html'} is written.\n"
    Parsed((run / "report.html").read_text()).harmless()
    other = tmp_path / "mine.html"
    assert main(["report", str(run), "-o", str(other)]) == 0
    assert other.read_text().startswith("<!doctype html>") and not [*tmp_path.rglob("*.partial")]
    capsys.readouterr()
    for arguments in (
        [str(run), "-o", str(tmp_path / "none" / "x.html")],
        [str(tmp_path)],
        [str(tmp_path / "none")],
    ):
        assert main(["report", *arguments]) == 2
        out, err = capsys.readouterr()
        assert out == "" and err.count("\n") == 1
