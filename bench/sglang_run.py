"""The main job through real SGLang servers, beside the same job with the embedded engine.

    accuracy    held-out, before and after
    lag, pause, publication seconds    from the summaries
    gap         how far the engine's log-probability of a token is from that of transformers under
                the weights of the token's version, by lag; at most 1e-5 (median)
    recovery    with --kill-every: seconds from a server's SIGKILL to the next lease of its rollout
                actor; who is killed is the next one that serves, and where none does the kill waits

The gap is of the tokens whose version was kept (every EVERY-th), read from the journal while the
run writes it. Servers are started by the rollout actors, with the Python of `make sglang-cpu`.

    python bench/sglang_run.py [--steps 120] [--servers 2] [--kinds sglang,embedded]
                               [--kill-every 20 --seconds 180]
"""

from __future__ import annotations

import argparse
import math
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from asyncrl import journal
from asyncrl.experience import events as e
from asyncrl.explain import summary
from asyncrl.runtime.run_dir import INITIAL, JOURNAL
from asyncrl.training.checkpoint_index import complete
from asyncrl.training.models import load_model

ROOT = Path(__file__).parent.parent
EVERY = 5
"""Steps between two versions whose weights are kept."""
ENVIRONMENT = {"PYTHONHASHSEED": "0", "HF_HUB_OFFLINE": "1"}
UNNOTICED_S = 2.0
"""So long after a kill a lease may still be one of before."""


@dataclass
class Told:
    """A training rollout as the journal told of it."""

    prompt: NDArray[np.int32]
    chunks: list[e.Extended] = field(default_factory=list)
    step: int | None = None


@dataclass
class Watched:
    """A run that is watched: its rollouts, the weights of its versions, and its kills."""

    run: Path
    rollouts: dict[int, Told] = field(default_factory=dict)
    weights: dict[int, Path] = field(default_factory=dict)
    kills: int = 0
    down: dict[str, float] = field(default_factory=dict)
    """Since when a rollout actor has had no lease because of a kill."""
    recovered: list[float] = field(default_factory=list)
    seen: int = 0

    def look(self) -> None:
        """Read what is new: events, and checkpoints, which are linked to before they are
        deleted."""
        path = self.run / JOURNAL
        if not path.exists():
            return
        for number, event in journal.read(path, self.seen):
            self._take(event)
            self.seen = number
        for checkpoint in complete(self.run):
            if checkpoint.version not in self.weights:
                kept = self.run.parent / f"{self.run.name}-{checkpoint.version}"
                kept.mkdir()
                for name in ("config.json", "model.safetensors"):
                    os.link(checkpoint.path / name, kept / name)
                self.weights[checkpoint.version] = kept

    def _take(self, event: e.AnyEvent) -> None:
        match event:
            case e.Admitted(split="train"):
                prompt = np.frombuffer(event.prompt, np.int32)
                self.rollouts |= {event.first + n: Told(prompt) for n in range(event.size)}
            case e.Extended() if event.rollout in self.rollouts:
                self.rollouts[event.rollout].chunks.append(event)
            case e.Taken():
                for rollout in event.rollouts:
                    self.rollouts[rollout].step = event.step
            case e.Leased() if event.holder in self.down:
                if (seconds := time.monotonic() - self.down[event.holder]) > UNNOTICED_S:
                    self.recovered.append(seconds)
                    del self.down[event.holder]

    def kill(self, indexes: Iterable[int]) -> bool:
        """SIGKILL for the first server that serves; says whether there is one."""
        for index in indexes:
            if (name := f"rollout-{index}") not in self.down and (
                pid := server(self.run, index)
            ) is not None:
                os.kill(pid, signal.SIGKILL)
                self.kills += 1
                self.down[name] = time.monotonic()
                return True
        return False

    def gaps(self) -> dict[int, NDArray[np.float64]]:
        """By lag, the absolute differences of log-probabilities of trained tokens."""
        found: dict[int, list[NDArray[np.float64]]] = {}
        for version, path in {0: self.run / INITIAL, **self.weights}.items():
            model = load_model(path, torch.float32)
            for told in self.rollouts.values():
                if told.step is not None and any(chunk.version == version for chunk in told.chunks):
                    found.setdefault(told.step - version, []).append(_gap(model, told, version))
        return {lag: np.concatenate(parts) for lag, parts in sorted(found.items())}


