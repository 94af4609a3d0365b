"""The experts that a vLLM server returns: as its own code makes them, and as no server makes
them."""

from __future__ import annotations

import subprocess
from base64 import b64encode
from io import BytesIO
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from asyncrl.config import ConfigError
from asyncrl.config.load import load
from asyncrl.engines.servers.server_routing import RoutingLayout
from asyncrl.engines.servers.server_types import Garbled, StreamEvent
from asyncrl.engines.vllm.vllm_types import VllmIncrements

LAYOUT = RoutingLayout(3, (0, 2), 2, 100)
ROWS = np.array([[[1, 2], [0, 0], [4, 3]], [[7, 0], [0, 0], [9, 8]]], np.uint8)
TINY = Path(__file__).with_name("wheel_routing.py")


def text(rows: np.ndarray) -> str:
    file = BytesIO()
    np.save(file, rows, allow_pickle=False)
    return b64encode(file.getvalue()).decode()


def read(
    routed: str | None,
    tokens: int = 2,
    *,
    finish: str = "length",
    layout: RoutingLayout | None = LAYOUT,
) -> StreamEvent:
    """The last event of a stream, whose tokens are all in it."""
    ids = list(range(tokens))
    content = [{"token_id": id, "logprob": -1.0} for id in ids]
    choice = {"token_ids": ids, "finish_reason": finish, "routed_experts": routed}
    event = {"choices": [choice | {"logprobs": {"content": content}}]}
    found = VllmIncrements("4", layout).read(msgspec.json.encode(event))
    assert isinstance(found, StreamEvent)
    return found


@pytest.mark.explore
@pytest.mark.slow
def test_rows_are_those_of_the_wheel_from_the_position_that_was_asked_for(
    vllm_launch: tuple[str, ...],
) -> None:
    """A prompt of 5 tokens, of which the last position predicts the first of 7 new tokens."""
    command = [*vllm_launch, str(TINY), "5", "4", "7"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=TINY.parent)
    event = read(done.stdout.split()[-1], 7)
    expected = [
        [2 * position + layer + k for layer in LAYOUT.routed for k in (0, 1)]
        for position in range(4, 11)
    ]
    assert event.routing is not None and event.routing.tolist() == expected


@pytest.mark.parametrize("kind", ["uint8", "uint16", "int32"])
def test_numbers_of_any_size_are_read(kind: str) -> None:
    event = read(text(ROWS.astype(kind)))
    assert event.routing is not None
    assert event.routing.tolist() == [[1, 2, 4, 3], [7, 0, 9, 8]]
    many = LAYOUT._replace(experts=300)
    wide = read(
        text(ROWS.astype(kind) if kind == "uint8" else ROWS.astype(kind) + 256), layout=many
    )
    assert wide.routing is not None and wide.routing.shape == (2, 8)
    more = 0 if kind == "uint8" else 256
    assert wide.routing.view("<u2").tolist()[1] == [7 + more, more, 9 + more, 8 + more]


def test_a_request_that_was_aborted_has_what_there_is() -> None:
    assert read(None, finish="abort").routing is None
    fewer = read(text(ROWS), 3, finish="abort").routing
    assert fewer is not None and len(fewer) == 2
    more = read(text(ROWS), 1, finish="abort").routing
    assert more is not None and more.tolist() == [[1, 2, 4, 3]]
    assert read(text(ROWS), layout=None).routing is None


def test_a_server_that_records_nothing_is_named_where_a_token_has_one_expert_too() -> None:
    one = LAYOUT._replace(chosen=1)
    rows = np.zeros((16, 3, 1), np.uint8)
    short = read(text(rows[:15]), 15, layout=one).routing
    assert short is not None and not short.any()
    with pytest.raises(Garbled, match="no router can have chosen"):
        read(text(rows), 16, layout=one)
    rows[7, 2] = 1
    assert read(text(rows), 16, layout=one).routing is not None


def header(shape: str) -> str:
    """A file whose header promises a shape that it has not."""
    words = f"{{'descr': '<i4', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    return b64encode(b"\x93NUMPY\x01\x00v\x00" + words.encode()).decode()


@pytest.mark.parametrize(
    ("routed", "said"),
    [
        (None, "returned no experts with the end of a response: start it with"),
        (text(ROWS[:1]), "the experts of 1 tokens with the end of 2"),
        (text(np.concatenate([ROWS, ROWS])), "the experts of 4 tokens with the end of 2"),
        (text(ROWS[:, :2]), "8 numbers of experts, which are not rows of 2 in 3 layers"),
        (text(np.zeros_like(ROWS)), "no router can have chosen"),
        (text(np.full_like(ROWS, 100)), "no router can have chosen"),
        (text(ROWS.astype(np.int32) - 9), "no router can have chosen"),
        (text(ROWS.astype(np.float32)), "in no array"),
        (text(np.asfortranarray(ROWS)), "in no array"),
        (b64encode(b"nothing").decode(), "in no array"),
        (header("(1000000000000,)"), "the experts of 0 tokens with the end of 2"),
        (header("(" * 50), "in no array"),
        ("é", "no base64"),
        ("====", "no base64"),
    ],
)
def test_what_cannot_be_the_experts_of_a_response_is_named(routed: Any, said: str) -> None:
    with pytest.raises(Garbled, match=said):
        read(routed)


def test_a_server_on_a_cpu_is_refused_before_it_is_started() -> None:
    from asyncrl.actors.engines.vllm import VllmServers

    sets = ["engine.kind=vllm", 'engine.vllm.launch=["python"]', "model.path=/m"]
    config = load(None, [*sets, "train.router_replay=true"], {})
    with pytest.raises(ConfigError, match="vLLM on a CPU records no experts"):
        VllmServers.check(config)
