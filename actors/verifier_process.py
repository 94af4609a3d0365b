"""The processes in which verifiers run, and which can be killed.

Invariant: a process judges one answer at a time, so killing it harms no other answer.

    reward actor ── control socket ──▶ nursery process ── fork ──▶ worker, worker, …
         └────────────── one socket pair for each worker ──────────────┘

The nursery process (`python -P -m actors.verifier_process FD`) opens the task once. Then it closes
`task.sandbox` around itself, and from there on only forks and buries workers: a new worker costs
milliseconds and shares the task's memory. It has no second thread, so a fork is safe. It runs
nothing of an answer, so each worker is as good as the first. Workers talk over sockets; the output
of a verifier goes to standard error, and that of a task that executes answers nowhere. When the
reward actor is gone, the control socket ends, and with it every worker and all that it started.

On sockets a frame is `u32 length, msgpack`. The control socket carries `Start` and `Bury`. `Start`
comes with the worker's end of its socket pair as a descriptor, and is answered by the worker's
number as a u32. `Bury` has no answer. `Opening` is answered by `Opened`, which says which answers
are executed, and so want a worker each.
"""

from __future__ import annotations

import gc
import math
import os
import signal
import socket
import struct
import sys
import time
from typing import Any, TypeVar

import msgspec
import numpy as np

from asyncrl.config.schema import TaskConfig
from asyncrl.ipc.messages import Finish, NoVerdict, Scored, Split, Verdict
from asyncrl.sandbox.forks import Forks, PlainForks
from asyncrl.sandbox.limits import Limits
from asyncrl.sandbox.zygote import Zygote
from asyncrl.tasks import MaskedReward, NoReward, Several, Task, open_task
from asyncrl.tasks.answer import Answer
from asyncrl.tasks.error_spans import token_spans
from asyncrl.tasks.mixed import executed_prompts
from asyncrl.tasks.text import Tokenizer

LENGTH = struct.Struct("<I")
FRAME_BYTES = 2**24
"""Bytes of the largest frame: a response of four million tokens."""
SAID = 200
"""Characters of an exception's text that a verdict keeps."""
LARGEST = 1e38
"""Largest reward of either sign, as `staleness.advantages` has it. A larger one could not be
trained."""


class Opening(msgspec.Struct, frozen=True, array_like=True):
    """The first frame on the control socket: the task, its seed, and the model directory of the
    `tokenizer`."""

    task: TaskConfig
    seed: int
    tokenizer: str


class Opened(msgspec.Struct, frozen=True, array_like=True):
    """The answer to it. The answers to `executed` prompts (a split, and its prompts from one index
    up to another) are executed, and so want a worker each."""

    executed: list[tuple[Split, int, int]]


