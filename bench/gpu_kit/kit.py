"""The checks, the most telling first. A floor says what a number is compared with, and why; "aim"
marks one that no GPU has shown to be in reach."""

from __future__ import annotations

from .check import Check

BUDGET_S = 540.0
CHECKS = (
    Check(
        "gradients",
        "numerics:gradients",
        "float64 on a processor, each sample by itself; float32 is off by rounding, 1e-4",
        50,
    ),
    Check(
        "speed",
        "speed:speed",
        "the GPU's peak (dense bfloat16): aim 0.25 at 4,096 tokens, the plainest case",
        90,
    ),
    Check(
        "three steps",
        "runs:three_steps",
        "the run's own ledger: it balances, also where the run was killed and resumed",
        140,
    ),
    Check(
        "memory bounds",
        "bounds:bounds",
        "peaks measured in this process: a prediction off by more than 15 % bounds nothing",
        120,
    ),
    Check(
        "copies and checksums",
        "weights:copies",
        "checksums of the same bytes on a processor (equal); pageable copies (pinned ≥ 1)",
        45,
    ),
    Check(
        "publication",
        "weights:publication",
        "the same steps with no publication beside them: aim ≤ 2 times as long",
        60,
    ),
    Check(
        "learns",
        "runs:learns",
        "its own held-out accuracy before training, about 0.2: it gains 0.4 in three minutes",
        220,
    ),
    Check(
        "sends to servers",
        "servers:sends",
        "a bare broadcast of as many bytes, in the same group; the bytes that were sent (equal)",
        60,
    ),
    Check(
        "sends to servers by NCCL",
        "servers:nccl_sends",
        "a bare broadcast of as many bytes, in the same group; the bytes that were sent (equal)",
        60,
        gpus=2,
    ),
    Check(
        "hashes at size",
        "servers:hashes",
        "the slowest that a publication's deadline allows for, 0.08 GB/s",
        45,
    ),
    Check(
        "checkpoint",
        "checkpoints:checkpoint",
        "a bare write and fsync of as many bytes: aim ≥ 0.3 of its speed; restored bit by bit",
        45,
    ),
    Check(
        "FSDP2 on one rank",
        "ranks:one_rank",
        "the gradient of a learner alone: equal up to rounding, 1e-4 of its length",
        45,
    ),
    Check(
        "FSDP2 on two ranks",
        "ranks:two_ranks",
        "the gradient of a learner alone: equal up to rounding, 1e-4 of its length",
        60,
        gpus=2,
    ),
    Check(
        "group of one",
        "ranks:group_of_one",
        "the bytes that were sent; an abort ends in its deadline",
        45,
    ),
    Check(
        "lost peer",
        "ranks:lost_peer",
        "its own deadline, 4 s, and 3 s more for threads to end; the error names the step",
        45,
    ),
    Check(
        "gloo into the device",
        "weights:gloo",
        "the bytes that were sent (equal)",
        45,
    ),
    Check(
        "shared memory of the device",
        "weights:shared",
        "the bytes that were shared (equal), and no copy of them",
        45,
    ),
    Check(
        "drift",
        "numerics:drift",
        "the same step from the same state: on a processor no bit differs, on a GPU it is told",
        45,
    ),
    Check(
        "canary",
        "numerics:canary",
        "the same on a processor, text by text: 0.05 nats, the bound of a publication",
        45,
    ),
    Check(
        "SGLang",
        "runs:sglang",
        "the run's own ledger: three steps, each published to the server",
        120,
    ),
    Check(
        "SGLang on two GPUs",
        "runs:sglang_of_two",
        "the run's own ledger: three steps, each published to both ranks of the server",
        150,
        gpus=3,
    ),
)


def check(name: str) -> Check:
    """The check of this name. Raises KeyError."""
    return {each.name: each for each in CHECKS}[name]
