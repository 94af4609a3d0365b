"""Loading of staged weights into one server. Invariant: when `load` returns, the server decodes
with exactly these weights, under their version; when it raises NotLoaded, it continues with its old
ones; and when it raises HalfLoaded, it must not decode any more.

    join       names, shapes, dtypes and the server's own parameters compared; group joined or
               files written; checksums computed
    pause      the server is paused from here on
    send       session begun → update calls, each beside its broadcast; the version with the last
               one → session ended
    verify     the server's checksums
    resume     from here it decodes with weights that are not trusted yet: the caller holds back
               its output
    canary     the server's log-probabilities of a fixed text against the trainer's

The first update call is where NotLoaded becomes HalfLoaded. A server that fails from there to its
checksums stays paused, so that nothing decodes with half of each.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, NamedTuple, Protocol

import msgspec
import numpy as np
import trio
from numpy.typing import NDArray

from asyncrl.engines import canary
from asyncrl.engines.servers.errors import RequestRefused, ServerError
from asyncrl.engines.servers.other_model import refuse_other_model
from asyncrl.engines.servers.served import ServerClient
from asyncrl.engines.servers.server_types import Mode
from asyncrl.training.checkpoint_names import CheckpointNames
from asyncrl.weightsync.servers.server_checksums import Checks, Expected
from asyncrl.weightsync.servers.server_hashes import hash_on
from asyncrl.weightsync.transport import Sender

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

logger = logging.getLogger(__name__)

_MEND_S = 10.0
"""A failed load waits no longer for the server to answer that it resumed."""


class NotLoaded(ServerError):
    """The weights did not reach the server, which continues with those it had."""


class HalfLoaded(ServerError):
    """The server holds weights that are not known to be those it was sent: it must be replaced, or
    given all of them again."""


class Loaded(msgspec.Struct, frozen=True):
    """A load in seconds: `pause_s` that the server was paused, of which `transfer_s` for the
    transfer and `verify_s` for checksums; `canary_s` after that. `difference` is the canary's, in
    nats; `exact` tensors of the server were compared byte by byte (0: none could be)."""

    pause_s: float
    transfer_s: float
    verify_s: float
    canary_s: float
    difference: float
    exact: int


class Load(NamedTuple):
    """Weights for one server, by the names of its checkpoint; it forgets its prefix cache where
    `flush`."""

    client: ServerClient
    version: int
    weights: Mapping[str, Tensor]
    flush: bool


class IntoServer(Sender[Load], Protocol):
    """A way of loading staged weights into one server, which is paused from before `begin` until
    `send` has ended. Between `join` and `leave` there is at most one `send`, and only it changes
    weights of the server."""

    async def begin(self, load: Load) -> None:
        """Take the last step that changes no weights, in a paused server."""
        ...

    async def leave(self, load: Load, *, failed: bool) -> None:
        """Clear up, after success and failure alike."""
        ...


class WeightLoader:
    """Gives versions to one server, one at a time.

    `model` is this process's own transformers model of what the server serves: its parameters'
    names, shapes and dtypes are what may be sent; its weights are not read. `text` is
    `canary.text`, `tolerance` in nats. `deadline_s` bounds each of: what comes before the pause,
    the pause, the canary. `names` makes the tensors that the server loads; those of the model's
    checkpoint unless given.
    """

    def __init__(
        self,
        client: ServerClient,
        way: IntoServer,
        model: PreTrainedModel,
        text: NDArray[np.int32],
        *,
        mode: Mode,
        tolerance: float,
        deadline_s: float,
        names: CheckpointNames | None = None,
    ) -> None:
        self._client, self._way, self._model = client, way, model
        self._names = names or CheckpointNames(model)
        self._text, self._tolerance = text, tolerance
        self._mode, self._deadline_s = mode, deadline_s
        self._checks: Checks | None = None
        self._begun = False

    @property
    def checks(self) -> Checks | None:
        """Knowledge of the server's tensors; None before the first load, and of one without
        checksums."""
        return self._checks

    async def load(
        self,
        version: int,
        weights: Mapping[str, Tensor],
        reference: Sequence[float],
        stop: Callable[[], None] = lambda: None,
    ) -> Loaded:
        """Load `weights` (by parameter name, tied ones once; unchanged until this returns) as
        `version`, verified. `reference` is the trainer's `canary.reference`. `stop` is called just
        before the server is paused: from then on nothing may be sent to it.

        Raises NotLoaded and HalfLoaded, in one sentence. Cancelled before the first update call, it
        leaves the server as it was, and later as after HalfLoaded.
        """
        url, client = self._client.url, self._client
        self._begun = False
        try:
            refuse_misfit(dict(self._model.named_parameters()), weights)
            tensors = await trio.to_thread.run_sync(lambda: dict(self._names.tensors(weights)))
            load = Load(client, version, tensors, self._mode != "in_place")
            async with self._cleared_up(load):
                with trio.fail_after(self._deadline_s):
                    expected = await self._join(load, reference)
                start = trio.current_time()
                stop()
                async with self._paused():
                    with trio.fail_after(self._deadline_s):
                        await self._way.begin(load)
                        begun = trio.current_time()
                        self._begun = True
                        await self._way.send(load)
                        sent = trio.current_time()
                        exact = await self._verify(expected)
                    verified = trio.current_time()
                resumed = trio.current_time()
                with trio.fail_after(self._deadline_s):
                    scores = await client.score(self._text, extra_key=uuid.uuid4().hex)
                difference = canary.compare(version, reference, scores, self._tolerance)
        except Exception as error:
            reason = str(error) or (
                f"not done within {self._deadline_s:g} s"
                if isinstance(error, trio.TooSlowError)
                else repr(error)
            )
            if self._begun:
                raise HalfLoaded(
                    f"{url} holds weights that may not be version {version}: {reason}"
                ) from error
            raise NotLoaded(
                f"{url} did not get version {version}, and continues with the weights that it "
                f"had: {reason}"
            ) from error
        return Loaded(
            pause_s=resumed - start,
            transfer_s=sent - begun,
            verify_s=verified - sent,
            canary_s=trio.current_time() - resumed,
            difference=difference,
            exact=exact,
        )

    async def _join(self, load: Load, reference: Sequence[float]) -> Expected | None:
        if len(reference) != len(self._text) - 1:
            raise ValueError(
                f"it came with {len(reference)} log-probabilities of the canary, which has "
                f"{len(self._text) - 1}"
            )
        if self._checks is None:
            architecture = type(self._model).__name__
            self._checks = await acquainted(self._client, architecture, load.weights)
        await self._way.join(load)
        if self._checks is None:
            return None
        return await trio.to_thread.run_sync(self._checks.expect, load.weights)

    async def _verify(self, expected: Expected | None) -> int:
        if self._checks is None or expected is None:
            return 0
        return await verify(self._client, self._checks, expected)

    @asynccontextmanager
    async def _paused(self) -> AsyncIterator[None]:
        """Pause for the block, and resume after it, unless it failed when weights had begun to
        change."""
        try:
            await self._client.pause(self._mode)
            yield
        except BaseException:
            if not self._begun:
                with (
                    trio.CancelScope(deadline=trio.current_time() + _MEND_S, shield=True),
                    suppress(ServerError),
                ):
                    await self._client.resume()
            raise
        await self._client.resume()

    @asynccontextmanager
    async def _cleared_up(self, load: Load) -> AsyncIterator[None]:
        failed = True
        try:
            yield
            failed = False
        finally:
            # Where it failed the server may be gone, or hold no such group: the failure itself is
            # what is told.
            with (
                trio.CancelScope(deadline=trio.current_time() + _MEND_S, shield=True),
                suppress(ServerError),
            ):
                await self._way.leave(load, failed=failed)


async def acquainted(
    client: ServerClient, architecture: str, weights: Mapping[str, Tensor]
) -> Checks | None:
    """The tensor layout of a server's model, which must be of that class and accept such weights;
    None where it has no checksums to derive it from."""
    computes = next(each.dtype for each in weights.values() if each.itemsize > 1)  # but for fp8
    dtype = str(computes).removeprefix("torch.")
    model, server = await client.model_info(), await client.server_info()
    refuse_other_model(model, server, architecture=architecture, dtype=dtype)
    try:
        ranks = await client.checksums()
    except RequestRefused:
        return None
    return Checks(weights, [rank.checksums for rank in ranks], hash_on(server.device))


async def verify(client: ServerClient, checks: Checks, expected: Expected) -> int:
    """Compare a server's checksums with what they must be; the number of its tensors that are
    compared byte by byte. Raises WrongWeights."""
    before = checks.inexact
    checks.verify(expected, [rank.checksums for rank in await client.checksums()])
    if (inexact := checks.inexact) != before:
        logger.warning(
            "%s gives checksums of %d of its tensors (%s first) that no known layout explains: "
            "these are only checked to change when their sources do",
            client.url,
            len(inexact),
            inexact[0],
        )
    return checks.exact


def refuse_misfit(parameters: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> None:
    """Raise ValueError where `weights` are not exactly tensors for `parameters`: a server takes an
    unknown name without a word, and of a wrong shape it notices when others have changed."""
    if unknown := weights.keys() - parameters.keys():
        raise ValueError(f"the model has no parameter {min(unknown)}")
    if missing := parameters.keys() - weights.keys():
        raise ValueError(f"parameter {min(missing)} is missing")
    for name, parameter in parameters.items():
        tensor = weights[name]
        if tensor.shape != parameter.shape or tensor.dtype != parameter.dtype:
            raise ValueError(
                f"parameter {name} is {tensor.dtype} {list(tensor.shape)}, and the model's is "
                f"{parameter.dtype} {list(parameter.shape)}"
            )
