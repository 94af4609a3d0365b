"""Calls to models that are not trained (`agent.models`), forwarded to their own APIs in the dialect
in which they came.

Invariant: an answer is bounded in bytes and time, and a failure is one sentence in that dialect's
form, which holds no key. The run samples nothing here: a call is no turn, and is not counted.

A good answer is noted with the episode before the agent gets it, so that a later attempt that makes
the same call gets the same answer. The n-th of equal calls gets the n-th answer.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager

import httpx2
import msgspec
import trio

from asyncrl.agents.gateway.errors import GatewayError
from asyncrl.agents.gateway.other_call import ANSWER_BYTES, OtherAnswer, OtherCall
from asyncrl.agents.gateway.played_session import PlayedSession
from asyncrl.config.api_keys import hidden
from asyncrl.config.schema.other_models import OtherModel
from asyncrl.escape import escaped
from asyncrl.runtime.ipc.waits import WaitExpired, Waits

IDLE_S = 4.0
"""Seconds after which an idle connection is not reused: servers close one after 5 s or more."""
NOTE = "asyncrl/model/"
"""Prefix of the names under which answers are noted."""
_SAID = 300
_WARNINGS = 64

logger = logging.getLogger(__name__)


class Forwarding:
    """The other models of an agents actor. It is made by `open_forwarding`."""

    def __init__(
        self,
        models: Mapping[str, tuple[OtherModel, str]],
        clients: Mapping[str, httpx2.AsyncClient],
        waits: Waits,
    ) -> None:
        self._models, self._clients, self._waits = models, clients, waits
        self._places = {
            name: trio.Semaphore(other.concurrency) for name, (other, _) in models.items()
        }
        self._told = set[str]()

    @property
    def names(self) -> list[str]:
        """The names that are forwarded."""
        return [*self._models]

    def refuse(self, model: str) -> None:
        """Accept any model: a name that is not forwarded means the trained model."""

    async def answer(self, session: PlayedSession, call: OtherCall) -> OtherAnswer:
        """The answer to a call, possibly from an earlier attempt. Raises GatewayError."""
        model, asked = call.model, call.digest
        with session.other_call(asked) as number:
            name = f"{NOTE}{asked}/{number}"
            if (noted := session.noted(name)) is not None:
                return msgspec.json.decode(noted, type=OtherAnswer)
            answer = await self._asked(call, session.name)
            if session.has_room(note := msgspec.json.encode(answer)):
                session.note(name, note)
            else:
                self._tell(
                    f"{model} room",
                    f"answers of agent.models.{model} are no longer kept: the episode has no "
                    "room for more, and another attempt at it may get different ones",
                )
            return answer

    async def _asked(self, call: OtherCall, session: str) -> OtherAnswer:
        model = call.model
        timeout_s = self._models[model][0].timeout_s
        try:
            with self._waits.on("another model", owner=f"session {session}", deadline_s=timeout_s):
                async with self._places[model]:
                    return await self._sent(call)
        except WaitExpired:
            why = f"no answer within {timeout_s:g} s (timeout_s)"
            raise self._failed(model, 504, why) from None
        except httpx2.HTTPError as error:
            why = f"its url is unreachable ({type(error).__name__})"
            raise self._failed(model, 502, why) from None
        except httpx2.InvalidURL:
            raise self._failed(model, 502, "its url is not one that can be called") from None

    async def _sent(self, call: OtherCall) -> OtherAnswer:
        model = call.model
        other, key = self._models[model]
        url, content = other.url.rstrip("/") + call.path, call.content(other.model or model)
        async with self._clients[model].stream(
            "POST", url, content=content, headers=call.passed()
        ) as response:
            reply = await _bounded(response)
        if reply is None:
            raise self._failed(model, 502, f"its answer is larger than {ANSWER_BYTES} bytes")
        if response.status_code != 200:
            said = escaped(hidden(reply.decode(errors="replace"), key).strip(), _SAID)
            status, retry_s = _passed_on(response.status_code)
            raise self._failed(
                model, status, f"it said {response.status_code}: {said}", retry_s=retry_s
            )
        kind = response.headers.get("content-type", "")
        if not _readable(kind, reply):
            raise self._failed(model, 502, "its answer is neither JSON nor a stream of events")
        return OtherAnswer(kind, reply.decode())

    def _failed(
        self, model: str, status: int, why: str, *, retry_s: int | None = None
    ) -> GatewayError:
        """The error of a call. It is logged once for each model and reason."""
        self._tell(f"{model} {status}", f"a call of agent.models.{model} failed: {why}")
        return GatewayError(
            status,
            "other_model",
            f"the model {model!r} (agent.models, not trained): {why}",
            param="model",
            retry_s=retry_s,
        )

    def _tell(self, what: str, said: str) -> None:
        """Log a sentence, the first of each kind."""
        if what not in self._told and len(self._told) < _WARNINGS:
            self._told.add(what)
            logger.warning("%s", said)


@asynccontextmanager
async def open_forwarding(
    models: Mapping[str, tuple[OtherModel, str]],
    waits: Waits,
    transport: httpx2.AsyncBaseTransport | None = None,
) -> AsyncIterator[Forwarding]:
    """The other models, each with its own client, and its key only in the headers."""
    async with AsyncExitStack() as opened:
        clients = {
            name: await opened.enter_async_context(_client(other, key, transport))
            for name, (other, key) in models.items()
        }
        yield Forwarding(models, clients, waits)


def _client(
    other: OtherModel, key: str, transport: httpx2.AsyncBaseTransport | None
) -> httpx2.AsyncClient:
    keyed = {"authorization": f"Bearer {key}", "x-api-key": key} if key else {}
    return httpx2.AsyncClient(
        headers={"content-type": "application/json", "accept-encoding": "identity", **keyed},
        timeout=httpx2.Timeout(None),
        limits=httpx2.Limits(max_connections=other.concurrency, keepalive_expiry=IDLE_S),
        transport=transport,
        trust_env=False,
        follow_redirects=False,
    )


async def _bounded(response: httpx2.Response) -> bytes | None:
    """A whole answer; None if it is too large. A compressed one is not unpacked."""
    parts = bytearray()
    async for part in response.aiter_raw():
        parts += part
        if len(parts) > ANSWER_BYTES:
            return None
    return bytes(parts)


def _passed_on(status: int) -> tuple[int, int | None]:
    """The status of the gateway's answer, and the seconds until a retry makes sense."""
    if status in (429, 503):
        return status, 1
    return (400, None) if status in (400, 413, 422) else (502, None)


def _readable(kind: str, reply: bytes) -> bool:
    """True for JSON of an object, and for server-sent events."""
    try:
        text = reply.decode()
        if kind.startswith("text/event-stream"):
            return text.startswith(("data:", "event:", ":"))
        msgspec.json.decode(reply, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, RecursionError, ValueError):
        return False
    return True
