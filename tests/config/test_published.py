"""Ways and types of weights: what follows from settings, and what is refused."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from without_rules import without_rules

from asyncrl.config import Config
from asyncrl.config.published import engine_dtype
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
