"""The command: bad input is one sentence and exit status 2, and nothing heavy is imported before it
is needed."""

from __future__ import annotations

import errno
import os
import re
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, NoReturn

import pytest
from look_support import evaluation, life, make_journal, make_run, status, step
from some_values import some

from asyncrl import cli
from asyncrl.cli import VERBS, main
from asyncrl.config import VARIABLES, Config, read
from asyncrl.experience.events import Published


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", *VARIABLES):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Config, Path | None]]:
    """Requests to the launcher, which is not the point here. It ends with status 1."""
    calls: list[tuple[Config, Path | None]] = []
    launcher = ModuleType("asyncrl.launch.launcher")

    def launch(config: Config, *, resume: Path | None, console: Any) -> int:
        assert read(Path(config.run.dir) / "run.toml") == config
        calls.append((config, resume))
        return 1

    launcher.launch = launch  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "asyncrl.launch.launcher", launcher)
    return calls


def test_a_task_that_executes_answers_is_refused_without_the_sandbox(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["check", "--set", "task.name=n_queens", "--set", "task.sandbox=process"]) == 2
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1 and "executes what the model answers" in said[0]


SMALL = ["--set", "task.train_size=20", "--set", "task.eval_size=4"]


def test_train_resolves_claims_and_launches(
    launched: list[Any], here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASYNCRL_RUN_DIR", "r")
    Path("run.toml").write_text("[train]\nsteps = 3\n")
    assert main(["train", "run.toml", *SMALL, "--set", "train.lr=0.5"]) == 1
    [(config, resume)] = launched
    assert (config.run.dir, config.train.steps, config.train.lr, resume) == (
        str(here / "r"),
        3,
        0.5,
        None,
    )


def test_resume_goes_on_with_the_runs_own_configuration(launched: list[Any], here: Path) -> None:
    main(["train", *SMALL, "--set", "run.dir=r", "--set", "train.lr=0.5"])
    assert main(["train", "--resume", "r", "--set", "train.steps=999"]) == 1
    config, resume = launched[-1]
    assert (config.train.lr, config.train.steps, resume) == (0.5, 999, here / "r")


def test_a_run_of_a_later_version_is_said_to_be_one(
    launched: list[Any], here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its run.toml may have settings that this version does not know."""
    main(["train", *SMALL, "--set", "run.dir=r"])
    with Path("r/run.toml").open("a") as file:
        file.write("\n[later]\nx = 1\n")
    capsys.readouterr()
    text = Path("r/start.json").read_text()
    later = re.sub('"asyncrl": "[^"]*"', '"asyncrl": "0.0.7"', text)
    for start, said in ((later, "by asyncrl 0.0.7, and this is"), (text, ""), ("{", "")):
        Path("r/start.json").write_text(start)
        for verb in (["train", "--resume", "r"], ["calibrate", "r"]):
            assert main(verb) == 2
            [line] = capsys.readouterr().err.splitlines()
            assert "no section later" in line and said in line
            assert bool(said) == ("asyncrl 0.0.7" in line)
    assert len(launched) == 1


@pytest.mark.parametrize(
    ("header", "named"),
    [
        ("CREATE TABLE header (format INTEGER, run TEXT)", "not a journal of asyncrl"),
        ("CREATE TABLE other (format INTEGER, run TEXT)", "not a journal of asyncrl"),
        (
            "CREATE TABLE header (format INTEGER NOT NULL, run TEXT NOT NULL);"
            "INSERT INTO header VALUES (2, '')",
            "has format 2, but this asyncrl",
        ),
    ],
)
def test_a_journal_of_another_format_or_of_none_is_refused_before_anything_starts(
    header: str, named: str, launched: list[Any], here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`why` reads no journal, so it answers as ever."""
    main(["train", *SMALL, "--set", "run.dir=r"])
    with closing(sqlite3.connect("r/journal.sqlite")) as file, file:
        file.executescript(header)
        file.execute("CREATE TABLE events (first INTEGER PRIMARY KEY, data BLOB NOT NULL)")
    files = {path: path.read_bytes() for path in here.glob("r/*")}
    capsys.readouterr()
    assert main(["train", "--resume", "r"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("asyncrl: ") and err.count("\n") == 1 and named in err
    assert "another run.dir" in err and len(launched) == 1
    assert {path: path.read_bytes() for path in here.glob("r/*")} == files
    assert main(["why", "r"]) == 2
    assert "this run has no status yet" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        (["train", "--set", "train.stesp=3"], "train.steps"),
        (["train", "none.toml"], "none.toml"),
        (
            ["train", "--resume", "none"],
            "none: there is no such directory; give the directory of a run",
        ),
        (["train", *SMALL, "--set", "task.name=spell_backwards"], "spell_backward"),
        (["check", *SMALL, "--set", "model.path=nowhere"], "nowhere"),
        (["check", "--set", "rollout.k_min=99"], "rollout.group_size"),
    ],
)
def test_bad_input_is_one_sentence_and_status_2(
    argv: list[str], named: str, launched: list[Any], here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(argv) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("asyncrl: ") and err.count("\n") == 1 and named in err
    assert launched == [] and list(here.iterdir()) == []


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["trian"],
        ["train", "a", "b"],
        ["train", "--sets", "a=1"],
        ["check", "--resume", "r"],
        ["check", "--\x1b[2Jx"],
        ["\x1b[2Jx"],
        ["rollouts", "--last", "\x1b[2J"],
    ],
)
def test_a_wrong_command_line_is_status_2(
    argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(argv)
    said = capsys.readouterr().err
    assert ended.value.code == 2 and "usage: asyncrl" in said
    assert all(map(str.isprintable, said.splitlines()))


def test_check_shows_what_follows_and_starts_nothing(
    launched: list[Any], here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", *SMALL, "--set", "train.steps=1234"]) == 0
    out = capsys.readouterr().out
    assert "1,234" in out and "This configuration can run." in out
    assert launched == [] and list(here.iterdir()) == []


@pytest.mark.parametrize("verb", [("check",), ("train",), ("runs",), ("init", "a.jsonl")])
def test_a_current_directory_that_is_gone_is_one_sentence(
    verb: tuple[str, ...], here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "gone").mkdir()
    os.chdir(here / "gone")
    (here / "gone").rmdir()
    try:
        assert main(verb) == 2
    finally:
        os.chdir(here)
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("asyncrl: the current directory is gone (No such file or directory)")


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (OSError(errno.EMFILE, "Too many open files"), "let a process open more files (ulimit -n)"),
        (MemoryError(), "(MemoryError): make room in memory"),
    ],
)
def test_a_machine_without_room_is_one_sentence(
    error: Exception,
    says: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def lacking(_: object) -> NoReturn:
        raise error

    monkeypatch.setitem(VERBS, "check", lacking)
    assert main(["check"]) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("asyncrl: this machine has no room for `check` (") and says in line
    monkeypatch.setitem(VERBS, "check", lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        main(["check"])


def test_a_width_of_zero_hides_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some editors set it for what they start."""
    monkeypatch.setenv("COLUMNS", "0")
    monkeypatch.setenv("LINES", "0")
    assert main(["tasks"]) == 0
    assert "chain_sum" in capsys.readouterr().out


def test_the_package_is_the_command() -> None:
    command = [sys.executable, "-m", "asyncrl", "settings", "nothing"]
    ran = subprocess.run(command, capture_output=True, text=True)
    assert ran.returncode == 2 and ran.stderr.startswith("asyncrl: ")


def test_help_says_what_to_type(capsys: pytest.CaptureFixture[str]) -> None:
    for argv in (["--help"], ["help"], ["train", "--help"], ["help", "train"]):
        with pytest.raises(SystemExit) as ended:
            main(argv)
        out = capsys.readouterr().out
        assert ended.value.code == 0 and "asyncrl train run.toml" in out
    assert "`asyncrl settings` lists the basic ones" in out


class Called(NamedTuple):
    """Output of a process that calls commands, and the modules that it has then."""

    out: str
    err: str
    modules: set[str]


def called(*commands: list[str], **variables: str) -> Called:
    script = f"""
import sys
from asyncrl.cli import main
for argv in {list(commands)!r}:
    try:
        main(argv)
    except SystemExit:
        pass
print("\\n" + " ".join(sys.modules))
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ | variables,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return Called(done.stdout, done.stderr, set(done.stdout.splitlines()[-1].split()))


def test_help_imports_nothing_heavy() -> None:
    assert not called(["train", "--help"]).modules & {
        "torch",
        "numpy",
        "rich",
        "msgspec",
        "trio",
        "reasoning_gym",
        "asyncrl.config",
    }


def test_a_check_never_imports_torch_and_a_terminal_may_know_ascii_only(here: Path) -> None:
    done = called(["check", *SMALL], PYTHONIOENCODING="ascii")
    assert not done.modules & {"torch", "transformers"}
    assert "This configuration can run." in done.out and done.err == ""


def test_the_page_of_commands_has_every_verb() -> None:
    page = (Path(__file__).parent.parent / "docs" / "commands.md").read_text()
    assert sorted(re.findall(r"^\| `([a-z]+)` \|", page, re.MULTILINE)) == sorted(VERBS)


def test_looking_at_a_run_never_imports_torch(here: Path) -> None:
    run = make_run(here / "r", [evaluation(0, 0.5), step(1)], status=status(ok=True, reason="done"))
    make_journal(run, [Published(0)])
    commands = [["compare", str(run), "--json"]]
    commands += [[verb, str(run)] for verb in ("rollouts", "top", "report")]
    assert not called(*commands).modules & {"torch", "transformers"}


@pytest.mark.parametrize("verb", some(["rollouts", "compare", "top"]))
def test_a_reader_who_leaves_is_no_failure(verb: str, here: Path) -> None:
    points = [step(version) for version in range(1, 9)]
    run = make_run(here / "r", points, status=status(ok=True, reason="done"))
    make_journal(run, [Published(0)], *[life(group) for group in range(9)])
    command = [sys.executable, "-m", "asyncrl.cli", verb, str(run)]
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, timeout=120)
    os.close(writing)
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr


@pytest.mark.parametrize("at", ["parser", "VERBS"])
def test_ctrl_c_is_no_traceback_at_any_moment(at: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was one while modules were imported, before the verb."""

    def stopped(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, at, stopped if at == "parser" else {"tasks": stopped})
    assert cli.main(["tasks"]) == 130


def test_ctrl_c_while_the_command_line_is_imported_is_no_traceback(tmp_path: Path) -> None:
    """The module is found, and then Ctrl-C comes."""
    (tmp_path / "argparse.py").write_text("import os, signal; os.kill(os.getpid(), signal.SIGINT)")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-m", "asyncrl", "tasks"],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_ctrl_c_while_python_ends_is_no_traceback() -> None:
    """The command is over, and what is left to do at the exit is interrupted."""
    program = (
        "import atexit, os, signal, sys, types; module = types.ModuleType('asyncrl.cli'); "
        "module.main = lambda: 0; sys.modules['asyncrl.cli'] = module; "
        "atexit.register(os.kill, os.getpid(), signal.SIGINT); "
        "from asyncrl.console_entry import main; sys.exit(main())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


def test_a_read_that_fails_on_a_disk_is_a_sentence_and_an_error_of_ours_is_none(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def failed(number: int) -> NoReturn:
        raise OSError(number, os.strerror(number))  # a read of what is open names no file

    monkeypatch.setattr(cli, "VERBS", {"tasks": lambda _: failed(errno.EIO)})
    assert cli.main(["tasks"]) == 2
    assert "cannot be read to its end (Input/output error); look at" in capsys.readouterr().err
    monkeypatch.setattr(cli, "VERBS", {"tasks": lambda _: failed(errno.EPIPE)})
    with pytest.raises(OSError, match="Broken pipe"):
        cli.main(["tasks"])
