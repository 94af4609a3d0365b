"""The harness of bench/gpu.py: limits, last words, and a report that is whole whatever happens."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from gpu_kit import child, wheels
from gpu_kit.check import (
    Check,
    Failed,
    Lacks,
    Missed,
    Number,
    Ok,
    Place,
    Skipped,
    TimedOut,
    as_json,
    judged,
)
from gpu_kit.harness import (
    INTERRUPTED,
    NO_TIME,
    NOT_REACHED,
    Interrupted,
    Report,
    good,
    run_all,
    run_one,
    summary,
)

WRITES = """
import json, sys
with open(sys.argv[2], "w") as file:
    json.dump({"numbers": [dict(name="n", value=2.0, least=%s)]}, file)
"""
STARTS = """
import subprocess, sys, time
held = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
with open(sys.argv[3], "w") as file:
    file.write(str(held.pid))
print("waiting for a peer", flush=True)
"""


def gone(pid: int) -> bool:
    """True if this process ends soon: a kill takes a moment on a busy machine."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    waiting = select.poll()
    waiting.register(descriptor, select.POLLIN)
    ended = bool(waiting.poll(10_000))
    os.close(descriptor)
    return ended


class Script(subprocess.Popen[bytes]):
    """A process that leads a group of its own."""

    def wait(self, seconds: float | None = None) -> int:
        return super().wait(seconds)


def scripts(*extra: str, **of_check: str):
    """Starts these scripts, by the names of checks, with their extra arguments."""

    def start(name: str, folder: Path, answer: Path, log: Path, _: float) -> Script:
        argv = [sys.executable, "-c", of_check[name], str(folder), str(answer), *extra]
        with log.open("wb") as written:
            return Script(argv, stdout=written, stderr=written, process_group=0)

    return start


def one(script: str, *extra: str, seconds: float = 30.0):
    return run_one("it", seconds, scripts(*extra, it=script))


def test_a_child_that_hangs_is_killed_with_all_it_started(tmp_path: Path) -> None:
    place, start = tmp_path / "pid", time.monotonic()
    verdict = one(STARTS + "time.sleep(600)", str(place), seconds=3.0)
    assert isinstance(verdict, TimedOut) and verdict.last == "waiting for a peer"
    assert 3.0 <= time.monotonic() - start < 20.0
    assert gone(int(place.read_text()))


def test_what_a_child_left_behind_is_killed_too(tmp_path: Path) -> None:
    place = tmp_path / "pid"
    assert isinstance(one(STARTS + WRITES % "None", str(place)), Ok)
    assert gone(int(place.read_text()))


def test_last_words_of_a_child_are_its_verdict() -> None:
    assert one("raise ValueError('no such\\nrank')") == Failed("rank")
    assert one("import sys; sys.exit(3)") == Failed("ended with status 3 and no answer")
    killed = "import os, signal; print('at work', flush=True); os.kill(os.getpid(), signal.SIGSEGV)"
    assert one(killed) == Failed("killed by SIGSEGV; at work")


def test_answers_become_verdicts() -> None:
    assert isinstance(one(WRITES % "2.0"), Ok)
    assert isinstance(one(WRITES % "2.5"), Missed)


def test_a_verdict_follows_from_bounds() -> None:
    inside, outside = Number("a", 1.0, least=1.0, most=1.0), Number("b", 1.0, most=0.5)
    none, free = Number("c", float("nan"), least=0.0), Number("d", float("nan"))
    assert judged([inside, free]) == Ok((inside, free))
    assert isinstance(judged([inside, outside]), Missed) and isinstance(judged([none]), Missed)
    assert judged([inside, outside]).said.startswith("b 1")  # what missed comes first
    assert isinstance(judged([]), Failed)
    assert as_json(judged([none]))["numbers"][0]["value"] is None


def answered(check: Check, folder: Path) -> dict[str, object]:
    answer = folder / "answer.json"
    child.run(check, Place("cpu", folder, True), answer)
    return json.loads(answer.read_text())


