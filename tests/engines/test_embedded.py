"""The embedded engine against transformers' own greedy decoding and full forwards, for three
architectures."""

import copy
import logging
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from reference import (
    ARCHITECTURES,
    CONTEXT,
    VOCABULARY,
    behaviour_of,
    full_log_probabilities,
    greedy,
    random_model,
)
from some_values import some
from transformers import (
    AutoModelForCausalLM,
    DeepseekV3Config,
    Gemma2Config,
    GptOssConfig,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
)
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm

from asyncrl.engines.embedded import kernels
from asyncrl.engines.embedded.batcher import Batcher
from asyncrl.engines.embedded.embedded_options import EmbeddedOptions
from asyncrl.engines.protocol import Chunk, Request

torch.set_num_threads(1)
TOLERANCE = 5e-5


def batcher_of(model: PreTrainedModel, *, version: int | None = 0, **changed: Any) -> Batcher:
    options = EmbeddedOptions(
        slots=5, context_tokens=CONTEXT, chunk_tokens=8, stop_ids=frozenset(), run_seed=11
    )
    batcher = Batcher(copy.deepcopy(model), msgspec.structs.replace(options, **changed))
    if version is not None:
        load(batcher, version, model)
    return batcher


def load(batcher: Batcher, version: int, model: PreTrainedModel, *, pin: bool = False) -> None:
    weights = dict(model.named_parameters())
    batcher.refuse_weights(weights)
    batcher.load(version, weights, pin=pin)


def request(
    rollout: int,
    ids: Sequence[int],
    tokens: int,
    *,
    temperature: float = 0.0,
    prefix: int = 0,
    **more: Any,
) -> Request:
    return Request(
        rollout,
        1,
        more.pop("key", rollout),
        np.array(ids, np.int32),
        prefix,
        tokens,
        temperature,
        **more,
    )


def random_requests(count: int, *, temperature: float = 0.0, seed: int = 0) -> list[Request]:
    rng = np.random.default_rng(seed)
    sizes = [(int(rng.integers(1, 30)), int(rng.integers(1, 30))) for _ in range(count)]
    return [
        request(i, rng.integers(0, VOCABULARY, n).tolist(), k, temperature=temperature)
        for i, (n, k) in enumerate(sizes)
    ]


class Answers:
    """Chunks put together, checked to follow each other."""

    def __init__(self) -> None:
        self.ids: dict[int, list[int]] = {}
        self.behaviour: dict[int, list[float]] = {}
        self.versions: dict[int, list[int]] = {}
        self.finish: dict[int, str] = {}
        self.first: dict[int, int] = {}

    def add(self, chunks: Iterable[Chunk]) -> None:
        for chunk in chunks:
            r = chunk.rollout
            assert self.finish.get(r, "") == "", "nothing follows a finish"
            have = self.ids.setdefault(r, [])
            assert chunk.start == self.first.setdefault(r, chunk.start) + len(have)
            assert (
                len(chunk.ids) == len(chunk.behaviour)
                and chunk.ids.dtype == np.int32
                and chunk.behaviour.dtype == np.float32
            )
            have += chunk.ids.tolist()
            self.behaviour.setdefault(r, []).extend(chunk.behaviour.tolist())
            self.versions.setdefault(r, []).extend([chunk.version] * len(chunk.ids))
            self.finish[r] = chunk.finish

    def drain(self, batcher: Batcher, steps: int = 4) -> "Answers":
        while batcher.has_work:
            self.add(batcher.advance(steps))
        return self


def answers(batcher: Batcher, requests: Sequence[Request], steps: int = 4) -> Answers:
    batcher.submit(requests)
    return Answers().drain(batcher, steps)


