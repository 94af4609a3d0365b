"""Log-probabilities of a packed batch are those of each rollout alone, and so are their gradients,
whatever is shared."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from some_values import some
from torch import Tensor
from training_world import CONFIGS, SIZES, Rollout, alone, build, rollouts
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    GemmaConfig,
    GPTNeoXConfig,
    GraniteConfig,
    MambaConfig,
    MistralConfig,
    MptConfig,
    PretrainedConfig,
    PreTrainedModel,
    Qwen3Config,
)

from asyncrl.training import packing
from asyncrl.training.forward import log_probabilities, shares
from asyncrl.training.packing import PackedBatch, pack, part_of

SMALL = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "initializer_range": 0.3,
    "vocab_size": SIZES["vocab_size"],
}
LOGITS: dict[str, PretrainedConfig] = {
    # What these do to logits after the output layer a layout of one's own would get wrong.
    "logits scaled": GraniteConfig(
        logits_scaling=3.0, **{k: v for k, v in SMALL.items() if k != "head_dim"}
    ),
    "large vocabulary": GemmaConfig(**(SMALL | {"vocab_size": 500})),
    "rotary in part": GPTNeoXConfig(
        **{k: v for k, v in SMALL.items() if k not in ("head_dim", "num_key_value_heads")}
    ),
}
APART: dict[str, PretrainedConfig] = {
    # And these see of the past what depends on more than its tokens and positions, or by another
    # way than attention.
    "logits capped": Gemma2Config(final_logit_softcapping=2.0, sliding_window=4, **SMALL),
    "sliding window": MistralConfig(sliding_window=4, **SMALL),
    "sliding layers": Qwen3Config(
        use_sliding_window=True, sliding_window=4, max_window_layers=1, **SMALL
    ),
    "eager": Qwen3Config(attn_implementation="eager", **SMALL),
    "slopes": MptConfig(
        d_model=16, n_heads=2, n_layers=2, max_seq_len=64, vocab_size=SIZES["vocab_size"]
    ),
    "no attention": MambaConfig(hidden_size=16, num_hidden_layers=2, state_size=4, **SIZES),
}


def make(name: str) -> PreTrainedModel:
    torch.manual_seed(0)
    model: PreTrainedModel = (
        build(name) if name in CONFIGS else AutoModelForCausalLM.from_config((LOGITS | APART)[name])
    )
    return model.eval()


def groups(model: PreTrainedModel, seed: int = 4, count: int = 9) -> list[Rollout]:
    """Rollouts of three prompts, of uneven lengths."""
    made = rollouts(model, seed, count)
    for rollout in made:
        rollout.prompt = made[rollout.number % 3].prompt
    return made


def packed_batches(every: Sequence[Rollout], shared: bool) -> list[PackedBatch]:
    ids = np.array([i for r in every for i in r.prompt + r.response], dtype=np.int32)
    return pack(
        ids, [len(r.prompt) for r in every], [len(r.response) for r in every], shared=shared
    )


def scored(model: PreTrainedModel, every: Sequence[Rollout], shared: bool) -> Tensor:
    found = torch.full((sum(len(r.response) for r in every),), torch.nan, dtype=model.dtype)
    for batch in packed_batches(every, shared):
        found = found.index_copy(0, batch.tokens, log_probabilities(model, batch, 0.7))
    return found


@contextmanager
def widths(model: PreTrainedModel) -> Iterator[list[torch.Size]]:
    """The shapes of what the model is given meanwhile."""
    seen: list[torch.Size] = []
    embedding = model.get_input_embeddings()
    hook = embedding.register_forward_hook(lambda _m, inputs, _o: seen.append(inputs[0].shape))
    yield seen
    hook.remove()


@pytest.mark.parametrize("name", some([*CONFIGS, *LOGITS, *APART]))
@pytest.mark.parametrize("shared", [True, False])
def test_log_probabilities_are_those_of_the_rollout_alone(name: str, shared: bool) -> None:
    model = make(name)
    every = groups(model)
    expected = torch.cat([alone(model, r, 0.7).detach() for r in every])
    assert float((scored(model, every, shared).detach() - expected).abs().max()) < 5e-5


@pytest.mark.parametrize("name", [*CONFIGS, *LOGITS, *APART])
def test_a_model_is_given_each_token_once_where_nothing_but_full_attention_looks_at_others(
    name: str,
) -> None:
    model = make(name)
    assert shares(model) == (name not in APART)
    (batch,) = packed_batches(groups(model), True)
    with widths(model) as seen:
        log_probabilities(model, batch, 1.0)
    assert seen == (
        [torch.Size([1, len(batch.ids)])]
        if shares(model)
        else [table.keys.shape for table in batch.tables]
    )


def gradients(model: PreTrainedModel, of: Tensor) -> Mapping[str, Tensor]:
    model.zero_grad()
    (of.double() * torch.linspace(-1, 2, len(of))).sum().backward()  # type: ignore[no-untyped-call]
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("name", some([*CONFIGS, *LOGITS]))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_are_those_of_the_rollouts_alone(name: str, dtype: torch.dtype) -> None:
    """Up to rounding of float32, which logits have whatever the model has."""
    model = make(name).to(dtype)
    every = groups(model)
    exact = make(name).double()
    expected = gradients(exact, torch.cat([alone(exact, r, 0.7) for r in every]))
    found = gradients(model, scored(model, every, True))
    assert found.keys() == expected.keys()
    size = max(float(gradient.abs().max()) for gradient in expected.values())
    for key, gradient in expected.items():
        assert (
            float((found[key].double() - gradient).abs().max())
            < (1e-5 if dtype == torch.float32 else 1e-6) * size
        )


def test_what_else_is_in_the_packed_batch_makes_no_difference_but_rounding() -> None:
    model = make("qwen3")
    every = groups(model, count=12)
    together = torch.split(scored(model, every, True).detach(), [len(r.response) for r in every])
    for rollout, found in zip(every, together, strict=True):
        torch.testing.assert_close(
            scored(model, [rollout], True).detach(), found, rtol=0, atol=1e-5
        )


def test_a_part_scores_as_the_whole() -> None:
    for name in ("qwen3", "sliding window"):
        model = make(name)
        (batch,) = packed_batches(groups(model), True)
        wanted = torch.rand(len(batch.tokens), generator=torch.Generator().manual_seed(1)) < 0.2
        part = log_probabilities(model, part_of(batch, wanted), 0.7)
        torch.testing.assert_close(
            part, log_probabilities(model, batch, 0.7)[wanted], rtol=0, atol=1e-5
        )


def test_the_same_twice_to_the_bit() -> None:
    model = make("qwen3")
    every = groups(model)
    first, second = (gradients(model, scored(model, every, True)) for _ in range(2))
    assert all(torch.equal(gradient, second[key]) for key, gradient in first.items())


@pytest.mark.parametrize("name", ["llama", "sliding window"])
def test_the_output_layer_sees_what_predicts_responses_filled_up_to_one_of_few_sizes(
    name: str,
) -> None:
    """A kernel is compiled, and kept, for each size that it sees."""
    model, sizes = make(name), set()
    for tokens in range(1, 60):
        (batch,) = pack(
            np.arange(4 + tokens, dtype=np.int32) % SIZES["vocab_size"], [4], [tokens], shared=True
        )
        seen: list[torch.Size] = []
        hook = model.get_output_embeddings().register_forward_hook(
            lambda _m, _i, output, seen=seen: seen.append(output.shape)
        )
        assert log_probabilities(model, batch, 1.0).shape == (tokens,)
        hook.remove()
        ((_, size, _),) = seen
        assert tokens <= size < tokens + 8
        sizes.add(size)
    assert sizes == set(range(8, 65, 8))
    assert not model.get_output_embeddings()._forward_pre_hooks


def test_nothing_of_it_stays_with_the_model_after_an_error() -> None:
    model = make("qwen3")
    (batch,) = pack(np.array([1, 10_000, 2], dtype=np.int32), [2], [1], shared=True)
    with pytest.raises(IndexError):
        log_probabilities(model, batch, 1.0)
    assert (
        model.config._attn_implementation == "sdpa"
        and not model.get_output_embeddings()._forward_pre_hooks
    )


TREE_MODELS = {"rotary in part": 1e-12, "qwen3": 1e-6}
"""Largest distance in float64; the second's norms compute in float32."""


