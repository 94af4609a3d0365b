"""Every decoder that a peer or a stranger's file can reach, as a function of bytes. Invariant: it
raises nothing, whatever the bytes.

A target catches what the decoder's documentation says that it raises, checks what that is, and lets
everything else through: a finding. `test_fuzz.py` feeds them mutations made by hypothesis,
`harness.py` those that atheris finds by coverage.
"""

from __future__ import annotations

import atexit
import io
import os
import socket
import struct
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import msgspec
import trio
from rich.console import Console

from asyncrl import messages
from asyncrl.actors.reward_actor import _ask
from asyncrl.actors.verifier_process import Opening, TimedVerdict, VerifyRequest
from asyncrl.actors.worker_process import Bury, frame, receive
from asyncrl.config import Config, ConfigError
from asyncrl.config import load as load_config
from asyncrl.config import render as render_config
from asyncrl.config.schema import TaskConfig
from asyncrl.engines.servers.server_types import Garbled, StreamEvents
from asyncrl.engines.sglang.http_types import SglangIncrements
from asyncrl.engines.vllm.vllm_types import VllmIncrements
from asyncrl.escape import escaped
from asyncrl.experience.call import ImpossibleEvent
from asyncrl.experience.events import (
    Admitted,
    AnyEvent,
    Buried,
    Extended,
    Judged,
    LateTokens,
    Leased,
    Published,
    Requeued,
    Sealed,
    Taken,
    Trained,
)
from asyncrl.experience.experience import fold
from asyncrl.explain import summary
from asyncrl.explain.display import show_summary
from asyncrl.explain.run_files import RunFiles
from asyncrl.explain.run_status import (
    ActorStatus,
    AwaitedRollout,
    GroupCounts,
    JournalStatus,
    PublicationStatus,
    RunStatus,
)
from asyncrl.explain.why import why
from asyncrl.own_folder import own_folder
from asyncrl.runtime.ipc.errors import EndOfStream, LinkError
from asyncrl.runtime.ipc.keys import prove_to_client, prove_to_server, proving
from asyncrl.runtime.ipc.link import Link
from asyncrl.runtime.ipc.pipes import Bytes
from asyncrl.tasks import TaskError
from asyncrl.tasks.data.data_task import DataTask
from asyncrl.tasks.text import Tokenizer
from asyncrl.training.checkpoint_index import CheckpointError, scalars

KEY = b"k" * 32
_HELD = ExitStack()
FOLDER = _HELD.enter_context(own_folder("fuzz"))
atexit.register(_HELD.close)


class Target(NamedTuple):
    """`run` on each of `seeds`, and on whatever is made of them."""

    name: str
    seeds: Sequence[bytes]
    run: Callable[[bytes], None]


