"""Faults in each phase of a publication, one after the other in one run of real processes: does
anything hang, and does any token leave an actor that was sampled under weights nobody verified?

A tap (`frame_tap.py`) stands on the coordinator's links. When the message that is due passes it,
the victim is killed (SIGKILL), stopped (SIGSTOP, and never continued), frozen (continued after
FREEZE_S, which is no reason to replace it), cut off, or what it says of the bytes that it has is
changed by one bit. The messages are those between the phases of a publication:

    staged    Prepare, Publish → TRANSFER → Prepared → VERIFY → Commit → COMMIT
    direct    Prepare → PREPARE → Joined → Quiesce → QUIESCE → Transfer → TRANSFER → Prepared
              → VERIFY → Commit → COMMIT

Victims are an engine (a rollout actor) and the trainer, with `--ranks 2` also its second rank; all
that message, action and victim can make are had in turn, in an order drawn from the seed. The first
comes when a step is made. A fault is over when a newer version is published and every engine has
weights again.

    hang        that is not so within HANG_S
    unverified  a commit for an engine whose checksums were not those of the trainer, or a token
                under a version that its link was never given a commit of
    lost        a token, verdict or prompt that was journalled is not in the run's state after

What the tap sees is judged by nothing that the product keeps. Not struck here: weights between two
buckets, and their bytes themselves (tests/weightsync flips those).

    python bench/publication_faults.py [--faults 100] [--path staged|direct] [--ranks 1|2]
                                       [--seed 0]

Exit status 1 where anything was lost, unverified, or hung.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import msgspec
import trio
from follower import Wrong
from frame_tap import TappedLink, tap
from kill_matrix import Matrix, arguments, tiny

from asyncrl.messages import (
    Chunks,
    Commit,
    Committed,
    Joined,
    Message,
    Prepare,
    Prepared,
    Publish,
    Quiesce,
    Transfer,
    Transferred,
)
from asyncrl.runtime.run_dir import COORDINATOR

Action = Literal["kill", "stop", "freeze", "cut", "flip"]
Victim = Literal["engine", "trainer", "rank"]
MOMENTS: dict[str, tuple[type[Message], ...]] = {
    "staged": (Prepare, Publish, Prepared, Commit),
    "direct": (Prepare, Joined, Quiesce, Transfer, Prepared, Commit),
}
FREEZE_S = 1.0
DEADLINE_S = 8.0
"""`publication.deadline_s`: who stands still is found within it."""
SETTINGS = {
    "rollout.actors": 2,
    "publication.deadline_s": DEADLINE_S,
    "supervision.stall_s": 20.0,
    "task.verdict_s": 10.0,
}


class Fault(msgspec.Struct, frozen=True):
    """An action on a victim when a message passes."""

    moment: type[Message]
    action: Action
    victim: Victim

    def __str__(self) -> str:
        return f"{self.action} {self.victim} at {self.moment.__name__}"


def faults(path: str, ranks: int) -> list[Fault]:
    """Every fault that there can be: bits are flipped in what a side says of what it has, once it
    says so."""
    every: tuple[Victim, ...] = ("engine", "trainer", "rank")
    victims = every if ranks > 1 else every[:2]
    found = [
        Fault(moment, action, victim)
        for moment in MOMENTS[path]
        for action in ("kill", "stop", "freeze", "cut")
        for victim in victims
        if not (victim == "rank" and action == "cut")  # it has no link of the coordinator's
    ]
    return [*found, Fault(Prepared, "flip", "engine"), Fault(Transferred, "flip", "trainer")]


class Watch:
    """Watch over the tap: it strikes when a fault is due, and judges what engines were given.

    `violations` are sentences; `struck` is set when the fault that was armed has struck."""

    def __init__(self, draw: random.Random) -> None:
        self._draw = draw
        self._lock = threading.Lock()
        self._armed: Fault | None = None
        self._rank: int | None = None
        self.struck = threading.Event()
        self.victim = 0  # the process that was struck last
        self.violations: list[str] = []
        self.commits = self.tokens = 0
        self.serving: dict[str, TappedLink] = {}  # links whose engines have weights, by actor
        self._links: dict[str, TappedLink] = {}
        self._given: dict[TappedLink, set[int]] = {}  # versions that a link was given
        self._sent: dict[int, list[int]] = {}  # the trainer's checksums, by publication
        self._has: dict[tuple[TappedLink, int], list[int]] = {}  # as the coordinator heard it

    def arm(self, fault: Fault, rank: int | None) -> None:
        """Have the next publication struck that comes to the phase; `rank` is the process of the
        trainer's second rank."""
        with self._lock:
            self.struck.clear()
            self._rank, self._armed = rank, fault

    def heard(self, link: TappedLink, up: bool, message: Message) -> Message:
        """Pass a message on, or another in its place."""
        if link.hello is None:
            return message
        name = f"{link.hello.role}-{link.hello.index}"
        self._links[name] = link
        passed = self._strike(link, message)
        self._judge(name, link, passed)
        return passed

    def _strike(self, link: TappedLink, message: Message) -> Message:
        with self._lock:
            fault = self._armed
            if fault is None or not isinstance(message, fault.moment):
                return message
            self._armed = None
        if fault.action == "flip":
            assert isinstance(message, Prepared | Transferred)
            if not message.checksums:  # it says that it failed
                self._armed = fault
                return message
            self.struck.set()
            bit = 1 << self._draw.randrange(31)
            sums = [message.checksums[0] ^ bit, *message.checksums[1:]]
            return msgspec.structs.replace(message, checksums=sums)
        victim = self._victim(fault, link)
        assert victim.hello is not None
        pid = self._rank if fault.victim == "rank" else victim.hello.pid
        assert pid is not None
        self.victim = pid
        if fault.action == "cut":
            victim.cut.cancel()
        else:
            try:
                os.kill(pid, signal.SIGKILL if fault.action == "kill" else signal.SIGSTOP)
            except ProcessLookupError:  # it has ended meanwhile: the next one is struck
                self._armed = fault
                return message
        self.struck.set()
        return message

    def _victim(self, fault: Fault, link: TappedLink) -> TappedLink:
        """The link of the victim: of engines the one that the message is about, or else any."""
        assert link.hello is not None
        if fault.victim != "engine":
            return self._links["trainer-0"]
        if link.hello.role == "rollout":
            return link
        return self.serving[self._draw.choice(sorted(self.serving))]

    def _judge(self, name: str, link: TappedLink, message: Message) -> None:
        given = self._given.setdefault(link, set())
        match message:
            case Transferred(publication, checksums=sums, error=""):
                self._sent[publication] = sums
            case Prepared(publication, checksums=sums, error=""):
                self._has[link, publication] = sums
            case Commit(publication, version):
                self.commits += 1
                sent, has = self._sent.get(publication), self._has.get((link, publication))
                if not sent or sent != has:
                    self.violations.append(
                        f"{name} was given a commit of version {version}, with checksums {has} "
                        f"for the trainer's {sent}"
                    )
                given.add(version)
            case Committed():
                self.serving[name] = link
            case Chunks(heads):
                self.tokens += sum(head.count for head in heads)
                for head in heads:
                    if head.count and head.version not in given:
                        self.violations.append(
                            f"{name} sent tokens of version {head.version}; it was given "
                            f"{sorted(given)[-3:]}"
                        )

    def whole(self, engines: int) -> bool:
        """True if so many engines have weights, on links that stand."""
        links = [self._links.get(f"rollout-{index}") for index in range(engines)]
        return all(link is not None and not link.over and self._given.get(link) for link in links)


