"""The gateway: one call from its context to its record. Invariant: what was sampled for a call is
recorded, whoever ended it: the model, a stop string, its agent going away, its session, its
deadline or the gateway.

A call is interrupted and then read to its end, never cut off: so the tokens that an engine samples
until it hears of it are accounted for.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

import msgspec
import numpy as np
import trio

from asyncrl.gateway.api_answers import AnswerPart
from asyncrl.gateway.call_record import CallRecord
from asyncrl.gateway.errors import GatewayError, bad, closing, refusal
from asyncrl.gateway.gateway_settings import Settings
from asyncrl.gateway.generator import Generation, Generator
from asyncrl.gateway.prompt_reader import Prompt, PromptReader
from asyncrl.gateway.reading import ReplyReader
from asyncrl.gateway.task_verifier import TaskVerifier
from asyncrl.gateway.tools import ToolParser
from asyncrl.ipc.messages import NoVerdict, Scored
from asyncrl.ipc.waits import Pulse, WaitExpired, Waits
from asyncrl.sessions.finished import FinishedSession
from asyncrl.sessions.recorder import Recorder, SessionEnded, SessionRefused
from asyncrl.tasks.text import Tokenizer

FULL = "episode_full"
"""The code of a call that is refused because the episode is as long as it may be."""
_GRACE_S = 60.0
"""Seconds that an engine may take to hear of an interrupt."""


class CallAnswer(msgspec.Struct, frozen=True):
    """The end of a call: OpenAI's reason, and the number of tokens of context and reply."""

    finish: Literal["stop", "length", "tool_calls"]
    prompt_tokens: int
    tokens: int

    @property
    def usage(self) -> dict[str, int]:
        total = self.prompt_tokens + self.tokens
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.tokens,
            "total_tokens": total,
        }