@pytest.mark.parametrize(
    "compile",
    [
        False,
        pytest.param(
            True,
            marks=[
                pytest.mark.explore,
                pytest.mark.skipif(shutil.which("g++") is None, reason="no g++"),
            ],
        ),
    ],
)
@pytest.mark.parametrize("name", some(ARCHITECTURES))
def test_greedy_tokens_and_log_probabilities(name: str, compile: bool) -> None:
    model = random_model(name)
    requests = [
        *random_requests(23),
        request(100, range(CONTEXT - 1), 1)
        if CONTEXT - 1 <= VOCABULARY
        else request(100, [1] * (CONTEXT - 1), 1),
    ]
    requests += [request(200 + i, [5, 6, 7], 9) for i in range(4)]
    seen = answers(batcher_of(model, compile=compile), requests, steps=3)
    for r in requests:
        expected = greedy(model, r.ids.tolist(), r.max_new_tokens)
        assert seen.ids[r.rollout] == expected
        assert seen.finish[r.rollout] == "length"
        assert (
            np.abs(behaviour_of(model, r.ids.tolist(), expected) - seen.behaviour[r.rollout]).max()
            < TOLERANCE
        )


@pytest.mark.explore
@pytest.mark.parametrize("slots", some([2, 1, 8, 40], 2))
def test_any_number_of_slots(slots: int) -> None:
    model = random_model("qwen3")
    requests = random_requests(12, seed=3)
    seen = answers(batcher_of(model, slots=slots), requests)
    assert seen.ids == {
        r.rollout: greedy(model, r.ids.tolist(), r.max_new_tokens) for r in requests
    }


def test_stop_ids_end_and_are_part() -> None:
    model = random_model("llama")
    requests = random_requests(12)
    whole = {r.rollout: greedy(model, r.ids.tolist(), r.max_new_tokens) for r in requests}
    stops = frozenset(
        np.argsort(-np.bincount(np.concatenate(list(whole.values())), minlength=VOCABULARY))[
            :3
        ].tolist()
    )
    seen = answers(batcher_of(model, stop_ids=stops), requests)
    stopped = 0
    for rollout, ids in whole.items():
        end = next((i + 1 for i, token in enumerate(ids) if token in stops), None)
        stopped += end is not None
        assert seen.ids[rollout] == ids[:end]
        assert seen.finish[rollout] == ("length" if end is None else "stop")
    assert stopped > 0


@pytest.mark.explore
@pytest.mark.parametrize("name", some(ARCHITECTURES))
@pytest.mark.parametrize("temperature", [0.7])
def test_sampled_log_probabilities_and_neighbours(name: str, temperature: float) -> None:
    """Every request alone gives what it gives among others."""
    model = random_model(name)
    requests = random_requests(15, temperature=temperature)
    seen = answers(batcher_of(model), requests)
    alone = batcher_of(model, slots=1)
    for r in requests:
        expected = behaviour_of(model, r.ids.tolist(), seen.ids[r.rollout], temperature)
        assert np.abs(expected - seen.behaviour[r.rollout]).max() < TOLERANCE
        assert answers(alone, [r]).ids[r.rollout] == seen.ids[r.rollout]
    assert answers(batcher_of(model, run_seed=12), requests).ids != seen.ids


def test_temperatures_may_be_mixed() -> None:
    model = random_model("qwen3")
    mixed = [
        request(i, [3, 1, 4], 20, temperature=t) for i, t in enumerate((0.0, 0.5, 1.0, 2.0, 0.0))
    ]
    seen = answers(batcher_of(model), mixed)
    assert seen.ids[0] == seen.ids[4] == greedy(model, [3, 1, 4], 20)
    for r in mixed:
        assert (
            np.abs(
                behaviour_of(model, [3, 1, 4], seen.ids[r.rollout], r.temperature)
                - seen.behaviour[r.rollout]
            ).max()
            < TOLERANCE
        )


def test_sampling_follows_the_distribution() -> None:
    model = random_model("llama")
    with torch.no_grad():
        model.lm_head.weight.mul_(0.1)
    prompt, count, temperature = [7, 7, 2], 4000, 0.8
    p = full_log_probabilities(model, prompt, temperature)[-1].exp().double().numpy()
    seen = answers(
        batcher_of(model, slots=64),
        [request(i, prompt, 1, temperature=temperature) for i in range(count)],
    )
    observed = np.bincount([ids[0] for ids in seen.ids.values()], minlength=VOCABULARY)
    often = p * count >= 5
    pooled = (
        np.append(observed[often], observed[~often].sum()),
        np.append(p[often], p[~often].sum()) * count,
    )
    chi_square = float(
        ((pooled[0] - pooled[1]) ** 2 / np.maximum(pooled[1], 1e-9))[pooled[1] > 0].sum()
    )
    freedom = int(often.sum())
    assert freedom > 8
    assert chi_square < freedom + 5 * (2 * freedom) ** 0.5


