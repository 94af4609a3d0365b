"""Faults of each role of a run, and of its machine, a life of real processes each: does the run go
on to its last step, or end by name, and is anything left?

The tiny model learns STEPS steps. At version AT the fault strikes:

    kill        SIGKILL
    stop        SIGSTOP, and SIGCONT after STOP_S
    stop_long   the same after more than supervision.stall_s
    files       no further file may be opened (RLIMIT_NOFILE)
    files+kill  the same, and a rollout actor is killed, so that another one starts
    memory      no further memory may be mapped (RLIMIT_AS)
    memory+kill the same with SPARE bytes left, and a rollout actor is killed
    ahead       the clock (CLOCK_REALTIME) of all processes jumps by a day
    back        it jumps back by a day
    swing       it jumps by two seconds to and fro, all the time
    stand       all processes stop, as with their machine, and go on after more than stall_s
    full        the run's disk is full for FULL_S (a tmpfs; root only)
    quota       every write to it fails with EDQUOT for as long
    readonly    every write to it fails with EROFS for as long
    quota+kill  the same as quota, and the trainer is killed meanwhile
    removed     the run's checkpoints are removed
    vanished    all of the run's directory is removed
    shm         /dev/shm, in a namespace of the run's own, is full for FULL_S (root only)
    stutter     SIGSTOP for STUTTER_S and SIGCONT, in turn, for STALL_S: in the middle of whatever
                the role does, publications among it

The clock and the quota need a C compiler, for `faults.c`. Limits stay until the process ends.

A life is good if it goes on to the last step with exit status 0, or ends with 1 and a sentence; and
if the journal is what its events come to (`follower.py`), and no process, socket, `*.partial`,
store or file in /dev/shm or TMPDIR is left, and the terminal shows no traceback but that of an
actor whose end it tells. After an end by name, or without its launcher, `--resume` must go on to
the last step; a run whose directory vanished must end by name. Everything else is bad.

    python bench/faults.py [--only ROLE:FAULT,…] [--model DIR] [--keep DIR]

`--only` takes parts: `trainer:` and `:stop` are all of a role and of a fault. Exit status 1 where a
life was bad.
"""

from __future__ import annotations

import argparse
import errno
import getpass
import mmap
import os
import resource
import shutil
import signal
import stat
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import kill_agents
from episode_follower import EpisodeFollower
from follower import Follower, JournalFollower, Wrong
from kill_matrix import KillMatrix, tiny

from asyncrl.explain import summary
from asyncrl.journal import JournalError
from asyncrl.runtime.run_dir import SUMMARY
from asyncrl.training.checkpoint_index import FOLDER as CHECKPOINTS

BENCH = Path(__file__).parent
STEPS, AT = 60, 10
STALL_S = 20.0
STOP_S, FULL_S, MORE_S, STUTTER_S = 2.0, 6.0, 8.0, 0.15
LIFE_S = 600.0
"""Seconds within which a life must end, and what its start may take besides: those of agents take
seven minutes at load 40."""
START_S = 60.0
"""Seconds that an actor may need to begin where it has a core for itself, of which it takes 20."""
ENDED_S = 5.0
"""Seconds within which a process whose launcher is gone must be."""
SPARE = 2**24
DISK = "192m"
LOOK_S = 0.05
DAY_NS, SWING_NS = 86_400 * 10**9, 2 * 10**9
SETTINGS = {
    "train.steps": STEPS,
    "supervision.restarts": 5,
    "supervision.heals": 3,
    "supervision.stall_s": STALL_S,
    "publication.deadline_s": 8.0,
    "task.verdict_s": 10.0,
}
PROCESS = ("kill", "stop", "stop_long", "files", "files+kill", "memory", "memory+kill")
STOPS = ("stop", "stop_long")
MACHINE = (
    *("ahead", "back", "swing", "stand", "full", "quota"),
    *("readonly", "quota+kill", "removed", "vanished", "shm"),
)
MORE = {"coordinator": ("stutter",), "trainer": ("stutter",), "agents": ("swing",)}
"""Faults that a role has besides."""
SHM_COMMAND = (
    *("unshare", "--mount", "sh", "-c"),
    *('mount -t tmpfs -o size=2m faults /dev/shm && exec "$@"', "sh"),
)
REFUSED = {"quota": errno.EDQUOT, "quota+kill": errno.EDQUOT, "readonly": errno.EROFS}
"""Errors with which writes fail."""
ROLES = (
    "coordinator",
    "trainer",
    "rank 0",
    "rank 1",
    "rollout",
    "reward",
    "verifier",
    "zygote",
    "launcher",
    "agents",
    "machine",
)
TITLES = {
    "verifier": "asyncrl.actors.verifier_process",
    "zygote": "asyncrl.actors.preloaded",
}
CACHES = {f"torchinductor_{getpass.getuser()}"}
"""Folders in TMPDIR that libraries keep."""
SHM = "/dev/shm/"
TRACEBACK, TOLD = "Traceback (most recent call last)", "; its last output:"


