"""Trial of a model, to find passes that keep samples independent. Invariant: in the passes of
training, a trained model gives tokens the same log-probabilities as after their own past alone.

transformers' flags about attention are not reliable: some models that have them ignore our
attention, some attend to padding, and some look ahead. So the model computes a few texts: first
each token's past by itself, then all of them as in training (`Passes`), the cheapest way first. The
first way that agrees is used. A model for which none agrees cannot be trained.

Texts are short, unless the model looks back over a window that ends within the run's own context:
then they are longer than that, to test tokens beyond the window.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from asyncrl.escape import escaped
from asyncrl.training.forward import (
    Passes,
    attend_in_blocks,
    blocks_distance,
    log_probabilities,
    make_logits_in_chunks,
    may_share,
    shares,
    use_passes,
)
from asyncrl.training.logit_changes import logit_changes
from asyncrl.training.models import ModelError
from asyncrl.training.packing import pack

TOLERANCE = {torch.float64: 1e-3, torch.float32: 1e-3}
"""Largest mean distance in nats, over a text's tokens, that rounding may cause."""
COARSE = 0.25
"""The same for smaller types, whose logits alone are off by up to 0.1."""
WINDOWS = (
    "sliding_window",
    "index_topk",
    "attention_chunk_size",
    "attention_window_size",
    "local_attention",
    "window_size",
)
"""Names in configurations for the distance that a layer looks back, or its number of tokens."""
PROMPT, RESPONSES = 5, (9, 3, 6)
"""Tokens of the trial's prompts, and of its responses. The first two have the same prompt."""
SCORED = 9
"""Tokens at the end of a response that are compared."""
BRANCHES, BRANCH_TOKENS = 40, 64
"""Sequences of the tree that blocks of attention are tried with, and tokens of each: several
blocks."""
BLOCKS_TOLERANCE = 1e-3
"""Largest distance of attention by blocks from that by tables, relative to the size of the
numbers."""


class Trial(NamedTuple):
    """Result of a trial: `passes` agree, within `distance` (nats, the largest mean of a text's
    tokens); `refused` gives the reason against each cheaper way; `attention` is a sentence about
    it, empty where there is only one."""

    passes: Passes
    distance: float
    refused: tuple[str, ...] = ()
    attention: str = ""

    def __str__(self) -> str:
        agree = f"{self.passes} passes agree to {self.distance:.1g} nats"
        return "; ".join(filter(None, (*self.refused, agree, self.attention)))


class _Texts(NamedTuple):
    """`ids` of all texts, joined, and the tokens of each one's prompt and response."""

    ids: NDArray[np.int32]
    prompts: list[int]
    responses: list[int]

    @classmethod
    def of(cls, vocabulary: int, longest: int) -> _Texts:
        """Texts of ids below `vocabulary`, the first of them of `longest` tokens at least."""
        random = np.random.default_rng(0)
        one, other = (random.integers(0, vocabulary, PROMPT) for _ in range(2))
        responses = [max(RESPONSES[0], longest - PROMPT), *RESPONSES[1:]]
        ids = [
            np.concatenate([prompt, random.integers(0, vocabulary, tokens)])
            for prompt, tokens in zip((one, one, other), responses, strict=True)
        ]
        return cls(np.concatenate(ids).astype(np.int32), [PROMPT] * 3, responses)

    def scored(self) -> Iterator[tuple[int, int, int]]:
        """For each compared token: its text, its position among all ids, and its index among all
        response tokens."""
        start = tokens = 0
        for text, (prompt, response) in enumerate(zip(self.prompts, self.responses, strict=True)):
            for index in range(max(0, response - SCORED), response):
                yield text, start + prompt + index, tokens + index
            start += prompt + response
            tokens += response

    def start(self, text: int) -> int:
        """Position of the first id of a text."""
        return sum(self.prompts[:text]) + sum(self.responses[:text])


