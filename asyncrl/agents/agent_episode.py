"""The episode that an agent gets. Invariant: a noted result is the same in every attempt, and is
computed once.

A killed agent is restarted from the top, in a fresh process with the same seed. Its model calls are
answered with the tokens that were sampled before. Its own results are kept if they went through
`once`.

The gateway keeps notes and rewards:

    GET    /v1/sessions/NAME/notes/KEY     200 {"value": …}, or 404
    POST   /v1/sessions/NAME/notes/KEY     {"value": …}
    POST   /v1/sessions/NAME/reward        {"reward": 1.0, "turn": -1}, with the key for rewards
    POST   /v1/sessions/NAME/failed        {"tool": "search", "turn": -1}, with the same
    POST   /v1/sessions/NAME/opened        {"kind": …, "name": …, "end": […]}, with the same
    DELETE /v1/sessions/NAME/opened        the same
"""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    ExitStack,
    asynccontextmanager,
    contextmanager,
)
from functools import partial
from typing import Any
from urllib.parse import quote, urlsplit

import msgspec

from asyncrl.agents.agent_rewards import NAME, as_key, as_reward
from asyncrl.agents.episode_boxes import BlockingBox, blocking
from asyncrl.agents.gateway_client import GatewayAnswer, GatewayClient
from asyncrl.escape import escaped
from asyncrl.sandbox.boxes.box import Box, BoxThing
from asyncrl.sandbox.boxes.box_errors import BoxError
from asyncrl.sandbox.boxes.open_boxes import BoxOrigin, OpenBoxes
from asyncrl.sandbox.opened import Opened, OpenedKind

MODEL = "policy"
"""The name by which agents call the model that is trained."""
KEY = 200
"""Characters of a note's key, at most."""
SHOWN = 200
"""Characters of the gateway's refusal that an error quotes."""
ANSWER_S = 60.0
"""Seconds in which the gateway must store or return a note or a reward."""


class EpisodeFacts(msgspec.Struct, frozen=True):
    """The facts of an episode. `base_url` is `http://…/sessions/NAME/v1`, `api_key` the session's
    key for calls, and `reward_key` the one for rewards, which code that the model wrote must not
    get. `attempt` counts from 0. All other fields but these two are the same in each attempt:
    `socket` is the path of the Unix socket through which a program in the sandbox reaches the
    gateway, and `opened` the folder in which the attempt's processes note what they open outside
    (`asyncrl.sandbox.opened`); "" if there is none. `messages` are the prompt's where it has
    images, in the form of OpenAI's chat, with data URLs. `boxes` says where the sandboxes are that
    the agent opens; None if it opens none."""

    prompt: str
    entry: dict[str, Any]
    prompt_index: int
    seed: int
    attempt: int
    base_url: str
    api_key: str
    reward_key: str
    socket: str = ""
    boxes: BoxOrigin | None = None
    opened: str = ""
    messages: list[dict[str, Any]] = []

    @property
    def session(self) -> str:
        """The session's name."""
        return self.base_url.removesuffix("/v1").rpartition("/")[2]

    @property
    def session_url(self) -> str:
        """The URL of the session's notes and reward: `http://…/v1/sessions/NAME`."""
        before = self.base_url.rpartition("/sessions/")[0]
        return f"{before}/v1/sessions/{self.session}"

    @property
    def calls_path(self) -> str:
        """The path of the model's calls: `/sessions/NAME/v1/chat/completions`."""
        return f"{urlsplit(self.base_url).path}/chat/completions"


class EpisodeError(Exception):
    """The gateway refused what an agent sent; the text says why."""


def messages_of(facts: EpisodeFacts) -> list[dict[str, Any]]:
    """The conversation that an agent begins with: the data's, or the prompt as the user's
    message."""
    given = facts.messages or facts.entry.get("prompt")
    if isinstance(given, list) and given and all(isinstance(one, dict) for one in given):
        return [dict(one) for one in given]
    return [{"role": "user", "content": facts.prompt}]


