"""The command `asyncrl`. Bad input gives one sentence and exit status 2, before anything starts.

Imports are as late as possible: `--help` is instant, and this process never imports torch.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

    from asyncrl.config import Config

INTERRUPTED = 130

DESCRIPTION = "Train language models with reinforcement learning while generation never stops."
TRAIN = "Train: start rollout, reward and trainer actors on this machine, and show what they do."
WHY = (
    "Say in a few sentences how a run stands: which side is idle, and what it waits for. The run "
    "may be alive, stalled, or killed."
)
COMPARE = (
    "Show runs side by side: the settings in which they differ, and what came of each. They may be "
    "alive, or over."
)
ROLLOUTS = (
    "Show what the model said: the newest rollouts that the run's journal still has, with reward, "
    "versions and lag; or write them to a file. The run may be alive, or over."
)
TOP = (
    "Show the live display of a run that was started elsewhere, until it ends. Ctrl-C ends the "
    "display alone."
)
REPORT = (
    "Write one HTML file about a run, alive or over: what happened, its curves, where time and "
    "tokens went, its newest rollouts, what to change next. It has no script and loads nothing."
)
AGENT = (
    "Take part in a run whose launcher is on another machine: start its rollout actors here, until "
    "it is over. The machine needs asyncrl and the run's join.token, and no model."
)
CHECK = "Check a configuration and show what follows from it. Starts nothing, writes nothing."
TASKS = "List the tasks, each with an example and if the bundled model can learn it; or show one."
INIT = (
    "Write a run.toml with comments for a task, or for a JSONL file of prompts. It refuses to "
    "write over a file."
)
SIMULATE = (
    "Run the whole system in virtual time, in this process, with fake engines and every kind of "
    "fault, and check every invariant after every event. A seed decides everything: one that "
    "fails is printed, and fails again. With a run.toml there are no faults: it says what that run "
    "would come to on a cluster, by models of engines, lengths, trainer and network."
)
CALIBRATE = (
    "Fit the models that `asyncrl simulate run.toml` goes by from a run, alive or over, and write "
    "them to its models.toml. Further runs, with other engine.slots, give further points of the "
    "engine."
)
EXAMPLES = """\
examples:
  asyncrl tasks
  asyncrl init spell_backward
  asyncrl train run.toml
  asyncrl train run.toml --set task.name=chain_sum --set train.steps=50
  asyncrl train --resume runs/rotate_matrix-20260101-120000
  asyncrl why runs/rotate_matrix-20260101-120000
  asyncrl compare runs/a runs/b
  asyncrl rollouts runs/a --reward-below 0.5 --last 3
"""
SETTINGS = """\
settings: --set wins over an ASYNCRL_* variable, that over run.toml, that over the default.
exit status: 0 the run ended well, 1 it failed, 2 the input is wrong and nothing was trained.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line. Returns the exit status."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal without `≤` shows `?`
    parser = _parser()
    if "_ARGCOMPLETE" in os.environ:  # a shell asks what may come next
        from asyncrl.completion import complete

        complete(parser)
    args = parser.parse_args(argv)
    from asyncrl.config.errors import BAD_INPUT, ConfigError
    from asyncrl.observe.output import complain

    try:
        return VERBS[args.verb](args)
    except ConfigError as error:
        complain(str(error))
        return BAD_INPUT
    except KeyboardInterrupt:
        return INTERRUPTED


