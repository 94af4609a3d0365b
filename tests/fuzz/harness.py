"""Fuzzers by coverage, of every target: `make fuzz`, or `python tests/fuzz/harness.py --seconds 60
--only frames`.

Each target has a process of its own, as libFuzzer ends the one that it runs in. It is forked from
one that has imported everything. An input that is a finding is kept in `--keep`; run it again by
`python tests/fuzz/harness.py --again frames-crash-…`.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import io
import os
import sys
import tempfile
import traceback
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from targets import Target

PACKAGES = ["asyncrl", "actors", "targets", "tomllib"]
LIMITS = ("-max_len=4096", "-rss_limit_mb=3000", "-timeout=10", "-print_final_stats=1")


def found() -> dict[str, Target]:
    """The targets by name, and one with a fault, for the test of this file."""
    from targets import TARGETS, Target

    def planted(data: bytes) -> None:
        if data[:1] == b"b" and data[1:2] == b"u" and data[2:3] == b"g":
            raise RuntimeError("a planted fault")

    return {target.name: target for target in (*TARGETS, Target("planted", [b"bunny"], planted))}


def fuzz(target: Target, seconds: int, keep: Path, runs: int) -> None:
    """Run one target until the time is over, or it fails: libFuzzer then ends this process, with a
    code other than 0."""
    import atheris

    run = atheris.instrument_func(target.run) if target.name == "planted" else target.run
    with tempfile.TemporaryDirectory() as corpus:
        for number, seed in enumerate(target.seeds):
            Path(corpus, str(number)).write_bytes(seed)
        options = [
            sys.argv[0],
            corpus,
            f"-max_total_time={seconds}",
            f"-artifact_prefix={keep}/{target.name}-",
            *LIMITS,
        ]
        if runs:
            options += [f"-runs={runs}", "-seed=1"]
        atheris.Setup(options, run)
        atheris.Fuzz()


def forked(target: Target, seconds: int, keep: Path, runs: int) -> tuple[int, str]:
    """Fuzz one target in a process of its own; its exit status, and what it said."""
    with tempfile.TemporaryDirectory() as files, tempfile.TemporaryFile() as said:
        sys.stdout.flush()
        pid = os.fork()
        if not pid:
            try:
                tempfile.tempdir = files  # libFuzzer's process ends without a word to Python
                for descriptor in (1, 2):
                    os.dup2(said.fileno(), descriptor)
                fuzz(target, seconds, keep, runs)
            except SystemExit:  # a finding, which libFuzzer writes down at the exit of C
                sys.stderr.flush()
                ctypes.CDLL(None).exit(1)
            finally:  # only where something was raised: else libFuzzer has ended this process
                traceback.print_exc()
                sys.stderr.flush()
                os._exit(99)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        said.seek(0)
        return status, said.read().decode(errors="replace")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=int, default=20, help="for each target")
    parser.add_argument(
        "--runs",
        type=int,
        default=0,
        help="for each target, at most, and always the same ones; 0: other ones each time",
    )
    parser.add_argument("--only", help="one target's name")
    parser.add_argument("--planted", action="store_true", help="a target with a fault, at the end")
    parser.add_argument("--keep", type=Path, default=Path(".fuzz"), help="where findings are kept")
    parser.add_argument("--again", type=Path, help="an input that was kept")
    options = parser.parse_args()
    if options.again:
        found()[options.again.name.partition("-")[0]].run(options.again.read_bytes())
        return 0
    if find_spec("atheris") is None:
        print(
            "atheris is not installed, so nothing was fuzzed by coverage; the properties in "
            "test_fuzz.py need none"
        )
        return 0
    options.keep.mkdir(exist_ok=True)
    import atheris

    with contextlib.redirect_stderr(io.StringIO()), atheris.instrument_imports(include=PACKAGES):
        targets = found()
    names = [options.only] if options.only else [name for name in targets if name != "planted"]
    names += ["planted"] * options.planted
    failed = []
    for name in names:
        runs_of_it = 0 if name == "planted" else options.runs
        status, said = forked(targets[name], options.seconds, options.keep, runs_of_it)
        runs = next(
            (
                line.rpartition(":")[2].strip()
                for line in said.splitlines()
                if "number_of_executed_units" in line
            ),
            "?",
        )
        print(f"{name:20} {runs:>10} inputs   {'FAILED' if status else 'ok'}", flush=True)
        if status:
            failed.append(name)
            print(said[-6000:])
    if failed:
        print(f"findings in {', '.join(failed)}, kept in {options.keep}")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