def test_a_child_answers_with_numbers_a_lack_or_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lacking(_: Place) -> list[Number]:
        raise Lacks("sglang is not installed")

    def failing(_: Place) -> list[Number]:
        raise ExceptionGroup("of a nursery", [ValueError("two\nlines")])

    monkeypatch.setattr(wheels, "found", lambda _: [Number("n", 1.0)], raising=False)
    monkeypatch.setattr(wheels, "lacking", lacking, raising=False)
    monkeypatch.setattr(wheels, "failing", failing, raising=False)
    checks = {
        name: Check(name, f"wheels:{name}", "", 1.0)
        for name in ("found", "lacking", "failing", "gone")
    }
    assert [number["value"] for number in answered(checks["found"], tmp_path)["numbers"]] == [1.0]
    assert answered(checks["lacking"], tmp_path) == {"lacks": "sglang is not installed"}
    assert answered(checks["failing"], tmp_path) == {"error": "ValueError: two lines"}
    assert "AttributeError" in answered(checks["gone"], tmp_path)["error"]


def checks(*names: str, seconds: float = 20.0) -> list[Check]:
    return [Check(name, "", f"floor of {name}", seconds) for name in names]


def ran(path: Path, chosen: list[Check], command, *, left: float = 60.0, lacks=lambda _: None):
    """Run them all; the report as it is read, and the rows that were said."""
    said: list[str] = []
    report = Report(path, {"gpu": None}, chosen)
    run_all(
        chosen,
        report,
        command,
        ends_at=time.monotonic() + left,
        lacks=lacks,
        say=said.append,
    )
    return report, json.loads(path.read_text()), said


def test_each_check_has_a_row_and_a_place_in_the_report(tmp_path: Path) -> None:
    chosen = checks("good", "bad", "lacking", "broken")
    command = scripts(good=WRITES % "1.0", bad=WRITES % "3.0", broken="raise ValueError('a | b')")
    report, found, said = ran(
        tmp_path / "new" / "report.json",
        chosen,
        command,
        lacks=lambda check: "no CUDA device" if check.name == "lacking" else None,
    )
    words = [row["verdict"] for row in found["checks"]]
    assert words == ["ok", "missed", "skipped", "failed"]
    assert found["checks"][2]["said"] == "no CUDA device"
    assert found["checks"][3]["said"] == "ValueError: a | b"
    assert all(row.count("|") == 6 for row in said) and len(said) == 6
    assert report.numbers() == {("good", "n"): 2.0, ("bad", "n"): 2.0}
    assert summary(chosen, report) == "1 ok, 1 missed, 1 skipped, 1 failed"
    assert not good(chosen, report)
    assert good([chosen[0], chosen[2]], report)


def test_what_may_not_fit_into_the_time_left_is_skipped_by_name(tmp_path: Path) -> None:
    chosen = [*checks("long", seconds=50.0), *checks("short", seconds=10.0)]
    command = scripts(long=WRITES % "None", short=WRITES % "None")
    report, found, _ = ran(tmp_path / "report.json", chosen, command, left=30.0)
    assert report.verdict(chosen[0]) == Skipped(NO_TIME)
    assert [row["verdict"] for row in found["checks"]] == ["skipped", "ok"]


def test_a_signal_leaves_a_whole_report(tmp_path: Path) -> None:
    def interrupt(*_: object) -> None:
        raise Interrupted

    chosen = checks("first", "asks", "last")
    asks = "import os, signal, time; os.kill(os.getppid(), signal.SIGUSR1); time.sleep(600)"
    command = scripts(first=WRITES % "None", asks=asks, last=WRITES % "None")
    path, before = tmp_path / "report.json", signal.signal(signal.SIGUSR1, interrupt)
    try:
        with pytest.raises(Interrupted):
            ran(path, chosen, command)
    finally:
        signal.signal(signal.SIGUSR1, before)
    rows = json.loads(path.read_text())["checks"]
    assert [row["verdict"] for row in rows] == ["ok", "failed", "skipped"]
    assert [row["said"] for row in rows][1:] == [INTERRUPTED, NOT_REACHED]


def test_the_report_names_every_check_before_the_first_is_run(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    Report(path, {"gpu": "none"}, checks("one", "two"))
    found = json.loads(path.read_text())
    assert found["machine"] == {"gpu": "none"}
    assert [row["said"] for row in found["checks"]] == [NOT_REACHED] * 2
    assert [each.name for each in tmp_path.iterdir()] == ["report.json"]