def random_tree(seed: int) -> list[Rollout]:
    """Samples that branch anywhere, in two trees: of few ids, some equal, some beginning another,
    some of a single token."""
    random = np.random.default_rng(seed)
    texts = [random.integers(0, SIZES["vocab_size"], 3).tolist() for _ in range(2)]
    for _ in range(10):
        stem = texts[int(random.integers(0, len(texts)))]
        cut = int(random.integers(2, len(stem) + 1))
        grown = random.integers(0, SIZES["vocab_size"], int(random.integers(0, 8))).tolist()
        texts.append(stem[:cut] + grown)
    given = [int(random.integers(1, len(text))) for text in texts]
    return [
        Rollout(number, 0, 0.0, text[:tokens], text[tokens:])
        for number, (text, tokens) in enumerate(zip(texts, given, strict=True))
    ]


@pytest.mark.parametrize("name", TREE_MODELS)
@pytest.mark.parametrize("seed", some(range(4)))
@pytest.mark.parametrize("limit", [20.0, 8192.0])
def test_a_random_tree_has_the_gradients_of_its_sequences_alone(
    name: str, seed: int, limit: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole, and divided by a small budget."""
    monkeypatch.setattr(packing, "PACKED_TOKENS", limit)
    monkeypatch.setattr(packing, "TREE_TOKENS", limit)
    model, every = make(name).double(), random_tree(seed)
    expected = torch.cat([alone(model, r, 0.7) for r in every])
    batches = packed_batches(every, True)
    assert (len(batches) > 1) == (limit < 100)
    found = scored(model, every, True)
    assert float((found - expected).detach().abs().max()) < TREE_MODELS[name]
    by_itself, together = gradients(model, expected), gradients(model, found)
    assert together.keys() == by_itself.keys()
    size = max(float(gradient.abs().max()) for gradient in by_itself.values())
    for key, gradient in by_itself.items():
        assert float((together[key] - gradient).abs().max()) < TREE_MODELS[name] * size
    assert all(table.ends is None for b in packed_batches(every, False) for table in b.tables)
