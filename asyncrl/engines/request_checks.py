"""The checks of a request, shared by all engines. Invariant: an accepted request can be decoded to
its last token."""

from __future__ import annotations

from asyncrl.engines.protocol import Request


def refuse_misfit(request: Request, *, vocab_size: int, context_tokens: int) -> None:
    """Raise ValueError unless ids lie in the vocabulary, prompt and budget are at least 1 token,
    both together fit the context, and the temperature is at least 0."""
    tokens = len(request.ids)
    if tokens <= request.prefix_tokens or request.prefix_tokens < 0:
        raise ValueError(
            f"rollout {request.rollout}: no prompt ({tokens} ids, {request.prefix_tokens} of "
            "them response); give at least one prompt token"
        )
    if request.max_new_tokens < 1:
        raise ValueError(
            f"rollout {request.rollout}: max_new_tokens is {request.max_new_tokens}; it must be "
            "at least 1"
        )
    if tokens + request.max_new_tokens > context_tokens:
        raise ValueError(
            f"rollout {request.rollout}: {tokens} known and {request.max_new_tokens} new tokens "
            f"exceed the context of {context_tokens};"
            " raise engine.context_tokens or lower rollout.max_new_tokens"
        )
    low, high = int(request.ids.min()), int(request.ids.max())
    if low < -len(request.images) or high >= vocab_size:  # an agent's images have negative ids
        raise ValueError(
            f"rollout {request.rollout}: id {low if low < 0 else high} is outside the vocabulary "
            f"of {vocab_size}: the model's embedding has no row for it"
        )
    if not request.temperature >= 0:
        raise ValueError(
            f"rollout {request.rollout}: temperature is {request.temperature}; it must be 0 "
            "(greedy) or more"
        )