def start_s() -> float:
    """Seconds that an actor may need to begin, with its share of the cores at this load."""
    share = max(os.getloadavg()) / len(os.sched_getaffinity(0))
    return START_S * max(1.0, share)


class Fault(NamedTuple):
    """A fault, and the role that has it."""

    role: str
    name: str

    def __str__(self) -> str:
        return f"{self.role}:{self.name}"


class Outcome(NamedTuple):
    """The end of a life: "went on", "ended by name" or "bad", with the sentence or what was bad."""

    how: str
    what: str
    seconds: float


def every() -> list[Fault]:
    """All faults, role by role."""
    return [
        Fault(role, name)
        for role in ROLES
        for name in {"machine": MACHINE, "rank 0": STOPS}.get(role, PROCESS) + MORE.get(role, ())
    ]


def chosen(only: str) -> list[Fault]:
    """Those that `--only` names, all where it is empty."""
    parts = [part.partition(":") for part in only.split(",") if part]
    return [
        fault
        for fault in every()
        if not parts
        or any(
            fault.role == (role or fault.role) and fault.name == (name or fault.name)
            for role, _, name in parts
        )
    ]


class Machine:
    """The faults of `faults.c` in all processes of a run: `clock` moves CLOCK_REALTIME, and
    `refuse` lets writes below `disk` fail."""

    def __init__(self, place: Path, disk: Path) -> None:
        self._file = place / "faults.shared"
        self._file.write_bytes(bytes(16))
        with self._file.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 16)
        library = place.parent / "faults.so"
        self.environment = (
            {
                "LD_PRELOAD": str(library),
                "FAULTS_SHARED": str(self._file),
                "FAULTS_DISK": str(disk),
            }
            if library.exists()
            else {}
        )

    def clock(self, offset_ns: int) -> None:
        self._map[:8] = struct.pack("q", offset_ns)

    def refuse(self, error: int) -> None:
        self._map[8:] = struct.pack("q", error)


