"""Layout: every response token after its own past, a shared prompt once, little padding; a part is
the same with fewer samples."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from asyncrl.training import packing
from asyncrl.training.packing import PackedBatch, pack, part_of

lengths = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 40)), min_size=1, max_size=12)
"""Of each sample, which of a few prompts it has, and the tokens of its response."""
PROMPTS = [[1], [2, 3], [2, 3, 4, 5, 6], [7] * 9]


def texts(sizes: list[tuple[int, int]]) -> list[list[int]]:
    """Prompt and response of each sample; every response token is another one."""
    answers = iter(range(100, 10_000))
    return [
        PROMPTS[prompt] + [next(answers) for _ in range(response)] for prompt, response in sizes
    ]


def packed(sizes: list[tuple[int, int]], shared: bool) -> list[PackedBatch]:
    ids: NDArray[np.int32] = np.array([i for text in texts(sizes) for i in text], dtype=np.int32)
    return pack(
        ids,
        [len(PROMPTS[prompt]) for prompt, _ in sizes],
        [response for _, response in sizes],
        shared=shared,
    )


def pasts(batch: PackedBatch) -> dict[int, list[int]]:
    """What attention sees before each response token, and that token; by its place in the
    micro-batch."""
    found = {}
    table = [row for table in batch.padded_rows for row in table]
    for predictor, row, target, token in zip(
        batch.logit_positions,
        batch.rows.tolist(),
        batch.targets.tolist(),
        batch.tokens.tolist(),
        strict=True,
    ):
        columns = torch.nonzero(table[row] == predictor)[:, 0]
        # on the right a row is filled up with its first place
        past = table[row][: int(columns[0]) + 1]
        assert batch.positions[past].tolist() == list(range(len(past)))
        found[token] = [*batch.ids[past].tolist(), target]
    return found


@given(lengths, st.booleans(), st.integers(8, 200))
def test_every_response_token_is_in_one_place_after_its_own_past(
    sizes: list[tuple[int, int]], shared: bool, limit: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packing, "PACKED_TOKENS", limit)
        batches = packed(sizes, shared)
    seen: dict[int, list[int]] = {}
    for batch in batches:
        of_batch = pasts(batch)
        assert len(of_batch) == len(batch.tokens) > 0 and not seen.keys() & of_batch.keys()
        seen |= of_batch
    expected = [
        text[: at + 1]
        for text, (prompt, _) in zip(texts(sizes), sizes, strict=True)
        for at in range(len(PROMPTS[prompt]), len(text))
    ]
    assert [seen[token] for token in range(len(expected))] == expected and len(seen) == len(
        expected
    )


@given(lengths, st.booleans())
def test_a_place_is_at_home_where_attention_has_it(
    sizes: list[tuple[int, int]], shared: bool
) -> None:
    for batch in packed(sizes, shared):
        joined = torch.cat([table.flatten() for table in batch.padded_rows])
        used = torch.unique(joined)
        assert torch.equal(joined[batch.unpack_index[used]], used)
        assert torch.equal(
            batch.unpack_index[used],
            torch.stack([torch.nonzero(joined == place)[0, 0] for place in used]),
        )
        assert len(used) <= len(batch.ids) < max(8, len(used) * 17 // 16) + 8


def test_a_prompt_stands_once_in_a_packed_batch() -> None:
    sizes = [(3, 5), (2, 4), (3, 7), (3, 1), (2, 0)]
    tokens = 9 + 5 + (4 + 6 + 0) + 3
    (batch,) = packed(sizes, True)
    assert len(torch.unique(torch.cat([table.flatten() for table in batch.padded_rows]))) == tokens
    (apart,) = packed(sizes, False)
    assert (
        len(torch.unique(torch.cat([table.flatten() for table in apart.padded_rows])))
        == tokens + 9 + 9
    )


@given(lengths, st.booleans(), st.integers(8, 200))
def test_a_packed_batch_costs_no_more_than_it_may(
    sizes: list[tuple[int, int]], shared: bool, limit: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packing, "PACKED_TOKENS", limit)
        batches = packed(sizes, shared)
    seen = [len(PROMPTS[prompt]) + response - 1 for prompt, response in sizes]
    for batch in batches:
        joined = torch.cat([table.flatten() for table in batch.padded_rows])
        real = sum(len(torch.unique(row)) for table in batch.padded_rows for row in table)
        assert len(torch.unique(joined)) + packing.ROW_SHARE * real <= max(
            limit, 2 * (1 + packing.ROW_SHARE) * max(seen)
        )


def test_what_shares_a_prompt_stays_together_while_there_is_room() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packing, "PACKED_TOKENS", 50)
        batches = packed([(3, 5), (2, 9), (3, 5), (2, 9), (3, 5)], True)
    assert [
        sorted({int(batch.ids[row[0]]) for r in batch.padded_rows for row in r})
        for batch in batches
    ] == [[7], [2]]


@given(lengths, st.booleans(), st.data())
def test_a_part_has_the_wanted_tokens_after_the_same_past(
    sizes: list[tuple[int, int]], shared: bool, data: st.DataObject
) -> None:
    for batch in packed(sizes, shared):
        count = len(batch.tokens)
        wanted = torch.tensor(
            data.draw(st.lists(st.booleans(), min_size=count, max_size=count)), dtype=torch.bool
        )
        if not wanted.any():
            continue
        part, every = part_of(batch, wanted), pasts(batch)
        assert torch.equal(part.tokens, batch.tokens[wanted])
        assert pasts(part) == {token: every[token] for token in part.tokens.tolist()}
        assert sum(map(len, part.padded_rows)) == len(torch.unique(batch.rows[wanted]))
        assert len(part.ids) <= len(batch.ids)


@settings(max_examples=50)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=8), st.integers(1, 60))
def test_cuts_are_the_cheapest(sizes: list[int], cost: int) -> None:
    ordered = np.array(sorted(sizes))

    def price(cuts: list[tuple[int, int]]) -> float:
        return sum((end - first) * int(ordered[end - 1]) + cost for first, end in cuts)

    count = len(ordered)
    every = [
        list(zip((0, *inner), (*inner, count), strict=True))
        for size in range(count)
        for inner in combinations(range(1, count), size)
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packing, "TABLE_TOKENS", cost)
        cuts = packing._cuts(ordered)
    assert [first for first, _ in cuts] == [0, *(end for _, end in cuts[:-1])] and cuts[-1][
        1
    ] == count
    assert price(cuts) == min(map(price, every))


def test_what_cannot_be_laid_out_is_refused() -> None:
    with pytest.raises(ValueError, match="empty prompt"):
        pack(np.zeros(3, np.int32), [0], [3], shared=True)
    with pytest.raises(ValueError, match="4 token ids came for samples of 3"):
        pack(np.zeros(4, np.int32), [1], [2], shared=True)