def _parser() -> argparse.ArgumentParser:
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
        verb.add_argument(
            "--set",
            action="append",
            default=[],
            dest="sets",
            metavar="section.key=value",
            help="change one setting; repeatable",
        )
        return verb

    parser = argparse.ArgumentParser(
        prog="asyncrl",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"asyncrl {version('asyncrl')}")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="verb")
    train = add("train", TRAIN, EXAMPLES + "\n" + SETTINGS)
    train.add_argument(
        "--resume",
        type=Path,
        metavar="RUN",
        help="go on with the run in this directory, from its last checkpoint",
    )
    add("check", CHECK, SETTINGS)
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
    part.add_argument("--name", default="", help="of this machine (default: its host name)")
    part.add_argument(
        "--cores", type=_positive, default=0, metavar="N", help="to offer (default: all)"
    )
    listing = verbs.add_parser("tasks", help=TASKS, description=TASKS)
    listing.add_argument("task", nargs="?", metavar="TASK", help="one of them (default: all)")
    first = verbs.add_parser("init", help=INIT, description=INIT)
    first.add_argument(
        "task",
        nargs="?",
        default="spell_backward",
        metavar="TASK|FILE.jsonl",
        help="a task of `asyncrl tasks`, or a file of prompts (default: spell_backward)",
    )
    trial = add("simulate", SIMULATE, SETTINGS, "forecast this run (default: search for faults)")
    what = trial.add_mutually_exclusive_group()
    what.add_argument("--seed", type=int, metavar="N", help="one seed")
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
        help="no faults, but a cluster of so many engines: what it costs, or what run.toml would "
        "come to on it (default: rollout.actors)",
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
        metavar="FILE.toml",
        help="models of engine, lengths, trainer, network (default: models.toml beside run.toml)",
    )
    sizing.add_argument(
        "--price", type=_more_than_0, metavar="X", help="of a device for an hour: say the cost"
    )
    sizing.add_argument(
        "--search",
        action="store_true",
        help="recommend engines to trainers, depth, over-provisioning and unit",
    )
    trial.add_argument("--jobs", type=_positive, metavar="N", help="processes (default 1)")
    trial.add_argument(
        "--agents", action="store_true", help="only runs whose rollouts are agents' episodes"
    )
    trial.add_argument("--json", action="store_true", help="print what came of it as JSON")
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
    explain.add_argument("run", type=Path, metavar="RUN", help="the run's directory")
    beside = verbs.add_parser("compare", help=COMPARE, description=COMPARE)
    beside.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="a run's directory")
    beside.add_argument(
        "--accuracy",
        type=_share,
        metavar="X",
        help="say after how many seconds each run had it, 0 to 1 (default: what all of them had)",
    )
    beside.add_argument("--json", action="store_true", help="print all of it as JSON")
    live = verbs.add_parser("top", help=TOP, description=TOP)
    live.add_argument("run", type=Path, metavar="RUN", help="the run's directory")
    about = verbs.add_parser("report", help=REPORT.split(",")[0] + ".", description=REPORT)
    about.add_argument("run", type=Path, metavar="RUN", help="the run's directory")
    about.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="the file (default: RUN/report.html)"
    )
    said = verbs.add_parser("rollouts", help=ROLLOUTS.split(":")[0] + ".", description=ROLLOUTS)
    said.add_argument("run", type=Path, metavar="RUN", help="the run's directory")
    said.add_argument("--split", choices=["train", "evaluation"], help="of this split alone")
    said.add_argument("--prompt", type=_index, metavar="N", help="answers to this prompt alone")
    said.add_argument("--reward-below", type=float, metavar="X", help="with a smaller reward alone")
    said.add_argument("--finish", choices=["stop", "length"], help="that ended so alone")
    said.add_argument(
        "--last",
        type=_positive,
        metavar="N",
        help="the newest of these (default: 10, and all of them in a file)",
    )
    said.add_argument("--json", action="store_true", help="print a line of JSON for each")
    said.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="FILE",
        help="a new FILE.jsonl or FILE.parquet of them",
    )
    return parser


def _train(args: argparse.Namespace) -> int:
    from rich.console import Console

    from asyncrl.launch import preflight
    from asyncrl.observe.output import Output

    console = Console(file=Output(sys.stdout))  # type: ignore[arg-type]
    resume: Path | None = args.resume
    config = _checked(args, resume, console)
    with preflight.claimed(config):
        from asyncrl.launch.launcher import launch

        return launch(config, resume=resume and Path(config.run.dir), console=console)


def _seeds(text: str) -> range:
    start, _, stop = text.partition(":")
    if not (start.isdigit() and stop.isdigit() and int(start) < int(stop)):
        raise argparse.ArgumentTypeError(f"{text!r} is not A:B with numbers A < B")
    return range(int(start), int(stop))


def _positive(text: str) -> int:
    if not text.isdigit() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of at least 1")
    return int(text)


