"""Checks of what a GPU alone can show: one command, one table, one JSON.

    python bench/gpu.py [--out build/gpu.json] [--small] [--only NAME ...] [--budget 540]

Each check is a process of its own with a limit of its own, forked from one that has imported what
all of them need; all of them have nine minutes. A check
that the machine lacks something for is skipped by name. Where packages are missing (a bare machine
with torch and transformers), the wheels of `make gpu-wheels` are installed into a folder that is
gone afterwards. `--small` runs every check on processors in a small form, with limits four times as
long: that shows that it works, and measures nothing. Exit status: 0 where all that was run is ok, 1
where something is not, 2 where the kit cannot start.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from gpu_kit import warm, wheels
from gpu_kit.check import SMALL_TIMES, Check, Lacks
from gpu_kit.field import field_table
from gpu_kit.harness import Interrupted, Report, good, run_all, summary
from gpu_kit.kit import BUDGET_S, CHECKS, check

ROOT = Path(__file__).parents[1]
LOOK_S = 90.0
"""Seconds that importing torch may take on a machine that has never done so."""


def main(argv: Sequence[str] | None = None) -> int:
    args = _parser().parse_args(argv)
    times = SMALL_TIMES if args.small else 1
    if args.download:
        size = wheels.download()
        count = len(list(wheels.FOLDER.glob("*.whl")))
        print(f"{count} wheels, {size / 1e6:.1f} MB, in {wheels.FOLDER.relative_to(ROOT)}")
        return 0
    if unknown := sorted(set(args.only) - {each.name for each in CHECKS}):
        names = ", ".join(each.name for each in CHECKS)
        print(f"there is no check {unknown[0]!r}: there are {names}", file=sys.stderr)
        return 2
    chosen = [
        replace(each, seconds=each.seconds * times)
        for each in CHECKS
        if not args.only or each.name in args.only
    ]
    if args.budget is None:
        args.budget = BUDGET_S * times
    with TemporaryDirectory(prefix="asyncrl-gpu-packages-") as target:
        return _run(chosen, args, Path(target))


def _run(chosen: Sequence[Check], args: argparse.Namespace, target: Path) -> int:
    ends_at = time.monotonic() + args.budget
    paths = [str(ROOT), str(ROOT / "bench"), str(target), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    try:
        if wheels.missing():
            wheels.install(target)
        machine = warm.look(LOOK_S * (SMALL_TIMES if args.small else 1))
    except Lacks as lacks:
        print(lacks, file=sys.stderr)
        return 2
    machine["small"] = args.small
    gpus = machine["gpus"]

    def lacking(each: Check) -> str | None:
        if args.small or gpus >= each.gpus:
            return None
        return f"needs {each.gpus} GPUs" if gpus else "no CUDA device"

    report = Report(args.out, machine, chosen)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)
    print(", ".join(f"{name} {value}" for name, value in machine.items() if value is not None))
    try:
        run_all(
            chosen,
            report,
            warm.checking(check, "cpu" if args.small else "cuda", small=args.small),
            ends_at=ends_at,
            lacks=lacking,
            say=lambda line: print(line, flush=True),
        )
    except Interrupted:
        print(f"interrupted; what there is, is in {args.out}", file=sys.stderr)
        return 1
    print("", *field_table(report.numbers()), "", sep="\n")
    print(f"{summary(chosen, report)}; {args.out}")
    return 0 if good(chosen, report) else 1


def _interrupt(number: int, _frame: object) -> None:
    raise Interrupted(signal.Signals(number).name)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "gpu.json")
    parser.add_argument("--small", action="store_true", help="on processors, in a small form")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="these checks alone")
    parser.add_argument("--budget", type=float, help="seconds for all of them")
    parser.add_argument(
        "--download", action="store_true", help="download the wheels that a bare machine lacks"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
