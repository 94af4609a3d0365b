"""Layout loses no token and adds little padding; log-probabilities are those of a rollout alone."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from training_world import CONFIGS, Rollout, alone, build, rollouts
from transformers import AutoModelForCausalLM, Gemma2Config, GemmaConfig, GraniteConfig, MistralConfig, PretrainedConfig

from asyncrl.training import rows
from asyncrl.training.rows import log_probabilities, pack, part_of

lengths = st.lists(st.tuples(st.integers(1, 9), st.integers(0, 40)), min_size=1, max_size=12)


@given(lengths)
def test_every_response_token_is_in_one_place_after_its_own_past(sizes: list[tuple[int, int]]) -> None:
    total = sum(p + r for p, r in sizes)
    ids = np.arange(total, dtype=np.int32)  # every token is another one
    rectangles = pack(ids, [p for p, _ in sizes], [r for _, r in sizes])
    seen = {}
    for rectangle in rectangles:
        flat = rectangle.ids.flatten()
        assert torch.equal(flat[rectangle.predictors + 1], rectangle.targets)
        seen |= dict(
            zip(rectangle.tokens.tolist(), zip(rectangle.targets.tolist(), flat[rectangle.predictors].tolist(), strict=True), strict=True)
        )
    expected, at = [], 0
    for prompt, response in sizes:
        expected += [(i, i - 1) for i in range(at + prompt, at + prompt + response)]
        at += prompt + response
    assert [seen[token] for token in range(len(expected))] == expected and len(seen) == len(expected)


@given(lengths, st.data())
def test_a_part_has_the_wanted_tokens_after_the_same_past(sizes: list[tuple[int, int]], data: st.DataObject) -> None:
    ids = np.arange(sum(p + r for p, r in sizes), dtype=np.int32)
    for rectangle in pack(ids, [p for p, _ in sizes], [r for _, r in sizes]):
        count = len(rectangle.tokens)
        wanted = torch.tensor(data.draw(st.lists(st.booleans(), min_size=count, max_size=count)), dtype=torch.bool)
        if not wanted.any():
            continue
        part = part_of(rectangle, wanted)
        flat = part.ids.flatten()
        assert torch.equal(part.tokens, rectangle.tokens[wanted]) and torch.equal(part.targets, rectangle.targets[wanted])
        assert torch.equal(flat[part.predictors], rectangle.ids.flatten()[rectangle.predictors[wanted]])
        assert torch.equal(flat[part.predictors + 1], part.targets)
        assert part.ids.shape[0].bit_count() == 1 and part.ids.shape[0] <= len(rectangle.ids)


@settings(max_examples=50)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=8), st.integers(1, 60), st.integers(10, 200))
def test_cuts_are_the_cheapest_that_are_allowed(sizes: list[int], cost: int, limit: int) -> None:
    ordered = np.array(sorted(sizes))

    def price(cuts: list[tuple[int, int]]) -> float:
        areas = [(end - first) * int(ordered[end - 1]) for first, end in cuts]
        rows_of = [end - first for first, end in cuts]
        bad = any((area > limit and n > 1) or n not in (1, 2, 4, 8) for area, n in zip(areas, rows_of, strict=True))
        return float("inf") if bad else sum(areas) + cost * len(cuts)

    count = len(ordered)
    every = [list(zip((0, *inner), (*inner, count), strict=True)) for size in range(count) for inner in combinations(range(1, count), size)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows, "PASS_TOKENS", cost)
        patch.setattr(rows, "RECTANGLE_TOKENS", limit)
        assert price(rows._cuts(ordered)) == min(map(price, every))


def test_what_cannot_be_laid_out_is_refused() -> None:
    with pytest.raises(ValueError, match="empty prompt"):
        pack(np.zeros(3, np.int32), [0], [3])
    with pytest.raises(ValueError, match="4 token ids came for samples of 3"):
        pack(np.zeros(4, np.int32), [1], [2])


SMALL = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
}
MORE: dict[str, PretrainedConfig] = {
    # What these do to logits after the output layer, or see of the past, a layout of one's own would get wrong.
    "logits scaled": GraniteConfig(logits_scaling=3.0, **{k: v for k, v in SMALL.items() if k != "head_dim"}),
    "logits capped": Gemma2Config(final_logit_softcapping=2.0, sliding_window=4, **SMALL),
    "sliding window": MistralConfig(sliding_window=4, **SMALL),
    "large vocabulary": GemmaConfig(**(SMALL | {"vocab_size": 500})),
}


@pytest.mark.parametrize("name", [*CONFIGS, *MORE])
def test_log_probabilities_are_those_of_the_rollout_alone(name: str) -> None:
    torch.manual_seed(0)
    model = build(name) if name in CONFIGS else AutoModelForCausalLM.from_config(MORE[name])
    model.eval()
    every: list[Rollout] = rollouts(model, seed=4, count=7)
    ids = np.array([i for r in every for i in r.prompt + r.response], dtype=np.int32)
    found = torch.full((sum(len(r.response) for r in every),), torch.nan)
    for rectangle in pack(ids, [len(r.prompt) for r in every], [len(r.response) for r in every]):
        found[rectangle.tokens] = log_probabilities(model, rectangle, 0.7).detach()
    expected = torch.cat([alone(model, r, 0.7).detach() for r in every])
    assert float((found - expected).abs().max()) < 5e-5


def test_the_output_layer_sees_only_what_predicts_responses() -> None:
    model = build("llama").eval()
    (rectangle,) = pack(np.arange(12, dtype=np.int32), [5, 4], [1, 2])
    seen: list[torch.Size] = []
    hook = model.get_output_embeddings().register_forward_hook(lambda _m, _i, output: seen.append(output.shape))
    log_probabilities(model, rectangle, 1.0)
    hook.remove()
    assert seen == [torch.Size([1, 3, model.config.vocab_size])]
    assert not model.get_output_embeddings()._forward_pre_hooks