class Gateway:
    """The calls of all agents, over one generator. `run` must run while it is open. Each finished
    session is fetched once. With a `verifier` rewards can be left to a task."""

    def __init__(
        self,
        generator: Generator,
        tokenizer: Tokenizer,
        settings: Settings,
        waits: Waits,
        verifier: TaskVerifier | None = None,
    ) -> None:
        self.settings, self._verifier = settings, verifier
        self._generator, self._tokenizer, self.waits = generator, tokenizer, waits
        self._recorder = Recorder(settings.bounds)
        self.reader = PromptReader(tokenizer, settings, waits, self._recorder.known)
        self._running: defaultdict[str, list[Generation]] = defaultdict(list)
        self._calls = 0
        self._draining = self._closing = False
        self._unwritable: str | None = None
        self._outside: set[trio.CancelScope] = set()
        self._left, self._touched, self._news = Pulse(), Pulse(), Pulse()

    @property
    def ready(self) -> bool:
        return self._generator.ready and not self._draining

    async def run(self) -> None:
        """End the sessions that are idle for too long, until cancelled."""
        while True:
            with trio.move_on_at(math.inf if self._recorder.due is None else self._recorder.due):
                await self._touched.wait()
            self._recorder.expire(trio.current_time())
            self._news.set()

    async def fetch(self) -> FinishedSession:
        """The session that ended first of those not fetched; waits, and can be cancelled, where
        there is none. One task may fetch at a time."""
        while not self._recorder.finished:
            await self._news.wait()
        return self._recorder.finished.popleft()

    def written(self, error: str | None) -> None:
        """Say that the last session was written; or why not, and no new one is opened until another
        one is."""
        self._unwritable = error

    async def drain(self, seconds: float) -> None:
        """Take no more calls; interrupt those that still run after so many seconds; end every
        session. Raises WaitExpired where the engine does not hear of an interrupt; a call that it
        keeps is lost with its session, and no other."""
        self._draining = True
        with trio.move_on_after(seconds):
            await self._quiet()
        self._closing = True
        for session in [*self._running]:
            self._interrupt(session)
        for scope in self._outside:
            scope.cancel()
        try:
            if self._calls:
                with self.waits.on(
                    "interrupted calls", owner="the agents' gateway", deadline_s=_GRACE_S
                ):
                    await self._quiet()
        finally:
            self._recorder.drain()
            self._news.set()

    @contextmanager
    def slot(self) -> Iterator[None]:
        """Room for one call. Raises GatewayError where there is none."""
        if not self.ready:
            raise closing()
        if self._calls >= self.settings.calls:
            raise GatewayError(
                429,
                "busy",
                f"{self._calls} calls are running, which is as many as may; try again",
                retry_s=1,
            )
        self._calls += 1
        try:
            yield
        finally:
            self._calls -= 1
            self._left.set()

    async def answer(
        self,
        session: str,
        prompt: Prompt,
        *,
        budget: int | None,
        temperature: float,
        stops: Sequence[str],
        parser: ToolParser,
        scored: bool,
        write: Callable[[AnswerPart], Awaitable[None]],
        gone: Callable[[], Awaitable[None]],
    ) -> CallAnswer | None:
        """Sample and record one call; `write` gets what can be read as it comes, and `gone` returns
        when nobody reads any more: then the call is interrupted, and None is returned. Raises
        GatewayError where there is no answer, or not all of one."""
        tokens = self._budget(prompt.ids, budget)
        context = np.array(prompt.ids, np.int32).tobytes()
        record = CallRecord(
            ReplyReader(self._tokenizer, stops, parser),
            self._tokenizer,
            self.settings.vocabulary,
            scored=scored,
        )
        ended: list[str] = []

        async def watch(generation: Generation) -> None:
            with trio.move_on_after(self.settings.call_s) as scope:
                await gone()
            ended.append("late" if scope.cancelled_caught else "gone")
            generation.abandon()

        if self._closing:
            raise closing()
        if self._unwritable is not None and not self._recorder.is_open(session):
            raise GatewayError(507, "unwritable", self._unwritable, retry_s=5)
        try:
            call = self._recorder.begin(session, context, tokens)
        except SessionRefused as error:
            raise refusal(error) from error
        deadline_s = self.settings.call_s + _GRACE_S
        try:
            with (
                self.waits.on("tokens", owner=f"session {session}", deadline_s=deadline_s),
                self._generator.generate(
                    session,
                    prompt.ids,
                    max_new_tokens=tokens,
                    temperature=temperature,
                    stops=stops,
                ) as generation,
                self._listed(session, generation),
            ):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(watch, generation)
                    async for piece in generation:
                        read = record.take(piece)
                        if record.closed and not piece.finish:
                            generation.interrupt(len(record.ids))
                        if read.deltas or read.tokens:
                            await write(read)
                    nursery.cancel_scope.cancel()
        except WaitExpired as error:
            raise GatewayError(
                504, "engine_silent", f"the engine did not end the answer: {error}"
            ) from error
        finally:
            self._recorder.finish(
                call, record.sampled(), trio.current_time(), self._texts(prompt, record)
            )
            self._touched.set()
        if "gone" in ended:
            return None
        if record.refused:
            code = FULL if record.finish == "length" else "refused"
            raise GatewayError(422, code, record.refused)
        if record.broken:
            raise GatewayError(
                502, "bad_engine", f"{record.broken}; the run's logs say which engine"
            )
        if record.finish == "interrupted":
            raise self._interrupted(session, bool(ended))
        finish: Literal["stop", "length", "tool_calls"] = (
            "length" if record.finish == "length" else "tool_calls" if record.called else "stop"
        )
        return CallAnswer(finish, len(prompt.ids), len(record.ids))

    def reward(self, session: str, reward: float, prompt_index: int | None = None) -> None:
        """End a session with its reward; what still runs for it is interrupted, and part of it.
        Raises GatewayError."""
        self._end(session, reward, prompt_index)

    async def judge(self, session: str, prompt_index: int) -> float:
        """Let the task say the reward of a session's last reply as an answer to one of its prompts,
        and end the session with it. Without a verdict the session goes on. Raises GatewayError."""
        task, verdict = self._task(), None
        if self._closing:
            raise closing()
        try:
            reply = self._recorder.judge(session)
        except SessionRefused as error:
            raise refusal(error) from error
        try:
            with self._until_closed("verdict", session, self.settings.call_s):
                verdict = await task.judge(prompt_index, reply.ids, reply.finish)
        finally:
            if not isinstance(verdict, Scored):
                self._recorder.unjudged(session, trio.current_time())
                self._touched.set()
        if isinstance(verdict, NoVerdict):
            raise GatewayError(
                422,
                "no_verdict",
                f"the task gave no verdict ({verdict.reason}); give a reward, or give up",
                param="prompt_index",
            )
        self._end(session, verdict.reward, prompt_index)
        return verdict.reward

    async def task_prompt(self, prompt_index: int) -> str:
        """A training prompt of the task. Raises GatewayError where there is none."""
        task = self._task()
        if self._closing:
            raise closing()
        try:
            with self._until_closed("prompt", f"prompt {prompt_index}", self.settings.body_s):
                return await task.prompt(prompt_index)
        except IndexError as error:
            raise GatewayError(
                404,
                "unknown_prompt",
                f"the task has no prompt {prompt_index}",
                param="prompt_index",
            ) from error

    @contextmanager
    def _until_closed(self, what: str, owner: str, deadline_s: float) -> Iterator[None]:
        """A wait for the task, which the end of the gateway ends. Raises GatewayError where it is
        ended, by that or by its deadline."""
        scope = trio.CancelScope()
        self._outside.add(scope)
        try:
            with self.waits.on(what, owner=owner, deadline_s=deadline_s), scope:
                yield
        except WaitExpired as error:
            raise GatewayError(504, "too_slow", f"the task has not answered: {error}") from error
        finally:
            self._outside.discard(scope)
        if scope.cancelled_caught:
            raise closing()

    def _task(self) -> TaskVerifier:
        if self._verifier is None:
            raise bad(
                "there is no task behind this gateway; give the session's reward",
                "prompt_index",
                "no_task",
            )
        return self._verifier

    def give_up(self, session: str) -> None:
        """End a session without a reward. Raises GatewayError."""
        self._end(session, None, None)

    def leave(self, session: str) -> None:
        """End a session, as `give_up`, if it is open."""
        if self._recorder.is_open(session):
            self._end(session, None, None)

    def _end(self, session: str, reward: float | None, prompt_index: int | None) -> None:
        try:
            self._recorder.end(
                session, "given_up" if reward is None else "rewarded", reward, prompt_index
            )
        except SessionRefused as error:
            raise refusal(error) from error
        self._interrupt(session)
        self._touched.set()

    def _interrupt(self, session: str) -> None:
        for generation in self._running.get(session, []):
            generation.abandon()

    async def _quiet(self) -> None:
        while self._calls:
            await self._left.wait()

    @contextmanager
    def _listed(self, session: str, generation: Generation) -> Iterator[None]:
        self._running[session].append(generation)
        try:
            yield
        finally:
            self._running[session].remove(generation)
            if not self._running[session]:
                del self._running[session]

    def _budget(self, ids: list[int], budget: int | None) -> int:
        """The number of tokens that may be sampled. Raises GatewayError (400) where context and
        budget do not fit, or ids are not the model's."""
        settings = self.settings
        room = settings.context_tokens - len(ids)
        if not ids:
            raise bad("the prompt is empty; give at least one token", "prompt")
        if max(ids) >= settings.vocabulary or min(ids) < 0:
            raise bad(
                f"the prompt has an id outside of the vocabulary of {settings.vocabulary}; use "
                "the model's own tokenizer",
                "prompt",
            )
        if room < (budget or 1):
            raise bad(
                f"{len(ids)} tokens of context and {budget or 1} to sample exceed the model's "
                f"{settings.context_tokens}",
                code="context_length_exceeded",
            )
        return budget or room

    def _texts(self, prompt: Prompt, record: CallRecord) -> list[tuple[bytes, int]]:
        """The texts that a later call may start with: the context, with the reply, and with the
        reply without what ended it."""
        if prompt.text is None:
            return []
        known, ids = len(prompt.ids), record.ids
        shorter = ids[:-1] if ids and ids[-1] in self._tokenizer.stop_ids else ids
        replies = {
            len(reply): self._tokenizer.decode(reply, special=True).encode()
            for reply in (ids, shorter)
        }
        return [
            (prompt.text, known),
            *((prompt.text + reply, known + tokens) for tokens, reply in replies.items() if tokens),
        ]

    def _interrupted(self, session: str, late: bool) -> GatewayError:
        if late:
            return GatewayError(
                504,
                "too_slow",
                f"the answer was not complete after {self.settings.call_s:g} s; lower max_tokens",
            )
        try:
            self._recorder.refuse_ended(session)
        except SessionEnded as error:
            return refusal(error)
        return GatewayError(
            503,
            "interrupted",
            "the engine was interrupted before the answer was complete; try again",
            retry_s=1,
        )
