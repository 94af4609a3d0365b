"""Publications as their messages tell of them. Invariant: each publication has a reason, an epoch
whose transfer failed is never used again, an epoch is of one membership, who has a version is not
sent it again, who is told to abort lets go at once, and nobody is once weights that are decoded
with are being written, before which all stand still.
"""

from __future__ import annotations

from asyncrl.messages import (
    Abort,
    Commit,
    Committed,
    EngineReady,
    Hello,
    Leases,
    Message,
    Prepare,
    Publish,
    Quiesce,
    Quiesced,
    Resend,
    Stepped,
    Transfer,
    Transferred,
    Unpin,
)
from asyncrl.simulation.checker.checked_run import CheckedRun

FAILURES = 5
"""Publications in a row whose failure ends a run."""


class _Served:
    """The versions that one start of a rollout actor was told to serve. `kept` are those that it
    keeps by what it has answered, `pinned` by what it has heard."""

    def __init__(self) -> None:
        self.current: int | None = None
        self.pins: dict[int, bool] = {}
        self.kept: set[int] = set()
        self.pinned: set[int] = set()


class PublicationWitness:
    """Hears the publications of one life. With `keeps`, engines keep a pinned version beside later
    ones."""

    def __init__(self, run: CheckedRun, *, keeps: bool) -> None:
        self._run, self._keeps = run, keeps
        self._epochs: dict[int, tuple[int, int]] = {}  # by publication: its epoch, and the world
        self._ranks: dict[int, set[int]] = {}
        self._members: dict[tuple[int, int], str] = {}  # the start that has a rank in an epoch
        self._worlds: dict[int, int] = {}  # by epoch
        # direct ones: who was told to stand still, who does, and those that were sent
        self._told_still: dict[int, set[str]] = {}
        self._still: dict[int, set[str]] = {}
        self._sending: set[int] = set()
        self._broken: set[int] = set()  # publications that failed
        self._reasons = 1
        self._aborted: dict[tuple[str, int], float] = {}  # when a start heard of it
        self._served: dict[str, _Served] = {}
        self.row = 0
        """Publications begun since the last one that was decided."""

    def served(self, start: str) -> _Served:
        return self._served.setdefault(start, _Served())

    # ------------------------------------------------------------------------------------- messages

    def told(self, start: str, message: Message) -> None:
        """The coordinator tells an actor this."""
        match message:
            case Publish(number, epoch, world):
                self._begun(number, epoch, world)
            case Prepare():
                self._same(message.publication, message.epoch, message.world)
                ranks = self._ranks.setdefault(message.publication, set())
                self._run.hold(
                    "publication",
                    0 < message.rank < message.world and message.rank not in ranks,
                    "{} has a rank of {}",
                    message,
                    ranks,
                )
                ranks.add(message.rank)
                member = self._members.setdefault((message.epoch, message.rank), start)
                self._run.hold(
                    "publication",
                    member == start,
                    "{} goes to {}, and {} has that rank",
                    message,
                    start,
                    member,
                )
            case Transfer(number):
                self._sending.add(number)
                self._run.hold(
                    "publication",
                    self._still.get(number, set()) == self._told_still.get(number, set()),
                    "publication {} is sent while {} decode",
                    number,
                    self._told_still.get(number, set()) - self._still.get(number, set()),
                )
            case Quiesce(number):
                self._told_still.setdefault(number, set()).add(start)
            case Resend(number):
                self._failed(number)
                self.served(start).current = None
            case Abort(number):
                self._failed(number)
                self._run.hold(
                    "publication",
                    number not in self._sending,
                    "{} is told to abort publication {}, whose first byte was sent",
                    start,
                    number,
                )
            case Commit():
                served = self.served(start)
                self._run.hold(
                    "publication",
                    message.pin or served.current != message.version,
                    "{} is told to serve version {}, which it does",
                    start,
                    message.version,
                )
                served.pins[message.version] = message.pin
            case Unpin(version):
                self.served(start).kept.discard(version)
            case Leases(leases):
                served = self.served(start)
                for lease in leases:
                    self._run.hold(
                        "publication",
                        lease.version is not None or served.current is not None,
                        "{} is to sample rollout {} with weights of no version",
                        start,
                        lease.rollout,
                    )
                    self._run.hold(
                        "publication",
                        lease.version is None or lease.version in served.kept,
                        "{} is to sample rollout {} under version {}, and keeps {}",
                        start,
                        lease.rollout,
                        lease.version,
                        served.kept,
                    )

    def delivered(self, start: str, message: Message) -> None:
        """The coordinator has received this from an actor."""
        match message:
            case Hello():
                self._served.pop(start, None)
            case Stepped() | EngineReady():
                self._reasons += 1
            case Quiesced(number):
                self._still.setdefault(number, set()).add(start)
            case Transferred() if message.error:
                self._failed(message.publication)
            case Committed():
                served = self.served(start)
                if message.version in served.pins:  # else a link has repeated it
                    served.current = message.version
                if not self._keeps:
                    served.kept.clear()
                if served.pins.get(message.version):
                    served.kept.add(message.version)

    def heard(self, start: str, message: Message) -> None:
        """An actor has received this."""
        match message:
            case Abort(number) | Resend(number):
                self._aborted[start, number] = self._run.clock()
            case Commit() if message.pin:
                self.served(start).pinned.add(message.version)
            case Unpin(version):
                self.served(start).pinned.discard(version)

    # -------------------------------------------------------------------------------------- actors

    def let_go(self, start: str, publication: int) -> None:
        """An actor's part in a transfer is over."""
        now = self._run.clock()
        aborted = self._aborted.get((start, publication), now)
        self._run.hold(
            "publication",
            aborted == now,
            "{} heard at {} that publication {} is aborted, and went on until {}",
            start,
            aborted,
            publication,
            now,
        )

    def loaded(self, start: str, version: int, pin: bool) -> None:
        """An engine decodes with a version from now on, and with `pin` keeps it."""
        told = self.served(start).pins.get(version)
        self._run.hold(
            "publication",
            pin == told,
            "{} was told of version {} whether to keep it: {}; it does: {}",
            start,
            version,
            told,
            pin,
        )

    def look(self, start: str, kept: set[int]) -> None:
        """Compare what an engine keeps with what it was told to."""
        pinned = self.served(start).pinned
        most = self._run.config.staleness.max_lag + 3
        if self._run.config.staleness.finish_on == "mixed":
            most = 2
        self._run.hold(
            "publication", kept <= pinned, "{} keeps {}, and was told {}", start, kept, pinned
        )
        self._run.hold("memory", len(kept) <= most, "{} keeps {}: more than {}", start, kept, most)

    # --------------------------------------------------------------------------------- publications

    def evaluated(self) -> None:
        """A version is evaluated: it may have been published for that alone."""
        self._reasons += 1

    def decided(self) -> None:
        """A publication is committed."""
        self.row = 0

    def _begun(self, number: int, epoch: int, world: int) -> None:
        self._same(number, epoch, world)
        used = {self._epochs[n][0] for n in self._broken if n in self._epochs and n != number}
        self._run.hold(
            "publication",
            epoch not in used,
            "publication {} goes to epoch {}, whose transfer has failed before",
            number,
            epoch,
        )
        self._run.hold(
            "publication",
            self._worlds.setdefault(epoch, world) == world,
            "epoch {} is of {} processes, and of {}",
            epoch,
            self._worlds[epoch],
            world,
        )
        self.row += 1
        begun = len(self._epochs)
        # one may be for an evaluation, which has not begun
        self._run.hold(
            "publications have an end",
            begun <= self._reasons + 1,
            "{} publications were begun, for {} reasons",
            begun,
            self._reasons,
        )

    def _same(self, number: int, epoch: int, world: int) -> None:
        before = self._epochs.setdefault(number, (epoch, world))
        self._run.hold(
            "publication",
            before == (epoch, world),
            "publication {} is of epoch and world {}, and of {}",
            number,
            before,
            (epoch, world),
        )

    def _failed(self, number: int) -> None:
        self._reasons += number not in self._broken
        self._broken.add(number)
