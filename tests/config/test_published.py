"""Ways and types of weights: what follows from settings, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from without_rules import without_rules

from asyncrl.config import Config, load
from asyncrl.config.advice import advice
from asyncrl.config.published import (
    computed_dtype,
    engine_dtype,
    phase_s,
    publication_s,
    sent_bytes,
)
from asyncrl.config.rules import contradictions

SERVERS: dict[str, Any] = {"kind": "sglang", "sglang": {"urls": ["http://127.0.0.1:1"]}}


def config(**sections: dict[str, Any]) -> Config:
    with without_rules():
        return msgspec.convert(sections, Config)


@pytest.mark.parametrize(
    ("sections", "key"),
    [
        (
            {
                "engine": SERVERS | {"sglang": SERVERS["sglang"] | {"transfer": "disk"}},
                "rollout": {"actors": 1},
            },
            "engine.sglang.transfer",
        ),
        ({"publication": {"full_every": 2}}, "publication.full_every"),
        ({"evaluation": {"weights": "ema"}, "train": {"ema": 0.9}}, "evaluation.weights"),
    ],
)
def test_a_direct_publication_refuses_what_it_cannot_do(
    sections: dict[str, dict[str, Any]], key: str
) -> None:
    staged = config(**sections)
    publication = sections.get("publication", {}) | {"path": "direct"}
    direct = config(**(sections | {"publication": publication}))
    new = [each for each in contradictions(direct) if each not in list(contradictions(staged))]
    ((keys, remedy),) = new
    assert keys == ("publication.path", key) and "set path to staged" in remedy
    assert not list(contradictions(config(publication={"path": "direct"})))
    servers = config(engine=SERVERS, rollout={"actors": 1}, publication={"path": "direct"})
    assert not list(contradictions(servers))


@pytest.mark.parametrize(
    ("model", "published", "engine", "expected"),
    [
        ("float32", "model", {}, ("float32", "float32", False)),
        ("float32", "bfloat16", {}, ("bfloat16", "float32", True)),  # which it widens them to
        ("float32", "bfloat16", SERVERS, ("bfloat16", "bfloat16", True)),
        ("bfloat16", "bfloat16", {}, ("bfloat16", "bfloat16", False)),
        ("bfloat16", "model", SERVERS, ("bfloat16", "bfloat16", False)),
        ("bfloat16", "fp8", {}, ("bfloat16", "bfloat16", True)),
        ("float32", "fp8", {}, ("float32", "float32", True)),
    ],
)
def test_the_type_that_is_sent_and_the_one_that_engines_hold(
    model: str, published: str, engine: dict[str, Any], expected: tuple[str, str, bool]
) -> None:
    c = config(model={"dtype": model}, publication={"dtype": published}, engine=engine)
    assert (
        c.publication.sent_dtype(c.model),
        engine_dtype(c),
        c.publication.rounds(c.model),
    ) == expected


@pytest.mark.parametrize("sent", ["model", "fp8"])
def test_weights_that_both_sides_round_are_rounded_once(sent: str) -> None:
    both = config(model={"rounding": "fp8"}, publication={"dtype": sent})
    assert not both.publication.rounds(both.model) and not list(contradictions(both))
    assert not [each for each in advice(both) if each.key == "publication.dtype"]
    served = {"engine": SERVERS, "rollout": {"actors": 1}}
    assert computed_dtype(config(publication={"dtype": sent}, **served)) == (
        "fp8" if sent == "fp8" else "float32"  # whose activations are rounded, too
    )
    assert computed_dtype(both) == "float32"


def test_weights_that_engines_alone_round_are_advised_against() -> None:
    alone = config(publication={"dtype": "fp8"})
    (found,) = advice(alone)
    assert found.key == "publication.dtype" and "model.rounding = fp8" in found.text


@pytest.mark.parametrize(
    ("sections", "keys", "remedy"),
    [
        ({"model": {"lora": {"rank": 2}}}, ("model.rounding", "model.lora.rank"), "rank to 0"),
        ({"train": {"ranks": 2}}, ("model.rounding", "train.ranks"), "lower ranks to 1"),
        (
            {
                "engine": {"kind": "vllm", "vllm": {"launch": ["python3"]}},
                "publication": {"dtype": "fp8"},
            },
            ("publication.dtype", "engine.vllm.urls"),
            "start servers with an fp8 copy of it",
        ),
    ],
)
def test_rounding_is_refused_where_it_cannot_be_one(
    sections: dict[str, dict[str, Any]], keys: tuple[str, ...], remedy: str
) -> None:
    given = dict(sections)
    given["model"] = given.get("model", {}) | {"rounding": "fp8"}
    ((found, words),) = contradictions(config(**given))
    assert found == keys and remedy in words


def test_a_phase_takes_longer_for_more_bytes(tmp_path: Path) -> None:
    """8B in bfloat16, hashed by one thread in three layouts at 0.27 GB/s, takes 182 s."""
    with (tmp_path / "model-1.safetensors").open("wb") as file:
        file.truncate(16_400_000_000)  # a hole
    sets = [f"model.path={tmp_path}", "model.dtype=bfloat16", "publication.deadline_s=60"]
    config = load(None, sets, {})
    assert sent_bytes(config) == 16_400_000_000
    assert publication_s(config) == phase_s(60.0, 16_400_000_000) > 182 + 60
    assert publication_s(load(None, sets[2:], {})) == 60.0
    assert publication_s(load(None, [f"model.path={tmp_path / 'none'}", sets[2]], {})) == 60.0
