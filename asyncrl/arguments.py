"""The arguments of `asyncrl`: its verbs and their options.

It imports nothing slow: `--help` is instant.
"""

from __future__ import annotations

import argparse
import textwrap
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from asyncrl import help_texts as texts
from asyncrl.argument_values import (
    index,
    more_than_0,
    numbers,
    port,
    positive,
    seed,
    seeds,
    share,
    tag,
)

COLUMNS = 78
"""Columns of a description that argparse does not wrap."""


class _Parser(argparse.ArgumentParser):
    """A parser whose errors show an argument's control characters as escapes."""

    def error(self, message: str) -> NoReturn:
        """Print the usage and the message, and exit with status 2."""
        from asyncrl.escape import escaped  # not for `--help`, which is instant

        super().error(escaped(message))


if TYPE_CHECKING:
    Verbs = argparse._SubParsersAction[_Parser]


@cache
def parser() -> argparse.ArgumentParser:
    """The parser of a command line, of which a process has one. Bad arguments end the process with
    status 2."""
    root = _Parser(
        prog="asyncrl",
        description=texts.DESCRIPTION,
        epilog=texts.EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    root.add_argument("--version", action="version", version=f"asyncrl {version('asyncrl')}")
    verbs = root.add_subparsers(dest="verb", required=True, metavar="verb")
    _add_training(verbs)
    _add_trying(verbs)
    _add_joining(verbs)
    _add_beginning(verbs)
    _add_sizing(verbs)
    _add_explaining(verbs)
    _add_others(verbs)
    _add_rollouts(verbs)
    return root


def _add_training(verbs: Verbs) -> None:
    """Add `train` and `sft`."""
    train = _add(verbs, "train", texts.TRAIN, texts.EXAMPLES + "\n" + texts.SOURCES)
    train.add_argument(
        "--resume",
        type=Path,
        metavar="RUN",
        help="continue the run in this directory from its last checkpoint",
    )
    supervised = _add(verbs, "sft", texts.SFT, texts.SOURCES)
    supervised.add_argument(
        "--resume",
        type=Path,
        metavar="RUN",
        help="continue the run in this directory from its last checkpoint",
    )
    supervised.add_argument(
        "--check", action="store_true", help="count rows, tokens and steps, and start nothing"
    )


def _add_trying(verbs: Verbs) -> None:
    """Add `check` and `play`."""
    tested = _add(verbs, "check", texts.CHECK, texts.SOURCES)
    tested.add_argument(
        "--machine",
        type=Path,
        metavar="FILE.toml",
        help="check GPUs and memory of the machines that this file describes (gpus, gpu or gpu_gb, "
        "machines, memory_gb), in place of this one",
    )
    tried = _add(verbs, "play", texts.PLAY, texts.PLAYED)
    tried.add_argument(
        "--split", choices=("train", "evaluation"), default="train", help="the prompt's split"
    )
    tried.add_argument(
        "--prompt", type=int, default=0, metavar="N", help="the prompt's number, from 0"
    )
    tried.add_argument(
        "--seed", type=int, default=0, metavar="N", help="the agent's seed (default: 0)"
    )
    tried.add_argument(
        "--fake",
        action="append",
        default=[],
        metavar="TEXT",
        help="the reply to the next call, in place of the model's; repeatable; the last one serves "
        "all further calls",
    )


def _add_joining(verbs: Verbs) -> None:
    """Add `agent`."""
    part = verbs.add_parser("agent", help=texts.AGENT, description=texts.AGENT)
    part.add_argument(
        "--join",
        type=Path,
        required=True,
        metavar="FILE",
        help="the join.token that the launcher wrote into its run's directory, mode 600",
    )
    part.add_argument(
        "--dir",
        type=Path,
        metavar="DIR",
        help="directory for logs on this machine, which is kept (default: a temporary one)",
    )
    part.add_argument("--name", default="", help="a name for this machine (default: its host name)")
    part.add_argument(
        "--for",
        dest="role",
        choices=("rollout", "trainer", "reward"),
        default="rollout",
        help="the actors to run here: rollout actors (default), ranks of the trainer "
        "(cluster.trainer_agents), or reward actors (cluster.reward_agents)",
    )
    part.add_argument(
        "--tag",
        dest="tags",
        type=tag,
        action="append",
        default=[],
        metavar="TAG",
        help="what rollout actors may need of this machine (rollout.needs), such as long_prefill; "
        "repeatable",
    )
    part.add_argument(
        "--cores", type=positive, default=0, metavar="N", help="cores to offer (default: all)"
    )
    part.add_argument(
        "--patience",
        type=more_than_0,
        metavar="S",
        help="seconds to wait until a lost launcher is restarted by `asyncrl train --resume` "
        "(default: two minutes)",
    )


def _add_beginning(verbs: Verbs) -> None:
    """Add `tasks`, `settings`, `fetch` and `init`."""
    listing = verbs.add_parser("tasks", help=texts.TASKS, description=texts.TASKS)
    listing.add_argument("task", nargs="?", metavar="TASK", help="a task (default: all)")
    catalogue = verbs.add_parser("settings", help=texts.SETTINGS, description=texts.SETTINGS)
    catalogue.add_argument(
        "section", nargs="?", metavar="SECTION", help="a section (default: the basic settings)"
    )
    fetched = verbs.add_parser(
        "fetch", help=texts.FETCH.split(". ")[0] + ".", description=texts.FETCH
    )
    fetched.add_argument("url", metavar="URL", help="the run's run.copy, such as s3://bucket/run")
    fetched.add_argument("directory", type=Path, metavar="DIR", help="a new directory")
    first = verbs.add_parser("init", help=texts.INIT, description=texts.INIT)
    first.add_argument(
        "task",
        nargs="?",
        default="",
        metavar="TASK|FILE",
        help="a task of `asyncrl tasks`, a class of your own (./file.py:name), or a file of "
        "prompts (default: the bundled job)",
    )
    _add_sets(first)


def _add_sizing(verbs: Verbs) -> None:
    """Add `simulate` and `calibrate`."""
    trial = _add(
        verbs,
        "simulate",
        texts.SIMULATE,
        texts.SOURCES,
        "forecast this run (default: search for faults)",
    )
    what = trial.add_mutually_exclusive_group()
    what.add_argument("--seed", type=seed, metavar="N", help="one seed")
    what.add_argument(
        "--seeds",
        type=seeds,
        metavar="A:B",
        help="the seeds from A to B - 1 (default: 0:20)",
    )
    what.add_argument(
        "--engines",
        type=positive,
        metavar="N",
        help="simulate a cluster of N engines without faults: what it costs, or a forecast of "
        "run.toml (default: rollout.actors)",
    )
    trial.add_argument(
        "--hours", type=more_than_0, default=1.0, help="virtual hours of the cluster (default: 1)"
    )
    sizing = trial.add_argument_group("with a run.toml (docs/sizing.md)")
    sizing.add_argument(
        "--trainers", type=positive, metavar="N", help="devices that train (default: train.ranks)"
    )
    sizing.add_argument(
        "--models",
        type=Path,
        metavar="FILE.toml|PRESET",
        help="models of engine, lengths, trainer, network, or a preset such as h100-8b (default: "
        "models.toml beside run.toml)",
    )
    sizing.add_argument(
        "--price",
        type=more_than_0,
        metavar="X",
        help="price of a device per hour, to show the cost",
    )
    sizing.add_argument(
        "--search",
        action="store_true",
        help="recommend a split into engines and trainers, depth, over-provisioning and unit",
    )
    sizing.add_argument(
        "--exact",
        action="store_true",
        help="simulate every step of the whole cluster (default: stop when the mean step is known)",
    )
    trial.add_argument("--jobs", type=positive, metavar="N", help="processes (default: 1)")
    only = trial.add_mutually_exclusive_group()
    for runs, which in (
        ("agents", "only runs whose rollouts are agents' episodes"),
        ("games", "only runs of two to four policies that play games with each other"),
    ):
        only.add_argument(
            f"--{runs}", dest="runs", action="store_const", const=runs, default="", help=which
        )
    trial.add_argument("--json", action="store_true", help="print the result as JSON")
    fit = verbs.add_parser(
        "calibrate", help=texts.CALIBRATE.split(",")[0] + ".", description=texts.CALIBRATE
    )
    fit.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="a run's directory")
    fit.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="FILE.toml",
        help="the file to write (default: models.toml in the first run's directory)",
    )


