"""Environments: a class with `reset` and `step`, made an agent by a loop.

    class Game:
        def reset(self, entry, seed): return "Guess a number from 1 to 10."
        def step(self, reply): return Step("too low", 0.0, done=False)

A text for the model may be a `Shown`, with images. The class attribute `screens` is the number of
the newest images that the history keeps.

Both methods may be async. `reset(self, entry, seed, episode)` gets the `AgentEpisode`, too. Each
attempt makes a new object, and calls `reset` with the task's entry and the episode's seed: it draws
random numbers from that seed, so that each attempt is the same. With the class attribute
`skip_special_tokens = False` a reply has the names of its special tokens; the class attribute
`role` is that of the first reply.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, Protocol

from asyncrl.agents.agent_episode import AgentEpisode, EpisodeFacts
from asyncrl.agents.agent_rewards import as_reward
from asyncrl.agents.gateway_client import GatewayClient
from asyncrl.agents.model_call import ChatMessage, EpisodeFull, reply_to
from asyncrl.agents.shown import Shown, newest_images, user_message


class Step(NamedTuple):
    """An environment's answer to a reply: the next text or observation for the model, the reward of
    the reply's turn, and True if the episode is over (then the text is ignored). `failed` names the
    tool that the reply called, if that failed (`agent.mask_failed`). `key` names the state in which
    the reply was given, for advantages that compare turns of one state. `role` applies from the
    next reply on; empty: unchanged. `said` replaces the reply in the history (an expert's patch,
    for example), and the reply is still trained; empty: the reply."""

    text: str | Shown
    reward: float
    done: bool
    failed: str = ""
    key: str = ""
    role: str = ""
    said: str = ""


class Environment(Protocol):
    """Methods that an environment's class has."""

    @property
    def reset(self) -> Callable[..., str | Shown | Awaitable[str | Shown]]:
        """A method that begins, and returns the first text or observation for the model. It is
        called with the entry and the seed, and with `episode` if it has such a parameter."""
        ...

    def step(self, reply: str) -> Step | Awaitable[Step]:
        """Take the model's reply, and answer it."""
        ...


async def play(environment: Environment, facts: EpisodeFacts) -> float:
    """Play an environment to its end. Each turn gets its step's reward, and the episode their sum.
    It ends with the environment, or when the gateway accepts no more calls. Raises EpisodeError."""
    async with GatewayClient(facts.base_url) as gateway:
        return await _play(environment, facts, gateway)


async def _play(environment: Environment, facts: EpisodeFacts, gateway: GatewayClient) -> float:
    episode = AgentEpisode(facts, gateway)
    more = {"episode": episode} if wants_episode(environment.reset) else {}
    shown = await _settled(environment.reset(episode.entry, episode.seed, **more))
    messages: list[ChatMessage] = [user_message(shown)]
    screens: int | None = getattr(environment, "screens", None)
    special = getattr(environment, "skip_special_tokens", True) is False
    role: str = getattr(environment, "role", "")
    total = 0.0
    while True:
        try:
            reply = await reply_to(messages, facts, gateway, special=special, role=role)
        except EpisodeFull:
            if len(messages) > 1:
                return total
            raise
        step = Step(*await _settled(environment.step(reply)))
        shown, step_reward, done, failed, key, next_role, said = step
        reward = as_reward(step_reward)
        await episode.reward(reward, key=key)
        if failed:
            await episode.failed(failed)
        total += reward
        role = next_role or role
        if done:
            return total
        messages += [{"role": "assistant", "content": said or reply}, user_message(shown)]
        if screens is not None:
            messages = newest_images(messages, screens)


def wants_episode(reset: Callable[..., Any]) -> bool:
    """True if a method `reset` has a parameter `episode`."""
    try:
        return "episode" in inspect.signature(reset).parameters
    except ValueError:  # a C function without a signature
        return False


async def _settled(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value