class FaultMatrix(Matrix):
    """A run, and its faults; `rows` are (fault, seconds until it is whole again)."""

    def __init__(self, run: Path, model: Path, seed: int, path: str, ranks: int) -> None:
        more = SETTINGS | {"publication.path": f'"{path}"', "train.ranks": ranks}
        super().__init__(run, model, seed, more)
        self.watch, self.rows = Watch(self.draw), list[tuple[Fault, float]]()
        every = faults(path, ranks)
        self.draw.shuffle(every)
        self.order: Iterator[Fault] = itertools.cycle(every)

    def strike(self) -> None:
        """Have the next fault, and see that the run is whole again. Raises Wrong."""
        follower, watch, fault = self.follower, self.watch, next(self.order)
        self.wait("whole run", lambda: watch.whole(2) and follower.version > 0)
        life = self.processes()
        watch.arm(fault, life.get(("trainer", "1")))
        began = self.wait(f"{fault}", watch.struck.is_set)
        version = follower.version
        if fault.action == "freeze":
            time.sleep(FREEZE_S)
            os.kill(watch.victim, signal.SIGCONT)
        elif fault.victim != "engine" and fault.action != "flip":
            self.wait("end of a life", lambda: not {*life.values()} & {*self.processes().values()})
            follower.dead()
        elif fault.action in ("kill", "stop", "cut"):
            self.wait("end of the engine", lambda: watch.victim not in self.processes().values())
        self.wait("newer version", lambda: follower.version > version and watch.whole(2))
        self.rows.append((fault, time.monotonic() - began))
        if fault.action == "freeze" and watch.victim not in self.processes().values():
            raise Wrong("hang", f"{fault}: who stood for {FREEZE_S:g} s was replaced")
        if watch.violations:
            raise Wrong("unverified", watch.violations[0])