def _add_explaining(verbs: Verbs) -> None:
    """Add `why`, `compare`, `runs`, `top` and `report`."""
    explain = verbs.add_parser("why", help=texts.WHY, description=texts.WHY)
    _add_run(explain)
    beside = verbs.add_parser("compare", help=texts.COMPARE, description=texts.COMPARE)
    beside.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="a run's directory")
    beside.add_argument(
        "--accuracy",
        type=share,
        metavar="X",
        help="show how long each run took to reach it, 0 to 1 (default: the best that all reached)",
    )
    beside.add_argument("--json", action="store_true", help="print everything as JSON")
    listed = verbs.add_parser("runs", help=texts.RUNS, description=texts.RUNS)
    listed.add_argument(
        "folder",
        type=Path,
        nargs="?",
        default=Path("runs"),
        metavar="FOLDER",
        help="the directory of the runs (default: runs)",
    )
    live = verbs.add_parser("top", help=texts.TOP, description=texts.TOP)
    _add_run(live)
    about = verbs.add_parser(
        "report", help=texts.REPORT.split(",")[0] + ".", description=texts.REPORT
    )
    _add_run(about)
    about.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="the file (default: RUN/report.html)"
    )


def _add_others(verbs: Verbs) -> None:
    """Add `merge`, `page` and `sweep`."""
    merged = verbs.add_parser(
        "merge", help=texts.MERGE.split(":")[0] + ".", description=texts.MERGE
    )
    merged.add_argument(
        "models",
        nargs="+",
        metavar="MODEL",
        help="a run that has ended, a model directory, or the name of a model on a hub",
    )
    merged.add_argument(
        "-o", "--output", type=Path, required=True, metavar="DIR", help="the new directory"
    )
    merged.add_argument(
        "--weights",
        type=numbers,
        metavar="W,W",
        help="one for each model: shares of the mean (default: equal), or with --base factors of "
        "the differences (default: 1)",
    )
    merged.add_argument("--base", metavar="MODEL", help="the model that the others started from")
    merged.add_argument(
        "--evaluate",
        type=Path,
        metavar="run.toml",
        help="print the accuracy of each model, and of the merged one, on this run's held-out "
        "prompts",
    )
    shown = verbs.add_parser("page", help=texts.PAGE.split(":")[0] + ".", description=texts.PAGE)
    shown.add_argument(
        "path",
        type=Path,
        nargs="?",
        default=Path("runs"),
        metavar="RUN|FOLDER",
        help="the directory of a run, or of several (default: runs)",
    )
    shown.add_argument(
        "--host", default="127.0.0.1", help="the address to listen on (default: 127.0.0.1)"
    )
    shown.add_argument(
        "--port", type=port, default=8080, metavar="N", help="the port; 0: any (default: 8080)"
    )
    swept = verbs.add_parser("sweep", help=texts.SWEEP, description=texts.SWEEP)
    swept.add_argument("run", type=Path, metavar="RUN", help="the run's directory")