class _Seen:
    """The facts, as attributes of an episode."""

    def __init__(self, facts: EpisodeFacts) -> None:
        self.prompt, self.entry = facts.prompt, facts.entry
        self.messages = messages_of(facts)
        self.prompt_index, self.seed, self.attempt = facts.prompt_index, facts.seed, facts.attempt
        self.base_url, self.api_key = facts.base_url, facts.api_key
        self.reward_key = facts.reward_key
        self.session, self.socket = facts.session, facts.socket


class AgentEpisode(_Seen):
    """An episode, for an async agent. The caller closes its gateway client.

    results = await episode.once(f"search {query}", lambda: search(query))
    await episode.reward(0.1)
    """

    def __init__(self, facts: EpisodeFacts, gateway: GatewayClient) -> None:
        super().__init__(facts)
        self._gateway, self._path = gateway, urlsplit(facts.session_url).path
        self._locks: dict[str, asyncio.Lock] = {}
        self._origin = facts.boxes
        self._boxes: OpenBoxes | None = None

    def sandbox(
        self, image: str = "", hosts: Sequence[str] | None = None
    ) -> AbstractAsyncContextManager[Box]:
        """A sandbox for the block, from this image, else the row's, else `sandbox.image`. It
        reaches these hosts, which `sandbox.hosts` must have; by default all of those. Raises
        BoxError.

        async with episode.sandbox() as box:
            ran = await box.run(["pytest", "-q"], seconds=300)
        """
        if self._origin is None:
            raise BoxError("the run has no sandboxes for agents: set sandbox.kind")
        if self._boxes is None:
            self._boxes = OpenBoxes(self._origin, self.session, self.entry, self._noted)
        return self._boxes.open(image, hosts)

    def _noted(self, thing: BoxThing) -> AbstractAsyncContextManager[str]:
        return self.opened(thing.kind, thing.name, *thing.end)

    async def once(self, key: str, fn: Callable[[], Any | Awaitable[Any]]) -> Any:
        """Return the result noted under this key; without one, call `fn` and note its result. The
        result is what JSON reads back, so a tuple is a list, in this attempt too.

        Raises ValueError for a key that is not a text of 1 to 200 characters, TypeError for a
        result that is not JSON, EpisodeError if the gateway does not store it, and what `fn`
        raises, which is not noted.
        """
        if not isinstance(key, str) or not 0 < len(key) <= KEY:
            raise ValueError(f"the key of once() is a text of 1 to {KEY} characters")
        path = f"{self._path}/notes/{quote(key, safe='')}"
        async with self._locks.setdefault(key, asyncio.Lock()):  # not computed twice at a time
            noted = await self._send("GET", path, self.api_key)
            if noted.status != 404:
                return _taken(noted, f"the note {key!r}")["value"]
            result = fn()
            if inspect.isawaitable(result):
                result = await result
            value = _as_json(key, result)
            sent = await self._send("POST", path, self.api_key, {"value": value})
            _taken(sent, f"the note {key!r}")
            return value

    async def reward(self, reward: float, call: int = -1, key: str = "") -> None:
        """Give the turn of a call a reward. Calls count from 0; negative numbers count from the
        last one. `key` names the state that the call was made in, for advantages that compare turns
        of one state. Raises WrongReward, ValueError for a key that is no text, and EpisodeError if
        there is no such call."""
        asked: dict[str, Any] = {"reward": as_reward(reward), "turn": _numbered(call)}
        if as_key(key):
            asked["key"] = key
        sent = await self._send("POST", f"{self._path}/reward", self.reward_key, asked)
        _taken(sent, "the reward")

    async def failed(self, tool: str, call: int = -1) -> None:
        """Report that a model call, counted as for `reward`, called the tool `tool`, which failed:
        `agent.mask_failed` keeps its tokens out of the loss. Raises ValueError for a name that is
        not a text of 1 to 64 characters, and EpisodeError if there is no such call."""
        if not isinstance(tool, str) or not 0 < len(tool) <= NAME:
            raise ValueError(f"the tool of failed() is a text of 1 to {NAME} characters")
        asked = {"tool": tool, "turn": _numbered(call)}
        sent = await self._send("POST", f"{self._path}/failed", self.reward_key, asked)
        _taken(sent, "the failed call")

    @asynccontextmanager
    async def opened(self, kind: OpenedKind, name: str, *end: str) -> AsyncIterator[str]:
        """Note what the block opens outside the agent's processes, and end it with the block; if
        the agent is killed first, the run ends it. Few attempts open something at a time, so this
        may wait; the attempt's clock stops meanwhile. Yields the name, or the path of a new
        directory. Raises EpisodeError if it could not be ended later, and ValueError for an invalid
        kind, name or end.

        async with episode.opened("container", f"asyncrl-{episode.session}", "docker") as name:
            await start("docker", "run", "--detach", "--name", name, image)
        """
        thing = msgspec.structs.asdict(Opened(kind, name, end).checked())
        path = f"{self._path}/opened"
        sent = await self._send("POST", path, self.reward_key, thing, within_s=None)
        given = str(_taken(sent, f"the note of {name}")["opened"])
        try:
            yield given
        finally:
            # what could not be ended has its note still, and the run's log says so
            sent = await self._send("DELETE", path, self.reward_key, thing, within_s=None)
            _taken(sent, f"the end of {name}")

    async def _send(
        self,
        method: str,
        path: str,
        key: str,
        body: Mapping[str, Any] | None = None,
        within_s: float | None = ANSWER_S,
    ) -> GatewayAnswer:
        try:
            return await self._gateway.ask(method, path, key, body, within_s=within_s)
        except OSError as error:
            raise EpisodeError(
                f"the gateway cannot be reached ({type(error).__name__}); the run may be over"
            ) from error