class Start(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Fork a worker on the socket that comes as a descriptor beside this frame. A `lasting` one
    judges many answers, and executes none."""

    lasting: bool


class Bury(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """End the worker of this number and all that it started; until then its number cannot be
    another's."""

    number: int


class VerifyRequest(msgspec.Struct, frozen=True, array_like=True):
    """To a worker: judge these `int32` response ids, which ended by `finish`."""

    split: Split
    prompt_index: int
    ids: bytes
    finish: Finish


class TimedVerdict(msgspec.Struct, frozen=True, array_like=True):
    """From a worker: the verdict, and the seconds the verifier took."""

    verdict: Verdict
    seconds: float


T = TypeVar("T")


def frame(message: msgspec.Struct) -> bytes:
    """The message with its length in front."""
    text = msgspec.msgpack.encode(message)
    return LENGTH.pack(len(text)) + text


def judge(task: Task, tokenizer: Tokenizer, answer: VerifyRequest) -> TimedVerdict:
    """Judge an answer with the task's verifier. Whatever the verifier raises becomes a verdict."""
    start = time.perf_counter()
    try:
        ids = np.frombuffer(answer.ids, "<i4").tolist()
        text = Answer(tokenizer.decode(ids), finish=answer.finish, tokens=len(ids))
        value = task.verify(answer.split, answer.prompt_index, text)
        verdict = read(value)
        if isinstance(verdict, Scored) and isinstance(value, MaskedReward):
            errors = token_spans(value.errors, text, ids, tokenizer.decode)
            verdict = Scored(verdict.reward, verdict.parts, errors=errors)
    except NoReward as error:
        verdict = NoVerdict(str(error))
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 (a user's code may raise SystemExit too)
        verdict = NoVerdict(f"raised: {type(error).__name__}: {str(error)[:SAID]}")
    return TimedVerdict(verdict, time.perf_counter() - start)


def read(value: Any) -> Verdict:
    """Read a verifier's result as a verdict. A finite number is a reward, True and False are 1 and
    0. Of several named rewards, each and their sum must be finite numbers."""
    try:
        reward = float(value) if not isinstance(value, str | bytes) else None
    except (TypeError, ValueError, OverflowError):
        reward = None
    if reward is None:
        return NoVerdict(f"not a number: {type(value).__name__}")
    parts = value.parts if isinstance(value, Several) else {}
    for number, detail in [*((part, f": {name}") for name, part in parts.items()), (reward, "")]:
        if not np.isfinite(number):
            return NoVerdict(f"not finite{detail}")
        if abs(number) > LARGEST:
            return NoVerdict(f"too large{detail}")
    return Scored(reward, list(parts.values()))


def serve_answers(sock: socket.socket, task: Task, tokenizer: Tokenizer) -> None:
    """Live as a worker: judge answers, one at a time, until the socket ends."""
    while (answer := receive(sock, VerifyRequest)) is not None:
        sock.sendall(frame(judge(task, tokenizer, answer)))


def receive(sock: socket.socket, kind: type[T]) -> T | None:
    """The next frame; None if the peer ended. Raises ValueError if it is no `kind`."""
    head = _exactly(sock, LENGTH.size)
    if head is None:
        return None
    body = _exactly(sock, length(head))
    return None if body is None else decode(body, kind)


def length(head: bytes, most: int = FRAME_BYTES) -> int:
    """The number of bytes that a frame's head announces. Raises ValueError if it is over `most`."""
    size: int = LENGTH.unpack(head)[0]
    if size > most:
        raise ValueError(f"a frame of {size} bytes is announced, over the limit of {most}")
    return size


def decode(body: bytes, kind: type[T]) -> T:
    """The message of a frame. Raises ValueError if it is no `kind`."""
    try:
        return msgspec.msgpack.decode(body, type=kind)
    except RecursionError as error:
        raise ValueError(str(error)) from error


def _exactly(sock: socket.socket, size: int) -> bytes | None:
    parts = bytearray()
    while len(parts) < size:
        part = sock.recv(size - len(parts))
        if not part:
            return None
        parts += part
    return bytes(parts)


class _Nursery:
    """Forks and buries workers, as the reward actor says."""

    def __init__(
        self, control: socket.socket, forks: Forks, task: Task, tokenizer: Tokenizer
    ) -> None:
        self._control = control
        self._forks = forks
        self._task = task
        self._tokenizer = tokenizer

    def run(self) -> None:
        """Serve until the control socket ends. Then no worker is left."""
        try:
            while (command := self._next()) is not None:
                match command:
                    case (sock, kind):
                        self._start(sock, kind)
                    case Bury(number):
                        self._forks.end(number)
        finally:
            self._forks.end_all()

    def _next(self) -> tuple[socket.socket, Start] | Bury | None:
        """The socket of a worker to start and its kind, or a worker to bury."""
        text, descriptors, _, _ = socket.recv_fds(self._control, LENGTH.size, 1)
        if not text:
            return None
        text += _exactly(self._control, LENGTH.size - len(text)) or b""
        body = _exactly(self._control, length(text))
        if body is None:
            return None
        command = msgspec.msgpack.decode(body, type=Start | Bury)
        if isinstance(command, Bury):
            return command
        sock = socket.socket(fileno=descriptors[0])
        sock.set_inheritable(False)  # what a verifier starts must not hold it open
        return sock, command

    def _start(self, sock: socket.socket, kind: Start) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        number = self._forks.fork(sock.fileno(), lasting=kind.lasting)
        if number:
            sock.close()
            self._control.sendall(LENGTH.pack(number))
            return
        code = 1
        try:
            serve_answers(sock, self._task, self._tokenizer)
            code = 0
        finally:
            os._exit(code)


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


def main(descriptor: int) -> None:
    """Be the nursery process. Standard output becomes standard error, so that the output of a
    verifier reaches no protocol."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.dup2(2, 1)
    control = socket.socket(fileno=descriptor)
    opening = receive(control, Opening)
    if opening is None:
        return
    task, tokenizer = open_task(opening.task, opening.seed), Tokenizer(opening.tokenizer)
    tokenizer.decode(tokenizer.encode(task.warm()))  # what is lazy is loaded before the first fork
    gc.freeze()  # the collector would touch, and so copy, the pages that workers share
    forks = sandboxed(opening.task, task, control.fileno())
    control.sendall(frame(Opened(executed_prompts(task))))
    _Nursery(control, forks, task, tokenizer).run()


if __name__ == "__main__":
    main(int(sys.argv[1]))