def try_passes(model: PreTrainedModel, tokens: int, computes: torch.dtype | None = None) -> Trial:
    """Try a model, and use the cheapest correct passes for it from now on. No text of the run has
    more than `tokens` tokens. `computes` is the type that it computes in if its parameters have
    another. Ranks that have shards of it all call this alike. Raises ModelError where none are
    correct."""
    coarse = TOLERANCE.get(computes or model.dtype, COARSE)
    texts = _Texts.of(_vocabulary(model), _beyond_windows(model, tokens))
    scored = list(texts.scored())
    with torch.no_grad():
        try:
            expected = torch.tensor([_after_its_past(model, texts, *token) for token in scored])
        except Exception as error:  # a model may raise anything for ids that it rejects
            raise ModelError(_sentence(model, f"it fails at a text ({_said(error)})")) from error
        if not bool(expected.isfinite().all()):
            raise ModelError(_sentence(model, "its log-probabilities of a text are not numbers"))
        of_text = torch.tensor([text for text, _, _ in scored])
        indexes = torch.tensor([index for _, _, index in scored])
        refused: list[str] = []
        ways: tuple[Passes, ...] = ("packed", "padded", "alone")
        for way in ways if may_share(model) else ways[1:]:
            use_passes(model, way)
            try:
                off = (_all_at_once(model, texts)[indexes].cpu() - expected).abs()
            except Exception as error:  # noqa: BLE001 (as above; the next way may do)
                refused.append(f"{way} passes fail ({_said(error)})")
                continue
            distance = max(float(off[of_text == text].mean()) for text in range(len(texts.prompts)))
            if distance <= coarse:
                cuda = way == "packed" and model.device.type == "cuda"
                attention = try_blocks(model, tokens) if cuda else ""
                if (changes := logit_changes(model)) is not None:
                    make_logits_in_chunks(model, changes)
                return Trial(way, distance, tuple(refused), attention)
            refused.append(f"{way} passes are {distance:.1g} nats off")
    raise ModelError(
        _sentence(model, "a token's log-probability changes with tokens after or beside it")
        + f" ({'; '.join(refused)})"
    )


def try_blocks(model: PreTrainedModel, tokens: int) -> str:
    """Compute a model's attention by blocks from now on if they agree with the tables, on a tree
    with sequences of at most `tokens` tokens; returns a sentence about it."""
    random, length = np.random.default_rng(0), min(tokens, BRANCH_TOKENS)
    rows = random.integers(0, _vocabulary(model), (BRANCHES, length))
    for row in range(1, BRANCHES):
        rows[row, : int(random.integers(1, length))] = rows[row - 1, 0]
    prompts, responses = [1] * BRANCHES, [length - 1] * BRANCHES
    packed = pack(rows.ravel().astype(np.int32), prompts, responses, shared=True)
    try:
        distance = max(blocks_distance(model, batch) for batch in packed)
    except Exception as error:  # noqa: BLE001 (a compiler may raise anything; tables are used then)
        return f"attention by tables, as blocks fail ({_said(error)})"
    if not distance <= BLOCKS_TOLERANCE:
        return f"attention by tables, as blocks are {distance:.1g} off"
    attend_in_blocks(model)
    return f"attention by blocks, which are {distance:.1g} from tables"


def _all_at_once(model: PreTrainedModel, texts: _Texts) -> Tensor:
    """Log-probability of each response token as training computes it, float32 [tokens]."""
    logprobs = torch.full((sum(texts.responses),), torch.nan)
    for packed in pack(texts.ids, texts.prompts, texts.responses, shared=shares(model)):
        logprobs[packed.tokens] = log_probabilities(model, packed, 1.0).cpu()
    return logprobs


def _after_its_past(
    model: PreTrainedModel, texts: _Texts, text: int, position: int, index: int
) -> float:
    """Log-probability of the id at `position`, from a pass over only the ids before it."""
    past = torch.from_numpy(texts.ids[texts.start(text) : position].astype(np.int64))
    logits: Tensor = model(input_ids=past[None].to(model.device), use_cache=False).logits[0, -1]
    return float(logits.float().log_softmax(-1)[int(texts.ids[position])])


def _vocabulary(model: PreTrainedModel) -> int:
    """Size of the model's vocabulary."""
    embeddings: Any = model.get_input_embeddings()
    return int(embeddings.weight.shape[0])


def _beyond_windows(model: PreTrainedModel, tokens: int) -> int:
    """Tokens of a text that is longer than each window which ends within `tokens`; 0 where none
    does."""
    text: Any = model.config.get_text_config()
    windows = [getattr(text, name, None) for name in WINDOWS]
    within = [window for window in windows if isinstance(window, int) and 0 < window < tokens]
    return min(tokens, max(within) + PROMPT + SCORED) if within else 0


def _said(error: Exception) -> str:
    return escaped(" ".join(f"{type(error).__name__}: {error}".split()), 120)


def _sentence(model: PreTrainedModel, why: str) -> str:
    return (
        f"the model ({type(model).__name__}) cannot be trained here: {why}; choose a causal "
        "language model of another architecture (docs/models.md lists those that were tried)"
    )