class Life(KillMatrix[JournalFollower]):
    """One run, the fault that strikes it, and its end."""

    def __init__(self, place: Path, model: Path, fault: Fault) -> None:
        disk = place / "disk"
        disk.mkdir(parents=True)
        (place / "tmp").mkdir()
        run, start, more = disk / "run", start_s(), dict[str, object](SETTINGS)
        more["supervision.start_s"] = start
        self.life_s = LIFE_S + start
        follower: JournalFollower = Follower(run)
        if fault.role.startswith("rank") or fault.name == "stand":
            more["train.ranks"] = 2
        if fault.role == "agents":
            more = kill_agents.SETTINGS | more
            follower = EpisodeFollower(run)
        super().__init__(run, model, 0, follower, more)
        self.place, self.fault, self.machine = place, fault, Machine(place, disk)
        self.environment = {
            "PYTHONPATH": f"{BENCH}:{os.environ.get('PYTHONPATH', '')}",
            "TMPDIR": str(place / "tmp"),
            "FAULTS_LIFE": str(place),
            **self.machine.environment,
        }
        if fault.name == "shm":
            self.command = [*SHM_COMMAND, *self.command]
        self._shared: set[str] = set()  # files in /dev/shm that its processes have mapped
        self._sessions: set[int] = set()
        self._head: int | None = None  # the coordinator whose journal is followed

    @property
    def terminal(self) -> str:
        """All that the launcher printed."""
        return (self.run.parent / "launcher.log").read_text(errors="replace")

    # ------------------------------------------------------------------------------------- looking

    def watch(self, done: Callable[[], bool], seconds: float) -> bool:
        """Follow the run until it is so; False after so many seconds. Raises Wrong."""
        end = time.monotonic() + seconds
        while True:
            self._follow()
            if done():
                return True
            if time.monotonic() > end:
                return False
            time.sleep(LOOK_S)

    def _follow(self) -> None:
        if self._head is None or not _alive(self._head):
            if self._head is not None:
                self._look(self.follower.dead)
            now = self.processes()
            self._sessions.update(now.values())
            self._head = now.get(("coordinator", "0"))
        self._look(self.follower.look)

    def _look(self, look: Callable[[], object]) -> None:
        with suppress(JournalError, OSError):  # of a disk that is full at the moment
            look()

    def over(self) -> bool:
        """True once the launcher has ended."""
        return self.process is not None and self.process.poll() is not None

    # ------------------------------------------------------------------------------------- striking

    def victim(self) -> int:
        """The process that the fault strikes."""
        role = self.fault.role
        assert self.process is not None
        if role == "launcher":
            return self.process.pid
        if role in TITLES:
            return next(titled(TITLES[role], str(self.place)))
        actor, _, index = role.partition(" ")
        return self.processes()["trainer" if index else actor, index or "0"]

    def strike(self) -> None:
        """Have the fault, to its end. Raises Wrong where the run does not come so far."""
        begun = self.watch(lambda: self.follower.version >= AT or self.over(), self.life_s)
        if not begun or self.over():
            raise Wrong("start", "the run did not begin")
        for pid, _ in marked(self._sessions, str(self.place)):
            self._shared |= shared_memory(pid)
        if self.fault.name in MACHINE:
            self._strike_machine()
            return
        pid, name = self.victim(), self.fault.name
        if name == "kill":
            os.kill(pid, signal.SIGKILL)
        elif name == "stutter":
            end = time.monotonic() + STALL_S
            while time.monotonic() < end and not self.over():
                for number in (signal.SIGSTOP, signal.SIGCONT):
                    with suppress(ProcessLookupError):
                        os.kill(pid, number)
                    self.watch(self.over, STUTTER_S)
        elif name.startswith("stop"):
            os.kill(pid, signal.SIGSTOP)
            self.watch(self.over, STOP_S if name == "stop" else STALL_S + MORE_S)
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        else:
            limit, value = (
                (resource.RLIMIT_NOFILE, lowest_free(pid))
                if name.startswith("files")
                else (resource.RLIMIT_AS, mapped(pid) + SPARE * name.endswith("+kill"))
            )
            resource.prlimit(pid, limit, (value, value))
            if name.endswith("+kill"):
                self.watch(self.over, 0.5)
                with suppress(ProcessLookupError, KeyError):
                    os.kill(self.processes()["rollout", "0"], signal.SIGKILL)

    def _strike_machine(self) -> None:
        match self.fault.name:
            case "ahead":
                self.machine.clock(DAY_NS)
            case "back":
                self.machine.clock(-DAY_NS)
            case "swing":
                sign = 1
                while not self.watch(self.over, 0.5):
                    self.machine.clock(sign * SWING_NS)
                    sign = -sign
            case "stand":
                pids = [pid for pid, _ in marked(self._sessions, str(self.place))]
                for number in (signal.SIGSTOP, signal.SIGCONT):
                    for pid in pids:
                        with suppress(ProcessLookupError):
                            os.kill(pid, number)
                    if number == signal.SIGSTOP:
                        time.sleep(STALL_S + MORE_S)
            case name if name in REFUSED:
                self.machine.refuse(REFUSED[name])
                if name.endswith("+kill"):
                    self.watch(self.over, FULL_S / 2)
                    with suppress(ProcessLookupError, KeyError):
                        os.kill(self.processes()["trainer", "0"], signal.SIGKILL)
                self.watch(self.over, FULL_S)
                self.machine.refuse(0)
            case "removed":
                shutil.rmtree(self.run / CHECKPOINTS)
            case "vanished":
                shutil.rmtree(self.run, ignore_errors=True)
            case "full" | "shm":
                assert self.process is not None
                shm = Path(f"/proc/{self.process.pid}/root/dev/shm")
                filler = (shm if self.fault.name == "shm" else self.run.parent) / "filler"
                end = time.monotonic() + FULL_S
                with filler.open("ab", buffering=0) as file:
                    while time.monotonic() < end and not self.over():
                        with suppress(OSError):
                            while True:
                                file.write(bytes(2**16))
                        self.watch(self.over, LOOK_S)
                filler.unlink(missing_ok=True)

    # ------------------------------------------------------------------------------------- judging

    def live(self) -> Outcome:
        """Have the life, and judge it."""
        began = time.monotonic()
        try:
            self.start()
            self.strike()
            how, what = self._judged()
        except Wrong as wrong:
            how, what = "bad", f"{wrong.what}: {wrong}"
        finally:
            self.machine.refuse(0)
            self.close()
            self._end_what_is_left()
        return Outcome(how, what, time.monotonic() - began)

    def _judged(self) -> tuple[str, str]:
        if not self.watch(self.over, self.life_s):
            return "bad", f"hang: no end within {self.life_s:g} s"
        assert self.process is not None
        code, sentence = self.process.returncode, last_line(self.terminal)
        killed = self.fault == Fault("launcher", "kill") and code == -signal.SIGKILL
        wrong = self._left(killed)
        if untold(self.terminal):
            wrong.append("a traceback on the terminal")
        if code not in (0, 1) and not killed:
            wrong.append(f"exit status {code}: {sentence}")
        if code == 1 and not sentence:
            wrong.append("exit status 1 without a sentence")
        if self.fault.name == "vanished":
            wrong += [] if code else ["it ended well, and its directory was gone"]
            return ("bad", "; ".join(wrong)) if wrong else ("ended by name", sentence)
        self.follower.dead()
        if code:
            wrong += self._resumed()
        wrong += self._whole()
        if self.fault.name in ("stand", "stutter", *STOPS) and (silent := self._without_verdict()):
            wrong.append(f"{silent} answers without a verdict")
        if wrong:
            return "bad", "; ".join(wrong)
        return ("ended by name", sentence) if code else ("went on", notes(self.terminal))

    def _resumed(self) -> list[str]:
        """Go on with the run, without the fault. Returns all that is wrong with its end."""
        self.machine.clock(0)
        self._head = None
        self.start()
        if not self.watch(self.over, self.life_s):
            return ["the resumed run hangs"]
        assert self.process is not None
        code = self.process.returncode
        wrong = self._left(False)
        if code:
            wrong.append(f"the resumed run ended with {code}: {last_line(self.terminal)}")
        self.follower.dead()
        return wrong

    def _whole(self) -> list[str]:
        """All that is wrong with a run that is over."""
        wrong, path = [], self.run / SUMMARY
        found = summary.read(path) if path.exists() else None
        if found is None or not found.ok or not found.balances():
            wrong.append(f"the summary: {found.reason if found else 'none'}")
        if self.follower.version != STEPS:
            wrong.append(f"version {self.follower.version} is the last")
        return wrong

    def _without_verdict(self) -> int:
        """Answers whose verdict was lost, though no verifier was struck."""
        found = summary.read(self.run / SUMMARY)
        return 0 if self.fault.role == "verifier" else found.rollouts.discarded.get("no_verdict", 0)

    def _left(self, killed: bool) -> list[str]:
        """All that the run has left behind; one whose launcher was killed has sockets still."""
        self.watch(lambda: not self._remaining(), ENDED_S)
        found = [f"process {pid} is left: {title}" for pid, title in self._remaining().items()]
        if not killed:
            found += [f"{name} is left" for name in files_left(self.run)]
            names = [path.name for path in (self.place / "tmp").iterdir()]
            found += [f"TMPDIR has {name}" for name in names if name not in CACHES]
        found += [f"{name} is left" for name in self._shared if Path(name).exists()]
        return found

    def _remaining(self) -> dict[int, str]:
        """Processes of this life: those with its variable, or in the session of an actor."""
        return {
            pid: title
            for pid, title in marked(self._sessions, str(self.place))
            if self.process is None or pid != self.process.pid
        }

    def _end_what_is_left(self) -> None:
        for pid in self._remaining():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


