"""Parts sent from rank to rank: every number arrives once, from a rank that holds it, in the plan
and then by gloo."""

from __future__ import annotations

import math
from collections import Counter, deque
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from some_values import drawn
from torch import Tensor

from asyncrl.weightsync.buckets import Spec
from asyncrl.weightsync.process_group import Job, connect_group
from asyncrl.weightsync.shard_sends import LinkSums, Side, exchange
from asyncrl.weightsync.shards import (
    NotHeld,
    ShardMessage,
    ShardPart,
    divided,
    messages,
    moves,
    rows,
)
from asyncrl.weightsync.stores import open_store, served_store

HEADS, WIDTH, HEAD, INNER = 4, 24, 6, 20
SHAPES = {
    "embed": (37, WIDTH),
    "q": (HEADS * HEAD, WIDTH),
    "k": (2 * HEAD, WIDTH),
    "o": (WIDTH, HEADS * HEAD),
    "gate": (INNER, WIDTH),
    "up": (INNER, WIDTH),
    "norm": (WIDTH,),
    "scale": (),
}
SPECS = {name: Spec(name, "float32", shape) for name, shape in SHAPES.items()}


def trainer(ranks: int, replicas: int) -> list[ShardPart]:
    """FSDP2's parts, of several copies of the model."""
    each = ranks // replicas
    return [
        part
        for copy in range(replicas)
        for name, shape in SHAPES.items()
        for part in rows(name, shape, range(copy * each, (copy + 1) * each))
    ]