@torch.inference_mode()
def _gap(model: torch.nn.Module, told: Told, version: int) -> NDArray[np.float64]:
    """Of the tokens that `version` sampled; float64 [tokens]. The temperature of the main job is
    1."""
    chunks = sorted(told.chunks, key=lambda chunk: chunk.start)
    response = np.concatenate([np.frombuffer(chunk.ids, np.int32) for chunk in chunks])
    behaviour = np.concatenate([np.frombuffer(chunk.behaviour, np.float32) for chunk in chunks])
    of_version = np.concatenate(
        [np.full(len(chunk.ids) // 4, chunk.version == version) for chunk in chunks]
    )
    ids = torch.from_numpy(np.concatenate([told.prompt, response]).astype(np.int64))
    logits = model(input_ids=ids[None]).logits[0, len(told.prompt) - 1 : -1].double()
    scores = torch.log_softmax(logits, -1).gather(1, ids[len(told.prompt) :, None])[:, 0].numpy()
    return np.abs(scores - behaviour)[of_version]


def server(run: Path, index: int) -> int | None:
    """The process of a rollout actor's server, by the log that it was given."""
    log = str(run / "logs" / f"server-{index}.log")
    for pid in (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()):
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            leads = b"asyncrl.engines.servers.guarded_command" in words  # and waits for it
            if (
                b"sglang.launch_server" in words
                and not leads
                and str(Path(f"/proc/{pid}/fd/1").readlink()) == log
            ):
                return pid
        except OSError:
            continue
    return None


def settings(kind: str, args: argparse.Namespace, run: Path) -> Iterator[str]:
    values = {
        "run.dir": run,
        "train.steps": args.steps,
        "train.checkpoint_every": EVERY,
        "train.eval_every": 20,
        "rollout.actors": 1,
    }
    if kind == "sglang":
        values |= {
            "engine.kind": kind,
            "engine.sglang.launch": f'["{args.python}"]',
            "rollout.actors": args.servers,
        }
    if args.kill_every:
        values |= {
            "supervision.restarts": 50,
            "train.steps": 100_000,
            "train.lr_schedule": "constant",
            "train.eval_every": 0,
        }
    return (f"--set={key}={value}" for key, value in values.items())


def train(kind: str, args: argparse.Namespace, folder: Path) -> Watched:
    """One `asyncrl train`, watched to its end; with kills, to the end of its time, when it is asked
    to drain."""
    watched = Watched(folder / kind)
    argv = [
        sys.executable,
        "-m",
        "asyncrl.cli",
        "train",
        str(ROOT / "run.toml"),
        *settings(kind, args, watched.run),
    ]
    with (folder / f"{kind}.log").open("w") as log:
        process = subprocess.Popen(argv, stdout=log, stderr=log, env=os.environ | ENVIRONMENT)
        due = until = math.inf
        turns = deque(range(args.servers))
        while process.poll() is None:
            watched.look()
            now = time.monotonic()
            if (
                args.kill_every
                and until == math.inf
                and any(told.step is not None for told in watched.rollouts.values())
            ):
                due, until = now + args.kill_every, now + args.seconds
            if now > until:
                process.send_signal(signal.SIGTERM)
                process.wait()
            elif now > due and watched.kill(turns):
                due = now + args.kill_every
                turns.rotate(-1)
            time.sleep(0.1)
        watched.look()
    if process.returncode:
        raise SystemExit((folder / f"{kind}.log").read_text())
    return watched


def report(kind: str, watched: Watched, *, killed: bool) -> None:
    found = summary.read(watched.run / "summary.json")
    published = found.publication
    print(
        f"{kind}: accuracy {found.accuracy.start} → {found.accuracy.end} after {found.steps} "
        f"steps in {found.training_seconds:.1f} s"
    )
    print(
        f"  lag {found.lag.mean:.2f} mean, {found.lag.max} max; restarts {found.restarts}; "
        f"balanced: {found.balances()}"
    )
    print(
        f"  {published.count} publications of {published.seconds / published.count:.3f} s, "
        "decoding stood still for",
        end=" ",
    )
    print(f"{published.pause_seconds / published.count:.3f} s of each", flush=True)
    if killed:
        waits = ", ".join(f"{seconds:.1f}" for seconds in watched.recovered)
        middle = statistics.median(watched.recovered) if watched.recovered else math.nan
        print(
            f"  {watched.kills} kills; seconds to the next lease: {waits}; median {middle:.1f}; "
            f"without one at the end: {[*watched.down]}"
        )
        return
    for lag, gap in watched.gaps().items():
        print(
            f"  lag {lag}: {len(gap):>7} tokens, gap median {np.median(gap):.1e}, 99th "
            f"{np.quantile(gap, 0.99):.1e}, max {gap.max():.1e}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--servers", type=int, default=2)
    parser.add_argument("--kinds", default="sglang,embedded")
    parser.add_argument("--python", type=Path, default=ROOT / ".venv-sglang/bin/python")
    parser.add_argument(
        "--kill-every",
        type=float,
        default=0.0,
        help="seconds between two kills of a server; 0: none",
    )
    parser.add_argument("--seconds", type=float, default=180.0, help="with kills: of training")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        for kind in args.kinds.split(","):
            report(kind, train(kind, args, Path(name)), killed=bool(args.kill_every))


if __name__ == "__main__":
    main()
