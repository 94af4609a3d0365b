"""The arguments of `asyncrl`: its verbs, their options, and the texts of `--help`.

It imports nothing slow: `--help` is instant.
"""

from __future__ import annotations

import argparse
from importlib.metadata import version
from pathlib import Path
from typing import NoReturn

from asyncrl.words import whole

DESCRIPTION = "Train language models with reinforcement learning while generation never stops."
TRAIN = "Train: start rollout, reward and trainer actors on this machine, and show what they do."
SFT = (
    "Learn the data's own answers (supervised fine-tuning) with the trainer, checkpoints and curve "
    "of any run. Its model is a model.path for reinforcement learning."
)
WHY = (
    "Explain the state of a run in a few sentences: which side is idle, and what it waits for. The "
    "run may be alive, stalled or killed."
)
COMPARE = (
    "Show runs side by side: the settings in which they differ, and their results. They may be "
    "alive or over."
)
RUNS = (
    "List the runs in a directory, the newest first: state, steps, held-out accuracy and device "
    "time."
)
PAGE = (
    "Serve a page for browsers: of one run, alive or over, or of all runs in a folder. It shows "
    "curves that can be overlaid, what limits the run, its flow and its rollouts. It changes "
    "nothing, and runs do not depend on it. On any host but loopback it requires a key."
)
ROLLOUTS = (
    "Show the model's responses: rollouts that ended, the newest first, with messages, calls and "
    "results, reward, expected answer and versions; follow them; or write them to a file."
)
TOP = (
    "Show the live display of a run that was started elsewhere, until it ends. Ctrl-C ends only "
    "the display."
)
REPORT = (
    "Write one HTML file about a run, alive or over: what happened, its curves, where time and "
    "tokens went, its newest rollouts, what to change next. It has no script and loads nothing."
)
SWEEP = (
    "Remove what the agents of a finished or killed run left outside it: containers, remote "
    "sandboxes, directories. A live run does this by itself."
)
AGENT = (
    "Take part in a run whose launcher is on another machine: run its rollout actors here until it "
    "is over. This machine needs asyncrl and the run's join.token, but no model."
)
CHECK = "Check a configuration and show what follows from it. Starts nothing, writes nothing."
PLAY = (
    "Play one episode of the run's agent here, and print each context, response, reward and error. "
    "Without an agent: one prompt, its response and its verdict. Trains nothing."
)
TASKS = "List the tasks, each with an example and whether the bundled model learns it; or show one."
FETCH = (
    "Fetch the copy of a run from an object store (run.copy) into a directory, from which `asyncrl "
    "train --resume` continues. Credentials come from the environment."
)
MERGE = (
    "Merge models of one architecture into a new model directory: the mean of their weights, or "
    "with --base the base plus their differences from it. A run's directory stands for its model."
)
SETTINGS = "List the basic settings; or all settings of a section, with defaults, ranges and units."
INIT = (
    "Write a commented run.toml for a task, or for a file of prompts, with its lengths. It never "
    "overwrites a file."
)
SIMULATE = (
    "Run the whole system in virtual time, in this process, with fake engines and every kind of "
    "fault, and check every invariant after every event. A seed decides everything: one that "
    "fails is printed, and fails again. With a run.toml there are no faults: it forecasts that run "
    "on a cluster, by models of engines, lengths, trainer and network."
)
CALIBRATE = (
    "Fit the models of `asyncrl simulate run.toml` to a run, alive or over, and write them to its "
    "models.toml. More runs, with other engine.slots, give more points of the engine's speed."
)
EXAMPLES = """\
examples:
  asyncrl tasks
  asyncrl init spell_backward
  asyncrl init questions.parquet --set task.prompt_key=question --set task.answer_key=gold
  asyncrl train run.toml
  asyncrl settings rollout
  asyncrl train run.toml --set task.name=chain_sum --set train.steps=50
  asyncrl train --resume runs/rotate_matrix-20260101-120000
  asyncrl why
  asyncrl compare runs/a runs/b
  asyncrl rollouts runs/a --reward-below 0.5 --last 3
"""
SOURCES = """\
settings: --set wins over an ASYNCRL_* variable, that over run.toml, and that over the default.
`asyncrl settings` lists the basic ones, `asyncrl settings SECTION` all of a section.
exit status: 0 the run ended well, 1 it failed, 2 the input is wrong and nothing was trained.
"""
PLAYED = """\
examples:
  asyncrl play run.toml --prompt 3
  asyncrl play --set agent.run=./my_agent.py:solve --fake "I do not know" --fake "42"

settings: as for train. The model decodes in this process, whatever engine.kind is.
exit status: 0 there is a reward, 1 the agent failed or there is none, 2 the input is wrong.
"""


class _Parser(argparse.ArgumentParser):
    """A parser whose errors show an argument's control characters as escapes."""

    def error(self, message: str) -> NoReturn:
        """Print the usage and the message, and exit with status 2."""
        from asyncrl.escape import escaped  # not for `--help`, which is instant

        super().error(escaped(message))