@pytest.mark.parametrize("temperature", some([1.0, 0.0]))
@pytest.mark.parametrize("name", some(ARCHITECTURES))
def test_pain_17_interrupted_anywhere_and_continued(name: str, temperature: float) -> None:
    """Cut at every token, with the budget that is left: ids, and their log-probabilities, are those
    of the response that was not cut."""
    model = random_model(name)
    batcher = batcher_of(model)
    prompt, tokens = [9, 8, 7, 6], 14
    uncut = answers(batcher, [request(0, prompt, tokens, temperature=temperature, key=77)])
    whole, due = uncut.ids[0], np.array(uncut.behaviour[0])
    for stop in range(tokens):
        first = Answers()
        batcher.submit(
            [request(1, prompt, tokens, temperature=temperature, key=77), request(50, [stop, 2], 9)]
        )
        for _ in range(stop):
            first.add(batcher.advance(1))
        batcher.interrupt([1, 12345])
        first.drain(batcher)
        assert first.finish[1] == "interrupted" and first.ids[1] == whole[:stop]
        rest = request(
            2, prompt + whole[:stop], tokens - stop, temperature=temperature, prefix=stop, key=77
        )
        second = answers(batcher, [rest])
        assert (
            second.first[2] == stop
            and second.ids[2] == whole[stop:]
            and second.finish[2] == "length"
        )
        assert np.abs(due - np.array(first.behaviour[1] + second.behaviour[2])).max() < TOLERANCE


def by_full_forwards(
    models: Sequence[PreTrainedModel], prompt: Sequence[int], swaps: Sequence[int], tokens: int
) -> tuple[list[int], list[float]]:
    """Greedy decoding under `models[k]` from response token `swaps[k - 1]` on, everything
    recomputed for every token."""
    ids, behaviour = list(prompt), []
    for i in range(tokens):
        row = full_log_probabilities(models[sum(i >= swap for swap in swaps)], ids)[-1]
        ids.append(int(row.argmax()))
        behaviour.append(float(row.max()))
    return ids[len(prompt) :], behaviour


@pytest.mark.explore
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_load_with_the_cache_recomputed(name: str) -> None:
    models = [random_model(name, seed) for seed in range(3)]
    batcher = batcher_of(models[0], kv="recompute")
    requests = [request(i, list(range(i, i + 2 + i)), 20) for i in range(5)]
    seen = Answers()
    batcher.submit(requests)
    for version, steps in ((1, 6), (2, 5)):
        seen.add(batcher.advance(steps))
        load(batcher, version, models[version])
    seen.drain(batcher)
    for r in requests:
        ids, behaviour = by_full_forwards(models, r.ids.tolist(), (6, 11), 20)
        assert seen.ids[r.rollout] == ids
        assert np.abs(np.array(behaviour) - seen.behaviour[r.rollout]).max() < TOLERANCE
        assert seen.versions[r.rollout] == [0] * 6 + [1] * 5 + [2] * 9


def by_kept_cache(
    models: Sequence[PreTrainedModel], prompt: Sequence[int], swap: int, tokens: int
) -> tuple[list[int], list[float]]:
    """Greedy decoding with transformers' own cache, handed from one model to the other."""
    past, fed, ids, behaviour = None, list(prompt), [], []
    for i in range(tokens):
        with torch.no_grad():
            out = models[i >= swap](
                input_ids=torch.tensor([fed]), past_key_values=past, use_cache=True
            )
        past, row = out.past_key_values, out.logits[0, -1].log_softmax(-1)
        ids.append(int(row.argmax()))
        behaviour.append(float(row.max()))
        fed = ids[-1:]
    return ids, behaviour


