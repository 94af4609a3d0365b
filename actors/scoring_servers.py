"""Servers that score tokens with a reference or a teacher, for the trainer. Invariant: a
micro-batch is scored whole, or the trainer ends within the patience and says which server failed.

They are asked before the learner computes, so that its thread waits for nobody.
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
from asyncrl.config.schema import ReferenceConfig, TeacherConfig
from asyncrl.engines.sglang.errors import ServerGone
from asyncrl.engines.sglang.gather import gather
from asyncrl.ipc.messages import MicroBatch, Sample
from asyncrl.ipc.waits import Waits

if TYPE_CHECKING:
    from asyncrl.engines.sglang.client import Client

AT_A_TIME = 16
"""Sequences that a server is given at a time."""
AGAIN_S = 1.0
"""Seconds after which a server that failed is asked again."""

logger = logging.getLogger(__name__)


class ScoringServers:
    """The servers by the name of the policy that each has, none or several."""

    def __init__(self, clients: Mapping[str, Client], waits: Waits, patience_s: float) -> None:
        self._clients, self._waits, self._patience_s = clients, waits, patience_s

    @staticmethod
    @asynccontextmanager
    async def open(config: Config, waits: Waits) -> AsyncIterator[ScoringServers]:
        """Those that the settings name; they need not be there yet. Raises OSError where the file
        of a key cannot be read."""
        async with AsyncExitStack() as stack:
            clients: dict[str, Client] = {}
            for name, policy in (("reference", config.reference), ("teacher", config.teacher)):
                if policy.coefficient and policy.server:
                    clients[name] = await stack.enter_async_context(_opened(policy))
            yield ScoringServers(clients, waits, config.supervision.stall_s)

    async def scores(
        self, batch: MicroBatch, buffers: Sequence[memoryview | bytes]
    ) -> dict[str, NDArray[np.float32]]:
        """Log-probabilities of the sampled tokens of a micro-batch, float32 [tokens], by the name
        of the policy; NaN where a server has none. Raises WaitExpired where one does not answer
        within the patience, and SglangError where it refuses or cannot be understood."""
        found = dict[str, NDArray[np.float32]]()
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
            found[name] = np.concatenate(every)
        return found

    async def _score(
        self, client: Client, limit: trio.CapacityLimiter, sample: Sample, ids: NDArray[np.int32]
    ) -> NDArray[np.float32]:
        """The log-probabilities of one sequence's sampled tokens. It is asked for again until it
        comes: who waits for it has the deadline."""
        async with limit:
            while sample.sampled_tokens:
                try:
                    scores = await client.score(ids)
                except ServerGone as error:
                    logger.warning("a sequence is sent again: %s", error)
                    await trio.sleep(AGAIN_S)
                    continue
                of_token = np.array([np.nan, *scores], np.float32)
                return np.concatenate([of_token[span.start : span.end] for span in sample.spans])
        return np.zeros(0, np.float32)


def _opened(policy: ReferenceConfig | TeacherConfig) -> AbstractAsyncContextManager[Client]:
    """The server of a policy that has one."""
    from asyncrl.engines.sglang.client import Client  # a trainer without one does without HTTP

    file = policy.api_key_file
    return Client.open(policy.server, api_key=Path(file).read_text().strip() if file else "")