def told(matrix: FaultMatrix) -> None:
    """Print the seconds by action and victim, and how often each phase was struck."""
    print("\naction  victim    faults   seconds to a whole run: median   longest")
    kinds = sorted({(fault.action, fault.victim) for fault, _ in matrix.rows})
    for action, victim in kinds:
        seconds = [s for f, s in matrix.rows if (f.action, f.victim) == (action, victim)]
        print(
            f"{action:<7} {victim:<8} {len(seconds):7} {statistics.median(seconds):32.1f} "
            f"{max(seconds):9.1f}"
        )
    moments = Counter(fault.moment.__name__ for fault, _ in matrix.rows)
    print("at:", ", ".join(f"{moment} {count}" for moment, count in moments.items()))


def struck(matrix: FaultMatrix, count: int) -> Wrong | None:
    """Have so many faults, and let the run finish. Returns what went wrong."""
    try:
        matrix.start()
        for number in range(count):
            matrix.strike()
            fault, seconds = matrix.rows[-1]
            print(f"{number + 1:4} {fault!s:<28} {seconds:6.1f} s", flush=True)
        matrix.finish()
    except Wrong as found:
        return found
    finally:
        matrix.close()
    return None


def main() -> int:
    parser = arguments(__doc__ or "", 0)
    parser.add_argument("--faults", type=int, default=100)
    parser.add_argument("--path", choices=MOMENTS, default="direct")
    parser.add_argument("--ranks", type=int, choices=(1, 2), default=1)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="publication-faults-") as place:
        run = (args.run or Path(place) / "run").absolute()
        run.parent.mkdir(parents=True, exist_ok=True)
        model = args.model or tiny(Path(place) / "model")
        matrix = FaultMatrix(run, model, args.seed, args.path, args.ranks)
        thread = threading.Thread(
            target=trio.run, args=(tap, run / COORDINATOR, matrix.watch.heard), daemon=True
        )
        thread.start()
        began = time.monotonic()
        wrong = struck(matrix, args.faults)
        told(matrix)
        print(
            f"{len(matrix.rows)} faults in {time.monotonic() - began:.0f} s, {args.path}, "
            f"{args.ranks} ranks, load {os.getloadavg()[0]:.1f}; {matrix.watch.commits:,} commits "
            f"and {matrix.watch.tokens:,} tokens were looked at, {len(matrix.follower.resumed)} "
            "lives began anew"
        )
        for what in ("hang", "unverified", "lost", "twice"):
            print(f"{what:<10} {int(wrong is not None and wrong.what == what)}")
        if wrong is not None:
            print(f"after {len(matrix.rows)} faults: {wrong}", file=sys.stderr)
    return int(wrong is not None)


if __name__ == "__main__":
    sys.exit(main())
