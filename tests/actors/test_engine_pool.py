"""The pool's index of engines answers as a look at every engine would."""

from __future__ import annotations

from itertools import product

from hypothesis import example, given
from hypothesis import strategies as st
from memory_link import memory_links

from asyncrl.actors.coordinator.engine_pool import AHEAD, SPLITS, EngineHandle, EnginePool
from asyncrl.actors.coordinator.peers import Peer, Roster
from asyncrl.messages import Hello, Split

NAMES = [f"rollout-{index}" for index in range(4)]


def peer(index: int) -> Peer:
    return Peer(Hello("rollout", index, 0, 1), memory_links()[0])


class Naive:
    """The same answers, each from a look at every engine."""

    def __init__(self) -> None:
        self.slots: dict[str, int] = {}
        self.version: dict[str, int] = {}
        self.committing: set[str] = set()
        self.kept: dict[str, set[int]] = {}
        self.held: dict[tuple[str, Split], set[int]] = {}
        self.closed: set[str] = set()

    def forget(self, name: str) -> None:
        for table in (self.slots, self.version, self.kept):
            table.pop(name, None)  # type: ignore[attr-defined]
        self.committing.discard(name)
        self.closed.discard(name)
        for split in SPLITS:
            self.held.pop((name, split), None)

    def rooms(self, split: Split, version: int | None) -> dict[str, int]:
        serving = (
            self.version.keys() - self.committing
            if version is None
            else {n for n, kept in self.kept.items() if version in kept and n in self.version}
        )
        return {
            name: self.slots[name]
            + self.slots[name] // AHEAD
            - len(self.held.get((name, split), ()))
            for name in serving
            if name not in self.closed
        }


names, splits, versions, rollouts = (
    st.sampled_from(NAMES),
    st.sampled_from(SPLITS),
    st.integers(0, 2),
    st.integers(0, 5),
)
operations = st.one_of(
    st.tuples(st.just("add"), names, st.integers(1, 5)),
    st.tuples(st.just("remove"), names),
    st.tuples(st.just("serve"), names, versions, st.booleans()),
    st.tuples(st.just("commit"), names),
    st.tuples(st.just("tear"), names),
    st.tuples(st.just("close"), names),
    st.tuples(st.just("open"), names),
    st.tuples(st.just("unpin"), versions),
    st.tuples(st.just("hold"), splits, versions, rollouts),
    st.tuples(st.just("hold"), splits, st.just(1), rollouts),
    st.tuples(st.just("release"), names, splits, rollouts),
    st.tuples(st.just("end"), rollouts),
)


BEGINNING = [
    operation for name in NAMES[1:] for operation in (("add", name, 4), ("serve", name, 1, True))
]


@example([("serve", NAMES[1], 2, False), ("remove", NAMES[1])])
@given(st.lists(operations, max_size=60))
def test_engines_are_found_by_their_services_and_their_room(operations: list[tuple]) -> None:
    engines, naive = EnginePool(), Naive()
    for operation in BEGINNING + operations:
        match operation:
            case "add", name, slots:
                engines.add(EngineHandle(peer(int(name[-1])), slots))
                naive.forget(name)
                naive.slots[name] = slots
            case "remove", name:
                assert (engines.remove(name) is not None) == (name in naive.slots)
                naive.forget(name)
            case "commit", name:
                engines.commit(name)
                naive.committing |= {name} & naive.slots.keys()
            case "tear", name:
                engines.tear(name)
                naive.version.pop(name, None)
                naive.committing.discard(name)
            case "close", name if name in naive.slots and name not in naive.closed:
                engines.close(next(engine for engine in engines if engine.name == name))
                naive.closed.add(name)
            case "open", name if name in naive.closed:
                engines.open(next(engine for engine in engines if engine.name == name))
                naive.closed.remove(name)
            case "serve", name, version, pin:
                engines.serve(name, version, pin=pin)
                naive.committing.discard(name)
                if name in naive.slots:
                    naive.version[name] = version
                    naive.kept.setdefault(name, set()).update({version} if pin else ())
            case "unpin", version:
                assert {engine.name for engine in engines.unpin(version)} == {
                    n for n, kept in naive.kept.items() if version in kept
                }
                for kept in naive.kept.values():
                    kept.discard(version)
            case "hold", split, version, rollout:
                service = split, version or None
                if any(rollout in held for held in naive.held.values()) or not any(
                    naive.rooms(*service).values()
                ):
                    continue
                engine = engines.roomiest(*service)
                assert naive.rooms(*service)[engine.name] == max(naive.rooms(*service).values())
                engines.hold(engine, rollout, split)
                naive.held.setdefault((engine.name, split), set()).add(rollout)
            case "release", name, split, rollout:
                engines.release(name, rollout, split)
                naive.held.get((name, split), set()).discard(rollout)
            case "end", rollout:
                for (name, split), held in naive.held.items():
                    if rollout in held:
                        engines.release(name, rollout, split)
                        held.remove(rollout)
        assert {engine.name: engine.slots for engine in engines} == naive.slots
        begin = naive.slots.keys() - naive.closed
        assert engines.slots == sum(naive.slots[name] for name in begin)
        assert len(engines) == len(naive.slots)
        for version in range(3):
            assert {engine.name for engine in engines.behind(version)} == {
                name for name in naive.slots if naive.version.get(name) != version
            }
        kept = [of for name, of in naive.kept.items() if name in naive.version]
        assert engines.kept == set().union(*kept)
        assert engines.current == set(naive.version.values())
        for split, version in product(SPLITS, (None, *range(3))):
            rooms = naive.rooms(split, version)
            assert engines.serves(split, version) == bool(rooms)
            assert engines.room(split, version) == sum(rooms.values())
        for split in SPLITS:
            assert engines.held[split] == sum(
                len(held) for (_, of), held in naive.held.items() if of == split
            )
            for engine in engines:
                assert engine.held[split] == naive.held.get((engine.name, split), set())


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