def _more_than_0(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < 1e9:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of more than 0")
    return number


def _index(text: str) -> int:
    if not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is not the number of a prompt")
    return int(text)


def _share(text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 to 1")
    return share


def _simulate(args: argparse.Namespace) -> int:
    from asyncrl.config import ConfigError
    from asyncrl.simulation.command import cluster, command

    of_faults = args.seed, args.seeds, args.jobs, args.agents or None
    of_run = args.trainers, args.models, args.price, args.search or None, args.sets or None
    if args.config is not None:
        if any(given is not None for given in of_faults):
            raise ConfigError(
                "simulate: --seed, --seeds, --jobs and --agents search for faults, and take no "
                "run.toml."
            )
        return _forecast(args)
    if any(given is not None for given in of_run):
        raise ConfigError(
            "simulate: --trainers, --models, --price, --search and --set forecast a run; name its "
            "run.toml first."
        )
    if args.engines is not None:
        return cluster(args.engines, 3600.0 * args.hours, agents=args.agents)
    seeds = args.seeds or range(20)
    if args.seed is not None:
        seeds = range(args.seed, args.seed + 1)
    return command(seeds, agents=args.agents, jobs=args.jobs or 1, as_json=args.json)


def _forecast(args: argparse.Namespace) -> int:
    from rich.console import Console

    from asyncrl import config as configuration
    from asyncrl.observe.display import show_rows
    from asyncrl.observe.output import Output
    from asyncrl.simulation.capacity.sizing_command import MODELS, size

    json, rows = size(
        configuration.load(args.config, args.sets, os.environ),
        args.models or args.config.parent / MODELS,
        args.engines,
        args.trainers,
        args.hours,
        price=args.price,
        search=args.search,
    )
    output = Output(sys.stdout)  # its reader may leave before the end
    if args.json:
        print(json, file=output)
    else:
        show_rows(rows, Console(file=output))  # type: ignore[arg-type]
    output.flush()
    return 0


def _calibrate(args: argparse.Namespace) -> int:
    from asyncrl.escape import escaped
    from asyncrl.simulation.capacity.sizing_command import fit

    path = fit(args.runs, args.output)
    print(f"{escaped(str(path))} is written. Its first lines say what could not be fitted.")
    return 0


def _check(args: argparse.Namespace) -> int:
    from rich.console import Console

    console = Console()
    _checked(args, None, console)
    console.print("This configuration can run.")
    return 0


def _tasks(args: argparse.Namespace) -> int:
    from rich.console import Console

    from asyncrl.observe.task_list import show_tasks

    show_tasks(args.task, Console())
    return 0


def _init(args: argparse.Namespace) -> int:
    from asyncrl.escape import escaped
    from asyncrl.launch.first_run import write_first_run
    from asyncrl.observe.run_dir import RUN_TOML

    write_first_run(args.task, Path(RUN_TOML))
    print(
        f"{RUN_TOML} is written, for {escaped(args.task)}. Look at it, then: asyncrl train "
        f"{RUN_TOML}"
    )
    return 0


def _why(args: argparse.Namespace) -> int:
    import time

    from asyncrl.escape import escaped
    from asyncrl.observe.why import why

    for sentence in why(args.run, time.time()):
        print(escaped(sentence))
    return 0


def _compare(args: argparse.Namespace) -> int:
    from rich.console import Console

    from asyncrl.looking.compare import as_json, compare, rows
    from asyncrl.observe.display import show_rows
    from asyncrl.observe.output import Output

    found = compare(args.runs, args.accuracy)
    output = Output(sys.stdout)  # its reader may leave before the end
    if args.json:
        print(as_json(found), file=output)
    else:
        show_rows(rows(found), Console(file=output))  # type: ignore[arg-type]
    output.flush()
    return 0


def _rollouts(args: argparse.Namespace) -> int:
    from asyncrl.escape import escaped, escaped_json
    from asyncrl.looking.record_files import write_records
    from asyncrl.looking.rollout_records import Wanted, records, shown
    from asyncrl.observe.output import Output, complain

    wanted = Wanted(
        split=args.split,
        prompt=args.prompt,
        reward_below=args.reward_below,
        finish=args.finish,
        last=args.last,
    )
    if args.output is not None:
        count = write_records(args.run, wanted, args.output, complain)
        print(f"{count:,} rollouts are written to {escaped(str(args.output))}.")
        return 0
    output = Output(sys.stdout)  # its reader may leave before the end
    for record in records(args.run, wanted, complain):
        print(escaped_json(record) if args.json else shown(record), file=output)
    output.flush()
    return 0


def _agent(args: argparse.Namespace) -> int:
    from asyncrl.cluster.agent import agent
    from asyncrl.cluster.join_token import JoinToken

    return agent(JoinToken.read(args.join), args.dir, args.name, args.cores)


def _top(args: argparse.Namespace) -> int:
    from rich.console import Console

    from asyncrl.looking.top import top
    from asyncrl.observe.output import Output

    top(args.run, Console(file=Output(sys.stdout)))  # type: ignore[arg-type]
    return 0


def _report(args: argparse.Namespace) -> int:
    import time

    from asyncrl.escape import escaped
    from asyncrl.looking.report import write_report

    path = write_report(args.run, args.output, time.time())
    print(f"{escaped(str(path))} is written.")
    return 0


def _checked(args: argparse.Namespace, resume: Path | None, console: Console) -> Config:
    """Resolve the configuration, check it against this machine, and show what follows from it."""
    from datetime import datetime

    from asyncrl import config as configuration
    from asyncrl.config.derived import derived
    from asyncrl.launch import preflight
    from asyncrl.launch.private import refuse_foreign
    from asyncrl.launch.trainer_memory import memory_rows
    from asyncrl.observe.display import show_derived
    from asyncrl.observe.run_dir import RUN_TOML
    from asyncrl.processes.machine import available_cores
    from asyncrl.sandbox.support import support

    if resume:
        refuse_foreign(resume.absolute())  # its run.toml may name modules
    path = args.config or (resume / RUN_TOML if resume else None)
    cores = available_cores()
    config = preflight.resolved(
        configuration.load(path, args.sets, os.environ), resume, datetime.now()
    )
    preflight.check(config, resume, cores)
    show_derived([*derived(config, cores), *memory_rows(config)], console)
    if config.task.sandbox == "process" and (missing := support().missing):
        console.print(
            f"This machine does not have the sandbox strict ({missing}): what judges answers can "
            "be killed, and is kept from nothing."
        )
    return config


VERBS = {
    "train": _train,
    "agent": _agent,
    "check": _check,
    "tasks": _tasks,
    "init": _init,
    "simulate": _simulate,
    "calibrate": _calibrate,
    "why": _why,
    "compare": _compare,
    "rollouts": _rollouts,
    "top": _top,
    "report": _report,
}


if __name__ == "__main__":
    sys.exit(main())
