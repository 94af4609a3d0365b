"""Types of the answers of a vLLM server. Invariant: a stream comes out as increments: each token
once, in order, with its log-probability.

Each event of `/inference/v1/generate` holds the new tokens. Only the last one reports the version
of each token.
"""

from __future__ import annotations

import re

import msgspec
import numpy as np
from numpy.typing import NDArray

from asyncrl.engines.servers.server_routing import RoutingLayout, returned, unpacked
from asyncrl.engines.servers.server_types import (
    FinishReason,
    Garbled,
    ServerSpan,
    StreamEvent,
    StreamFailure,
    decode_event,
    token_ids,
)

DONE = b"[DONE]"
"""The data of the event after the last one."""


class _Entry(msgspec.Struct, frozen=True):
    token_id: int
    logprob: float | None = None


class _Logprobs(msgspec.Struct, frozen=True):
    content: list[_Entry] | None = None


class _Choice(msgspec.Struct, frozen=True):
    token_ids: list[int] | None = None
    finish_reason: str | None = None
    logprobs: _Logprobs | None = None
    weight_versions: tuple[ServerSpan, ...] | None = None
    routed_experts: str | None = None


class _VllmOutput(msgspec.Struct, frozen=True):
    choices: list[_Choice] = []
    error: StreamFailure | None = None


class PromptLogprob(msgspec.Struct, frozen=True):
    """One entry of a prompt's log-probabilities."""

    logprob: float | None = None


class ScoredPrompt(msgspec.Struct, frozen=True):
    """The answer to a request that scores its prompt: for each token but the first its own
    log-probability under its id, in text, and possibly those of likelier ones."""

    prompt_logprobs: list[dict[str, PromptLogprob] | None]


class WeightInfo(msgspec.Struct, frozen=True):
    """`GET /weight_info`: `default` until a version is set."""

    weight_version: str


class VllmVersion(msgspec.Struct, frozen=True):
    """`GET /version`."""

    version: str


class Paused(msgspec.Struct, frozen=True):
    """`GET /is_paused`."""

    is_paused: bool


class VllmChecksums(msgspec.Struct, frozen=True):
    """SHA-256 of each tensor of each worker, under names that begin with the worker's rank
    (`dp0:pp0:pcp0:tp1:model.norm.weight`)."""

    checksums: dict[str, str]


class _Model(msgspec.Struct, frozen=True):
    model: str = ""
    dtype: str = ""
    max_model_len: int | None = None
    logprobs_mode: str = ""
    skip_tokenizer_init: bool = False


class _Parallel(msgspec.Struct, frozen=True):
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    data_parallel_size: int = 1
    worker_extension_cls: str = ""


class _Scheduler(msgspec.Struct, frozen=True):
    max_num_seqs: int | None = None


class _Device(msgspec.Struct, frozen=True):
    device: str = ""


class _TransferConfig(msgspec.Struct, frozen=True):
    backend: str = ""


NONE = msgspec.Raw(b"null")
"""A section that the server was started without."""


class _AuxOutput(msgspec.Struct, frozen=True):
    enable_return_routed_experts: bool = False


class VllmLora(msgspec.Struct, frozen=True):
    """A server's room for adapters."""

    max_lora_rank: int = 0
    target_modules: list[str] | None = None


class VllmConfigs(msgspec.Struct, frozen=True):
    """The sections of a server's configuration that matter here."""

    model_config: _Model = _Model()
    parallel_config: _Parallel = _Parallel()
    scheduler_config: _Scheduler = _Scheduler()
    weight_transfer_config: _TransferConfig | None = None
    speculative_config: msgspec.Raw = NONE
    kv_transfer_config: msgspec.Raw = NONE
    aux_output_config: _AuxOutput = _AuxOutput()
    lora_config: VllmLora | None = None


class VllmStart(msgspec.Struct, frozen=True):
    """`GET /server_info?config_format=json`: the start options of a server."""

    vllm_config: VllmConfigs


_OUTPUT = msgspec.json.Decoder(_VllmOutput)


class VllmIncrements:
    """The `Increments` of one request, of a server whose weights had the name `version` when it
    began, and which was asked for this `routing`."""

    def __init__(self, version: str, routing: RoutingLayout | None = None) -> None:
        self._version, self._routing = version, routing
        self._done = 0

    def read(self, data: bytes) -> StreamEvent | StreamFailure | None:
        if data == DONE:
            return None
        output = decode_event(_OUTPUT, data)
        if output.error is not None:
            return output.error
        if len(output.choices) != 1:
            raise Garbled(
                f"sent an event of {len(output.choices)} choices, where one was requested"
            )
        choice = output.choices[0]
        ids = choice.token_ids or []
        entries = (choice.logprobs.content if choice.logprobs is not None else None) or []
        if [entry.token_id for entry in entries] != ids:
            raise Garbled(
                f"sent log-probabilities of other tokens than those from index {self._done} on"
            )
        known = token_ids(ids)
        start, self._done = self._done, self._done + len(ids)
        reason = choice.finish_reason
        rows = choice.routed_experts if self._routing is not None else None
        return StreamEvent(
            start=start,
            ids=known,
            behaviour=np.array([entry.logprob for entry in entries], np.float32),
            version=self._version,
            ending=None if reason is None else FinishReason(reason),
            spans=choice.weight_versions,
            routing=returned(
                None if rows is None else _array(rows), self._routing, self._done, reason
            ),
        )


_NUMBERS = re.compile(
    rb"\x93NUMPY\x01\x00..\{'descr': '([<|][iu][1248])', 'fortran_order': False, "
    rb"'shape': \([0-9, ]*\), \} *\n",
    re.DOTALL,
)
"""The beginning of a file of numbers in numpy's own format."""


def _array(text: str) -> NDArray[np.generic]:
    """The numbers of a file in numpy's own format, of the bytes that there are, whatever size it
    promises."""
    content = unpacked(text)
    begun = _NUMBERS.match(content)
    dtype = np.dtype(begun[1].decode() if begun else "u1")
    if begun is None or (len(content) - begun.end()) % dtype.itemsize:
        raise Garbled(f"returned experts in no array of numbers: {content[:80]!r}")
    return np.frombuffer(content, dtype, offset=begun.end())
