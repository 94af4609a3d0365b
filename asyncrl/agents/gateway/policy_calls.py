"""Calls of the other policies of a game, forwarded to the gateways of their runs.

Invariant: only a policy's own run samples, records and trains its tokens. Its answers are noted
here, for an attempt that finds that that run has ended the game.
"""

from __future__ import annotations

import httpx2
import msgspec

from asyncrl.agents.call_role import ROLE_HEADER
from asyncrl.agents.gateway.errors import GatewayError
from asyncrl.agents.gateway.game_table import GuestSeat, answer_note
from asyncrl.agents.gateway.other_call import ANSWER_BYTES, OtherAnswer, OtherCall
from asyncrl.agents.gateway.played_session import PlayedSession
from asyncrl.config.schema.other_models import TRAINED
from asyncrl.runtime.ipc.waits import WaitExpired, Waits

_GRACE_S = 60.0
"""Seconds beyond those of a call in which the other run's gateway can report that it took too
long."""


class PolicyCalls:
    """Calls of the policies `names` by agents of the run of `own`. Each takes at most `call_s`
    seconds. Those of `past` have no journal, so all attempts share what they answered once."""

    def __init__(
        self,
        own: str,
        names: tuple[str, ...],
        client: httpx2.AsyncClient,
        waits: Waits,
        call_s: float,
        past: tuple[str, ...] = (),
    ) -> None:
        self._own, self._names, self._past, self._client = own, names, past, client
        self._waits, self._call_s = waits, call_s

    @property
    def names(self) -> list[str]:
        """The names that are forwarded."""
        return [*self._names]

    def refuse(self, model: str) -> None:
        """Raise GatewayError (404) for a model that is no policy of the game."""
        if model not in (self._own, TRAINED):
            known = ", ".join((self._own, *self._names))
            raise GatewayError(
                404,
                "unknown_policy",
                f"the game has no policy {model[:64]!r}; the model of a call is one of {known}",
                param="model",
            )

    async def answer(self, session: PlayedSession, call: OtherCall) -> OtherAnswer:
        """The answer of a policy to a call. Raises GatewayError."""
        table, attempt = session.table, session.play.attempt
        if table is None:
            raise GatewayError(404, "no_game", "this session belongs to no game")
        model, asked = call.model, call.digest
        with session.other_call(asked) as number:
            note = answer_note(0 if model in self._past else attempt, asked, number)
            if model in self._past and (noted := session.noted(note)) is not None:
                return msgspec.json.decode(noted, type=OtherAnswer)
            if (seat := table.seats.get(model)) is None:
                assert table.outcome is not None, "a guest has a seat, or has ended"
                name = answer_note(table.outcome.attempt, asked, number)
                if (noted := session.noted(name)) is None:
                    raise GatewayError(
                        409,
                        "game_diverged",
                        f"the policy {model} has already ended this game, and the attempt that "
                        "ended it made other calls than this one: play the same game for the "
                        "same seed",
                    )
                return msgspec.json.decode(noted, type=OtherAnswer)
            with session.paused():
                answer = await self._asked(seat, call)
            if answer.status == 200:
                session.note(note, msgspec.json.encode(answer))
            return answer

    async def _asked(self, seat: GuestSeat, call: OtherCall) -> OtherAnswer:
        model = call.model
        keyed = {
            **call.passed(ROLE_HEADER),
            "authorization": f"Bearer {seat.api_key}",
            "content-type": "application/json",
        }
        try:
            with self._waits.on(
                f"the policy {model}",
                owner=f"session {seat.session}",
                deadline_s=self._call_s + _GRACE_S,
            ):
                response = await self._client.post(
                    seat.base_url + call.path, content=call.content(TRAINED), headers=keyed
                )
        except (WaitExpired, httpx2.HTTPError) as error:
            raise GatewayError(
                502, "other_policy", f"the policy {model} did not answer ({type(error).__name__})"
            ) from None
        if len(response.content) > ANSWER_BYTES:
            raise GatewayError(
                502, "other_policy", f"the answer of the policy {model} is too large"
            )
        kind = response.headers.get("content-type", "")
        return OtherAnswer(kind, response.text, response.status_code)