@pytest.mark.parametrize("name", some(ARCHITECTURES))
def test_a_load_with_the_cache_kept(name: str) -> None:
    models = [random_model(name, seed) for seed in range(2)]
    batcher = batcher_of(models[0])
    requests = [request(i, list(range(i, i + 2 + i)), 20) for i in range(5)]
    seen = Answers()
    batcher.submit(requests)
    seen.add(batcher.advance(7))
    load(batcher, 1, models[1])
    seen.drain(batcher)
    for r in requests:
        ids, behaviour = by_kept_cache(models, r.ids.tolist(), 7, 20)
        assert seen.ids[r.rollout] == ids
        assert np.abs(np.array(behaviour) - seen.behaviour[r.rollout]).max() < TOLERANCE


@pytest.mark.explore
def test_pins() -> None:
    models = [random_model("qwen3", seed) for seed in range(3)]
    batcher = batcher_of(models[0], version=None)
    load(batcher, 0, models[0], pin=True)
    pinned, current = (
        [request(i, [i, 2, 3], 12, version=0) for i in range(7)],
        [request(10 + i, [i, 4], 12) for i in range(3)],
    )
    seen = Answers()
    batcher.submit([*pinned, *current])
    seen.add(batcher.advance(5))
    load(batcher, 1, models[1])
    seen.drain(batcher)
    for r in pinned:
        assert seen.ids[r.rollout] == greedy(models[0], r.ids.tolist(), 12) and set(
            seen.versions[r.rollout]
        ) == {0}
    assert all(seen.versions[r.rollout] == [0] * 5 + [1] * 7 for r in current)

    batcher.unpin(0)
    load(batcher, 2, models[2], pin=True)
    seen = Answers()
    batcher.submit(
        [request(20, [1], 12, version=0), request(21, [1], 12, version=2), request(22, [5], 12)]
    )
    seen.add(batcher.advance(4))
    assert seen.finish == {20: "interrupted", 21: "", 22: ""}
    batcher.unpin(7)
    batcher.unpin(2)
    batcher.submit([request(23, [1], 12, version=2)])
    seen.drain(batcher)
    assert seen.finish == {20: "interrupted", 21: "interrupted", 22: "length", 23: "interrupted"}
    assert seen.ids[21] == greedy(models[2], [1], 12)[:4]


@pytest.mark.explore
def test_an_average_answers_what_is_pinned_to_its_version_and_nothing_else() -> None:
    """Beside it, what is not pinned is sampled by the version's own weights, before and after."""
    before, own, average = (random_model("qwen3", seed) for seed in range(3))
    batcher = batcher_of(before, version=3)
    weights = dict(average.named_parameters())
    batcher.refuse_weights(weights)
    batcher.submit([request(1, [1, 2], 12)])
    seen = Answers()
    seen.add(batcher.advance(4))
    batcher.keep(4, weights)
    assert batcher.version == 3
    seen.add(batcher.advance(4))
    assert seen.ids[1] == greedy(before, [1, 2], 12)[:8] and seen.versions[1] == [3] * 8
    load(batcher, 4, own)
    batcher.submit([request(2, [5, 2], 12, version=4), request(3, [5, 2], 12)])
    seen.drain(batcher)
    assert seen.versions[1] == [3] * 8 + [4] * 4
    assert seen.ids[2] == greedy(average, [5, 2], 12) != greedy(own, [5, 2], 12)
    assert seen.ids[3] == greedy(own, [5, 2], 12)
    batcher.unpin(4)
    batcher.submit([request(4, [5, 2], 12, version=4)])
    assert seen.drain(batcher).finish[4] == "interrupted"