def server(first: int, count: int) -> list[ShardPart]:
    """The parts of a server's ranks, with fused tensors."""
    ranks = range(first, first + count)
    keys = max(1, 2 // count)  # heads of keys on each rank
    parts = [
        *divided("q", SHAPES["q"], 0, ranks, held="qk"),
        *divided("k", SHAPES["k"], 0, ranks, units=2, held="qk", row=HEADS // count * HEAD),
        *divided("o", SHAPES["o"], 1, ranks),
        *divided("gate", SHAPES["gate"], 0, ranks, held="gate_up"),
        *divided("up", SHAPES["up"], 0, ranks, held="gate_up", row=INNER // count),
    ]
    assert keys * HEAD == next(p for p in parts if p.tensor == "k").box[0][1]
    for name in ("embed", "norm", "scale"):
        shape = SHAPES[name] or (1,)
        box = tuple((0, size) for size in shape)
        parts += [ShardPart(rank, name, box, name, (0,) * len(box)) for rank in ranks]
    return parts


def whole(seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}


def held(parts: list[ShardPart], rank: int, weights: dict[str, Tensor] | None) -> dict[str, Tensor]:
    """The own tensors of a rank; empty ones, NaN, without `weights`."""
    own = [part for part in parts if part.rank == rank]
    sizes: dict[str, list[int]] = {}
    for part in own:
        ends = [at + end - start for at, (start, end) in zip(part.at, part.box, strict=True)]
        before = sizes.get(part.held, ends)
        sizes[part.held] = [max(pair) for pair in zip(before, ends, strict=True)]
    found = {name: torch.full(size, math.nan) for name, size in sizes.items()}
    if weights is None:
        return found
    for part in own:
        source = weights[part.tensor]
        cut = source.view(source.shape or (1,))[tuple(slice(*pair) for pair in part.box)]
        place = zip(part.at, cut.shape, strict=True)
        found[part.held][tuple(slice(at, at + size) for at, size in place)] = cut
    return found


WORLDS = st.sampled_from([(1, 1, 1), (2, 1, 2), (3, 1, 1), (4, 2, 4), (4, 1, 2), (5, 1, 4)])


@settings(max_examples=drawn(30))
@given(WORLDS, st.integers(1, 2), st.integers(1, 3000), st.integers(0, 9))
def test_every_number_of_a_target_is_sent_once_from_a_rank_that_holds_it(
    world: tuple[int, int, int], servers: int, most: int, seed: int
) -> None:
    ranks, replicas, tp = world
    sources = trainer(ranks, replicas)
    targets = [part for at in range(servers) for part in server(ranks + at * tp, tp)]
    weights = whole(seed)
    own = {rank: held(sources, rank, weights) for rank in range(ranks)}
    found = {rank: held(targets, rank, None) for rank in range(ranks, ranks + servers * tp)}
    sides = {rank: Side(rank, each, SPECS) for rank, each in (own | found).items()}
    numbers, sent = Counter[int](), Counter[int]()
    for message in messages(moves(sources, targets), SPECS, most):
        assert message.nbytes == 4 * sum(move.count for move in message.moves)
        assert message.nbytes <= max(most, 4)
        for move in message.moves:
            target = sides[move.target].own(move.into, move.at, move.size)
            assert target.isnan().all()  # nothing of it was sent before
            target.copy_(sides[move.source].own(move.of, move.start, move.size))
            numbers[move.target] += move.count
            sent[move.source] += move.count
    for rank in found:
        right = held(targets, rank, weights)
        assert all(torch.equal(found[rank][name], right[name]) for name in right)
        assert numbers[rank] == sum(each.numel() for each in right.values())
    if replicas > 1:  # copies take turns
        assert max(sent.values()) < 0.8 * sum(sent.values())


@settings(max_examples=drawn(30))
@given(WORLDS, st.integers(1, 2), st.integers(4, 3000), st.integers(1, 3))
def test_no_order_of_messages_waits_in_a_circle(
    world: tuple[int, int, int], servers: int, most: int, under_way: int
) -> None:
    """Each rank posts so many of its own messages, in the list's order, and waits for the first of
    them; a message arrives once both have posted it."""
    ranks, replicas, tp = world
    targets = [part for at in range(servers) for part in server(ranks + at * tp, tp)]
    every = messages(moves(trainer(ranks, replicas), targets), SPECS, most)
    left: dict[int, deque[ShardMessage]] = {}
    for message in every:
        left.setdefault(message.source, deque()).append(message)
        left.setdefault(message.target, deque()).append(message)
    posted: dict[int, list[ShardMessage]] = {rank: [] for rank in left}
    done = 0
    while done < len(every):
        for rank, own in posted.items():
            while left[rank] and len(own) < under_way:
                own.append(left[rank].popleft())
        sides = Counter(id(each) for own in posted.values() for each in own)
        arrived = {key for key, count in sides.items() if count == 2}
        assert arrived, "all wait"
        done += len(arrived)
        posted = {rank: [m for m in own if id(m) not in arrived] for rank, own in posted.items()}
    assert not any(left.values()) and not any(posted.values())


def test_rows_are_fsdps() -> None:
    for size in range(1, 12):
        for ranks in range(1, 6):
            pieces = torch.arange(size).chunk(ranks)
            expected = [(int(piece[0]), int(piece[-1]) + 1) for piece in pieces]
            assert [part.box[0] for part in rows("w", [size], range(ranks))] == expected


def test_what_nobody_holds_is_named() -> None:
    with pytest.raises(NotHeld, match=r"no source has \(\(2, 4\),\) of w, which qkv needs"):
        moves(rows("w", [2], [0]), [ShardPart(1, "w", ((0, 4),), "qkv", (0,))])
    with pytest.raises(ValueError, match="q has 5 of dimension 0"):
        divided("q", (5, 2), 0, [0, 1])


@pytest.mark.parametrize(("dtype", "wide"), [("float32", False), ("bfloat16", True)])
def test_ranks_of_gloo_send_their_parts_to_those_of_two_servers(
    tmp_path: Path, dtype: str, wide: bool
) -> None:
    ranks, tp = 3, 2
    sources = trainer(ranks, 1)
    targets = [part for at in range(2) for part in server(ranks + at * tp, tp)]
    specs = {name: Spec(name, dtype, shape) for name, shape in SHAPES.items()}
    every, world = messages(moves(sources, targets), specs, 700), ranks + 2 * tp
    weights, found = whole(), dict[int, dict[str, Tensor]]()

    def run(rank: int, store: str) -> LinkSums:
        job = Job(30.0)
        with job.step("connecting") as left:
            address, device = "127.0.0.1", torch.device("cpu")
            opened = open_store(store, left)
            group: Any = connect_group(
                opened, rank, world, address=address, device=device, timeout=left
            )
        own = held(sources, rank, weights) if rank < ranks else held(targets, rank, None)
        found[rank] = own
        return exchange(job, group, Side(rank, own, specs), every)

    with (
        served_store("127.0.0.1", tmp_path / "weights.store") as store,
        ThreadPoolExecutor(world) as pool,
    ):
        sums = list(pool.map(run, range(world), [store] * world))
    told = {link: each for one in sums[:ranks] for link, each in one.items()}
    assert told == {link: each for one in sums[ranks:] for link, each in one.items()}
    assert len(told) == ranks * 2 * tp and max(map(len, told.values())) > 2
    for rank in range(ranks, world):
        for name, right in held(targets, rank, weights).items():
            assert torch.equal(found[rank][name], right.bfloat16().float() if wide else right)
