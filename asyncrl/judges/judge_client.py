"""Asks a judge. Invariant: each answer has a verdict in bounded time, which is the judge's or none,
and never a zero in its place; contents that were scored are not sent again. Of a group, equal
answers are shown once, and have one verdict.

One HTTP client with a pool of connections serves all answers. Requests begin at a `Pace`, so each
of them, a retry too, costs a place under the limits: an outage cannot multiply them.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import NamedTuple

import httpx2
import msgspec
import trio

from asyncrl.config import Config
from asyncrl.config.api_keys import hidden
from asyncrl.config.judging import judge_s, most_held, share_of
from asyncrl.config.schema import JudgeConfig
from asyncrl.escape import escaped
from asyncrl.judges.api_key import read_judge_key
from asyncrl.judges.forms import Ask, Form, GroupForm, Reading, Unreadable, form_of, keys_of
from asyncrl.judges.group_verdicts import ranked
from asyncrl.judges.outcomes import (
    QUIET,
    READINGS,
    SAID,
    Failure,
    JudgeRefused,
    failure_of,
    pause_s,
    refused_for_all,
    unreadable,
)
from asyncrl.judges.pace import Pace
from asyncrl.judges.verdict_cache import VerdictCache
from asyncrl.messages import NoVerdict, Scored, Verdict
from asyncrl.runtime.ipc.waits import WaitExpired, Waits
from asyncrl.tasks.judge_request import TEXT_BYTES, TOO_LONG, GroupRequest, JudgeRequest

REPLY_BYTES = 2**20
"""Bytes of a reply, at most."""
IDLE_S = 4.0
"""Seconds after which an idle connection is not used again: servers close one after 5 s or more,
and a request that crosses the close is lost."""

ALONE = NoVerdict("alone: no other answer of its group can be compared with it")

logger = logging.getLogger(__name__)


class AskLimits(NamedTuple):
    """The bounds of one reward actor's requests. A verdict comes within `within_s`."""

    requests: float
    tokens: float
    concurrency: int
    timeout_s: float
    retries: int
    within_s: float


class _Asking:
    """An answer that is with the judge, and others of the same contents that wait for it."""

    def __init__(self) -> None:
        self.lock = trio.Lock()
        self.outcome: list[float] | NoVerdict | None = None
        self.tasks = 0


