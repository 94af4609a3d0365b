"""Completion in shells, as the shell asks: through the process, by argcomplete's protocol."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from warm_process import run


def offered(line: str, where: Path) -> list[str]:
    """The words that a shell is offered at the end of `line`."""
    asks = {
        "_ARGCOMPLETE": "1",
        "_ARGCOMPLETE_SUPPRESS_SPACE": "1",
        "_ARGCOMPLETE_COMP_WORDBREAKS": " \t\n",  # words end at blanks alone, as in zsh and fish
        "_ARGCOMPLETE_IFS": "\013",
        "COMP_LINE": line,
        "COMP_POINT": str(len(line.encode())),
        "COMP_TYPE": "63",
        "_ARGCOMPLETE_STDOUT_FILENAME": str(where / "out"),
    }
    run(
        [sys.executable, "-m", "asyncrl.cli"],
        env=os.environ | asks,
        cwd=where,
        check=False,
        capture_output=True,
        timeout=60,
    )
    return [word.strip() for word in (where / "out").read_text().split("\013") if word]


@pytest.mark.parametrize(
    ("line", "has", "lacks"),
    [
        ("asyncrl ", {"train", "why", "compare", "agent"}, {"--resume"}),
        ("asyncrl tr", {"train"}, {"why"}),
        ("asyncrl train --re", {"--resume"}, {"--set"}),
        ("asyncrl train --set stal", {"staleness.max_lag=", "staleness.on_stale="}, {"train.lr="}),
        ("asyncrl train --set staleness.on_stale=m", {"staleness.on_stale=mask"}, set()),
        ("asyncrl check --set run.sinks=", {"run.sinks=wandb", "run.sinks=mlflow"}, set()),
        ("asyncrl check ru", {"run.toml"}, {"rubbish.txt"}),
        ("asyncrl settings eng", {"engine", "engine.sglang"}, {"train"}),
        ("asyncrl rollouts --finish ", {"stop", "length"}, set()),
    ],
)
def test_what_may_come_next(line: str, has: set[str], lacks: set[str], tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text("")
    (tmp_path / "rubbish.txt").write_text("")
    found = set(offered(line, tmp_path))
    assert has <= found and not lacks & found, found
