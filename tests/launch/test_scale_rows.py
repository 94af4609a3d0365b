"""Rows of `asyncrl check` about large models and many engines."""

from __future__ import annotations

from pathlib import Path

import pytest

from asyncrl.config import Config, ConfigError, load
from asyncrl.config.published import phase_s
from asyncrl.launch.scale_rows import (
    chunk_rows,
    hash_rows,
    host_bytes,
    host_rows,
    kernel_rows,
    scale_rows,
)

SERVERS = ["engine.kind=sglang", "engine.sglang.launch=['python']"]
OF_8B = 16_400_000_000


def config(*sets: str) -> Config:
    return load(None, [*SERVERS, *sets], {})


@pytest.mark.parametrize("ranks", [1, 2])
def test_hashes_fit_into_the_deadline_whatever_the_model(ranks: int) -> None:
    run = config(f"engine.sglang.tensor_parallel={ranks}")
    for weight_bytes in (0, OF_8B, 8 * OF_8B):
        rows = hash_rows(run, weight_bytes, phase_s(60.0, weight_bytes))
        assert [row.name for row in rows] == ["weights' hashes"]
    (_, note) = hash_rows(run, OF_8B, 10.0)
    assert note.value == "publication.deadline_s"
    assert ("3 ways" in hash_rows(run, OF_8B, 60.0)[0].meaning) == (ranks == 2)


def test_eight_staged_actors_hold_262_gb_of_an_8b_model() -> None:
    run = config("rollout.actors=8")
    assert sum(host_bytes(run, OF_8B).values()) == 16 * OF_8B
    row, note = host_rows(run, OF_8B, 64 * 10**9)
    assert "rollout actors" in row.meaning and "direct" in note.meaning
    assert len(host_rows(run, OF_8B, 10**12)) == 1 == len(host_rows(run, OF_8B, 0))
    assert not host_rows(config("rollout.actors=8", "publication.path=direct"), OF_8B, 1)


def test_embedded_engines_have_weights_of_their_own() -> None:
    staged, direct = (load(None, [f"publication.path={way}"], {}) for way in ("staged", "direct"))
    actors = staged.rollout.actors
    assert host_bytes(staged, 10) == {"rollout actors": 20 * actors}
    assert host_bytes(direct, 10) == {"rollout actors": 10 * actors}


def test_several_ranks_hold_the_model_nowhere_whole() -> None:
    for way in ("staged", "direct"):
        alone, ranks = (config(f"publication.path={way}", f"train.ranks={n}") for n in (1, 4))
        assert host_bytes(alone, OF_8B) == host_bytes(ranks, OF_8B)


def test_a_kernel_that_cannot_be_compiled_is_told_or_refused() -> None:
    assert kernel_rows(config(), "")[0].value == "compiled"
    (note,) = kernel_rows(config(), "there is no C compiler")
    assert note.name == "note" and "no C compiler" in note.meaning
    with pytest.raises(ConfigError, match="no C compiler"):
        kernel_rows(config("train.attention=blocks"), "there is no C compiler")


def test_chunks_grow_with_slots() -> None:
    few = config("rollout.actors=8", "engine.slots=256", "engine.chunk_tokens=8")
    (row,) = chunk_rows(few)
    assert row.value == "≥ 195,122"
    _, note = chunk_rows(config("rollout.actors=64", "engine.slots=256", "engine.chunk_tokens=8"))
    assert "set it to 27 or more" in note.meaning


def test_a_small_run_has_no_such_row(tmp_path: Path) -> None:
    assert scale_rows(load(None, [], {})) == []
