"""The verbs of the command line that look at runs. Each returns the exit status."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from asyncrl.exit_status import INTERRUPTED


def why_run(args: argparse.Namespace) -> int:
    import time

    from asyncrl.escape import escaped
    from asyncrl.explain.game_runs import why_game
    from asyncrl.explain.run_files import RunFiles, game_of, is_game
    from asyncrl.explain.why import why

    run, now = _run(args, game_of), time.time()
    for sentence in why_game(run, now) if is_game(run) else why(RunFiles(run), now):
        print(escaped(sentence))
    return 0


def compare_runs(args: argparse.Namespace) -> int:
    from rich.console import Console

    from asyncrl.explain.display import show_rows
    from asyncrl.explain.views.compare import as_json, compare, rows

    comparison = compare(args.runs, args.accuracy)
    if args.json:
        print(as_json(comparison))
    else:
        show_rows(rows(comparison), Console())
    return 0


def list_runs(args: argparse.Namespace) -> int:
    import time

    from rich.console import Console

    from asyncrl.explain.display import show_rows
    from asyncrl.explain.run_list import run_rows

    console = Console()
    show_rows(list(run_rows(args.folder, time.time())), console)
    return 0


def show_rollouts(args: argparse.Namespace) -> int:
    from asyncrl.escape import escaped, escaped_json
    from asyncrl.explain.run_files import RunFiles
    from asyncrl.explain.views.record_files import write_records, write_traces
    from asyncrl.explain.views.rollout_records import RolloutRecord, Wanted, records, shown
    from asyncrl.runtime.output import complain
    from asyncrl.words import count

    files = RunFiles(_run(args))
    wanted = Wanted(**{name: getattr(args, name) for name in Wanted.__struct_fields__})

    def show(record: RolloutRecord) -> None:
        print(escaped_json(record) if args.json else shown(record), flush=True)

    if args.follow:
        from asyncrl.explain.views.followed_rollouts import follow

        if args.living or args.output is not None or args.traces is not None:
            raise _excluded(
                "--living" if args.living else "--output" if args.output else "--traces"
            )
        follow(files, wanted, show, complain)
        return 0
    if args.traces is not None:
        written = write_traces(files, wanted, args.traces)
        print(f"{count(written)} traces are written to {escaped(str(args.traces))}.")
        return 0
    if args.output is not None:
        written = write_records(files, wanted, args.output, complain)
        print(f"{count(written)} rollouts are written to {escaped(str(args.output))}.")
        return 0
    shows_any = False
    for record in records(files, wanted, complain):
        shows_any = True
        show(record)
    if not shows_any and not args.json:
        complain(f"{files.path}: the journal has no such rollout.")
    return 0


def _excluded(option: str) -> Exception:
    from asyncrl.config.errors import ConfigError

    return ConfigError(f"rollouts: --follow shows rollouts as they end; leave out {option}.")


def watch_run(args: argparse.Namespace) -> int:
    from rich.console import Console

    from asyncrl.explain.views.top import top

    top(_run(args), Console())
    return 0


def report_run(args: argparse.Namespace) -> int:
    import time

    from asyncrl.escape import escaped
    from asyncrl.explain.views.report import write_report

    path = write_report(_run(args), args.output, time.time())
    print(f"{escaped(str(path))} is written.")
    return 0


def _run(args: argparse.Namespace, whole: Callable[[Path], Path] = lambda run: run) -> Path:
    """The run that is named, or the `whole` of the newest one, whose name is then printed."""
    from asyncrl.escape import escaped
    from asyncrl.explain.run_list import newest_run

    run: Path | None = args.run
    if run is None:
        run = whole(newest_run())
        print(f"asyncrl: {escaped(str(run))}", file=sys.stderr)
    return run


def serve_page(args: argparse.Namespace) -> int:
    from asyncrl.explain.views.serving import serve

    def say(sentence: str) -> None:
        print(sentence, flush=True)

    serve(args.path, args.host, args.port, say)
    return INTERRUPTED
