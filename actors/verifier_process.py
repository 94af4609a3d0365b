"""The processes in which verifiers run, and which can be killed.

Invariant: a process judges one answer at a time, so killing it harms no other answer. Where the
verifiers are `async`, it has many, and those that were with one that was killed are judged again,
each in a process of its own.

The nursery process (`worker_process.py`) of verifiers opens the task once. Then it closes
`task.sandbox` around itself. It runs nothing of an answer, so each worker is as good as the first.
The output of a verifier goes to standard error, and that of a task that executes answers nowhere.

The first frame on the control socket is `Opening`. It is answered by `TaskOpened`, which says which
answers are executed, and so want a worker each.
"""

from __future__ import annotations

import builtins
import gc
import inspect
import math
import os
import signal
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

import anyio
import msgspec
import numpy as np

from asyncrl.actors.worker_process import decode, frame, receive, serve_control, taken
from asyncrl.config.schema import TaskConfig
from asyncrl.messages import Finish, NoVerdict, Scored, Split, Verdict
from asyncrl.sandbox.forks import Forks, PlainForks
from asyncrl.sandbox.limits import Limits
from asyncrl.sandbox.zygote import Zygote
from asyncrl.tasks import Figures, MaskedReward, NoReward, Several, Task, as_number, open_task
from asyncrl.tasks.answer import Answer
from asyncrl.tasks.error_spans import token_spans
from asyncrl.tasks.judge_request import TEXT_BYTES, TOO_LONG, JudgeRequest
from asyncrl.tasks.later import Later, Loop
from asyncrl.tasks.mixed import awaited_prompts, executed_prompts
from asyncrl.tasks.text import Tokenizer

SAID = 200
"""Characters of an exception's text that a verdict keeps."""
CAUSES = 8
"""Errors behind an error that are looked at."""
LARGEST = 1e38
"""Largest reward of either sign, as `asyncrl.algorithms.advantages` has it. A larger one could not
be trained."""


class Opening(msgspec.Struct, frozen=True, array_like=True):
    """The first frame on the control socket: the task, its seed, and the model directory of the
    `tokenizer`."""

    task: TaskConfig
    seed: int
    tokenizer: str


class TaskOpened(msgspec.Struct, frozen=True, array_like=True):
    """The answer to it. The answers to `executed` prompts (a split, and its prompts from one index
    up to another) are executed, and so want a worker each."""

    executed: list[tuple[Split, int, int]]
    awaited: list[tuple[Split, int, int, Loop]] = []
    """Prompts whose verifiers wait, and the library under which they do: a worker has many of their
    answers at a time."""


class VerifyRequest(msgspec.Struct, frozen=True, array_like=True):
    """To a worker: judge these `int32` response ids, which ended by `finish`, and which the model
    sampled behind those of `prompt`."""

    split: Split
    prompt_index: int
    ids: bytes
    finish: Finish
    prompt: bytes = b""
    number: int = 0
    loop: Loop | None = None
    """The library under which the verifier waits; with it the worker has other answers at the same
    time, which differ in `number`."""