@pytest.mark.explore
def test_several_versions_are_decoded_side_by_side() -> None:
    """Each is answered by its own weights, and none waits for another: after n steps each has n
    tokens."""
    models = [random_model("qwen3", seed) for seed in range(3)]
    batcher = batcher_of(models[0], version=None, slots=3)
    for version, model in enumerate(models):
        load(batcher, version, model, pin=True)
    requests = [
        request(10 * version + i, [i, 2, version], 12, version=version)
        for version in range(3)
        for i in range(5)
    ]
    batcher.submit(requests)
    seen = Answers()
    seen.add(batcher.advance(5))
    assert {
        rollout: len(seen.ids[rollout]) for rollout in (0, 1, 2, 10, 11, 12, 20, 21, 22)
    } == dict.fromkeys((0, 1, 2, 10, 11, 12, 20, 21, 22), 5)
    seen.drain(batcher)
    for r in requests:
        assert seen.ids[r.rollout] == greedy(models[r.version], r.ids.tolist(), 12) and set(
            seen.versions[r.rollout]
        ) == {r.version}


@pytest.mark.explore
def test_what_is_let_go_makes_room_for_the_next() -> None:
    """A lane is memory: there are no more of them than versions were kept at a time."""
    models = [random_model("qwen3", seed) for seed in range(4)]
    batcher = batcher_of(models[0], version=None)
    lanes = set()
    for version, model in enumerate(models):
        load(batcher, version, model, pin=True)
        lanes |= {id(lane) for lane in batcher._lanes}
        if version:
            batcher.unpin(version - 1)
        batcher.submit(
            [
                request(version, [1], 6, version=version),
                request(10 + version, [1], 6, version=version - 1),
            ]
        )
        seen = Answers().drain(batcher)
        assert (
            seen.ids[version] == greedy(model, [1], 6)
            and seen.finish[10 + version] == "interrupted"
        )
    assert len(lanes) == 3


def test_nothing_is_sampled_before_the_first_load() -> None:
    model = random_model("gpt2")
    batcher = batcher_of(model, version=None)
    batcher.submit([request(0, [1, 2], 3), request(1, [1], 3)])
    assert batcher.advance(5) == [] and not batcher.has_work and batcher.version is None
    batcher.interrupt([1])
    assert [(c.rollout, c.finish) for c in batcher.advance(5)] == [(1, "interrupted")]
    load(batcher, 4, model)
    assert Answers().drain(batcher).ids == {0: greedy(model, [1, 2], 3)}