class Script:
    """A pipe whose peer says `data`, in pieces of a few sizes, and ends."""

    torn = False
    blocked_s = 0.0

    def __init__(self, data: bytes) -> None:
        self._data = memoryview(data)
        self.said = b""
        self.closed = False

    async def send(self, parts: Sequence[Bytes]) -> None:
        self.said += b"".join(parts)

    async def receive_into(self, view: memoryview) -> int:
        assert len(view), "nothing is asked for"
        size = min(len(view), len(self._data), 1 + len(self._data) // 3)
        view[:size] = self._data[:size]
        self._data = self._data[size:]
        return size

    async def aclose(self) -> None:
        self.closed = True


# ------------------------------------------------------------------------------------------- links


def framed(text: bytes, *buffers: bytes) -> bytes:
    """A frame as `asyncrl.runtime.ipc.framing` describes it, of a message in msgpack and of
    buffers; made here a second time."""
    padded = b"".join(buffer + bytes(-len(buffer) % 8) for buffer in buffers)
    sizes = struct.pack(f"<{len(buffers)}I", *map(len, buffers))
    return (
        struct.pack("<III", len(sizes) + len(text) + len(padded), len(text), len(buffers))
        + sizes
        + text
        + padded
    )


SAID: list[messages.Message] = [
    messages.Hello("rollout", 1, 0, 4711),
    messages.Drain(),
    messages.Report(
        1.0, {"weights": 0.5}, {"tokens": 12.0}, [messages.Wait("verdict", "item 3", 1.0, 5.0)]
    ),
    messages.Chunks(
        [messages.ChunkHead(7, 0, 3, 0, 4, "stop"), messages.ChunkHead(8, 1, 3, 16, 4, "")]
    ),
    messages.Leases([messages.Lease(7, 0, 11, "train", 3, 0, 16, 1.0, None)]),
    messages.ScoreResult(7, messages.NoVerdict("timeout"), 0.5),
    messages.ScoreResult(8, messages.Scored(1.0), 0.5),
    messages.GroupScoreResult([(7, messages.NoVerdict("timeout")), (8, messages.Scored(1.0))], 0.5),
    messages.MicroBatch(
        1, 0, [messages.Sample(7, 3, 4, 4, 1.0, [messages.Span(1, 4, 8)])], {3: [1.0, 0.0]}
    ),
    messages.Consumed(1, 0, [messages.TokenCount(7, 4, {"stale": 2}, 0, {"stale": [(0, 2)]})], 0.1),
    messages.Prepared(1, [2**64 - 1, 0], ""),
    messages.Images([3, 2]),
    messages.Interrupt([1, 2, 3]),
]
TEXTS = [msgspec.msgpack.encode(message) for message in SAID]
DEEP = 5_000
"""Brackets within brackets: more than there are frames on Python's stack."""
LATER = b"\x92\xa5Drain\xc0"
"""A message with a field more than is known, as a later version may send it: whatever is in it is
skipped."""


def frames(data: bytes) -> None:
    """A link's receiver: each frame a message, or LinkError and a closed link, or an end between
    two frames."""

    async def main() -> None:
        pipe = Script(data)
        link = Link(pipe, peer="the peer", max_frame=2**22)
        taken = 0
        try:
            while True:
                message, buffers = await link.receive()
                assert isinstance(message, messages.Message)
                taken += 12 + sum(map(len, buffers))
                assert taken <= len(data), "more came out than went in"
        except EndOfStream:
            assert not pipe.closed
        except LinkError as error:
            assert error.reason in ("malformed", "oversized", "broken"), error.reason
            assert pipe.closed
            assert str(error).isprintable() and len(str(error)) < 500, (
                "a peer writes into the log what it likes"
            )

    trio.run(main)


def message(data: bytes) -> None:
    """The same for the message of a frame that is well-formed around it."""
    frames(framed(data, b"x" * 16))


def handshake_server(data: bytes) -> None:
    """A server whose peer does not know the key: LinkError, and nothing said but the challenge."""

    async def main() -> None:
        pipe = Script(data)
        try:
            with proving("the peer", 5.0):
                await prove_to_client(pipe, KEY, peer="the peer", channel=b"")
        except LinkError as error:
            assert error.reason == "key"
        else:
            raise AssertionError("the key was proved without the key")
        assert len(pipe.said) == 40

    trio.run(main)


def handshake_client(data: bytes) -> None:
    """A client whose peer does not know the key: LinkError, and nothing said but a nonce and a
    proof that is worth nothing elsewhere."""

    async def main() -> None:
        pipe = Script(data)
        try:
            with proving("the peer", 5.0):
                await prove_to_server(pipe, KEY, peer="the peer", channel=b"")
        except LinkError as error:
            assert error.reason == "key"
        else:
            raise AssertionError("the key was proved without the key")
        assert len(pipe.said) in (0, 64)

    trio.run(main)


# --------------------------------------------------------------------------------------- verifiers


def worker_reply(data: bytes) -> None:
    """Words of a worker, which runs somebody else's code, to the reward actor: a verdict that
    can be trained on, or it is dead."""

    async def main() -> None:
        ours, theirs = socket.socketpair()
        with ours:
            ours.sendall(data)
            ours.shutdown(socket.SHUT_WR)
            async with trio.SocketStream(trio.socket.from_stdlib_socket(theirs)) as stream:
                given = await _ask(stream, VerifyRequest("train", 0, b"", "stop"))
        assert given is None or isinstance(given, TimedVerdict)
        if given is not None and isinstance(given.verdict, messages.Scored):
            for number in (given.verdict.reward, *given.verdict.parts):
                assert number - number == 0, "a reward that is not finite"

    if len(data) < 60_000:  # what the socket takes without a reader
        trio.run(main)


def worker_request(data: bytes) -> None:
    """Requests that a worker, and the process that forks workers, read."""
    for kind in (VerifyRequest, Opening):
        ours, theirs = socket.socketpair()
        with ours, theirs:
            ours.sendall(data[:60_000])
            ours.shutdown(socket.SHUT_WR)
            try:
                found = receive(theirs, kind)
            except ValueError:
                continue
            assert found is None or isinstance(found, kind)


# ------------------------------------------------------------------------------------------- files


def written(name: str, data: bytes) -> Path:
    path = FOLDER / str(os.getpid()) / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)
    return path