# ---------------------------------------------------------------------------------------- processes


def _processes() -> Iterator[tuple[int, str, list[str]]]:
    """Living processes: id, title, and the fields of their `stat` from the state on."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(FileNotFoundError, ProcessLookupError):
                title = os.fsdecode((entry / "cmdline").read_bytes().replace(b"\0", b" ")).strip()
                fields = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
                if fields[0] not in "ZX":
                    yield int(entry.name), title, fields


def _variables(pid: int) -> bytes:
    with suppress(OSError):
        return Path(f"/proc/{pid}/environ").read_bytes()
    return b""


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def marked(sessions: set[int], life: str) -> Iterator[tuple[int, str]]:
    """Processes of these sessions, or with this life in their variables."""
    for pid, title, fields in _processes():
        if int(fields[3]) in sessions or f"FAULTS_LIFE={life}\0".encode() in _variables(pid):
            yield pid, title


def titled(title: str, life: str) -> Iterator[int]:
    """The processes of a life with such a title, the oldest first."""
    found = [
        (int(fields[19]), pid)
        for pid, full, fields in _processes()
        if title in full and (life in full or _of_life(pid, fields, life))
    ]
    for _, pid in sorted(found):
        yield pid


def _of_life(pid: int, fields: Sequence[str], life: str) -> bool:
    """True of a process with this life's variable, or whose session's leader has it in its
    title."""
    with suppress(OSError):
        leader = Path(f"/proc/{fields[3]}/cmdline").read_bytes()
        return life.encode() in leader or life.encode() in _variables(pid)
    return False


def lowest_free(pid: int) -> int:
    """The lowest number that no open file of a process has: with it as its limit, none opens."""
    taken = {int(path.name) for path in Path(f"/proc/{pid}/fd").iterdir()}
    return next(number for number in range(len(taken) + 1) if number not in taken)


def shared_memory(pid: int) -> set[str]:
    """The files in /dev/shm that a process has mapped."""
    try:
        lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    except OSError:
        return set()
    return {f"{SHM}{line.partition(SHM)[2]}" for line in lines if SHM in line}


def mapped(pid: int) -> int:
    """Bytes that a process has mapped."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[0])
    return pages * resource.getpagesize()


