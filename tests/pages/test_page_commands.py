"""The commands of the pages: each is one that there is, and each page's run, one after another, in
a folder where what they name is. Runs are short there (`page_asyncrl.py`); `make` says what it
would do; what needs another machine or a container is only looked at.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

import pyarrow
import pyarrow.parquet
import pytest
from page_asyncrl import SHOWN
from train_support import tiny_model
from warm_process import warm

from asyncrl.arguments import parser
from asyncrl.cli import VERBS
from asyncrl.config import load
from asyncrl.config.errors import ContradictionError

ROOT = Path(__file__).parents[2]
SUPPORT = ROOT / "tests/support"
PAGES = sorted(
    [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        ROOT / "docs/examples/README.md",
        ROOT / "docs/examples/harnesses/README.md",
        *ROOT.glob("docs/*.md"),
    ]
)
ELSEWHERE = {
    "docs/gpu.md": "Docker, a cluster, and a GPU",
    "docs/machines.md": "other machines (the test below has them here)",
    "CONTRIBUTING.md": "a package index",
    "docs/examples/harnesses/README.md": "packages and command lines of others",
}
"""Pages whose commands are not run as they are, by what they need."""
RUN = "asyncrl train run.toml --set run.dir=runs/{} --set train.steps=40"
"""The command of a page by which the folder of all pages has its run."""
SAME = {"README.md": "asyncrl train run.toml --set train.steps=40"}
"""A run of a page that docs/start.md has, too, of the same prompts; there it is made."""
README_RUN = "rotate_matrix-20260101-120000"
LIMIT_S = 800.0


class Command(NamedTuple):
    """A command of asyncrl in a page: the words after the program."""

    page: str
    words: tuple[str, ...]


def blocks(page: Path) -> list[str]:
    """A page's blocks of commands, without the indentation of the list that they are in."""
    found = re.findall(r"^( *)```sh\n(.*?)^ *```$", page.read_text(), re.MULTILINE | re.DOTALL)
    return [re.sub(f"^{indent}", "", block, flags=re.MULTILINE) for indent, block in found]


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


def commands() -> Iterator[Command]:
    """Each command of asyncrl in a block, or between backticks."""
    for page in PAGES:
        lines = "\n".join(blocks(page)).replace("\\\n", " ").splitlines()
        lines += [
            said.replace("\n", " ") for said in re.findall(r"`(asyncrl [^`]+)`", page.read_text())
        ]
        variables: dict[str, str] = {}
        for line in lines:
            rest = [variables.get(word, word) for word in shlex.split(line, comments=True)]
            while rest:
                one = list(takewhile(lambda word: word not in ("&&", "&", "|", "--"), rest))
                rest = rest[len(one) + 1 :]
                while one and (assigned := re.fullmatch(r"([A-Z_]+)=(.*)", one[0])):
                    variables[f"${assigned[1]}"] = assigned[2]
                    one = one[1:]
                if one and Path(one[0]).name == "asyncrl":
                    yield Command(named(page), tuple(one[1:]))


COMMANDS = sorted(set(commands()))


def own_agent() -> str:
    """The function that docs/agents.md shows, and the search that it calls."""
    _, agent, *_ = (ROOT / "docs/agents.md").read_text().split("```python\n")
    return agent.partition("```")[0] + "\n\ndef search(words):\n    return bool(words)\n"


def test_blocks_of_commands_are_marked_as_such() -> None:
    """Else they are neither run here nor coloured in the site."""
    program = r"(\S*/)?(asyncrl|make|docker|kubectl|pip|srun|scp|eval) "
    for page in PAGES:
        rest = re.sub(r"^ *```sh\n.*?^ *```$", "", page.read_text(), flags=re.M | re.S)
        fenced = re.findall(r"^ *```\w*\n(.*?)^ *```$", rest, re.M | re.S)
        assert not [block for block in fenced if re.search(rf"^ *{program}", block, re.M)], page
        assert not re.findall(rf"^\n    {program}", rest, re.M), page