def sentence(error: Exception) -> None:
    """Errors of files are for people: one line, that names the file."""
    text = str(error)
    assert text and "\n" not in text and str(FOLDER) in text, text


def jsonl(data: bytes) -> None:
    """A file of prompts: every prompt can be given out and judged, or TaskError."""
    path = written("prompts.jsonl", data)
    try:
        task = DataTask(TaskConfig(name="data", path=str(path), eval_size=0, verifier="exact"))
    except TaskError as error:
        sentence(error)
        return
    for prompt_index in range(task.size("train")):
        task.prompt("train", prompt_index).encode()
        assert task.verify("train", prompt_index, "an answer") in (0.0, 1.0)


def run_toml(data: bytes) -> None:
    """A run.toml: a Config, which can be written and read again, or ConfigError."""
    path = written("run.toml", data)
    try:
        config = load_config(path, (), {})
    except ConfigError as error:
        assert "\n" not in str(error)
        return
    assert isinstance(config, Config)
    path.write_text(render_config(config))
    assert load_config(path, (), {}) == config


def checkpoint_scalars(data: bytes) -> None:
    """A checkpoint's trainer.json: what it says, or CheckpointError."""
    path = written("trainer.json", data)
    try:
        scalars(path.parent)
    except CheckpointError as error:
        sentence(error)


def summary_json(data: bytes) -> None:
    """A summary.json: a Summary, or one of the errors that are documented."""
    path = written("summary.json", data)
    try:
        found = summary.read(path)
    except msgspec.DecodeError:
        return
    assert isinstance(found, summary.Summary)
    found.balances()


def status_json(data: bytes) -> None:
    """A status.json: the sentences of `why`, or one that says why there are none."""
    path = written("status.json", data)
    (path.parent / "run.toml").touch()
    try:
        said = why(RunFiles(path.parent), 1e9)
    except ConfigError as error:
        sentence(error)
    else:
        assert said and all(map(str.isprintable, map(escaped, said)))


def shown_summary(data: bytes) -> None:
    """The table of a summary: plain lines, each of them printable."""
    path = written("summary.json", data)
    try:
        found = summary.read(path)
    except msgspec.DecodeError:
        return
    shown = io.StringIO()
    show_summary(found, path, Console(file=shown))
    assert all(map(str.isprintable, shown.getvalue().split("\n")))


def sglang_stream(data: bytes) -> None:
    """Events that an SGLang server streams: increments, or Garbled."""
    events, increments = StreamEvents(4), SglangIncrements()
    try:
        for text in events.feed(data):
            increments.read(text)
    except Garbled as error:
        assert len(str(error)) < 1000


def vllm_stream(data: bytes) -> None:
    """Events that a vLLM server streams: increments, or Garbled."""
    events, increments = StreamEvents(4), VllmIncrements("1")
    try:
        for text in events.feed(data):
            increments.read(text)
    except Garbled as error:
        assert len(str(error)) < 1000


