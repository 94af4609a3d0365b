"""Servers that score tokens with a reference or a teacher, for the trainer. Invariant: a
micro-batch is scored whole, but for sequences that a server refuses while it takes others, or the
trainer ends within the patience and says which server failed.

They are called before the learner computes, so that its thread never waits for them.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import trio
from numpy.typing import NDArray

from asyncrl.config import Config
from asyncrl.config.errors import ConfigError
from asyncrl.config.schema import ReferenceConfig, TeacherConfig
from asyncrl.engines.servers.errors import RequestRefused, ServerGone
from asyncrl.engines.servers.gather import gather
from asyncrl.escape import quoted
from asyncrl.files import SMALL_BYTES, read_regular
from asyncrl.messages import MicroBatch, Sample
from asyncrl.runtime.ipc.waits import Waits

if TYPE_CHECKING:
    from asyncrl.engines.sglang.sglang_client import SglangClient
    from asyncrl.tasks.text import Tokenizer

AT_A_TIME = 16
"""Sequences that a server gets at a time."""
AGAIN_S = 1.0
"""Seconds after which a call to a failed server is retried."""

IDS, PIECE = 512, 32
"""About so many ids of a vocabulary are compared, so many at a time."""
SAID = 40
"""Characters of a token's text in a sentence."""
_CURE = "give the server of a model with the same tokenizer"

logger = logging.getLogger(__name__)


class ScoringServers:
    """The servers by the name of the policy that each has, none or several."""

    def __init__(
        self, clients: Mapping[str, SglangClient], waits: Waits, patience_s: float
    ) -> None:
        self._clients, self._waits, self._patience_s = clients, waits, patience_s
        self._have_scored = set[str]()
        self.refused = 0
        """Sequences that were refused, and trained without the scores."""

    @staticmethod
    @asynccontextmanager
    async def open(config: Config, waits: Waits) -> AsyncIterator[ScoringServers]:
        """Those that the settings name; they need not be there yet. Raises OSError where the file
        of a key cannot be read."""
        async with AsyncExitStack() as stack:
            clients: dict[str, SglangClient] = {}
            for name, policy in (("reference", config.reference), ("teacher", config.teacher)):
                if policy.coefficient and policy.server:
                    clients[name] = await stack.enter_async_context(_opened(policy))
            yield ScoringServers(clients, waits, config.supervision.stall_s)

    async def refuse_other_vocabularies(self, own: Tokenizer, patience_s: float) -> None:
        """Ask each server for the texts of some ids, all of them where they are few, and compare
        them with those of the model that learns. Raises ConfigError where one has another text, or
        none, and WaitExpired where it does not answer within the patience."""
        for name, client in self._clients.items():
            with self._waits.on(
                f"vocabulary of the {name}", owner=client.url, deadline_s=patience_s
            ):
                if why := await _different(client, own):
                    raise ConfigError(f"{name}.server is {client.url!r}, and {why}.")

    async def scores(
        self, batch: MicroBatch, buffers: Sequence[memoryview | bytes]
    ) -> dict[str, NDArray[np.float32]]:
        """Log-probabilities of the sampled tokens of a micro-batch, float32 [tokens], by the name
        of the policy; NaN where a server has none, or refuses the sequence for what it is. Raises
        WaitExpired where one does not answer within the patience, and ServerError where it refuses
        otherwise, has taken no sequence yet, or cannot be understood."""
        scores = dict[str, NDArray[np.float32]]()
        if not self._clients or not batch.samples:
            return {name: np.zeros(0, np.float32) for name in self._clients}
        ids = np.frombuffer(buffers[0], "<i4")
        lengths = [sample.prompt_tokens + sample.response_tokens for sample in batch.samples]
        texts = np.split(ids, np.cumsum(lengths)[:-1])
        for name, client in self._clients.items():
            limit = trio.CapacityLimiter(AT_A_TIME)
            with self._waits.on(
                f"scores of the {name}", owner=client.url, deadline_s=self._patience_s
            ):
                every = await gather(
                    *(
                        partial(self._score, client, limit, sample, text)
                        for sample, text in zip(batch.samples, texts, strict=True)
                    )
                )
            scores[name] = np.concatenate(self._without_refused(name, every, batch.samples))
        return scores

    def _without_refused(
        self,
        name: str,
        every: Sequence[NDArray[np.float32] | RequestRefused],
        samples: Sequence[Sample],
    ) -> list[NDArray[np.float32]]:
        """The scores, NaN of refused sequences. Raises RequestRefused if the server has taken none
        so far: then it fits no sequence of this run."""
        refusals = [one for one in every if isinstance(one, RequestRefused)]
        if any(not isinstance(one, RequestRefused) and len(one) for one in every):
            self._have_scored.add(name)
        if refusals and name not in self._have_scored:
            raise refusals[0]
        if refusals:
            self.refused += len(refusals)
            logger.warning(
                "%d sequences are trained without scores of the %s (%d so far): %s",
                len(refusals),
                name,
                self.refused,
                refusals[0],
            )
        return [
            np.full(sample.sampled_tokens, np.nan, np.float32)
            if isinstance(one, RequestRefused)
            else one
            for one, sample in zip(every, samples, strict=True)
        ]

    async def _score(
        self,
        client: SglangClient,
        limit: trio.CapacityLimiter,
        sample: Sample,
        ids: NDArray[np.int32],
    ) -> NDArray[np.float32] | RequestRefused:
        """The log-probabilities of one sequence's sampled tokens, or the lasting refusal of it. It
        is asked for again until it comes: who waits for it has the deadline."""
        async with limit:
            while sample.sampled_tokens:
                try:
                    scores = await client.score(ids)
                except ServerGone as error:
                    logger.warning("a sequence is sent again: %s", error)
                    await trio.sleep(AGAIN_S)
                    continue
                except RequestRefused as error:
                    if not error.lasting:
                        raise
                    return error
                of_token = np.array([np.nan, *scores], np.float32)
                return np.concatenate([of_token[span.start : span.end] for span in sample.spans])
        return np.zeros(0, np.float32)