class TimedVerdict(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """From a worker: the verdict, and the seconds the verifier took."""

    verdict: Verdict
    seconds: float
    number: int = 0


Reply = TimedVerdict | JudgeRequest
"""From a worker: a verdict, or what a judge on a server is to be asked for one."""


def reply_of(body: bytes) -> Reply:
    """A worker's reply. Raises ValueError if it is none."""
    try:
        reply: Reply = msgspec.msgpack.decode(body, type=Reply)
    except RecursionError as error:
        raise ValueError(str(error)) from error
    return reply


def judge(
    task: Task, tokenizer: Tokenizer, answer: VerifyRequest, *, strict: bool = False
) -> Reply:
    """Judge an answer with the task's verifier, or return what a judge is to be asked. Whatever the
    verifier raises becomes a verdict, which names the sandbox where it is `strict` and may be the
    cause."""
    start = time.perf_counter()
    try:
        ids, text = _shown(tokenizer, answer)
        value: Any = task.verify(answer.split, answer.prompt_index, text)
        if isinstance(value, Later):
            value = value.finish(anyio.run(_returned, value, backend=value.loop))
        if isinstance(value, JudgeRequest):
            return _bounded(value)
        verdict = _verdict(value, text, ids, tokenizer)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 (a user's code may raise SystemExit too)
        verdict = _failed(error, strict=strict)
    return TimedVerdict(verdict, time.perf_counter() - start)


async def judge_beside_others(
    task: Task, tokenizer: Tokenizer, answer: VerifyRequest, seconds: float, *, strict: bool
) -> Reply:
    """Judge an answer as `judge` does, within so many seconds, while others wait for theirs."""
    start = time.perf_counter()
    verdict: Verdict = NoVerdict("timeout")
    with anyio.move_on_after(seconds):
        try:
            ids, text = _shown(tokenizer, answer)
            value: Any = task.verify(answer.split, answer.prompt_index, text)
            if isinstance(value, Later):
                value = value.finish(await value.returned)
            if isinstance(value, JudgeRequest):
                return _bounded(value)
            verdict = _verdict(value, text, ids, tokenizer)
        except (KeyboardInterrupt, anyio.get_cancelled_exc_class()):
            raise
        except BaseException as error:  # noqa: BLE001 (a user's code may raise SystemExit too)
            verdict = _failed(error, strict=strict)
    return TimedVerdict(verdict, time.perf_counter() - start, answer.number)


async def _returned(later: Later) -> Any:
    return await later.returned


def _shown(tokenizer: Tokenizer, answer: VerifyRequest) -> tuple[list[int], Answer]:
    """The ids of a response, and what its verifier is shown."""
    ids = np.frombuffer(answer.ids, "<i4").tolist()
    prompt = np.frombuffer(answer.prompt, "<i4").tolist()
    return ids, Answer(
        tokenizer.decode(ids),
        finish=answer.finish,
        tokens=len(ids),
        text_special=tokenizer.decode_response(ids),
        prompt=tokenizer.decode(prompt, special=True),
        ids=ids,
    )


def _verdict(value: Any, text: Answer, ids: list[int], tokenizer: Tokenizer) -> Verdict:
    """The verdict of a verifier's result. Raises NoReward."""
    figures = value.figures if isinstance(value, Figures) else {}
    value = value.reward if isinstance(value, Figures) else value
    verdict = read(value)
    if isinstance(verdict, Scored) and isinstance(value, MaskedReward):
        errors = token_spans(value.errors, text, ids, tokenizer.decode)
        verdict = msgspec.structs.replace(verdict, errors=errors)
    if isinstance(verdict, Scored) and figures:
        verdict = msgspec.structs.replace(verdict, figures=figures)
    return verdict


def _failed(error: BaseException, *, strict: bool) -> NoVerdict:
    """The verdict of a verifier that raised."""
    return NoVerdict(text_of(error) if isinstance(error, NoReward) else said(error, strict=strict))


def _bounded(request: JudgeRequest) -> Reply:
    """The request, unless its texts are too long for a frame."""
    texts = (request.question, request.answer, request.expected)
    if sum(len(text.encode(errors="replace")) for text in texts) > TEXT_BYTES:
        return TimedVerdict(NoVerdict(TOO_LONG), 0.0)
    return request


def said(error: BaseException, *, strict: bool) -> str:
    """The reason of a verifier that raised. In the sandbox `strict` an error of the system, of its
    own or behind another one, is one of what is not there.

    >>> said(FileNotFoundError(2, "No such file", "/data/words"), strict=True)
    "raised: FileNotFoundError: [Errno 2] No such file: '/data/words', in the sandbox strict"
    """
    reason = f"raised: {_one(error)}"
    cause: BaseException | None = error
    for _ in range(CAUSES):
        if cause is None or isinstance(cause, OSError):
            break
        cause = cause.__cause__ or cause.__context__
    if not strict or not isinstance(cause, OSError):
        return reason
    behind = "" if cause is error else f", after {_one(cause)}"
    unnamed = "" if cause.filename or not cause.errno else " (the error names no file)"
    return f"{reason}{unnamed}, in the sandbox strict{behind}"


def _one(error: BaseException) -> str:
    return f"{type(error).__name__}: {text_of(error)}"


def text_of(error: BaseException) -> str:
    """The text of an exception, cut, as a message can hold it, whatever a user's class does."""
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 (a user's code may raise anything)
        text = "its text cannot be read"
    return text[:SAID].encode(errors="replace").decode()


def read(value: Any) -> Verdict:
    """Read a verifier's result as a verdict. A finite number is a reward, True and False are 1 and
    0. Of several named rewards, each and their sum must be finite numbers."""
    try:
        reward = as_number(value)
    except NoReward as error:
        if inspect.iscoroutine(value):
            value.close()  # else Python warns that it was not awaited
        return NoVerdict(str(error))
    parts = value.parts if isinstance(value, Several) else {}
    for number, detail in [*((part, f": {name}") for name, part in parts.items()), (reward, "")]:
        if not np.isfinite(number):
            return NoVerdict(f"not finite{detail}")
        if abs(number) > LARGEST:
            return NoVerdict(f"too large{detail}")
    return Scored(reward, list(parts.values()))


def serve_answers(
    sock: socket.socket, task: Task, tokenizer: Tokenizer, seconds: float, *, strict: bool
) -> None:
    """Live as a worker: judge answers until the socket ends, one at a time, or, if the first one
    names a library for it, as they come, each within so many seconds."""
    while (answer := receive(sock, VerifyRequest)) is not None:
        if answer.loop:
            judging = partial(judge_beside_others, task, tokenizer, strict=strict)
            anyio.run(_serve_together, sock, answer, seconds, judging, backend=answer.loop)
            return
        sock.sendall(frame(judge(task, tokenizer, answer, strict=strict)))


async def _serve_together(
    sock: socket.socket,
    first: VerifyRequest,
    seconds: float,
    judging: Callable[[VerifyRequest, float], Awaitable[Reply]],
) -> None:
    sock.setblocking(False)
    sending = anyio.Lock()

    async def one(answer: VerifyRequest) -> None:
        text = memoryview(frame(await judging(answer, seconds)))
        async with sending:
            while text:
                await anyio.wait_writable(sock)
                text = text[sock.send(text) :]

    async with anyio.create_task_group() as group:
        group.start_soon(one, first)
        came = bytearray()
        while True:
            await anyio.wait_readable(sock)
            if not (part := sock.recv(2**16)):
                group.cancel_scope.cancel()
                return
            came += part
            while (body := taken(came)) is not None:
                group.start_soon(one, decode(body, VerifyRequest))


def sandboxed(config: TaskConfig, task: Task, control: int) -> Forks:
    """Close the sandbox of the task around this process, and say how it forks. Raises OSError where
    the machine does not have it, and ValueError where an answer would be executed without."""
    if task.languages and config.sandbox == "strict":
        raise ValueError("this task starts programs, which nothing in task.sandbox = 'strict' may")
    if config.sandbox == "process":
        if task.executes:
            raise ValueError("this task executes answers, and needs task.sandbox = 'strict'")
        return PlainForks(close=[control])
    limits = Limits(cpu_s=math.ceil(config.verdict_s) + 1 if task.executes else 0)
    if not task.writes:
        limits = msgspec.structs.replace(limits, scratch_bytes=0)
    return Zygote.enter(limits, keep=[control], quiet=task.executes)


def _no_input(prompt: object = "") -> str:
    """In place of Python's own, which would write its prompt before it finds that there is none."""
    raise EOFError("a verifier has no standard input")


def main(descriptor: int) -> None:
    """Be the nursery process. Standard output becomes standard error, so that the output of a
    verifier reaches no protocol."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    builtins.input = _no_input
    os.dup2(2, 1)
    control = socket.socket(fileno=descriptor)
    opening = receive(control, Opening)
    if opening is None:
        return
    task, tokenizer = open_task(opening.task, opening.seed), Tokenizer(opening.tokenizer)
    tokenizer.decode(tokenizer.encode(task.warm()))  # what is lazy is loaded before the first fork
    awaited = awaited_prompts(task)
    for loop in {loop for *_, loop in awaited}:
        anyio.run(anyio.sleep, 0, backend=loop)  # imports
    gc.freeze()  # the collector would touch, and so copy, the pages that workers share
    forks = sandboxed(opening.task, task, control.fileno())
    control.sendall(frame(TaskOpened(executed_prompts(task), awaited)))

    def work(sockets: Sequence[socket.socket]) -> None:
        strict = isinstance(forks, Zygote)
        serve_answers(sockets[0], task, tokenizer, opening.task.verdict_s, strict=strict)

    serve_control(control, forks, work)


if __name__ == "__main__":
    main(int(sys.argv[1]))
