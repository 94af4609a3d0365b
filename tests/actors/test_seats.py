"""The index of seats answers as looking at every seat would."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from actors.coordinator.peers import Peer, Roster
from actors.coordinator.seats import AHEAD, Seat, Seats
from asyncrl.link import memory_links
from asyncrl.messages import Hello, Purpose

PURPOSES: tuple[Purpose, Purpose] = ("train", "evaluation")
NAMES = [f"rollout-{index}" for index in range(4)]


def peer(index: int) -> Peer:
    return Peer(Hello("rollout", index, 0, 1), memory_links()[0])


class Naive:
    """Everything looked up by looking at everything."""

    def __init__(self) -> None:
        self.slots: dict[str, int] = {}
        self.version: dict[str, int] = {}
        self.kept: dict[str, set[int]] = {}
        self.held: dict[tuple[str, Purpose], set[int]] = {}

    def forget(self, name: str) -> None:
        for table in (self.slots, self.version, self.kept):
            table.pop(name, None)  # type: ignore[attr-defined]
        for purpose in PURPOSES:
            self.held.pop((name, purpose), None)

    def rooms(self, purpose: Purpose, version: int | None) -> dict[str, int]:
        serving = self.version if version is None else {name for name, kept in self.kept.items() if version in kept}
        return {name: self.slots[name] + self.slots[name] // AHEAD - len(self.held.get((name, purpose), ())) for name in serving}


names, purposes, versions, rollouts = st.sampled_from(NAMES), st.sampled_from(PURPOSES), st.integers(0, 2), st.integers(0, 5)
operations = st.one_of(
    st.tuples(st.just("add"), names, st.integers(1, 5)),
    st.tuples(st.just("remove"), names),
    st.tuples(st.just("serve"), names, versions, st.booleans()),
    st.tuples(st.just("unpin"), versions),
    st.tuples(st.just("hold"), purposes, versions, rollouts),
    st.tuples(st.just("hold"), purposes, st.just(1), rollouts),
    st.tuples(st.just("release"), names, purposes, rollouts),
    st.tuples(st.just("end"), rollouts),
)


BEGINNING = [operation for name in NAMES[1:] for operation in (("add", name, 4), ("serve", name, 1, True))]


@given(st.lists(operations, max_size=60))
def test_seats_are_found_by_what_they_serve_and_have_room_for(operations: list[tuple]) -> None:
    seats, naive = Seats(), Naive()
    for operation in BEGINNING + operations:
        match operation:
            case "add", name, slots:
                seats.add(Seat(peer(int(name[-1])), slots))
                naive.forget(name)
                naive.slots[name] = slots
            case "remove", name:
                assert (seats.remove(name) is not None) == (name in naive.slots)
                naive.forget(name)
            case "serve", name, version, pin:
                seats.serve(name, version, pin=pin)
                if name in naive.slots:
                    naive.version[name] = version
                    naive.kept.setdefault(name, set()).update({version} if pin else ())
            case "unpin", version:
                assert {seat.name for seat in seats.unpin(version)} == {n for n, kept in naive.kept.items() if version in kept}
                for kept in naive.kept.values():
                    kept.discard(version)
            case "hold", purpose, version, rollout:
                service = purpose, None if purpose == "train" and version else version
                if any(rollout in held for held in naive.held.values()) or not any(naive.rooms(*service).values()):
                    continue
                seat = seats.roomiest(*service)
                assert naive.rooms(*service)[seat.name] == max(naive.rooms(*service).values())
                seats.hold(seat, rollout, purpose)
                naive.held.setdefault((seat.name, purpose), set()).add(rollout)
            case "release", name, purpose, rollout:
                seats.release(name, rollout, purpose)
                naive.held.get((name, purpose), set()).discard(rollout)
            case "end", rollout:
                for (name, purpose), held in naive.held.items():
                    if rollout in held:
                        seats.release(name, rollout, purpose)
                        held.remove(rollout)
        assert {seat.name: seat.slots for seat in seats} == naive.slots
        for version in range(3):
            assert seats.behind(version) == any(naive.version.get(name) != version for name in naive.slots)
        assert seats.kept == set().union(*naive.kept.values()) and seats.current == set(naive.version.values())
        for purpose, version in (("train", None), *((purpose, version) for version in range(3) for purpose in PURPOSES)):
            rooms = naive.rooms(purpose, version)  # type: ignore[arg-type]
            assert seats.serves(purpose, version) == bool(rooms)  # type: ignore[arg-type]
            assert seats.room(purpose, version) == sum(rooms.values())  # type: ignore[arg-type]
        for purpose in PURPOSES:
            assert seats.held[purpose] == sum(len(held) for (_, of), held in naive.held.items() if of == purpose)
            for seat in seats:
                assert seat.held[purpose] == naive.held.get((seat.name, purpose), set())


def test_a_roster_lists_a_role_by_index_and_has_one_peer_of_a_name() -> None:
    roster = Roster(lambda: None)
    for index in (2, 0, 1):
        roster.add(peer(index))
    successor = peer(1)
    previous = roster.add(successor)
    assert previous is not None and previous.name == "rollout-1"
    assert [p.index for p in roster.of("rollout")] == [0, 1, 2] and list(roster.of("reward")) == []
    assert not roster.remove(previous) and roster.remove(successor)
    assert [p.index for p in roster.of("rollout")] == [0, 2]