def events(data: bytes) -> None:
    """Rows of the journal: events of which a state follows, or Refused."""
    try:
        found = msgspec.msgpack.decode(data, type=list[AnyEvent])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return
    try:
        assert fold(found).ledger.balances()
    except ImpossibleEvent:
        return


def tokenizer(data: bytes) -> None:
    """A tokenizer.json: a tokenizer, or TaskError."""
    path = written("tokenizer.json", data)
    try:
        found = Tokenizer(path.parent)
    except TaskError as error:
        sentence(error)
        return
    found.decode([0, 1, 2**20])


def model_scalars(data: bytes) -> None:
    """The files around a tokenizer that say where a text ends."""
    path = written("tokenizer.json", TINY)
    for name in ("generation_config.json", "tokenizer_config.json"):
        (path.parent / name).write_bytes(data)
    try:
        stops = Tokenizer(path.parent).stop_ids
    except TaskError as error:
        sentence(error)
    else:
        assert all(type(stop) is int for stop in stops)
    finally:
        for name in ("generation_config.json", "tokenizer_config.json"):
            (path.parent / name).unlink()


TINY = (
    b'{"version":"1.0","added_tokens":[],"model":'
    b'{"type":"WordLevel","vocab":{"a":0,"b":1},"unk_token":"a"}}'
)
ENDS = [
    b'{"eos_token_id": [1, 2], "eos_token": {"content": "a"}}',
    b'{"eos_token_id": "ab", "eos_token": 3}',
    b'{"eos_token_id": [1, "a"]}',
    b'{"eos_token_id": [[1]]}',
    b'{"eos_token_id": {"a": 1}}',
    b'{"eos_token_id": true, "eos_token": {"content": ["a"]}}',
]
LINES = (
    b'{"prompt": "1+1", "answer": 2, "verifier": "number"}\n{"prompt": "say a", "answer": '
    b'"a", "more": {"x": [1.5e3, null]}}\n'
)
TOML = (
    b"[train]\nsteps = 3\nlearning_rate = 1e-4\n[task]\nname = "
    b'"chain_sum"\n[task.params]\nmin_terms = 2\n[run]\nseed = 1\n'
)
SUMMARY = msgspec.json.encode(
    summary.Summary(
        ok=True, reason="done", steps=1, seconds=2.0, tokens=summary.TokenTotals(3, 2, {"late": 1})
    )
)
STATUS = msgspec.json.encode(
    RunStatus(
        **dict.fromkeys(
            [
                *("at", "seconds", "token_s", "verdict_s", "step_s", "stall_s", "report_s"),
                *("window_s", "generated_per_s", "trained_per_s", "lease_deadline_s", "pump_s"),
            ],
            9.5,
        ),
        phase="run",
        step=1,
        steps=3,
        committed=1,
        idle={"trainer": {"command": 0.5}, "rollout": {"weights": 0.4}},
        actors=[
            ActorStatus(name=name, role=role, here=here, incarnation=0, pid=7, seconds=8.0, holds=2)
            for name, role, here in (
                ("trainer-0", "trainer", True),
                ("rollout-0", "rollout", True),
                ("reward-0", "reward", False),
            )
        ],
        waits=[messages.Wait("progress", "coordinator", 3.0, 9.0)],
        publication=PublicationStatus(
            number=1, version=1, phase="transfer", waiting_for="engine 0", seconds=9.0, left_s=1.0
        ),
        evaluating=None,
        rollouts={"leased": 2},
        groups=GroupCounts(live=2, max_live=2),
        awaited=[
            AwaitedRollout(
                rollout=1, holder="rollout-0", attempt=1, tokens=2, seconds=3.0, deadline_s=4.0
            )
        ],
        lease_p95_s=None,
        tokens=summary.TokenTotals(),
        ledger=summary.RolloutTotals(),
        journal=JournalStatus(),
        restarts={"reward": 1},
    )
)
VLLM_STREAM = (
    b'data: {"choices":[{"index":0,"token_ids":[7],"logprobs":{"content":[{"token_id":7,'
    b'"logprob":-0.5,"rank":1,"top_logprobs":[]}]}}]}\n\n'
    b'data: {"choices":[{"index":0,"token_ids":[],"finish_reason":"stop","logprobs":'
    b'{"content":[]},"weight_versions":[{"version":"1","start":0,"end":1}]}]}\n\n'
)
STREAM = (
    b'data: {"output_ids": [5], "meta_info": {"weight_version": "1", "completion_tokens": 1, '
    b'"output_token_logprobs": [[-0.5, 5, null]]}}\n\ndata: {"error": {"message": "no"}}\n\n'
)
EVENTS: list[AnyEvent] = [
    Admitted(0, 0, 2, "train", 3, b"\x01\x00\x00\x00", 8),
    Published(0),
    Leased(0, "rollout-0", 1),
    Extended(0, 1, 0, 0, b"\x01\x00\x00\x00" * 2, bytes(8)),
    Sealed(0, 1, "stop"),
    Judged(0, messages.Scored(1.0)),
    Leased(1, "rollout-0", 1),
    Requeued(1, 1, "lost"),
    Buried(1, "attempts"),
    Taken(0, [0]),
    Trained(0, 1, {"stale": 1}),
    LateTokens(3),
]
PROOF = b"\x07" * 32