def parser() -> argparse.ArgumentParser:
    """The parser of a command line. Bad arguments end the process with status 2."""

    def add(
        name: str,
        text: str,
        epilog: str,
        config: str = "the run's configuration (default: all defaults)",
    ) -> argparse.ArgumentParser:
        verb = verbs.add_parser(
            name,
            help=text.split(",")[0].rstrip(".") + "." if name == "simulate" else text,
            description=text,
            epilog=epilog,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        verb.add_argument(
            "config",
            nargs="?",
            type=Path,
            metavar="run.toml",
            help=config,
        )
        add_sets(verb)
        return verb

    def add_sets(verb: argparse.ArgumentParser) -> None:
        verb.add_argument(
            "--set",
            action="append",
            default=[],
            dest="sets",
            metavar="section.key=value",
            help="change one setting; repeatable",
        )

    root = _Parser(
        prog="asyncrl",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    root.add_argument("--version", action="version", version=f"asyncrl {version('asyncrl')}")
    verbs = root.add_subparsers(dest="verb", required=True, metavar="verb")
    train = add("train", TRAIN, EXAMPLES + "\n" + SOURCES)
    train.add_argument(
        "--resume",
        type=Path,
        metavar="RUN",
        help="continue the run in this directory from its last checkpoint",
    )
    supervised = add("sft", SFT, SOURCES)
    supervised.add_argument(
        "--resume",
        type=Path,
        metavar="RUN",
        help="continue the run in this directory from its last checkpoint",
    )
    supervised.add_argument(
        "--check", action="store_true", help="count rows, tokens and steps, and start nothing"
    )
    tested = add("check", CHECK, SOURCES)
    tested.add_argument(
        "--machine",
        type=Path,
        metavar="FILE.toml",
        help="check GPUs and memory of the machines that this file describes (gpus, gpu or gpu_gb, "
        "machines, memory_gb), in place of this one",
    )
    tried = add("play", PLAY, PLAYED)
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
        help="a reply in place of the model's; repeatable, once a call; the last serves all others",
    )
    part = verbs.add_parser("agent", help=AGENT, description=AGENT)
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
        help="directory for logs here, kept afterwards (default: one that is removed)",
    )
    part.add_argument("--name", default="", help="a name for this machine (default: its host name)")
    part.add_argument(
        "--for",
        dest="role",
        choices=("rollout", "trainer", "reward"),
        default="rollout",
        help="the actors here: rollout actors (default), ranks of the trainer "
        "(cluster.trainer_agents), or reward actors (cluster.reward_agents)",
    )
    part.add_argument(
        "--cores", type=_positive, default=0, metavar="N", help="cores to offer (default: all)"
    )
    part.add_argument(
        "--patience",
        type=_more_than_0,
        metavar="S",
        help="seconds to wait for a launcher that is gone and may be restarted by `asyncrl train "
        "--resume` (default: two minutes)",
    )
    listing = verbs.add_parser("tasks", help=TASKS, description=TASKS)
    listing.add_argument("task", nargs="?", metavar="TASK", help="a task (default: all)")
    catalogue = verbs.add_parser("settings", help=SETTINGS, description=SETTINGS)
    catalogue.add_argument(
        "section", nargs="?", metavar="SECTION", help="a section (default: the basic settings)"
    )
    fetched = verbs.add_parser("fetch", help=FETCH.split(". ")[0] + ".", description=FETCH)
    fetched.add_argument("url", metavar="URL", help="the run's run.copy, such as s3://bucket/run")
    fetched.add_argument("directory", type=Path, metavar="DIR", help="a new directory")
    first = verbs.add_parser("init", help=INIT, description=INIT)
    first.add_argument(
        "task",
        nargs="?",
        default="",
        metavar="TASK|FILE",
        help="a task of `asyncrl tasks`, a class of your own (./file.py:name), or a file of "
        "prompts (default: the bundled job)",
    )
    add_sets(first)
    trial = add("simulate", SIMULATE, SOURCES, "forecast this run (default: search for faults)")
    what = trial.add_mutually_exclusive_group()
    what.add_argument("--seed", type=_seed, metavar="N", help="one seed")
    what.add_argument(
        "--seeds",
        type=_seeds,
        metavar="A:B",
        help="the seeds from A up to B (default 0:20)",
    )
    what.add_argument(
        "--engines",
        type=_positive,
        metavar="N",
        help="no faults, but a cluster of N engines: what it costs, or a forecast of run.toml on "
        "it (default: rollout.actors)",
    )
    trial.add_argument(
        "--hours", type=_more_than_0, default=1.0, help="virtual hours of the cluster (default 1)"
    )
    sizing = trial.add_argument_group("with a run.toml (docs/sizing.md)")
    sizing.add_argument(
        "--trainers", type=_positive, metavar="N", help="devices that train (default: train.ranks)"
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
        type=_more_than_0,
        metavar="X",
        help="price of a device for an hour, to show the cost",
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
    trial.add_argument("--jobs", type=_positive, metavar="N", help="processes (default 1)")
    trial.add_argument(
        "--agents", action="store_true", help="only runs whose rollouts are agents' episodes"
    )
    trial.add_argument("--json", action="store_true", help="print the result as JSON")
    fit = verbs.add_parser("calibrate", help=CALIBRATE.split(",")[0] + ".", description=CALIBRATE)
    fit.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="a run's directory")
    fit.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="FILE.toml",
        help="the file to write (default: models.toml in the first run's directory)",
    )
    explain = verbs.add_parser("why", help=WHY, description=WHY)
    _add_run(explain)
    beside = verbs.add_parser("compare", help=COMPARE, description=COMPARE)
    beside.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="a run's directory")
    beside.add_argument(
        "--accuracy",
        type=_share,
        metavar="X",
        help="show the seconds in which each run reached it, 0 to 1 (default: what all reached)",
    )
    beside.add_argument("--json", action="store_true", help="print all of it as JSON")
    listed = verbs.add_parser("runs", help=RUNS, description=RUNS)
    listed.add_argument(
        "folder",
        type=Path,
        nargs="?",
        default=Path("runs"),
        metavar="FOLDER",
        help="the directory of the runs (default: runs)",
    )
    live = verbs.add_parser("top", help=TOP, description=TOP)
    _add_run(live)
    about = verbs.add_parser("report", help=REPORT.split(",")[0] + ".", description=REPORT)
    _add_run(about)
    about.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="the file (default: RUN/report.html)"
    )
    merged = verbs.add_parser("merge", help=MERGE.split(":")[0] + ".", description=MERGE)
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
        type=_numbers,
        metavar="W,W",
        help="one for each model: shares of the mean (default: equal), or with --base factors of "
        "the differences (default: 1)",
    )
    merged.add_argument("--base", metavar="MODEL", help="the model that the others began with")
    merged.add_argument(
        "--evaluate",
        type=Path,
        metavar="run.toml",
        help="print the accuracy of each model, and of the merged one, on this run's held-out "
        "prompts",
    )
    shown = verbs.add_parser("page", help=PAGE.split(":")[0] + ".", description=PAGE)
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
        "--port", type=_port, default=8080, metavar="N", help="the port; 0: any (default: 8080)"
    )
    swept = verbs.add_parser("sweep", help=SWEEP, description=SWEEP)
    swept.add_argument("run", type=Path, metavar="RUN", help="the run's directory")
    rollouts = verbs.add_parser("rollouts", help=ROLLOUTS.split(":")[0] + ".", description=ROLLOUTS)
    _add_run(rollouts)
    rollouts.add_argument("--split", choices=["train", "evaluation"], help="only of this split")
    rollouts.add_argument("--prompt", type=_index, metavar="N", help="only answers to this prompt")
    rollouts.add_argument(
        "--reward-below", type=float, metavar="X", help="only with a smaller reward"
    )
    rollouts.add_argument(
        "--reward-above", type=float, metavar="X", help="only with a larger reward"
    )
    rollouts.add_argument(
        "--step", type=_index, metavar="N", help="only those trained in this step"
    )
    rollouts.add_argument(
        "--lag-above", type=_index, metavar="N", help="only with a larger lag, in versions"
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
        type=_positive,
        metavar="N",
        help="the newest of these (default: 10, and all of them in a file)",
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
    return root


def _add_run(verb: argparse.ArgumentParser) -> None:
    verb.add_argument(
        "run",
        type=Path,
        nargs="?",
        metavar="RUN",
        help="the run's directory (default: the newest in runs)",
    )


def _cut(text: str) -> str:
    """A text for a sentence: thousands of digits would hide the rest."""
    return text if len(text) <= 40 else f"{text[:37]}..."


def _port(text: str) -> int:
    """A port, or 0. Raises argparse.ArgumentTypeError."""
    number = whole(text)
    if number is None or number > 65535:
        raise argparse.ArgumentTypeError(f"{_cut(text)!r} is no port, from 0 to 65535")
    return number


def _seeds(text: str) -> range:
    start, _, stop = text.partition(":")
    first, end = whole(start), whole(stop)
    if first is None or end is None or first >= end:
        raise argparse.ArgumentTypeError(f"{_cut(text)!r} is not A:B with numbers A < B")
    return range(first, end)


def _seed(text: str) -> int:
    if (number := whole(text)) is None:
        raise argparse.ArgumentTypeError(f"{_cut(text)!r} is not the number of a seed")
    return number


def _positive(text: str) -> int:
    if not (number := whole(text)):
        raise argparse.ArgumentTypeError(
            f"{_cut(text)!r} is not a whole number of at least 1, in at most eighteen digits"
        )
    return number


def _more_than_0(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < 1e9:
        raise argparse.ArgumentTypeError(f"{_cut(text)!r} is not a number above 0 and below 1e9")
    return number


def _numbers(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{_cut(text)!r} is not a list of numbers with commas, such as 0.7,0.3"
        ) from None


def _index(text: str) -> int:
    if (number := whole(text)) is None:
        raise argparse.ArgumentTypeError(f"{_cut(text)!r} is not a whole number from 0")
    return number


def _share(text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise argparse.ArgumentTypeError(f"{_cut(text)!r} is not a number from 0 to 1")
    return share
