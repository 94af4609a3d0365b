"""Layout: every response token after its own past, what is shared once, whole samples in batches of
bounded cost; a part is the same with fewer samples."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from asyncrl.training import packing
from asyncrl.training.packing import PackedBatch, pack, part_of
from asyncrl.training.trees.prefix_tree import PrefixTree

lengths = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 40)), min_size=1, max_size=12)
"""Of each sample, which of a few prompts it has, and the tokens of its response."""
PROMPTS = [[1], [2, 3], [2, 3, 4, 5, 6], [7] * 9]


def texts(sizes: list[tuple[int, int]]) -> list[list[int]]:
    """Prompt and response of each sample; every response token is another one."""
    answers = iter(range(100, 10_000))
    return [
        PROMPTS[prompt] + [next(answers) for _ in range(response)] for prompt, response in sizes
    ]


def packed(sizes: list[tuple[int, int]], shared: bool, device: str = "cpu") -> list[PackedBatch]:
    ids: NDArray[np.int32] = np.array([i for text in texts(sizes) for i in text], dtype=np.int32)
    return pack(
        ids,
        [len(PROMPTS[prompt]) for prompt, _ in sizes],
        [response for _, response in sizes],
        shared=shared,
        device=device,
    )


def pasts(batch: PackedBatch) -> dict[int, list[int]]:
    """Tokens that attention sees before each response token, and that token; by its place in the
    micro-batch."""
    seen = []
    for table in batch.tables:
        mask = table.mask()
        for row, (keys, queries) in enumerate(zip(table.keys, table.queries, strict=True)):
            if mask is None:
                seen += [keys[: column + 1] for column in range(len(queries))]
            else:
                seen += [keys[hidden == 0] for hidden in mask[row, 0]]
    found = {}
    for predictor, target, token in zip(
        batch.logit_positions.tolist(), batch.targets.tolist(), batch.tokens.tolist(), strict=True
    ):
        past = seen[int(batch.unpack_index[predictor])]
        assert past[-1] == predictor
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
        joined = torch.cat([table.queries.flatten() for table in batch.tables])
        used = torch.arange(len(batch.tree.ids))
        assert torch.equal(joined[batch.unpack_index[used]], used)
        assert len(used) <= len(batch.ids) < max(8, len(used) * 17 // 16) + 8
        assert batch.ids[used].tolist() == batch.tree.ids.tolist()


def test_a_prompt_stands_once_in_a_packed_batch() -> None:
    sizes = [(3, 5), (2, 4), (3, 7), (3, 1), (2, 0)]
    tokens = 9 + 5 + (4 + 6 + 0) + 3
    (batch,) = packed(sizes, True)
    assert len(batch.tree.ids) == tokens
    (apart,) = packed(sizes, False)
    assert len(apart.tree.ids) == tokens + 9 + 9


def cost(batch: PackedBatch, tokens: int | None = None) -> float:
    """The cost of a batch, or of one sample of so many tokens by itself, written anew."""
    own = len(batch.tree.ids) if tokens is None else tokens
    keys = sum(batch.tree.length.tolist()) if tokens is None else tokens
    return own + packing.QUERY_SHARE * own + packing.KEY_SHARE * keys


@given(lengths, st.booleans(), st.integers(8, 200), st.integers(0, 300))
def test_a_packed_batch_costs_no_more_than_it_may(
    sizes: list[tuple[int, int]], shared: bool, limit: int, more: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packing, "PACKED_TOKENS", limit)
        patch.setattr(packing, "TREE_TOKENS", limit + more)
        batches = packed(sizes, shared)
    seen = [len(PROMPTS[prompt]) + response - 1 for prompt, response in sizes if response]
    for batch in batches:
        most = max(limit, 2 * cost(batch, max(seen)))
        several = (batch.tree.shared == 0).sum() > 1
        assert cost(batch) <= (most if several else max(most, limit + more)) + 1e-6


@given(lengths, st.booleans(), st.integers(8, 200))
def test_on_a_gpu_it_costs_no_more_than_a_bound_or_the_longest_sample(
    sizes: list[tuple[int, int]], shared: bool, limit: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packing, "CUDA_TOKENS", limit)
        patch.setattr(packing, "TREE_TOKENS", limit)
        batches = packed(sizes, shared, "cuda")
    seen = [len(PROMPTS[prompt]) + response - 1 for prompt, response in sizes if response]
    for batch in batches:
        assert cost(batch) <= max(limit, cost(batch, max(seen))) + 1e-6


@pytest.mark.parametrize("lengths", [[8192], [4096] * 2, [64] * 128, [5000, 2000, 1000, 192]])
def test_a_micro_batch_of_the_usual_size_is_one_pass_on_a_gpu(lengths: list[int]) -> None:
    ids = np.arange(sum(lengths), dtype=np.int32)
    responses = [length - 10 for length in lengths]
    assert len(pack(ids, [10] * len(lengths), responses, shared=True, device="cuda")) == 1


def test_what_shares_a_prompt_stays_together_while_there_is_room() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packing, "PACKED_TOKENS", 50)
        batches = packed([(3, 5), (2, 9), (3, 5), (2, 9), (3, 5)], True)
    roots = [batch.tree.ids[batch.tree.first[batch.tree.shared == 0]] for batch in batches]
    assert [of.tolist() for of in roots] == [[2], [7]]


def test_a_tree_is_divided_where_little_is_repeated_and_else_kept_whole_up_to_its_bound() -> None:
    responses = [200] * 20

    def repeated(prompt: int) -> int:
        """Places over those of the whole tree, of 20 responses to one prompt."""
        answers = np.arange(1000, 1000 + sum(responses)).reshape(20, -1)
        ids = np.concatenate([[*range(prompt), *answer] for answer in answers]).astype(np.int32)
        batches = pack(ids, [prompt] * 20, responses, shared=True)
        assert max(map(cost, batches)) <= packing.TREE_TOKENS
        return sum(len(batch.tree.ids) for batch in batches) - prompt - 20 * 199

    assert repeated(50) == 50
    assert repeated(500) == 0


@given(lengths, st.booleans(), st.integers(8, 200))
def test_a_divided_tree_has_each_sample_whole_and_repeats_no_response(
    sizes: list[tuple[int, int]], shared: bool, limit: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packing, "PACKED_TOKENS", limit)
        patch.setattr(packing, "TREE_TOKENS", limit)
        batches = packed(sizes, shared)
    (whole,) = packed(sizes, shared) or [None]
    if whole is not None:
        assert sum(len(b.tree.length) for b in batches) == len(whole.tree.length)
        drawn = [int(i) for batch in batches for i in batch.tree.ids if i >= 100]
        assert sorted(drawn) == sorted(i for i in whole.tree.ids.tolist() if i >= 100)


def test_samples_that_are_equal_or_begin_one_another_stand_once() -> None:
    one = [5, 6, 7, 8, 9]
    every = [one, one, one[:4], [*one, 1]]
    ids = np.array([i for text in every for i in text], np.int32)
    (batch,) = pack(ids, [2] * 4, [len(text) - 2 for text in every], shared=True)
    assert batch.tree.ids.tolist() == [5, 6, 7, 8, 9] and len(batch.tree.length) == 3
    assert pasts(batch) == {
        0: [5, 6, 7], 1: [5, 6, 7, 8], 2: [5, 6, 7, 8, 9],
        3: [5, 6, 7], 4: [5, 6, 7, 8], 5: [5, 6, 7, 8, 9],
        6: [5, 6, 7], 7: [5, 6, 7, 8],
        8: [5, 6, 7], 9: [5, 6, 7, 8], 10: [5, 6, 7, 8, 9], 11: [5, 6, 7, 8, 9, 1],
    }  # fmt: skip


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
        assert len(part.tree.length) == len(torch.unique(batch.sequences[wanted]))
        assert len(part.ids) <= len(batch.ids)


def test_the_whole_tree_is_walked_once_however_many_batches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With many long samples each walk is a tenth of a second, on every rank."""
    walked, paths = [], PrefixTree.paths
    monkeypatch.setattr(PrefixTree, "paths", lambda own: walked.append(len(own.ids)) or paths(own))
    found = packed([(0, 1000)] * 8, shared=True)
    assert len(found) > 2 and walked.count(max(walked)) == 1


def test_what_cannot_be_laid_out_is_refused() -> None:
    with pytest.raises(ValueError, match="empty prompt"):
        pack(np.zeros(3, np.int32), [0], [3], shared=True)
    with pytest.raises(ValueError, match="4 token ids came for samples of 3"):
        pack(np.zeros(4, np.int32), [1], [2], shared=True)