class BlockingEpisode(_Seen):
    """An episode for a sync agent, which runs in a thread beside the event loop `loop`. It has the
    methods of `AgentEpisode`, which block; `fn` is called in a thread too."""

    def __init__(
        self, facts: EpisodeFacts, episode: AgentEpisode, loop: asyncio.AbstractEventLoop
    ) -> None:
        super().__init__(facts)
        self._episode, self._loop = episode, loop

    def once(self, key: str, fn: Callable[[], Any]) -> Any:
        """As `AgentEpisode.once`."""
        return self._wait(self._episode.once(key, partial(asyncio.to_thread, fn)))

    def reward(self, reward: float, call: int = -1, key: str = "") -> None:
        """As `AgentEpisode.reward`."""
        self._wait(self._episode.reward(reward, call, key))

    def failed(self, tool: str, call: int = -1) -> None:
        """As `AgentEpisode.failed`."""
        self._wait(self._episode.failed(tool, call))

    def sandbox(
        self, image: str = "", hosts: Sequence[str] | None = None
    ) -> AbstractContextManager[BlockingBox]:
        """As `AgentEpisode.sandbox`; the sandbox's methods block."""
        return blocking(self._episode.sandbox(image, hosts), self._wait)

    @contextmanager
    def opened(self, kind: OpenedKind, name: str, *end: str) -> Iterator[str]:
        """As `AgentEpisode.opened`."""
        block = self._episode.opened(kind, name, *end)
        given: str = self._wait(block.__aenter__())
        with ExitStack() as stack:
            stack.push(lambda *error: self._wait(block.__aexit__(*error)))
            yield given

    def _wait(self, coroutine: Any) -> Any:
        # bounded by the coroutine's own timeouts, and by the attempt's clock
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()


def _numbered(call: int) -> int:
    if not isinstance(call, int) or isinstance(call, bool):
        raise TypeError(f"call is a {type(call).__name__}; give the number of a call")
    return call


def _as_json(key: str, result: Any) -> Any:
    """The result as JSON reads it. Raises TypeError."""
    try:
        return json.loads(json.dumps(result, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise TypeError(
            f"the result of once({key!r}) is not JSON ({error}); return text, finite numbers, "
            "True, False, None, and lists and dicts of these"
        ) from error


def _taken(answer: GatewayAnswer, what: str) -> Mapping[str, Any]:
    """The body of a good answer. Raises EpisodeError with the gateway's sentence."""
    if answer.good:
        return answer.body
    reason = str(answer.error.get("message", f"status {answer.status}"))
    raise EpisodeError(f"the gateway did not take {what}: {escaped(reason, SHOWN)}")