async def _different(client: SglangClient, own: Tokenizer) -> str:
    """Words for the first id whose text is not the same there; empty where each is. Low ids are
    asked for first, so that a smaller vocabulary is found before an id that it does not have."""
    ids = [*range(0, own.vocabulary, max(1, own.vocabulary // IDS)), own.vocabulary - 1]
    for piece in (ids[at : at + PIECE] for at in range(0, len(ids), PIECE)):
        try:
            there = await _asked(client, np.array(piece, np.int32))
        except RequestRefused as error:
            return f"it does not take the ids of the model that learns ({error}); {_CURE}"
        for id, text in zip(piece, there, strict=True):
            here = own.decode([id], special=True)
            if text is None:
                return (
                    "it does not say what its ids are, so that its vocabulary cannot be compared; "
                    "start it with its tokenizer"
                )
            # of part of a character nothing can be told, and some tokenizers leave out spaces
            if "\ufffd" not in here + text and here.replace(" ", "") != text.replace(" ", ""):
                return (
                    "its vocabulary differs from that of the model that learns (id "
                    f"{id} is {quoted(text, SAID)} there and {quoted(here, SAID)} here), so "
                    f"that their tokens cannot be compared; {_CURE}"
                )
    return ""


async def _asked(client: SglangClient, ids: NDArray[np.int32]) -> list[str | None]:
    """The texts of ids, asked for until they come: who waits for them has the deadline."""
    while True:
        try:
            return await client.texts(ids)
        except ServerGone as error:
            logger.warning("a server is asked for its vocabulary again: %s", error)
            await trio.sleep(AGAIN_S)


def _opened(policy: ReferenceConfig | TeacherConfig) -> AbstractAsyncContextManager[SglangClient]:
    """The server of a policy that has one."""
    from asyncrl.engines.sglang.sglang_client import (
        SglangClient,  # a trainer without one does without HTTP
    )

    file = policy.api_key_file
    key = read_regular(Path(file), SMALL_BYTES).decode().strip() if file else ""
    return SglangClient.open(policy.server, api_key=key)