def _add_rollouts(verbs: Verbs) -> None:
    """Add `rollouts`."""
    rollouts = verbs.add_parser(
        "rollouts", help=texts.ROLLOUTS.split(":")[0] + ".", description=texts.ROLLOUTS
    )
    _add_run(rollouts)
    rollouts.add_argument("--split", choices=["train", "evaluation"], help="only of this split")
    rollouts.add_argument("--prompt", type=index, metavar="N", help="only answers to this prompt")
    rollouts.add_argument(
        "--reward-below", type=float, metavar="X", help="only with a smaller reward"
    )
    rollouts.add_argument(
        "--reward-above", type=float, metavar="X", help="only with a larger reward"
    )
    rollouts.add_argument("--step", type=index, metavar="N", help="only those trained in this step")
    rollouts.add_argument(
        "--lag-above", type=index, metavar="N", help="only with a larger lag, in versions"
    )
    rollouts.add_argument(
        "--failed",
        action="store_true",
        help="only with a failed attempt or call, without a verdict, or buried",
    )
    rollouts.add_argument("--living", action="store_true", help="only unfinished ones")
    rollouts.add_argument(
        "--follow",
        action="store_true",
        help="show each rollout that ends, until the run is over; Ctrl-C stops it",
    )
    rollouts.add_argument(
        "--finish", choices=["stop", "length"], help="only with this finish reason"
    )
    rollouts.add_argument(
        "--last",
        type=positive,
        metavar="N",
        help="only the newest N of these (default: 10; all of them for a file)",
    )
    rollouts.add_argument("--json", action="store_true", help="print a line of JSON for each")
    rollouts.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="FILE",
        help="write them to a new FILE.jsonl or FILE.parquet",
    )
    rollouts.add_argument(
        "--traces",
        type=Path,
        metavar="FILE",
        help="write agents' episodes to a new FILE as orchestration traces, a line of JSON each",
    )


def _add(
    verbs: Verbs,
    name: str,
    text: str,
    epilog: str,
    config: str = "the run's configuration (default: all defaults)",
) -> argparse.ArgumentParser:
    """Add a verb that takes a run.toml and `--set`."""
    verb = verbs.add_parser(
        name,
        help=text.split(",")[0].rstrip(".") + "." if name == "simulate" else text,
        description=textwrap.fill(text, COLUMNS),  # raw, as the epilog is
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verb.add_argument("config", nargs="?", type=Path, metavar="run.toml", help=config)
    _add_sets(verb)
    return verb


def _add_sets(verb: argparse.ArgumentParser) -> None:
    verb.add_argument(
        "--set",
        action="append",
        default=[],
        dest="sets",
        metavar="section.key=value",
        help="change one setting; repeatable",
    )


def _add_run(verb: argparse.ArgumentParser) -> None:
    verb.add_argument(
        "run",
        type=Path,
        nargs="?",
        metavar="RUN",
        help="the run's directory (default: the newest in runs)",
    )