TARGETS: list[Target] = [
    Target(
        "frames",
        [b"".join(map(framed, TEXTS)), *(framed(text, b"buffer", bytes(40)) for text in TEXTS)],
        frames,
    ),
    Target(
        "message",
        [
            *TEXTS,
            LATER,
            b"\x92\xa5Drain" + b"\x91" * DEEP + b"\xc0",
            b"\x92\xa5Drain" + b"\x81\xa1a" * DEEP + b"\xc0",
            b"\x91\xa4\x1b[2J",
        ],
        message,
    ),
    Target(
        "handshake_server",
        [bytes(64), PROOF + bytes(32), b"asyncrl\x01" + bytes(56)],
        handshake_server,
    ),
    Target(
        "handshake_client",
        [b"asyncrl\x01" + bytes(64), b"asyncrl\x01" + PROOF * 2, bytes(72)],
        handshake_client,
    ),
    Target(
        "worker_reply",
        [
            frame(TimedVerdict(messages.Scored(0.5), 1.0)),
            frame(TimedVerdict(messages.NoVerdict("raised: x"), 1.0)),
            frame(TimedVerdict(messages.Scored(float("nan")), 0.0)),
            frame(TimedVerdict(messages.Scored(1.5, [0.5, 1.0]), 1.0)),
            frame(TimedVerdict(messages.Scored(1.5, [0.5, float("inf")]), 1.0)),
        ],
        worker_reply,
    ),
    Target(
        "worker_request",
        [
            frame(VerifyRequest("train", 3, b"\x01\x00\x00\x00", "stop")),
            frame(Opening(TaskConfig(), 0, "model")),
            frame(Bury(1)),
        ],
        worker_request,
    ),
    Target("jsonl", [LINES, b'{"prompt": "a", "answer": 1, "more": ' + b"[" * DEEP], jsonl),
    Target("run_toml", [TOML], run_toml),
    Target("checkpoint_scalars", [b'{"version":3,"cursor":17}'], checkpoint_scalars),
    Target("summary", [SUMMARY], summary_json),
    Target("shown_summary", [SUMMARY], shown_summary),
    Target("run_status", [STATUS], status_json),
    Target("sglang_stream", [STREAM], sglang_stream),
    Target("vllm_stream", [VLLM_STREAM], vllm_stream),
    Target(
        "events",
        [
            *(msgspec.msgpack.encode(EVENTS[:count]) for count in (5, len(EVENTS))),
            b"\x91\x93\xa4Late\x03" + b"\x91" * DEEP + b"\xc0",
        ],
        events,
    ),
    Target("tokenizer", [TINY], tokenizer),
    Target("model_scalars", ENDS, model_scalars),
]