@pytest.mark.parametrize("command", COMMANDS, ids=lambda one: f"{one.page}: {' '.join(one.words)}")
def test_each_command_is_one_that_there_is(
    command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its verb, its options, and the settings that it names."""
    words = [{"N": "1", "VERB": "train"}.get(word, word) for word in command.words]
    if len(words) == 1:  # it is spoken of
        assert words[0] in VERBS
        return
    try:
        parsed = parser().parse_args(words)
    except SystemExit as end:
        assert end.code == 0, capsys.readouterr().err  # --help
    else:
        try:
            of_data = ["task.name=data", "task.path=FILE"] if parsed.verb == "init" else []
            load(None, [*of_data, *getattr(parsed, "sets", [])], {})
        except ContradictionError:
            assert getattr(parsed, "resume", None), "of a run with other settings beside these"


def program(folder: Path, name: str, *lines: str) -> None:
    """A program that a page calls, as a script of a shell."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text("\n".join(["#!/bin/sh", "set -eu", *lines, ""]))
    (folder / name).chmod(0o755)


class Desk(NamedTuple):
    """A folder with what pages name, and the programs that they call."""

    folder: Path
    model: Path

    def run(self, script: str) -> subprocess.CompletedProcess[str]:
        """Run a script of a shell there; it ends at the first command that fails."""
        path = os.pathsep.join(
            [str(self.folder / ".venv/bin"), str(Path(sys.executable).parent), os.environ["PATH"]]
        )
        more = {"WANDB_MODE": "offline", "MLFLOW_DISABLE_TELEMETRY": "true", "PATH": path}
        return subprocess.run(
            ["bash", "-euxc", script],
            cwd=self.folder,
            env=os.environ | more,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Desk:
    """A folder with a model and a run that ended: `runs/a`."""
    folder = tmp_path_factory.mktemp("pages")
    desk = Desk(folder, tiny_model(folder / "path/to/model"))
    shutil.copy(ROOT / "run.toml", folder)
    light = [sys.executable, "-E", "-S"]  # of the standard library alone
    shim = [*light, str(SUPPORT / "page_asyncrl.py"), warm().address, str(desk.model)]
    program(folder / ".venv/bin", "asyncrl", f'exec {shlex.join(shim)} "$@"')
    shim = [*light, str(SUPPORT / "warm.py"), warm().address]
    taught = f"module=page_vision PYTHONPATH={SUPPORT}:${{PYTHONPATH:-}}; export PYTHONPATH"
    program(
        folder / ".venv/bin",
        "python",
        "module=$2",
        f"case $2 in *.small_vision) {taught};; esac",
        f'shift 2; exec {shlex.join(shim)} "$module" "$@"',
    )
    program(folder / ".venv/bin", "make", f'exec /usr/bin/make --dry-run -C {ROOT} "$@"')
    for name in ("pip", "uv"):  # what they install is here, and tests/test_wheel.py tries it
        program(folder / ".venv/bin", name, 'case "$*" in *"install ."*) ;; *) exit 1 ;; esac')
    program(folder / ".venv/bin", "scp", 'shift $(($# - 2)); exec cp "$@"')
    done = desk.run(RUN.format("a"))
    assert done.returncode == 0, done.stderr
    return desk


@pytest.fixture
def desk(finished: Desk, tmp_path: Path) -> Desk:
    """The folder of one page: files and runs of the names that pages use."""
    desk = finished._replace(folder=tmp_path / "desk")
    shutil.copytree(finished.folder, desk.folder, ignore=shutil.ignore_patterns("*.sock"))
    for name in ("b", "c", "fewer-slots", README_RUN):
        shutil.copytree(desk.folder / "runs/a", desk.folder / "runs" / name)
    shutil.copytree(ROOT / "docs/examples", desk.folder / "docs/examples")
    shutil.copy(ROOT / "docs/examples/own_data/prompts.jsonl", desk.folder)
    (desk.folder / "my_agent.py").write_text(own_agent())
    asked = [{"role": "user", "content": "1 + 1 ="}]
    rows = [{"prompt": asked, "reward_model": {"ground_truth": "2"}, "index": n} for n in range(8)]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), desk.folder / "train.parquet")
    for name in (".venv-sglang", ".venv-vllm"):
        if (ROOT / name).exists():
            (desk.folder / name).symlink_to(ROOT / name)
    return desk


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def here(script: str, desk: Desk) -> str:
    """A page's script with what it names elsewhere, and what it leaves open, here."""
    for said, replaced in {
        RUN.format("small"): "cp -r runs/a runs/small",
        "--seed N": "--seed 1",
        "page_port=8080": f"page_port={free_port()}",
        "http://mlflow:5000": f"sqlite:///{desk.folder}/mlflow.db",
        "model.path=path/to/model": f"model.path={desk.model}",
        "10.0.0.1:": "",
        "10.0.0.1": "127.0.0.1",
    }.items():
        script = script.replace(said, replaced)
    # what serves until Ctrl-C has its tests in tests/explain/views
    return re.sub(r"^asyncrl page[^#\n]*", "", script, flags=re.MULTILINE)


def wanting(block: str, desk: Desk) -> bool:
    """True for a block that needs an environment that was not made here. Tests of tasksets play
    what `.venv-verifiers` is for."""
    return any(not (desk.folder / name).exists() for name in re.findall(r"\.venv-\w+", block))


@pytest.mark.explore
@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.parametrize(
    "page", [page for page in PAGES if blocks(page) and named(page) not in ELSEWHERE], ids=named
)
def test_its_commands_can_be_run_one_after_another(page: Path, desk: Desk) -> None:
    wanted = [block for block in blocks(page) if not wanting(block, desk)]
    if same := SAME.get(named(page)):
        assert same in "".join(blocks(ROOT / "docs/start.md"))
        wanted = [block.replace(same, "true") for block in wanted]
    if not wanted:
        pytest.skip("the environment that this page needs was not made")
    done = desk.run(here("".join(wanted), desk))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.explore
@pytest.mark.processes
@pytest.mark.slow
def test_two_machines_join_a_run_as_the_page_says(desk: Desk) -> None:
    """Both are this one, and have the token each in a folder of its own."""
    said = blocks(ROOT / "docs/machines.md")
    launcher = next(block for block in said if "cluster.kind=agents" in block)
    other = next(block for block in said if "asyncrl agent --join" in block)
    launcher = launcher.partition("\n")[2]  # after `make extras`
    launcher = launcher.replace(" --set rollout.actors=4", "")
    start = f"{launcher.rstrip()} --set run.dir=runs/many --set rollout.actors=2"
    other = other.replace("runs/…/join.token", "../runs/many/join.token")
    script = f"""
        {start} & launcher=$!
        until test -e runs/many/join.token; do kill -0 $launcher; sleep 0.2; done
        mkdir one two
        (cd one; {other}) & one=$!
        (cd two; {other}) & two=$!
        wait $launcher; wait $one; wait $two
    """
    done = desk.run(here(script, desk))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("This machine takes part as") == 2
    assert done.stdout.count("The run is over.") == 2


def test_tests_that_show_what_a_page_is_not_run_for_are_there() -> None:
    assert all((ROOT / "tests" / path).is_file() for path in SHOWN.values())


def test_files_that_a_page_names_elsewhere_are_there() -> None:
    for name in ELSEWHERE:
        for path in re.findall(r"\bdocker/[\w/.-]*\w", "".join(blocks(ROOT / name))):
            assert (ROOT / path).exists() or path == "docker/.env", f"{name} names {path}"