# -------------------------------------------------------------------------------- what a run leaves


def files_left(run: Path) -> list[str]:
    """Files that a run which is over must not leave: sockets, pipes, parts of files, and
    the files in which its processes meet."""
    return sorted(
        str(path.relative_to(run))
        for path in run.rglob("*")
        if stat.S_ISSOCK(mode := path.lstat().st_mode)
        or stat.S_ISFIFO(mode)
        or path.name.endswith((".partial", ".store"))
        or path.name.startswith(".partial-")
    )


def untold(terminal: str) -> bool:
    """True if a terminal shows a traceback that is not what an actor said at its end."""
    before, found, _ = terminal.partition(TRACEBACK)
    return bool(found) and TOLD not in before.rpartition("\n0:")[2]


def last_line(terminal: str) -> str:
    """The sentence that a run ended with: the first line of the last that is not a traceback's."""
    before, _, _ = terminal.partition(TOLD)
    lines = [line for line in before.splitlines() if line.strip()]
    return lines[-1].strip() if lines else ""


def notes(terminal: str) -> str:
    """The notes of a run about its actors."""
    said = [
        line.strip()
        for line in terminal.splitlines()
        if " continues from" in line
        or " is replaced" in line
        or " ended with" in line
        or " was killed" in line
        or "fork server" in line
    ]
    return " / ".join(said)


# ---------------------------------------------------------------------------------------- the bench


def compiled(place: Path) -> bool:
    """Build `faults.c`; False where there is no compiler."""
    if (cc := shutil.which("cc")) is None:
        return False
    argv = [cc, "-O1", "-shared", "-fPIC", "-o", str(place / "faults.so")]
    subprocess.run([*argv, str(BENCH / "faults.c"), "-ldl"], check=True)
    return True


@contextmanager
def small_disk(path: Path, wanted: bool) -> Iterator[None]:
    """A small tmpfs at this place for the length of the block."""
    if not wanted:
        yield
        return
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK}", "faults", path], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", path], check=True)


def kept(life: Path, to: Path) -> None:
    """Keep what a life left, but for its sockets."""
    shutil.rmtree(to, ignore_errors=True)
    sockets = shutil.ignore_patterns("*.sock")
    shutil.copytree(life, to, symlinks=True, ignore=sockets)


def skipped(fault: Fault, shim: bool) -> str:
    """The reason why this machine cannot have the fault, "" if it can."""
    if fault.name in ("full", "shm") and os.geteuid():
        return "a disk to fill needs root"
    if fault.name in ("ahead", "back", "swing", *REFUSED) and not shim:
        return "no C compiler"
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", metavar="ROLE:FAULT,…")
    parser.add_argument("--model", type=Path, help="a model directory (default: a tiny one)")
    parser.add_argument("--keep", type=Path, help="where lives are kept")
    args = parser.parse_args()
    counts = {"went on": 0, "ended by name": 0, "bad": 0}
    print(f"{'role':<12} {'fault':<12} {'how':<14} seconds  what was said")
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        place = Path(folder)
        model, shim = args.model or tiny(place / "model"), compiled(place)
        for fault in chosen(args.only):
            if why := skipped(fault, shim):
                print(f"{fault.role:<12} {fault.name:<12} skipped: {why}", flush=True)
                continue
            life = Life(place / str(fault).replace(":", "-"), model.absolute(), fault)
            with small_disk(life.run.parent, fault.name == "full"):
                how, what, seconds = life.live()
                if args.keep:
                    kept(life.place, args.keep / life.place.name)
            shutil.rmtree(life.place)
            counts[how] += 1
            print(f"{fault.role:<12} {fault.name:<12} {how:<14} {seconds:7.0f}  {what}", flush=True)
    print(", ".join(f"{how} {count}" for how, count in counts.items()))
    return int(counts["bad"] > 0)


if __name__ == "__main__":
    sys.exit(main())
