"""The index of seats answers as looking at every seat would."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from actors.coordinator.engine_pool import AHEAD, EngineHandle, EnginePool
from actors.coordinator.peers import Peer, Roster
from asyncrl.ipc.link import memory_links
from asyncrl.ipc.messages import Hello, Split

PURPOSES: tuple[Split, Split] = ("train", "evaluation")
NAMES = [f"rollout-{index}" for index in range(4)]


def peer(index: int) -> Peer:
    return Peer(Hello("rollout", index, 0, 1), memory_links()[0])


class Naive:
    """Everything looked up by looking at everything."""

    def __init__(self) -> None:
        self.slots: dict[str, int] = {}
        self.version: dict[str, int] = {}
        self.kept: dict[str, set[int]] = {}
        self.held: dict[tuple[str, Split], set[int]] = {}

    def forget(self, name: str) -> None:
        for table in (self.slots, self.version, self.kept):
            table.pop(name, None)  # type: ignore[attr-defined]
        for split in PURPOSES:
            self.held.pop((name, split), None)

    def rooms(self, split: Split, version: int | None) -> dict[str, int]:
        serving = (
            self.version
            if version is None
            else {name for name, kept in self.kept.items() if version in kept}
        )
        return {
            name: self.slots[name]
            + self.slots[name] // AHEAD
            - len(self.held.get((name, split), ()))
            for name in serving
        }


names, purposes, versions, rollouts = (
    st.sampled_from(NAMES),
    st.sampled_from(PURPOSES),
    st.integers(0, 2),
    st.integers(0, 5),
)
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


BEGINNING = [
    operation for name in NAMES[1:] for operation in (("add", name, 4), ("serve", name, 1, True))
]


@given(st.lists(operations, max_size=60))
def test_seats_are_found_by_what_they_serve_and_have_room_for(operations: list[tuple]) -> None:
    engine_pool, naive = EnginePool(), Naive()
    for operation in BEGINNING + operations:
        match operation:
            case "add", name, slots:
                engine_pool.add(EngineHandle(peer(int(name[-1])), slots))
                naive.forget(name)
                naive.slots[name] = slots
            case "remove", name:
                assert (engine_pool.remove(name) is not None) == (name in naive.slots)
                naive.forget(name)
            case "serve", name, version, pin:
                engine_pool.serve(name, version, pin=pin)
                if name in naive.slots:
                    naive.version[name] = version
                    naive.kept.setdefault(name, set()).update({version} if pin else ())
            case "unpin", version:
                assert {engine_handle.name for engine_handle in engine_pool.unpin(version)} == {
                    n for n, kept in naive.kept.items() if version in kept
                }
                for kept in naive.kept.values():
                    kept.discard(version)
            case "hold", split, version, rollout:
                service = split, None if split == "train" and version else version
                if any(rollout in held for held in naive.held.values()) or not any(
                    naive.rooms(*service).values()
                ):
                    continue
                engine_handle = engine_pool.roomiest(*service)
                assert naive.rooms(*service)[engine_handle.name] == max(
                    naive.rooms(*service).values()
                )
                engine_pool.hold(engine_handle, rollout, split)
                naive.held.setdefault((engine_handle.name, split), set()).add(rollout)
            case "release", name, split, rollout:
                engine_pool.release(name, rollout, split)
                naive.held.get((name, split), set()).discard(rollout)
            case "end", rollout:
                for (name, split), held in naive.held.items():
                    if rollout in held:
                        engine_pool.release(name, rollout, split)
                        held.remove(rollout)
        assert {
            engine_handle.name: engine_handle.slots for engine_handle in engine_pool
        } == naive.slots
        for version in range(3):
            assert engine_pool.behind(version) == any(
                naive.version.get(name) != version for name in naive.slots
            )
        assert engine_pool.kept == set().union(*naive.kept.values()) and engine_pool.current == set(
            naive.version.values()
        )
        for split, version in (
            ("train", None),
            *((split, version) for version in range(3) for split in PURPOSES),
        ):
            rooms = naive.rooms(split, version)  # type: ignore[arg-type]
            assert engine_pool.serves(split, version) == bool(rooms)  # type: ignore[arg-type]
            assert engine_pool.room(split, version) == sum(rooms.values())  # type: ignore[arg-type]
        for split in PURPOSES:
            assert engine_pool.held[split] == sum(
                len(held) for (_, of), held in naive.held.items() if of == split
            )
            for engine_handle in engine_pool:
                assert engine_handle.held[split] == naive.held.get(
                    (engine_handle.name, split), set()
                )


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