class Judge:
    """A judge that is asked over `http`. It is made by `open_judge`."""

    def __init__(
        self,
        judge: JudgeConfig,
        limits: AskLimits,
        http: httpx2.AsyncClient,
        cache: VerdictCache,
        waits: Waits,
        *,
        key: str = "",
    ) -> None:
        self._judge, self._limits, self._http, self._cache = judge, limits, http, cache
        self._form = form_of(judge)
        self._group_form = GroupForm(judge) if judge.together else None
        self._url = judge.url.rstrip("/") + self._form.path
        self._pace = Pace(limits.requests, limits.tokens)
        self._places = trio.Semaphore(limits.concurrency)
        self._turn = trio.Lock()
        self._asking: dict[str, _Asking] = {}
        self._waits, self._key = waits, key
        self._told = set[str]()
        self.requests = 0
        """Requests that were sent."""
        self.answered = False
        """True after a request that was answered with a score."""

    async def ask(self, request: JudgeRequest) -> Verdict:
        """The verdict on an answer. Raises JudgeRefused where the judge would refuse each."""
        found = await self._numbers(self._form, request, keys_of(self._form, self._judge, request))
        return found if isinstance(found, NoVerdict) else _scored(request, found[0])

    async def ask_together(self, request: GroupRequest) -> list[Verdict]:
        """The verdict on each answer of a group, in their order: all have one, or none. Raises
        JudgeRefused where the judge would refuse each."""
        members, distinct = request.members, request.distinct
        if self._group_form is None:
            raise ValueError("the settings of the judge show it no groups")
        if sum(len(text.encode(errors="replace")) for text in distinct) > TEXT_BYTES:
            return [NoVerdict(TOO_LONG) for _ in members]
        if self._judge.members == "ranked" and len(members) == 1:
            return [ALONE]
        if self._judge.members == "ranked" and len(distinct) == 1:
            found: list[float] | NoVerdict = [0.0]
        else:
            keys = keys_of(self._group_form, self._judge, request)
            found = await self._numbers(self._group_form, request, keys)
        if isinstance(found, NoVerdict):
            return [found for _ in members]
        by_text = dict(zip(distinct, found, strict=True))
        numbers = [by_text[member.answer] for member in members]
        if self._judge.members == "ranked":
            numbers = ranked(numbers)
        return [_scored(member, number) for member, number in zip(members, numbers, strict=True)]

    async def _numbers(
        self, form: Form[Ask], request: Ask, keys: list[str]
    ) -> list[float] | NoVerdict:
        """The numbers that are kept by `keys`, or else those in the judge's reply."""
        with self._shared(keys[0]) as asking:
            async with asking.lock:  # one of equal contents asks, and the others wait
                known = [self._cache.get(key) for key in keys]
                kept = [number for number in known if number is not None]
                if len(kept) == len(keys):
                    asking.outcome = kept
                elif asking.outcome is None:
                    asking.outcome = await self._asked(form, request, keys)
                return asking.outcome

    @contextmanager
    def _shared(self, key: str) -> Iterator[_Asking]:
        asking = self._asking.setdefault(key, _Asking())
        asking.tasks += 1
        try:
            yield asking
        finally:
            asking.tasks -= 1
            if not asking.tasks:
                del self._asking[key]

    async def _asked(
        self, form: Form[Ask], request: Ask, keys: list[str]
    ) -> list[float] | NoVerdict:
        last = Failure("judge timeout: it had no turn")
        try:
            with self._waits.on("judge", owner="reward", deadline_s=self._limits.within_s):
                read = 0
                for attempt in range(self._limits.retries + 1):
                    if attempt:
                        await trio.sleep(pause_s(attempt, random.random()))
                    outcome = await self._request(form, request)
                    if isinstance(outcome, Reading):
                        self.answered = True
                        for key, number in zip(keys, outcome.numbers, strict=True):
                            self._cache.put(key, number)
                        return outcome.numbers
                    last = outcome
                    read += outcome.read
                    if not outcome.again or read >= READINGS:
                        break
        except WaitExpired:
            pass
        self._tell(last.reason)
        return NoVerdict(last.reason)

    async def _request(self, form: Form[Ask], request: Ask) -> Reading | Failure:
        """One request, when it is its turn."""
        tokens = form.tokens(request)
        async with self._places:
            async with self._turn:
                # again, since a request that is under way may put it off
                while (pause := self._pace.ready_at - trio.current_time()) > 0:  # noqa: ASYNC110
                    await trio.sleep(pause)
                self._pace.take(trio.current_time(), tokens)
            self.requests += 1
            outcome = await self._sent(form, request)
        if isinstance(outcome, Failure):
            if outcome.wait_s:
                self._pace.pause(trio.current_time() + outcome.wait_s)
        elif outcome.tokens:
            self._pace.correct(tokens, outcome.tokens)
        return outcome

    async def _sent(self, form: Form[Ask], request: Ask) -> Reading | Failure:
        body = msgspec.json.encode(form.body(request))
        try:
            with trio.fail_after(self._limits.timeout_s):
                async with self._http.stream("POST", self._url, content=body) as response:
                    reply = await _beginning(response)
        except trio.TooSlowError:
            return Failure(f"judge timeout: no answer within {self._limits.timeout_s:g} s")
        except httpx2.InvalidURL as error:
            raise JudgeRefused(f"judge.url cannot be asked ({error}); correct it.") from None
        except httpx2.HTTPError as error:
            return Failure(f"judge unreachable: {type(error).__name__}")
        if response.status_code == 200:
            return self._read(form, request, reply)
        return self._refused(response, reply)

    def _read(self, form: Form[Ask], request: Ask, reply: bytes) -> Reading | Failure:
        if len(reply) > REPLY_BYTES:
            return unreadable(f"its reply is larger than {REPLY_BYTES} bytes")
        try:
            return form.read(reply, request)
        except Unreadable as error:
            self._tell(f"judge unreadable: {error}", self._shown(reply))
            return unreadable(str(error))

    def _refused(self, response: httpx2.Response, reply: bytes) -> Failure:
        status = response.status_code
        said = "" if status in QUIET else self._shown(reply)
        if refused_for_all(status, answered=self.answered):
            raise JudgeRefused(
                f"judge.url is {self._url!r}, and the judge refuses each request with {status}"
                f"{f' ({said})' if said else ''}: {_remedy(status)}; then continue with --resume."
            )
        retry_after = response.headers.get("retry-after", "")
        return failure_of(status, said, retry_after, time.time())

    def _shown(self, reply: bytes) -> str:
        """The text of a reply for people, without the key."""
        return escaped(
            hidden(reply[:REPLY_BYTES].decode(errors="replace"), self._key).strip(), SAID
        )

    def _tell(self, reason: str, said: str = "") -> None:
        """Log the first of each reason; the coordinator counts them."""
        if reason not in self._told and len(self._told) < 64:
            self._told.add(reason)
            logger.warning("%s%s", reason, f": {said}" if said else "")


@asynccontextmanager
async def open_judge(
    config: Config, waits: Waits, file: Path, transport: httpx2.AsyncBaseTransport | None = None
) -> AsyncIterator[Judge]:
    """The judge of a reward actor, which keeps verdicts in `file`. Raises ConfigError if its key is
    missing."""
    judge = config.judge
    key = read_judge_key(judge)
    limits = AskLimits(
        share_of(judge.requests_per_minute, config),
        share_of(judge.tokens_per_minute, config),
        judge.concurrency,
        judge.timeout_s,
        judge.retries,
        judge_s(config),
    )
    held = most_held(config)
    async with httpx2.AsyncClient(
        headers={"content-type": "application/json", "accept-encoding": "identity"}
        | ({"authorization": f"Bearer {key}"} if key else {}),
        timeout=httpx2.Timeout(None),
        limits=httpx2.Limits(max_connections=held, keepalive_expiry=IDLE_S),
        transport=transport,
        trust_env=False,
        follow_redirects=False,
    ) as http:
        yield Judge(judge, limits, http, VerdictCache(file, judge.cache), waits, key=key)


def _scored(request: JudgeRequest, reward: float) -> Scored:
    """The verdict of a reward, as its task wants it."""
    return Scored(float(reward >= 1.0) if request.exact else reward)


async def _beginning(response: httpx2.Response) -> bytes:
    """A reply, or the beginning of one that is too large; a compressed one is not unpacked, as
    megabytes of it may be gigabytes."""
    parts = bytearray()
    async for part in response.aiter_raw():
        parts += part
        if len(parts) > REPLY_BYTES:
            break
    return bytes(parts)


def _remedy(status: int) -> str:
    match status:
        case 401 | 403:
            return "correct the key (judge.api_key_env, judge.api_key_file)"
        case 402:
            return "see what its account owes"
        case _:
            return "correct judge.url, judge.model or judge.kind"
