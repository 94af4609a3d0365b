"""A call of the model without the official client, for environments: messages in, a reply out.

A call for which the gateway is too busy, or whose connection broke, is retried, as in the official
client: the gateway knows it by its context, and samples nothing twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from asyncrl.agents.agent_episode import MODEL, SHOWN, EpisodeError, EpisodeFacts
from asyncrl.agents.gateway_client import GatewayAnswer, GatewayClient
from asyncrl.escape import escaped

ChatMessage = dict[str, Any]
"""A message of a chat: `role` and `content`, a text or parts."""

FULL = ("episode_full", "context_length_exceeded")
"""Codes of the gateway for a call of an episode that is as long as it may be."""
RETRIES = 8
"""Retries of a call if the gateway is busy or closed the connection."""
AGAIN_S, AGAIN_MOST_S = 0.5, 8.0
"""Seconds before the first of them, and at most: twice as many each time."""
BUSY = 429


class EpisodeFull(EpisodeError):
    """The episode is as long as it may be."""


async def reply_to(
    messages: Sequence[ChatMessage],
    facts: EpisodeFacts,
    gateway: GatewayClient,
    *,
    special: bool = False,
    role: str = "",
) -> str:
    """The model's reply in a `role`, with the names of special tokens if `special`. Raises
    EpisodeFull, and EpisodeError if the gateway refuses the call or cannot be reached. The gateway
    bounds a call, and the attempt's clock all else."""
    asked: dict[str, object] = {"model": MODEL, "messages": list(messages)}
    if special:
        asked["skip_special_tokens"] = False
    if role:
        asked["metadata"] = {"role": role}
    for again in range(RETRIES + 1):
        wait_s = min(AGAIN_S * 2**again, AGAIN_MOST_S)
        try:
            answer = await gateway.ask(
                "POST", facts.calls_path, facts.api_key, asked, within_s=None
            )
        except OSError as error:
            if again == RETRIES:
                raise EpisodeError(
                    f"the gateway cannot be reached ({type(error).__name__}); the run may be over"
                ) from error
        else:
            if again == RETRIES or not (answer.status == BUSY or answer.status >= 500):
                return _reply(answer)
            wait_s = wait_s if answer.retry_s is None else answer.retry_s
        await asyncio.sleep(wait_s)
    raise AssertionError("the last try returns or raises")


def _reply(answer: GatewayAnswer) -> str:
    """The text of the first choice. Raises EpisodeFull and EpisodeError."""
    if answer.good:
        try:
            return str(answer.body["choices"][0]["message"].get("content") or "")
        except (LookupError, TypeError, AttributeError) as error:
            raise EpisodeError("the gateway answered a call with no reply") from error
    reason = escaped(str(answer.error.get("message", f"status {answer.status}")), SHOWN)
    kind = EpisodeFull if answer.error.get("code") in FULL else EpisodeError
    raise kind(f"the gateway refused a call: {reason}")
