"""The reward actor: a nursery around verifiers that can be killed.

Invariant: each answer gets one verdict, in bounded time.

A verifier that returns a finite number gives `Scored`. Else the verdict is `NoVerdict`, never a
reward of zero, with one of these reasons:

    raised: …            the verifier raised an error
    timeout              its worker was killed at the deadline
    crashed              its worker died by itself, or said what is no verdict, twice
    not a number: …, not finite, too large
    unnamed rewards: …, other rewards: …    not the rewards that the verifier has named before
    error spans: …       spans that are none, or not in the answer
    figures: …           too many, with long names, or not finite

    judge …              a judge on a server gave no score (`asyncrl.judges.outcomes`)
    too long for the judge
    alone: …             a judge that ranks answers had one alone

Each answer has a worker process of its own while it is judged (but for verifiers that are `async`:
`shared_worker.py`), so no other answer is touched. Where
its task executes answers, that worker has judged no other one before, and judges none after. A
worker's message is untrusted: it must be one frame, of one answer, in the form of a verdict.

Where the verifier is `judge`, a worker writes what the judge is asked, and is free again; this
process asks. So the worker needs no network and no key, and an answer that waits for the judge
holds no process. A judge that sees groups is asked once all answers of one are written; those that
a worker gave a verdict keep it.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import accumulate, pairwise
from typing import Protocol

import msgspec
import trio

from asyncrl.actors.errors import CoordinatorLost
from asyncrl.actors.reporting import Reporter
from asyncrl.actors.shared_worker import GRACE_S, SharedWorker
from asyncrl.actors.verifier_process import (
    Opened,
    Opening,
    Reply,
    TimedVerdict,
    VerifyRequest,
    read,
    reply_of,
)
from asyncrl.actors.worker_forks import (
    ENDING_S,
    START_S,
    ForkedWorker,
    WorkerForks,
    exactly,
    open_forks,
)
from asyncrl.actors.worker_process import LENGTH, decode, frame, length
from asyncrl.config.schema import TaskConfig
from asyncrl.escape import escaped
from asyncrl.messages import (
    Drain,
    Drained,
    Finish,
    GroupScoreRequest,
    GroupScoreResult,
    NoVerdict,
    Scored,
    ScoreRequest,
    ScoreResult,
    Split,
    Verdict,
)
from asyncrl.runtime.ipc.link import Link
from asyncrl.runtime.ipc.waits import WaitExpired, Waits
from asyncrl.runtime.processes.process import isolated
from asyncrl.sandbox.environment import allowed
from asyncrl.tasks import Several, wrong_figures
from asyncrl.tasks.judge_request import TEXT_BYTES, TOO_LONG, GroupRequest, JudgeRequest
from asyncrl.tasks.later import Loop

OPENING_S = 120.0
"""Seconds in which a task must be opened: imports, and a pass over a JSONL file."""
REPLY_BYTES = 2**16
"""Bytes of the largest verdict: some thousand rewards."""
REASONS = {
    "raised",
    "not a number",
    "not finite",
    "too large",
    "unnamed rewards",
    "other rewards",
    "error spans",
    TOO_LONG.partition(":")[0],
    "figures",
}
"""Kinds of reasons that a worker may give for no verdict."""
REASON = 400
"""Characters of the longest reason that is passed on."""


class Asks(Protocol):
    """Asks a judge for verdicts, and raises ConfigError where it refuses all."""

    async def ask(self, request: JudgeRequest) -> Verdict:
        """The verdict on one answer."""
        ...

    async def ask_together(self, request: GroupRequest) -> list[Verdict]:
        """The verdict on each answer of a group."""
        ...


class VerifierPool:
    """Judges answers, each in a worker process of its own. A worker is forked when none is idle,
    and is used again. Answers to `executed` prompts get one that is not.

    It is made by `open_verifiers`. The caller bounds the number of answers at a time, and so the
    number of workers.
    """

    def __init__(
        self,
        forks: WorkerForks,
        waits: Waits,
        *,
        deadline_s: float,
        executed: Sequence[tuple[Split, int, int]],
        awaited: Sequence[tuple[Split, int, int, Loop]] = (),
    ) -> None:
        self._forks = forks
        self._awaited = awaited
        self._shared = {
            loop: SharedWorker(forks, waits, loop, deadline_s)
            for loop in dict.fromkeys(loop for *_, loop in awaited)
        }
        self._waits = waits
        self._deadline_s = deadline_s
        self._executed = executed
        self._idle: list[ForkedWorker] = []
        self.slowest: tuple[float, Split, int] = (0.0, "train", -1)
        """The most seconds of a verdict, and the split and index of its prompt."""

    async def judge(
        self,
        split: Split,
        prompt_index: int,
        ids: bytes | memoryview,
        finish: Finish,
        prompt: bytes | memoryview = b"",
    ) -> Reply:
        """Judge a response (`ids` int32) that ended by `finish`, or return what a judge is to be
        asked about it; `prompt` (int32) is what the model continued. It takes at most twice the
        deadline, because an answer whose worker dies is given to one more. Cancelled, it kills the
        worker. Raises WorkersLost."""
        answer = VerifyRequest(split, prompt_index, bytes(ids), finish, bytes(prompt))
        shared = self._shared_for(split, prompt_index)
        verdict = (
            await (self._attempt(answer) if shared is None else self._beside(shared, answer))
            or await self._attempt(answer)
            or TimedVerdict(NoVerdict("crashed"), 0.0)
        )
        if isinstance(verdict, JudgeRequest):
            return verdict
        self.slowest = max(self.slowest, (verdict.seconds, split, prompt_index))
        return verdict

    def _shared_for(self, split: Split, prompt_index: int) -> SharedWorker | None:
        """The worker that has answers to a prompt beside others; None if each has its own."""
        for of, start, end, loop in self._awaited:
            if of == split and start <= prompt_index < end:
                return self._shared[loop]
        return None

    async def _beside(self, shared: SharedWorker, answer: VerifyRequest) -> Reply | None:
        """The verdict of a worker with other answers; None if it died, whichever it was."""
        timed = await shared.judge(answer)
        if timed is None or timed.verdict == NoVerdict("timeout"):  # it ends its answers itself
            return timed
        verdict = _verdict(timed.verdict)
        return None if verdict is None else TimedVerdict(verdict, timed.seconds)

    async def _attempt(self, answer: VerifyRequest) -> Reply | None:
        """The reply of one worker; None if the worker died."""
        lasting = not any(
            split == answer.split and start <= answer.prompt_index < end
            for split, start, end in self._executed
        )
        idle = self._idle if lasting else []
        worker = idle.pop() if idle else await self._forks.start(lasting=lasting)
        verdict: Reply | None = None
        try:
            with self._waits.on(
                "verdict",
                owner=f"{answer.split} prompt {answer.prompt_index}",
                deadline_s=self._deadline_s,
            ):
                verdict = await _ask(worker.stream, answer, may_ask=lasting)
        except WaitExpired:
            return TimedVerdict(NoVerdict("timeout"), self._deadline_s)
        finally:
            if verdict is None or not lasting:
                await self._forks.bury(worker)
            else:
                self._idle.append(worker)
        return verdict


@asynccontextmanager
async def open_verifiers(
    task: TaskConfig, seed: int, tokenizer: str, waits: Waits
) -> AsyncIterator[VerifierPool]:
    """Open verifiers of the task's answers, which `tokenizer` (a model directory) decodes. None of
    their processes outlives the block. Raises WorkersLost if the task cannot be opened."""
    opening = Opening(task, seed, tokenizer)
    environment = isolated(allowed(os.environ))
    async with open_forks(
        "asyncrl.actors.verifier_process", waits, "verifiers", environment
    ) as forks:
        said = decode(await forks.open(opening, deadline_s=OPENING_S), Opened)
        yield VerifierPool(
            forks,
            waits,
            deadline_s=task.verdict_s,
            executed=said.executed,
            awaited=said.awaited,
        )


async def reward_actor(
    link: Link,
    verifiers: VerifierPool,
    waits: Waits,
    reporter: Reporter,
    *,
    concurrency: int,
    deadline_s: float,
    judge: Asks | None = None,
) -> None:
    """Serve the coordinator until it drains this actor. At most `concurrency` answers are judged at
    a time, and a verifier has `deadline_s` seconds. `judge` is asked, if the task has one.

    Answers that are open when the drain's ENDING_S are over are not judged here. Their rollouts are
    sealed in the journal, so a resumed run requests their verdicts again.
    """
    places = trio.Semaphore(concurrency)

    async def place() -> None:
        # all places are taken by answers that are each judged within two deadlines and two starts
        with waits.on(
            "verifier",
            owner="reward",
            deadline_s=2 * (deadline_s + START_S + GRACE_S) + ENDING_S,
        ):
            await places.acquire()

    async def one(message: ScoreRequest, ids: memoryview, prompt: memoryview) -> None:
        reply = await verifiers.judge(
            message.split, message.prompt_index, ids, message.finish, prompt
        )
        places.release()
        timed = reply if isinstance(reply, TimedVerdict) else await _asked(judge, reply)
        reporter.count("verdicts")
        await link.send(ScoreResult(message.rollout, timed.verdict, timed.seconds))

    async def together(
        message: GroupScoreRequest, replies: dict[int, Reply], at: int, answer: _Member
    ) -> None:
        """Judge the member at a place of its group, of which the last asks for all of them."""
        replies[at] = await verifiers.judge(
            message.split, message.prompt_index, answer.ids, answer.finish, answer.prompt
        )
        places.release()
        if len(replies) == len(message.rollouts):
            began = trio.current_time()
            verdicts = await _asked_together(judge, [reply for _, reply in sorted(replies.items())])
            reporter.count("verdicts", len(verdicts))
            seconds = trio.current_time() - began
            await link.send(
                GroupScoreResult(list(zip(message.rollouts, verdicts, strict=True)), seconds)
            )

    async with trio.open_nursery() as reports:
        reports.start_soon(reporter.run, link)
        async with trio.open_nursery() as judges:
            async for message, buffers in link:
                match message:
                    case ScoreRequest():
                        await place()
                        judges.start_soon(one, message, buffers[0], buffers[1])
                    case GroupScoreRequest():
                        replies = dict[int, Reply]()
                        for at, answer in enumerate(_members(message, *buffers)):
                            await place()
                            judges.start_soon(together, message, replies, at, answer)
                    case Drain():
                        break
                    case _:
                        raise ValueError(
                            f"a reward actor does not understand {type(message).__name__}"
                        )
            else:
                raise CoordinatorLost("a reward actor")
            judges.cancel_scope.deadline = trio.current_time() + ENDING_S
        reports.cancel_scope.cancel()
    await link.send(Drained())


class _Member(msgspec.Struct, frozen=True):
    """An answer of a group, as a `ScoreRequest` has it."""

    ids: memoryview
    finish: Finish
    prompt: memoryview


def _members(message: GroupScoreRequest, ids: memoryview, prompts: memoryview) -> list[_Member]:
    """The answers of a group, from its joined buffers."""
    ends, before = ([0, *accumulate(of)] for of in (message.tokens, message.continued))
    return [
        _Member(ids[4 * a : 4 * b], finish, prompts[4 * c : 4 * d])
        for (a, b), (c, d), finish in zip(
            pairwise(ends), pairwise(before), message.finishes, strict=True
        )
    ]


_NO_JUDGE = NoVerdict("judge unreachable: none is set")


async def _asked(judge: Asks | None, request: JudgeRequest) -> TimedVerdict:
    """The verdict of the judge, and the seconds it took."""
    began = trio.current_time()
    verdict = _NO_JUDGE if judge is None else await judge.ask(request)
    return TimedVerdict(verdict, trio.current_time() - began)


async def _asked_together(judge: Asks | None, replies: Sequence[Reply]) -> list[Verdict]:
    """The verdicts on a group: the workers' own, and the judge's on those that it is asked
    about."""
    asked = [reply for reply in replies if isinstance(reply, JudgeRequest)]
    said = list[Verdict]()
    if asked:
        said = [_NO_JUDGE] * len(asked)
        if judge is not None:
            said = await judge.ask_together(GroupRequest(tuple(asked)))
    rest = iter(said)
    return [reply.verdict if isinstance(reply, TimedVerdict) else next(rest) for reply in replies]


async def _ask(
    stream: trio.SocketStream, answer: VerifyRequest, *, may_ask: bool = False
) -> Reply | None:
    """A worker's reply, which `may_ask` a judge; None if the worker died, or if the user's code in
    it, or the answer, sent something else."""
    began = trio.current_time()
    try:
        await stream.send_all(frame(answer))
        head = await exactly(stream, LENGTH.size)
        most = REPLY_BYTES + TEXT_BYTES * may_ask
        body = None if head is None else await exactly(stream, length(head, most))
        timed = None if body is None else reply_of(body)
    except (trio.BrokenResourceError, ValueError):
        return None
    if isinstance(timed, JudgeRequest):
        return timed if may_ask else None
    verdict = None if timed is None else _verdict(timed.verdict)
    if timed is None or verdict is None:
        return None
    took = trio.current_time() - began
    return TimedVerdict(verdict, timed.seconds if 0 <= timed.seconds <= took else took)


def _verdict(verdict: Verdict) -> Verdict | None:
    """Read a worker's verdict as one that a verifier can give; None if none can."""
    if isinstance(verdict, Scored):
        parts = {str(number): part for number, part in enumerate(verdict.parts)}
        checked = read(Several(parts) if parts else verdict.reward)
        if isinstance(checked, Scored):  # the coordinator checks that they lie in the response
            figures = {} if wrong_figures(verdict.figures) else verdict.figures
            return msgspec.structs.replace(checked, errors=verdict.errors, figures=figures)
        return checked
    if verdict.reason.partition(":")[0] not in REASONS:
        return None
    return NoVerdict(escaped(verdict.reason, REASON))
