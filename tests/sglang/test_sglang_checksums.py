"""Conclusions from a server's checksums, over made-up servers that lay weights out as SGLang
does, or in ways we do not know."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import cast

import pytest
import torch
import trio
from torch import Tensor

from asyncrl.engines.servers.server_types import RankChecksums
from asyncrl.engines.sglang.sglang_client import SglangClient
from asyncrl.weightsync.servers import server_hashes
from asyncrl.weightsync.servers.server_checksums import Checks, WrongWeights
from asyncrl.weightsync.servers.server_hashes import of_gpu, of_host
from asyncrl.weightsync.servers.server_names import UnknownName, sources
from asyncrl.weightsync.servers.weight_loader import WeightLoader

LAYER = "model.layers.0"
Weights = dict[str, Tensor]
Hash = Callable[[Tensor], str]


def model(seed: int) -> Weights:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    return {
        "model.embed_tokens.weight": normal(100, 8),
        f"{LAYER}.self_attn.q_proj.weight": normal(8, 8),
        f"{LAYER}.self_attn.k_proj.weight": normal(4, 8),
        f"{LAYER}.self_attn.v_proj.weight": normal(4, 8),
        f"{LAYER}.self_attn.o_proj.weight": normal(8, 8),
        f"{LAYER}.mlp.gate_proj.weight": normal(16, 8),
        f"{LAYER}.mlp.up_proj.weight": normal(16, 8),
        f"{LAYER}.mlp.down_proj.weight": normal(8, 16),
        "model.norm.weight": normal(8),
    }


def sha(tensor: Tensor) -> str:
    return hashlib.sha256(tensor.contiguous().numpy().tobytes()).hexdigest()[:16]


def foreign(tensor: Tensor) -> str:
    """A hash of bytes that nobody here knows."""
    return hashlib.blake2b(tensor.contiguous().numpy().tobytes(), digest_size=8).hexdigest()


def held(weights: Weights, rank: int, ranks: int) -> Weights:
    """Tensors that a rank of SGLang holds of a Qwen3, independently of the code under test."""

    def rows(name: str) -> Tensor:
        return weights[name].chunk(ranks)[rank]

    vocabulary = torch.cat([weights["model.embed_tokens.weight"], torch.zeros(28, 8)])
    return {
        "model.embed_tokens.weight": vocabulary.chunk(ranks)[rank],
        f"{LAYER}.self_attn.qkv_proj.weight": torch.cat(
            [rows(f"{LAYER}.self_attn.{part}_proj.weight") for part in "qkv"]
        ),
        f"{LAYER}.self_attn.o_proj.weight": weights[f"{LAYER}.self_attn.o_proj.weight"].chunk(
            ranks, 1
        )[rank],
        f"{LAYER}.mlp.gate_up_proj.weight": torch.cat(
            [rows(f"{LAYER}.mlp.{part}_proj.weight") for part in ("gate", "up")]
        ),
        f"{LAYER}.mlp.down_proj.weight": weights[f"{LAYER}.mlp.down_proj.weight"].chunk(ranks, 1)[
            rank
        ],
        "model.norm.weight": weights["model.norm.weight"],
    }


def reports(server: Sequence[Weights], hashed: Hash = sha) -> list[dict[str, str]]:
    return [{name: hashed(tensor) for name, tensor in rank.items()} for rank in server]


def served(weights: Weights, ranks: int) -> list[Weights]:
    return [
        {name: tensor.clone() for name, tensor in held(weights, rank, ranks).items()}
        for rank in range(ranks)
    ]


def publish(
    checks: Checks, weights: Weights, server: Sequence[Weights], hashed: Hash = sha
) -> None:
    checks.verify(checks.expect(weights), reports(server, hashed))


def words(tensor: Tensor) -> str:
    """The hash of a GPU of the whole tensor, which `test_server_hashes` knows to be right."""
    return of_gpu([tensor])


@pytest.mark.parametrize(
    ("ranks", "hashed", "ours"),
    [(1, sha, of_host), (2, sha, of_host), (4, sha, of_host), (2, words, of_gpu)],
)
def test_every_tensor_is_compared_byte_by_byte_once_its_layout_is_found(
    ranks: int, hashed: Hash, ours: server_hashes.Hash
) -> None:
    checks = Checks(model(0), reports(served(model(9), ranks), hashed), ours)
    publish(checks, model(0), served(model(0), ranks), hashed)
    assert checks.exact == 6 and not checks.inexact
    publish(checks, model(1), served(model(1), ranks), hashed)
    for rank in range(ranks):
        for name in held(model(0), 0, ranks):
            server = served(model(2), ranks)
            server[rank][name].view(-1).view(torch.uint8)[0] ^= 1
            with pytest.raises(
                WrongWeights, match=f"{name} holds bytes that differ from those sent"
            ):
                publish(checks, model(2), server, hashed)
    publish(checks, model(2), served(model(2), ranks), hashed)


@pytest.mark.parametrize("hashed", [sha, foreign])
def test_nothing_is_hashed_while_the_server_stands_still_and_each_byte_once_when_layouts_are_known(
    hashed: Hash,
) -> None:
    seen = 0

    def counted(pieces: Sequence[Tensor]) -> str:
        nonlocal seen
        seen += sum(piece.nbytes for piece in pieces)
        return of_host(pieces)

    checks = Checks(model(0), reports(served(model(9), 1), hashed), counted)
    known = sum(tensor.nbytes for tensor in model(0).values())
    for version in range(3):
        seen = 0
        expected = checks.expect(model(version))
        padding = 28 * 8 * 4 if hashed is sha else 0
        assert version == 0 or seen == known + padding
        seen = 0
        checks.verify(expected, reports(served(model(version), 1), hashed))
        assert seen == 0


def test_a_vector_is_whole_on_each_rank_or_cut_by_rows() -> None:
    """The bias of a layer whose rows are divided is divided, too."""

    def ranks(version: int) -> list[dict[str, Tensor]]:
        whole, cut = vectors(version).values()
        return [{"norm.weight": whole, "up.bias": cut[at : at + 3]} for at in (0, 3)]

    def vectors(version: int) -> dict[str, Tensor]:
        return {"norm.weight": torch.arange(6.0) + version, "up.bias": torch.arange(6.0) - version}

    checks = Checks(vectors(0), reports(ranks(9)), of_host)
    publish(checks, vectors(0), ranks(0))
    assert checks.exact == 2
    with pytest.raises(WrongWeights, match=r"up\.bias holds bytes that differ from those sent"):
        publish(checks, vectors(1), [ranks(1)[0], ranks(1)[1] | {"up.bias": torch.zeros(3)}])


def test_a_rank_that_missed_the_first_publication() -> None:
    checks = Checks(model(0), reports(served(model(9), 2)), of_host)
    with pytest.raises(
        WrongWeights, match="is right on rank 0 and not on rank 1, and so on: 6 tensors are wrong"
    ):
        publish(checks, model(0), [served(model(0), 2)[0], served(model(9), 2)[1]])


def test_of_an_unknown_hash_it_is_known_what_must_change_and_what_must_not() -> None:
    checks = Checks(model(0), reports(served(model(9), 1), foreign), of_host)
    assert not checks.inexact
    publish(checks, model(0), served(model(0), 1), foreign)
    assert checks.exact == 0 and checks.inexact == sorted(held(model(0), 0, 1))
    publish(checks, model(0), served(model(0), 1), foreign)  # sent again
    with pytest.raises(WrongWeights, match="was sent with changes and did not change"):
        publish(checks, model(1), served(model(0), 1), foreign)
    publish(checks, model(0), served(model(0), 1), foreign)
    with pytest.raises(WrongWeights, match="changed and was sent as it was"):
        publish(checks, model(0), served(model(1), 1), foreign)


async def test_tensors_that_no_layout_explains_are_named_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ranks = [RankChecksums(reports(served(model(0), 1), foreign)[0], "")]

    class Server:
        url = "http://fake:1"

        async def checksums(self) -> list[RankChecksums]:
            await trio.lowlevel.checkpoint()
            return ranks

    loader = WeightLoader.__new__(WeightLoader)
    loader._client = cast(SglangClient, Server())
    loader._checks = checks = Checks(model(0), [ranks[0].checksums], of_gpu)
    for _ in range(2):
        assert await loader._verify(checks.expect(model(0))) == 0
    assert [record.getMessage() for record in caplog.records] == [
        "http://fake:1 gives checksums of 6 of its tensors (model.embed_tokens.weight first) that "
        "no known layout explains: these are only checked to change when their sources do"
    ]


def test_checksums_of_fewer_ranks_or_tensors_than_there_were() -> None:
    checks = Checks(model(0), reports(served(model(9), 2)), of_host)
    expected = checks.expect(model(0))
    for found in (reports(served(model(0), 2))[:1], [{}, {}]):
        with pytest.raises(WrongWeights, match=r"2 ranks had 6"):
            checks.verify(expected, found)


def test_a_name_that_the_server_has_no_place_for() -> None:
    theirs = held(model(0), 0, 1).keys()
    parts = tuple(f"{LAYER}.self_attn.{part}_proj.weight" for part in "qkv")
    assert sources(model(0), theirs)[f"{LAYER}.self_attn.qkv_proj.weight"] == parts
    for name in (
        "model.layers.1.mlp.up_proj.weight",
        f"{LAYER}.mlp.experts.0.gate_proj.weight",
        "lm_head.weight",
        "loose",
    ):
        with pytest.raises(UnknownName, match=f"no parameter for {name}"):
            sources([*model(0), name], theirs)
