"""The experts of one request as vLLM's own code returns them, by its capturer, its worker's and
its scheduler's connector, and its encoder: run by the Python of its environment. A server records
so where its model runner has Triton, which a CPU build has not.

The arguments are the tokens of the prompt, the start that was asked for, and the tokens to sample.
The experts of layer l at position p are 2p + l and 2p + l + 1. Prints the answer's text."""

import sys
from types import SimpleNamespace

import numpy as np
import torch
from vllm.distributed.aux_output_connector import connector, worker
from vllm.distributed.aux_output_connector.routed_experts import RoutedExpertsBuffer
from vllm.distributed.aux_output_connector.store import BackgroundBlockObjectStore, BlockObjectStore
from vllm.model_executor.layers.fused_moe import routed_experts_capturer
from vllm.utils.serial_utils import numpy2base64

LAYERS, CHOSEN, BLOCK, ROOM = 3, 2, 4, 64


def capturer():
    made = object.__new__(routed_experts_capturer.RoutedExpertsCapturer)
    made.shape_per_token = LAYERS, CHOSEN
    made.output_dtype = torch.uint8
    made.device_buffer = torch.zeros((ROOM, LAYERS, CHOSEN), dtype=torch.int32)
    return made


def connected(of):
    made = object.__new__(worker.AuxOutputWorkerConnector)
    made._capturer, made._requests, made._generation = of, {}, 0
    made._step_metadata, made._pending_outputs, made._lock = None, [], worker.Lock()
    made._max_concurrent_batches = 1
    store = BlockObjectStore(max_bytes=1 << 20, object_nbytes=BLOCK * LAYERS * CHOSEN)
    made._store = BackgroundBlockObjectStore(store, max_pending_batches=8)
    made._buffer = RoutedExpertsBuffer(np.dtype("uint8"), (LAYERS, CHOSEN), BLOCK, 4, ROOM, 1)
    return made


def main(prompt, start, sampled):
    routed_experts_capturer.get_forward_context = lambda: SimpleNamespace(dp_metadata=None)
    scheduler, recorder = connector.AuxOutputSchedulerConnector(), capturer()
    runner, chunks, done = connected(recorder), [], 0
    request = SimpleNamespace(
        request_id="r",
        num_prompt_tokens=prompt,
        num_tokens=prompt,
        num_output_tokens=0,
        block_hashes=[],
        sampling_params=SimpleNamespace(routed_experts_prompt_start=start),
        is_finished=lambda: False,
    )
    for _ in range(sampled):
        whole = request.num_tokens // BLOCK
        request.block_hashes = [bytes([block] * 8) for block in range(whole)]
        scheduled = SimpleNamespace(num_scheduled_tokens={"r": request.num_tokens - done})
        runner.begin_step(scheduler.build_connector_meta(scheduled, {"r": request}))
        positions = torch.arange(done, request.num_tokens)
        for layer in range(LAYERS):
            first = 2 * positions + layer
            recorder.capture(layer, torch.stack([first, first + 1], 1))
        batch = SimpleNamespace(
            req_ids=["r"],
            query_start_loc_np=np.array([0, len(positions)]),
            num_computed_tokens_np=np.array([done]),
        )
        pending = runner.prepare_output(batch)
        pending.enqueue_cpu_copy(np.array([1]), np.array([0]))
        done = request.num_tokens
        request.num_tokens += 1
        request.num_output_tokens += 1
        chunks.append(scheduler.take_output(request, pending.process_output()))
    print(numpy2base64(np.concatenate(chunks, axis=0)))


main(*map(int, sys.argv[1:]))