def test_a_group_is_prefilled_once() -> None:
    model = random_model("qwen3")
    batcher = batcher_of(model, slots=16)
    lane, rows = batcher._current, []
    prefill = lane.programs.prefill
    lane.programs._fast.prefill = lambda ids, *rest: rows.append(len(ids)) or prefill(ids, *rest)
    prompts = [[1, 2, 3, 4], [5, 6], [9]]
    seen = answers(
        batcher,
        [
            request(4 * g + i, prompt, 5, temperature=1.0)
            for g, prompt in enumerate(prompts)
            for i in range(4)
        ],
    )
    assert rows == [2]
    for rollout, ids in seen.ids.items():
        assert (
            np.abs(
                behaviour_of(model, prompts[rollout // 4], ids, 1.0) - seen.behaviour[rollout]
            ).max()
            < TOLERANCE
        )


@pytest.mark.parametrize("kv", some(["recompute", "keep"]))
def test_pain_16_a_prompt_is_read_again_under_new_weights(kv: str) -> None:
    """One prompt throughout. What begins after an update is answered as if its weights had been the
    only ones: nothing that older weights computed of the same prompt is used for it, neither from
    rollouts that live on nor from those that have ended in its slot."""
    models = [random_model("qwen3", seed) for seed in range(3)]
    batcher, prompt = batcher_of(models[0], kv=kv), [3, 1, 4, 1, 5, 9, 2, 6]
    batcher.submit([request(0, prompt, 40), *(request(i, prompt, 4) for i in range(1, 9))])
    seen = Answers()
    for version in (1, 2):
        seen.add(batcher.advance(10))
        load(batcher, version, models[version])
        batcher.submit([request(10 * version + i, prompt, 4) for i in range(4)])
    seen.drain(batcher)
    assert set(seen.versions[0]) == {0, 1, 2}
    due = [greedy(model, prompt, 4) for model in models]
    assert due[0] != due[1] != due[2]
    for rollout in range(10, 24, 10):
        assert {seen.versions[rollout + i][0] for i in range(4)} == {rollout // 10}
    for rollout in seen.ids.keys() - {0}:
        [version] = set(seen.versions[rollout])
        assert seen.ids[rollout] == due[version], rollout


def test_a_request_waits_for_company_but_not_long() -> None:
    batcher = batcher_of(random_model("qwen3"), slots=32)
    batcher.submit([request(i, [1], 50) for i in range(31)])
    batcher.advance(1)
    batcher.submit([request(99, [2], 5)])
    steps = next(n for n in range(1, 60) if any(c.rollout == 99 for c in batcher.advance(1)))
    assert 1 < steps <= 17


def weights_with(
    model: PreTrainedModel, changed: Mapping[str, torch.Tensor | None]
) -> dict[str, torch.Tensor]:
    return {
        name: tensor
        for name, tensor in {**dict(model.named_parameters()), **changed}.items()
        if tensor is not None
    }


def test_weights_that_do_not_fit_are_refused_by_name() -> None:
    model = random_model("qwen3")
    batcher = batcher_of(model)
    norm = "model.norm.weight"
    for changed, says in (
        ({"model.nrom.weight": torch.ones(32)}, "nrom"),
        ({norm: None}, "lack 'model.norm.weight'"),
        ({norm: torch.ones(31)}, "shape"),
    ):
        with pytest.raises(ValueError, match=says):
            batcher.refuse_weights(weights_with(model, changed))
    batcher.refuse_weights(
        {**dict(model.named_parameters()), "lm_head.weight": model.lm_head.weight}
    )  # both names of a tied one
    batcher.refuse_weights(
        {k.replace("model.embed_tokens", "lm_head"): v for k, v in model.named_parameters()}
    )  # the other name


def test_models_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="context_tokens is 65"):
        batcher_of(random_model("qwen3"), context_tokens=CONTEXT + 1)
    with pytest.raises(ValueError, match="stop id 40"):
        batcher_of(random_model("qwen3"), stop_ids=frozenset({3, 40}))
    sizes = {
        "vocab_size": VOCABULARY,
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
    }
    window = MistralForCausalLM(
        MistralConfig(
            **sizes, num_key_value_heads=1, sliding_window=16, max_position_embeddings=CONTEXT
        )
    )
    with pytest.raises(ValueError, match="sliding_attention"):
        batcher_of(window)
    assert answers(batcher_of(window, context_tokens=16), [request(0, [1], 15)]).ids == {
        0: greedy(window, [1], 15)
    }


@pytest.mark.parametrize(
    ("made", "says"),
    [
        ((DeepseekV3Config, {"n_routed_experts": 4, "n_group": 1, "topk_group": 1}), "a latent"),
        ((Gemma2Config, {"sliding_window": CONTEXT, "head_dim": 8}), "scores are capped"),
        ((GptOssConfig, {"sliding_window": CONTEXT, "head_dim": 8}), "attention with sinks"),
    ],
)
def test_attention_that_is_not_plain_is_refused_by_name(
    made: tuple[Any, dict[str, Any]], says: str
) -> None:
    """Small random weights show no difference that a trial could see."""
    kind, sizes = made
    plain = {"num_attention_heads": 2, "num_key_value_heads": 2, "num_experts_per_tok": 2}
    config = kind(
        vocab_size=VOCABULARY,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=2,
        max_position_embeddings=CONTEXT,
        **plain,
        **sizes,
    )
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    with pytest.raises(ValueError, match=f"ForCausalLM .*{says}"):
        batcher_of(model)


@pytest.mark.explore
def test_without_a_compiler_it_says_so_and_decodes(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(kernels, "_loaded", lambda: False)
    monkeypatch.setenv("PATH", "")
    model = random_model("qwen3")
    with caplog.at_level(logging.WARNING):
        batcher = batcher_of(model, compile=True)
    assert [record.message for record in caplog.records] == [
        "engine.compile has no effect: no C++ compiler was found; install g++ or set CXX"
    ]
    assert answers(batcher, [request(0, [1, 2], 6)]).ids[0] == greedy(model, [1, 2], 6)


def test_a_compiler_that_fails_is_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    monkeypatch.setattr(kernels, "_loaded", lambda: False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("CXX", "false")
    assert not kernels.load_kernels()
    assert "compiling with" in caplog.text and "failed" in caplog.text


@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")
@pytest.mark.parametrize(
    ("heads", "groups", "width", "context"),
    [(4, 2, 8, 64), (6, 2, 32, 50), (3, 3, 64, 33), (4, 1, 5, 96), (2, 2, 40, 31)],
)
def test_the_kernel_against_a_plain_softmax(
    heads: int, groups: int, width: int, context: int
) -> None:
    assert kernels.load_kernels()
    torch.manual_seed(0)
    rows = 7
    query, keys, values = (
        torch.randn(rows, heads, 1, width),
        torch.randn(rows, groups, width, context),
        torch.randn(rows, groups, context, width),
    )
    positions = torch.tensor([0, 1, context - 1, context // 2, 31 % context, 15, context - 2])
    out = torch.ops.asyncrl.slot_attention(query, keys, values, positions, 0.3)
    for row in range(rows):
        n = int(positions[row]) + 1
        for head in range(heads):
            k, v = (
                keys[row, head * groups // heads, :, :n].double(),
                values[row, head * groups // heads, :n].double(),
            )
            expected = torch.softmax(query[row, head, 0].double() @ k * 0.3, 0) @ v
            assert (out[row, 0, head].double() - expected).abs().max() < 1e-5


@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")
def test_compiled_norms_replace_plain_ones_only() -> None:
    assert kernels.load_kernels()

    class Shifted(Qwen3RMSNorm):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) + x

    pair = torch.nn.ModuleDict(
        {"plain": Qwen3RMSNorm(12, 1e-6), "shifted": Shifted(12), "layer": torch.nn.LayerNorm(12)}
    )
    torch.nn.init.normal_(pair["plain"].weight)
    x, weight = torch.randn(3, 2, 12), pair["plain"].weight
    expected = (
        x.double() * (x.double().pow(2).mean(-1, keepdim=True) + 1e-6).rsqrt() * weight.double()
    )
    names = [name for name, _ in pair.named_parameters()]
    kernels.replace_norms(pair)
    assert [type(module) for module in pair.values()] == [
        kernels.KernelNorm,
        Shifted,
        torch.nn.LayerNorm,
    ]
    assert pair["plain"].weight is weight and [name for name, _ in pair.named_parameters()] == names
    with torch.no_grad():
        assert (pair["plain"](x).double() - expected).abs().max() < 1e-5


@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")
def test_the_compiled_write_touches_one_position_a_row() -> None:
    assert kernels.load_kernels()
    keys, values = torch.zeros(5, 2, 3, 9), torch.zeros(5, 2, 9, 3)
    key, value, places = (
        torch.randn(4, 2, 1, 3),
        torch.randn(2, 4, 1, 3).transpose(0, 1),
        torch.tensor([0, 8, 3, 3]),
    )
    torch.ops.asyncrl.slot_write(keys, values, key, value, places)
    expected_keys, expected_values = torch.zeros_like(keys), torch.zeros_like(values)
    for row, place in enumerate(places.tolist()):
        expected_keys[row, :, :, place], expected_values[row, :, place] = (
            key[row, :, 0],
            value[row, :, 0],
        )
    assert torch.equal(keys, expected_keys) and torch.equal(values, expected_values)


@pytest.mark.explore
def test_bfloat16_weights() -> None:
    model = random_model("qwen3").to(torch.bfloat16)
    seen = answers(batcher_of(model), random_requests(8, temperature=1.0))
    for r in random_requests(8):
        assert (
            np.abs(
                behaviour_of(model, r.ids.tolist(), seen.ids[r.rollout]) - seen.behaviour[r.rollout]
            ).mean()
            < 0.2
        )
