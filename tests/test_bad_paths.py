"""Paths that cannot be used: each argument and each setting that takes a path answers with one
sentence that names it, and status 2.

All of it is one process, which may not search every folder, as root may. It is this file, run as a
script: `python tests/test_bad_paths.py FOLDER`.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, NoReturn

import pytest

OTHERS = {
    "below closed": "closed/in",
    "long name": "n" * 300,
    "long path": "/".join(["d" * 200] * 25),
    "link to nowhere": "dangling",
    "below a link to nowhere": "dangling/in",
    "below a link to itself": "loop/in",
    "pipe": "pipe",
}
FIRST = {
    "link to itself": "loop",
    "nul": "a\0b",
    "closed": "closed",
    "below a file": "file/in",
}
"""Places that `make test` tries; CI has the others, too, and the parts of a run below."""
PLACES = FIRST | OTHERS
READS: dict[str, list[str]] = {
    "why": ["why", "P"],
    "report": ["report", "P"],
    "compare": ["compare", "P", "run"],
    "compare, the second": ["compare", "run", "P"],
    "rollouts": ["rollouts", "P"],
    "top": ["top", "P"],
    "calibrate": ["calibrate", "P"],
    "resume": ["train", "--resume", "P"],
    "check, run.toml": ["check", "P"],
    "train, run.toml": ["train", "P"],
    "simulate": ["simulate", "P"],
    "simulate, models": ["simulate", "run/run.toml", "--models", "P"],
    "agent": ["agent", "--join", "P"],
    "init": ["init", "P.jsonl"],
    "init, a name": ["init", "P"],
    "model": ["check", "--set", "model.path=P"],
    "data": ["check", "--set", "task.name=jsonl", "--set", "task.path=P"],
    "held-out data": [
        *("check", "--set", "task.name=jsonl", "--set", "task.path=data.jsonl"),
        *("--set", "task.eval_path=P"),
    ],
    "reference": ["check", "--set", "reference.coefficient=0.1", "--set", "reference.path=P"],
    "reference's key": [
        *("check", "--set", "reference.coefficient=0.1", "--set", "model.path=P"),
        *("--set", "reference.server=http://127.0.0.1:1", "--set", "reference.api_key_file=P"),
    ],
    "teacher": ["check", "--set", "teacher.coefficient=0.1", "--set", "teacher.path=P"],
    "examples": ["check", "--set", "supervised.coefficient=1", "--set", "supervised.path=P"],
    "servers' key": [
        *("check", "--set", "engine.kind=sglang", "--set", "engine.sglang.api_key_file=P"),
        *("--set", "engine.sglang.urls=['http://127.0.0.1:1']", "--set", "model.path=P"),
    ],
    "agent's script": ["check", "--set", "agent.run=['python3', 'P.py']"],
    "agent's files": [
        *("check", "--set", "agent.run=['python3', 'agent.py']", "--set", "agent.sandbox=bwrap"),
        *("--set", "agent.paths=['P']"),
    ],
}
WRITES: dict[str, list[str]] = {
    "report's file": ["report", "run", "-o", "P"],
    "rollouts' file": ["rollouts", "run", "-o", "P"],
    "calibrate's file": ["calibrate", "run", "-o", "P"],
    "fetch": ["fetch", "file://store", "P"],
    "agent's directory": ["agent", "--join", "token", "--dir", "P"],
    "run directory": ["check", "--set", "run.dir=P"],
    "run directory of a start": ["train", "--set", "run.dir=P"],
    "copy": ["check", "--set", "run.copy=P"],
}
LIGHT = ["--set", "task.name=chain_sum"]
"""A task that is opened in no time; the one that runs have reads a book."""
HUB = "HF_ENDPOINT"
"""The address of a hub for paths that may be names of models; nothing answers at this one."""
FINE = {
    ("copy", "link to nowhere"),
    ("copy", "below a link to nowhere"),
    ("agent's files", "pipe"),
}
"""A copy's directory may be made where a link of the user's leads, and a program may see a pipe;
whether the run can start then depends on the machine."""


PARTS = [
    *("run.toml", "status.json", "summary.json", "stall.json", "metrics.jsonl", "journal.sqlite"),
    *("lock", "key", "checkpoints", "logs", "model", "initial", "origins.json", "report.html"),
]
"""Files and folders of a run, which may each be closed to whom looks at it."""


class _Waits(BaseException):
    """A command has not returned."""


class Outcome(NamedTuple):
    call: str
    place: str
    status: int | None
    said: str


def call_all(folder: Path, places: dict[str, str]) -> Iterator[Outcome]:
    """Try these places for every argument, in a folder that has them; after the others, the parts
    of a run as well."""
    from asyncrl.cli import main
    from asyncrl.config import Config, write
    from asyncrl.launch.cluster.join_token import JoinToken, Pem
    from asyncrl.runtime.ipc.keys import new_key

    def late(*_: object) -> NoReturn:
        raise _Waits

    signal.signal(signal.SIGALRM, late)
    os.chdir(folder)
    os.environ.pop("COLUMNS", None)
    for made in ("run", "closed/in", "store", "files"):
        Path(made).mkdir(parents=True, mode=0o700)
    write(Config(), Path("run/run.toml"))
    Path("file").touch()
    Path("agent.py").write_text("")
    Path("data.jsonl").write_text('{"prompt": "a", "answer": "b"}\n' * 30)
    Path("dangling").symlink_to("nowhere")
    Path("loop").symlink_to("loop")
    os.mkfifo("pipe")
    nowhere = os.environ[HUB].replace("http://", "tcp:")
    JoinToken(nowhere, new_key(), Pem("", "", "")).write(Path("token"))
    Path("closed").chmod(0)
    before = sorted(Path().iterdir())

    def outcome(call: str, place: str, argv: list[str]) -> Outcome:
        said = io.StringIO()
        status: int | None = None
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
            signal.alarm(30)  # ends what waits for a pipe, by an uncaught error
            try:
                status = main(argv)
            except SystemExit as end:
                status = end.code if isinstance(end.code, int) else None
            except (Exception, _Waits):  # noqa: BLE001  # an error of any kind is the finding
                said.write(traceback.format_exc())
            signal.alarm(0)
        return Outcome(call, place, status, said.getvalue())

    for call, words in {**READS, **WRITES}.items():
        own = (
            words[0] not in ("check", "train") or "task.name=jsonl" in words or "--resume" in words
        )
        for place, path in places.items():
            argv = [word.replace("P", path) for word in words]
            yield outcome(call, place, argv if own else [*argv, *LIGHT])
    assert sorted(Path().iterdir()) == before, "something was made"
    for part in PARTS if places == OTHERS else ():
        path = Path("run", part)
        path.touch() if "." in part or part in ("lock", "key") else path.mkdir()
        mode = path.stat().st_mode
        path.chmod(0)
        for call, words in READS.items():
            if "P" in words and words[0] not in ("check", "init", "simulate", "agent"):
                yield outcome(f"{call} of a part", part, [w.replace("P", "run") for w in words])
        path.chmod(mode)
        if part != "run.toml":
            shutil.rmtree(path) if path.is_dir() else path.unlink()


@pytest.fixture(scope="module", params=["FIRST", pytest.param("OTHERS", marks=pytest.mark.explore)])
def outcomes(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> list[Outcome]:
    folder = tmp_path_factory.mktemp("paths")
    command = [sys.executable, __file__, str(folder), request.param]
    if os.geteuid() == 0:
        if shutil.which("setpriv") is None:
            pytest.skip("root may search every folder, and there is no setpriv")
        rights = "-dac_override,-dac_read_search"
        command = ["setpriv", f"--bounding-set={rights}", f"--inh-caps={rights}", *command]
    from closed_port import closed_port  # a script does not find it

    nowhere = os.environ | {HUB: f"http://127.0.0.1:{closed_port()}"}
    ran = subprocess.run(command, env=nowhere, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr
    return [Outcome(*outcome) for outcome in json.loads(ran.stdout)]


def test_a_path_that_cannot_be_used_is_one_sentence(outcomes: list[Outcome]) -> None:
    wrong = [
        outcome
        for outcome in outcomes
        if outcome.place in PLACES
        and (outcome.call, outcome.place) not in FINE
        and not (
            outcome.status == 2
            and outcome.said.startswith("asyncrl: ")
            and outcome.said.count("\n") == 1
            and len(outcome.said) < 1200
        )
    ]
    outcomes = [outcome for outcome in outcomes if outcome.place in PLACES]
    tried = {outcome.place for outcome in outcomes}
    assert tried == {*FIRST} or tried == {*OTHERS}
    assert len(outcomes) == (len(READS) + len(WRITES)) * len(tried)
    assert not wrong, "\n\n".join(
        f"{call}, {place}: {status} {said[-1500:]}" for call, place, status, said in wrong
    )


def test_the_sentence_names_the_path_or_its_setting(outcomes: list[Outcome]) -> None:
    for call, place, _, said in outcomes:
        if place in PLACES and (call, place) not in FINE:
            assert PLACES[place].partition("\0")[0][:20] in said, (call, place, said)


def test_a_part_of_a_run_that_cannot_be_read_is_no_traceback(outcomes: list[Outcome]) -> None:
    seen = [outcome for outcome in outcomes if outcome.place in PARTS]
    assert len(seen) >= 8 * len(PARTS) or outcomes[0].place in FIRST
    wrong = [one for one in seen if one.status not in (0, 2) or "Traceback" in one.said]
    assert not wrong, "\n\n".join(f"{one.call}, {one.place}: {one.said[-1500:]}" for one in wrong)


if __name__ == "__main__":
    print(json.dumps([*call_all(Path(sys.argv[1]), globals()[sys.argv[2]])]))
